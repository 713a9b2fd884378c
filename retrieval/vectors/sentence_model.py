"""Vectors by a sentence-transformers model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from retrieval.vectors.embedder import FloatMatrix


class SentenceEmbedder:
    """A sentence-transformers model, its prompts for queries and documents included.

    Args:
        place: Checkpoint directory or hub id.
        device: Where the model runs: "cpu", "cuda", "cuda:1", "auto".

    Raises:
        ModelError: the checkpoint cannot be used.
    """

    dimensions: int
    fingerprint: str

    def __init__(self, place: str | Path, device: str = "cpu") -> None:
        raise NotImplementedError

    def embed_texts(self, texts: Sequence[str]) -> FloatMatrix:
        """Return the vectors of catalogue texts. See `TextEmbedder`."""
        raise NotImplementedError

    def embed_queries(self, texts: Sequence[str]) -> FloatMatrix:
        """Return the vectors of queries, which are made like those of texts."""
        return self.embed_texts(texts)

    def arrays(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """Return nothing: the checkpoint has it all."""
        return {}
