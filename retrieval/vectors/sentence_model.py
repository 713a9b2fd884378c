"""Embeds texts by a sentence-transformers model, with its own pooling and its prompts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from genret.decoding.errors import first_line
from genret.retrieval.checkpoints import folder_fingerprint, local_folder
from genret.retrieval.errors import ModelError
from genret.retrieval.index.small_files import digest_bytes
from genret.retrieval.vectors.embedder import FloatMatrix, refuse_non_finite

_BATCH_TEXTS = 64
_MODULES = "modules.json"
_PACKAGE = "sentence_transformers."

# Files fetched from the hub: none that can run code when it is read.
_FETCHED = ["*.json", "*.txt", "*.model", "*.safetensors"]
_NOT_FETCHED = {"ignore_patterns": ["onnx/*", "openvino/*"]}


class SentenceEmbedder:
    """A sentence-transformers model: safetensors weights, and none of the checkpoint's own code.

    Computed in float32 everywhere. Safe to use from several threads, one at a time.

    Args:
        place: Checkpoint directory or hub id.
        device: "cpu", "cuda", "cuda:1" or "auto".

    Attributes:
        dimensions: Length of a vector.
        fingerprint: Fingerprint of the checkpoint's files and its modules'.

    Raises:
        ModelError: the checkpoint cannot be used.
    """

    def __init__(self, place: str | Path, device: str = "cpu") -> None:
        self._place = place
        # A place that exists and is no folder is refused by what reads it.
        folder = Path(place) if Path(place).exists() else local_folder(place, _FETCHED, **_NOT_FETCHED)
        modules = _module_folders(folder)
        try:
            self._model = SentenceTransformer(
                str(folder),
                device=None if device == "auto" else device,
                trust_remote_code=False,
                local_files_only=True,
                model_kwargs={"use_safetensors": True},
            ).float()
        except Exception as error:  # its modules raise anything
            why = f"not a usable sentence-transformers model: {first_line(error)}"
            raise ModelError(f"{place}: {why}") from error
        self.fingerprint = _fingerprint(folder, modules)
        self._lock = Lock()  # its tokenizer cannot be used by two threads at once
        self.dimensions = self._embed(self._model.encode_document, ["a"]).shape[1]

    def embed_texts(self, texts: Sequence[str]) -> FloatMatrix:
        """Return the vectors of catalogue texts (`TextEmbedder`); ModelError if they are not finite."""
        return self._embed(self._model.encode_document, texts)

    def embed_queries(self, texts: Sequence[str]) -> FloatMatrix:
        """Return the vectors of queries, with the model's prompt for queries."""
        return self._embed(self._model.encode_query, texts)

    def _embed(self, encode: Callable[..., Any], texts: Sequence[str]) -> FloatMatrix:
        if not len(texts):
            return np.zeros((0, self.dimensions), dtype=np.float32)
        with self._lock:
            vectors = encode(
                list(texts), batch_size=_BATCH_TEXTS, show_progress_bar=False, normalize_embeddings=True
            )
        made: FloatMatrix = np.asarray(vectors, dtype=np.float32)
        refuse_non_finite(made, self._place)
        return made


def _module_folders(folder: Path) -> list[Path]:
    """Return the folders of a model's modules, after checking that reading them runs no foreign code."""
    file = folder / _MODULES
    if not file.is_file():
        raise ModelError(
            f"{folder} holds no {_MODULES}, so it is no sentence-transformers model; "
            f"the vectors of a plain encoder are asked for with encoder:{folder}"
        )
    try:
        listed = [(str(module["type"]), folder / module["path"]) for module in json.loads(file.read_bytes())]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{file}: malformed: {first_line(error)}") from error
    for kind, path in listed:
        if not kind.startswith(_PACKAGE):
            raise ModelError(f"{file} names {kind!r}, which is no module of sentence-transformers")
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ModelError(f"{file} names {str(path)!r}, which lies outside the checkpoint")
        pickled = sorted(path.glob("*.bin"))
        if pickled and not any(path.glob("*.safetensors")):
            raise ModelError(
                f"{pickled[0]} is pickled, which can run code when it is read; save it again as safetensors"
            )
    return [path for _, path in listed]


def _fingerprint(folder: Path, modules: list[Path]) -> str:
    """Return the fingerprint of a checkpoint and its modules."""
    whole = folder_fingerprint(folder)
    if folder.parent.name == "snapshots":
        return whole  # the hub's id and commit
    parts = [whole, *(folder_fingerprint(path) for path in modules if path.is_dir() and path != folder)]
    return "xxh3:" + digest_bytes(json.dumps(parts).encode())
