"""What shapes the vectors of an index, and who is told how making them goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

MIN_DIMENSIONS = 8
MAX_DIMENSIONS = 4096

# "auto" and the three kinds; anything else is a string for faiss' index factory.
KIND_NAMES = ("auto", "flat", "hnsw", "ivfpq")


@dataclass(frozen=True, slots=True)
class VectorOptions:
    """How vectors are made.

    Attributes:
        kind: "auto" (by rule, see `kinds`), "flat", "hnsw", "ivfpq", or a string for faiss' index factory.
        dimensions: Length of a lexical vector, None for the embedder's own choice; encoders have theirs.
        columns: Metadata columns whose texts get vectors beside titles and aliases. None: `description` where
            the index has such a column of strings.
        sample: Most vectors that the quantisers are trained on; None: by rule.
        device: Where an encoder runs.
        seed: Of everything random.

    Raises:
        ValueError: a number is out of its bounds, or the kind is empty.
    """

    kind: str = "auto"
    dimensions: int | None = None
    columns: tuple[str, ...] | None = None
    sample: int | None = None
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.kind:
            raise ValueError(f"kind: expected one of {list(KIND_NAMES)} or a faiss factory string, got ''")
        if self.dimensions is not None and not MIN_DIMENSIONS <= self.dimensions <= MAX_DIMENSIONS:
            raise ValueError(
                f"dimensions: expected {MIN_DIMENSIONS} <= it <= {MAX_DIMENSIONS}, got {self.dimensions}"
            )
        if self.sample is not None and self.sample < 1:
            raise ValueError(f"sample: expected at least 1, got {self.sample}")
        if not 0 <= self.seed < 1 << 31:
            raise ValueError(f"seed: expected 0 <= it < 2**31, got {self.seed}")


class VectorProgress(Protocol):
    """Told about every step; the progress of a build is one."""

    def phase(self, name: str, total: int | None = None) -> None:
        """A phase begins; `total` units of work are expected, None when unknown."""

    def advance(self, done: int, note: str) -> None:
        """`done` units of the phase are finished in all; `note` says so in words."""

    def note(self, text: str) -> None:
        """Something worth a line of its own has been found out."""
