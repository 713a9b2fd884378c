"""What makes vectors: how a user names it, how it is fitted, how it is opened again."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from retrieval.errors import IndexFormatError, IndexMismatchError, InputError, MissingExtraError, ModelError
from retrieval.index.layout import EMBEDDER_FILE
from retrieval.index.manifest_entries import VectorsEntry
from retrieval.vectors.embedder import TextEmbedder

LEXICAL = "lexical"
ENCODER = "encoder"
SENTENCE_TRANSFORMERS = "sentence-transformers"

MIN_DIMENSIONS = 8
MAX_DIMENSIONS = 4096

_EXPECTED = f"expected {LEXICAL}, {ENCODER}:MODEL or {SENTENCE_TRANSFORMERS}:MODEL"


@dataclass(frozen=True, slots=True)
class VectorMethod:
    """What makes vectors.

    Attributes:
        name: "lexical", "encoder" or "sentence-transformers".
        source: Path or hub id of the model; "" for lexical vectors.
    """

    name: str
    source: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "lexical", "encoder:MODEL" or "sentence-transformers:MODEL".

        Raises:
            InputError: it is none of them.
        """
        name, colon, source = text.partition(":")
        if name == LEXICAL:
            if colon:
                raise InputError("vectors", f"{LEXICAL} takes no model, got {text!r}")
            return cls(LEXICAL)
        if name not in (ENCODER, SENTENCE_TRANSFORMERS):
            raise InputError("vectors", f"{_EXPECTED}, got {text!r}")
        if not source.strip():
            raise InputError("vectors", f"{_EXPECTED}, where MODEL is a directory or a hub id; got {text!r}")
        return cls(name, source)

    def placed(self) -> Self:
        """Return the method with the place of a local model as an absolute path, good from anywhere."""
        return replace(self, source=absolute_place(self.source)) if self.source else self

    def __str__(self) -> str:
        return f"{self.name}:{self.source}" if self.source else self.name


def absolute_place(source: str) -> str:
    """Return the absolute path of a model that is a directory here; a hub id as it is."""
    return os.path.abspath(source) if Path(source).is_dir() else source


def is_path(source: str) -> bool:
    """Say whether the place of a model can be a directory alone: a hub id is NAME or OWNER/NAME."""
    return source.startswith(("/", ".", "~")) or source.endswith("/") or len(Path(source).parts) > 2


def fit_embedder(
    method: VectorMethod,
    sample: Sequence[str],
    dimensions: int | None = None,
    device: str = "cpu",
    seed: int = 0,
    num_texts: int | None = None,
) -> TextEmbedder:
    """Return what makes the vectors of a new index.

    Args:
        method: What is asked for.
        sample: Texts of the catalogue; lexical vectors learn from them what is rare.
        dimensions: Length of a vector; None: the method's own. Only lexical vectors have a choice.
        device: Where a model runs.
        seed: Of what is drawn at random.
        num_texts: How many texts the catalogue has, by which lexical vectors choose their length; None: as
            many as the sample.

    Raises:
        InputError: `dimensions` is not what the model gives, or out of range.
        ModelError: the model cannot be loaded.
        MissingExtraError: a library is not installed.
    """
    if method.name != LEXICAL:
        return _open_model(method.name, method.source, device, dimensions)
    _check_lexical()
    from retrieval.vectors.lexical import LexicalEmbedder, default_dimensions

    if dimensions is None:
        dimensions = default_dimensions(len(sample) if num_texts is None else num_texts)
    if not MIN_DIMENSIONS <= dimensions <= MAX_DIMENSIONS:
        raise InputError(
            "vector_dimensions", f"must be in [{MIN_DIMENSIONS}, {MAX_DIMENSIONS}], got {dimensions}"
        )
    return LexicalEmbedder.fit(sample, dimensions, seed)


def open_embedder(
    entry: VectorsEntry,
    arrays: Mapping[str, npt.NDArray[np.generic]],
    source: str | Path | None = None,
    device: str = "cpu",
) -> TextEmbedder:
    """Return what made the vectors of an index.

    Args:
        entry: What the manifest says of the vectors.
        arrays: What the embedder's `arrays` returned then.
        source: Where the model lies now; None: where it lay then.
        device: Where a model runs.

    Raises:
        InputError: a source is given, but the vectors need no model.
        IndexFormatError: the arrays are not such an embedder's.
        IndexMismatchError: it is another embedder than the one that made the vectors.
        ModelError: the model cannot be loaded.
        MissingExtraError: a library is not installed.
    """
    if entry.method == LEXICAL:
        if source is not None:
            raise InputError("encoder", f"the vectors are lexical and need no model, got {str(source)!r}")
        _check_lexical()
        from retrieval.vectors.lexical import LexicalEmbedder

        try:
            embedder: TextEmbedder = LexicalEmbedder.from_arrays(arrays)
        except IndexFormatError as error:
            raise IndexFormatError(f"{EMBEDDER_FILE}: {error}") from None
        place = "the stored embedder"
    else:
        place = str(entry.source if source is None else source)
        if is_path(place) and not Path(place).is_dir():
            raise ModelError(
                f"{place}: there is no such directory, and the vectors need the encoder that made them; "
                "--encoder says where it lies now"
            )
        embedder = _open_model(entry.method, place, device, None)
    if embedder.fingerprint != entry.fingerprint:
        raise IndexMismatchError(
            f"the vectors were made by an embedder with fingerprint {entry.fingerprint}, "
            f"{place} has {embedder.fingerprint}"
        )
    return embedder


def _open_model(name: str, source: str, device: str, dimensions: int | None) -> TextEmbedder:
    """Load the model named, and see that its vectors have the length asked for."""
    if is_path(source) and not Path(source).is_dir():  # never asked for on the hub
        raise ModelError(f"{source}: there is no such directory")
    if name == ENCODER:
        from retrieval.vectors.encoder import EncoderEmbedder

        embedder: TextEmbedder = EncoderEmbedder(source, device)
    else:
        if find_spec("sentence_transformers") is None:
            raise MissingExtraError("sentence_transformers", "sentence-transformers")
        from retrieval.vectors.sentence_model import SentenceEmbedder

        embedder = SentenceEmbedder(source, device)
    if dimensions not in (None, embedder.dimensions):
        raise InputError(
            "vector_dimensions",
            f"{source} gives vectors of length {embedder.dimensions} and no others, got {dimensions}",
        )
    return embedder


def _check_lexical() -> None:
    if find_spec("sklearn") is None:
        raise MissingExtraError("sklearn", "vectors")
