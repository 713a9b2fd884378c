"""What turns texts into vectors: hashed n-grams, a Hugging Face encoder or a sentence-transformers model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from retrieval.errors import ModelError

FloatMatrix = npt.NDArray[np.float32]


class TextEmbedder(Protocol):
    """Turns texts into vectors whose inner product says how alike the texts are."""

    @property
    def dimensions(self) -> int:
        """Length of a vector, d."""

    @property
    def fingerprint(self) -> str:
        """What tells this embedder from any other: vectors of two can be compared only if it is the same."""

    def embed_texts(self, texts: Sequence[str]) -> FloatMatrix:
        """Return the vectors of catalogue texts: titles, aliases, descriptions.

        Returns:
            Rows of length 1; all 0 for a text in which nothing is known. Shape: (len(texts), d), float32.
        """

    def embed_queries(self, texts: Sequence[str]) -> FloatMatrix:
        """Return the vectors of queries, which some models treat otherwise than texts. Shape as above."""

    def similarities(self, query: str, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return how alike a query and some texts are: what the inner product of their vectors stands for.

        The inner product itself, or what it approximates where vectors are projections: then this tells texts
        apart that their vectors confuse.

        Returns:
            In [-1, 1] up to rounding. Shape: (len(texts),), float32.
        """

    def arrays(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """Return what has to be stored beside the vectors to make this embedder again; empty for models."""


def refuse_non_finite(vectors: FloatMatrix, place: object) -> None:
    """Refuse vectors that hold infinities or what is no number: a search with them finds anything.

    Args:
        vectors: What a model gave. Shape: (n, d).
        place: Where the model lies.

    Raises:
        ModelError: one of them does.
    """
    broken = len(vectors) - int(np.isfinite(vectors).all(axis=1).sum())
    if broken:
        raise ModelError(
            f"{place}: the encoder gives vectors that are not finite for {broken} of {len(vectors)} texts"
        )
