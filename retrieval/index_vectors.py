"""The vectors of an open index, or why there are none to be used."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from retrieval.errors import EvidenceMissingError, GenretError
from retrieval.index.reader import Index
from retrieval.vectors.shortlister import Shortlister

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class IndexVectors:
    """What proposes entities of an index.

    Attributes:
        found: What proposes them, or why nothing can; raise `problem`, not this, which many requests share.
    """

    found: Shortlister | GenretError

    @property
    def shortlister(self) -> Shortlister | None:
        """Proposes entities; None where nothing can."""
        return None if isinstance(self.found, GenretError) else self.found

    @property
    def problem(self) -> GenretError | None:
        """Why nothing can, an error of its own for whoever asks; None where something does."""
        return _another(self.found) if isinstance(self.found, GenretError) else None

    @classmethod
    def open(cls, index: Index, encoder: str | Path | None, device: str) -> Self:
        """Open the vectors of an index. Those that cannot be used are no error: `problem` says why not.

        Args:
            index: An open index.
            encoder: Where the encoder that made the vectors lies now; None: where it lay then.
            device: Where an encoder runs.
        """
        if index.vectors is None:
            return cls.missing(index)
        try:
            return cls(Shortlister.open(index, encoder, device))
        except GenretError as error:
            _LOG.warning(
                "the vectors of %s cannot be used, and nothing proposes entities: %s", index.path, error
            )
            return cls(error.with_traceback(None))

    @classmethod
    def missing(cls, index: Index) -> Self:
        """Return what an index without vectors has."""
        return cls(
            EvidenceMissingError(
                f"the index {index.path} has no vectors, which the method shortlist needs; "
                "add them with: genret update --vectors, or build-index --vectors"
            ),
        )

    def require(self) -> Shortlister:
        """Return what proposes entities.

        Raises:
            EvidenceMissingError: the index has no vectors.
            GenretError: they cannot be used.
        """
        if isinstance(self.found, GenretError):
            raise _another(self.found)
        return self.found


def _another(error: GenretError) -> GenretError:
    """Return an equal error. One that is raised again and again holds the frames of all who ever asked."""
    made: GenretError = type(error).__new__(type(error), *error.args)
    made.__dict__.update(error.__dict__)
    return made
