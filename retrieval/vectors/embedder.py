"""Embedders turn texts into vectors: their protocol, their names, and how they are opened."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from genret.retrieval.errors import IndexMismatchError, InputError, ModelError, require_package
from genret.retrieval.index.manifest import VectorsEntry

FloatMatrix = npt.NDArray[np.float32]

ENCODER = "encoder"
SENTENCE_TRANSFORMERS = "sentence-transformers"

_EXPECTED = f"expected {ENCODER}:MODEL or {SENTENCE_TRANSFORMERS}:MODEL"
_DEVICE = re.compile(r"auto|cpu|mps|(cuda|xpu)(:\d{1,3})?")


class TextEmbedder(Protocol):
    """Turns texts into vectors whose inner product measures their similarity."""

    @property
    def dimensions(self) -> int:
        """Length of a vector, d."""

    @property
    def fingerprint(self) -> str:
        """Identity of the embedder: vectors can be compared only if their embedders have the same."""

    def embed_texts(self, texts: Sequence[str]) -> FloatMatrix:
        """Return the vectors of catalogue texts: titles, aliases, descriptions.

        Rows have length 1, or are all 0 for a text in which nothing is known. Shape: (n, d), float32.
        """

    def embed_queries(self, texts: Sequence[str]) -> FloatMatrix:
        """Return the vectors of queries, which some models treat differently. Shape as above."""


def refuse_non_finite(vectors: FloatMatrix, place: object) -> None:
    """Raise ModelError if vectors of a model are not finite: a search with them finds anything."""
    broken = len(vectors) - int(np.isfinite(vectors).all(axis=1).sum())
    if broken:
        raise ModelError(
            f"{place}: the encoder gives vectors that are not finite for {broken} of {len(vectors)} texts"
        )


@dataclass(frozen=True, slots=True)
class VectorMethod:
    """A kind of embedder, "encoder" or "sentence-transformers", and the path or hub id of its model."""

    name: str
    source: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "encoder:MODEL" or "sentence-transformers:MODEL". Raises `InputError` if it is neither."""
        name, _, source = text.partition(":")
        if name not in (ENCODER, SENTENCE_TRANSFORMERS):
            raise InputError("vectors", f"{_EXPECTED}, got {text!r}")
        if not source.strip():
            raise InputError("vectors", f"{_EXPECTED}, where MODEL is a directory or a hub id; got {text!r}")
        return cls(name, source)

    def placed(self) -> Self:
        """Return the method with a local model's place as an absolute path."""
        return replace(self, source=absolute_place(self.source))

    def __str__(self) -> str:
        return f"{self.name}:{self.source}"


def absolute_place(source: str) -> str:
    """Return the absolute path of a model that is a directory here, or a hub id as it is."""
    return os.path.abspath(source) if Path(source).is_dir() else source


def is_path(source: str) -> bool:
    """Return whether the place of a model can only be a directory: a hub id is NAME or OWNER/NAME."""
    return source.startswith(("/", ".", "~")) or source.endswith("/") or len(Path(source).parts) > 2


def check_device_name(name: str) -> None:
    """Refuse names that are no device on any machine. Raises `InputError` if it is such a name."""
    if not _DEVICE.fullmatch(name):
        raise InputError(
            "vector_device", f"expected auto, cpu, cuda, cuda:N, mps, xpu or xpu:N, got {name!r}"
        )


def check_device(name: str) -> None:
    """Raise InputError for a device that this machine lacks, or for no name of a device."""
    check_device_name(name)
    if name in ("cpu", "auto"):
        return
    import torch  # takes seconds

    kind, _, number = name.partition(":")
    library = getattr(torch, kind)
    count = library.device_count() if library.is_available() else 0
    if int(number or 0) >= count:
        raise InputError("vector_device", f"there is no device {name!r} here: of {kind} there are {count}")


def open_model(method: VectorMethod, device: str = "cpu") -> TextEmbedder:
    """Return the embedder of a method, on a device; ModelError, MissingExtraError if it cannot be loaded."""
    if is_path(method.source) and not Path(method.source).is_dir():  # not to be looked for on the hub
        raise ModelError(f"{method.source}: there is no such directory")
    if method.name == ENCODER:
        from genret.retrieval.vectors.encoder import EncoderEmbedder

        return EncoderEmbedder(method.source, device)
    require_package("sentence_transformers", "sentence-transformers")
    from genret.retrieval.vectors.sentence_model import SentenceEmbedder

    return SentenceEmbedder(method.source, device)


def open_embedder(entry: VectorsEntry, source: str | Path | None = None, device: str = "cpu") -> TextEmbedder:
    """Return the embedder that made the vectors of an index, from its present place `source` if it has moved.

    Raises:
        IndexMismatchError: another embedder made the vectors.
        ModelError: the model cannot be loaded.
        MissingExtraError: a library is not installed.
    """
    place = str(entry.source if source is None else source)
    if is_path(place) and not Path(place).is_dir():
        raise ModelError(
            f"{place}: there is no such directory, and the vectors need the encoder that made them; "
            "--encoder says where it lies now"
        )
    embedder = open_model(VectorMethod(entry.method, place), device)
    if embedder.fingerprint != entry.fingerprint:
        raise IndexMismatchError(
            f"the vectors were made by an embedder with fingerprint {entry.fingerprint}, "
            f"{place} has {embedder.fingerprint}"
        )
    return embedder
