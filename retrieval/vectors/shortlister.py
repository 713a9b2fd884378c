"""From queries to shortlists: the embedder and the vectors of one index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from retrieval.index.reader import Index
from retrieval.vectors.shortlist import Shortlist


class Shortlister:
    """Proposes entities of one index. Safe to use from several threads."""

    @classmethod
    def open(cls, index: Index, encoder: str | Path | None = None, device: str = "cpu") -> Self:
        """Open the vectors of an index.

        Args:
            index: An open index.
            encoder: Where the encoder that made the vectors lies now; None: where it lay then. Not for vectors
                that need none.
            device: Where an encoder runs.

        Raises:
            VectorsMissingError: the index has no vectors.
            IndexChecksumError: their file differs from the manifest.
            IndexFormatError: it is no file of vectors, or one of other vectors than the manifest says.
            IndexMismatchError: the encoder is not the one that made them.
            MissingExtraError: a library is not installed.
        """
        raise NotImplementedError

    def propose(
        self,
        texts: Sequence[str],
        sizes: Sequence[int],
        allowed: Sequence[npt.NDArray[np.bool_] | None] | None = None,
    ) -> list[Shortlist]:
        """Return a shortlist per query.

        Args:
            texts: The queries.
            sizes: Most entities of each shortlist, at least 1.
            allowed: Per query which entities may be on it, None for all. Shape of each: (num_entities,), bool.

        Returns:
            Lists with fewer entities only where fewer are allowed.
        """
        raise NotImplementedError

    def similarities(self, text: str, entities: Sequence[int]) -> npt.NDArray[np.float32]:
        """Return how alike a query and each of some entities are, computed anew. Shape: (len(entities),)."""
        raise NotImplementedError
