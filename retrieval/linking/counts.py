"""Counts of a shard or of a whole run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(slots=True)
class LinkCounts:
    """What was linked; adds up.

    Attributes:
        num_documents: Documents read (parts of a long one count once, with the part they begin with).
        num_mentions: Mentions asked about.
        num_linked: To an entity.
        num_nil: To none.
        num_failed: Ended by an error; they are NIL too.
        num_cached: Answered from the cache, without the model.
        num_unproven: Lists that were to be exact and are not certified.
        num_bad_documents: Lines that are no documents.
        num_rows: Rows written.
    """

    num_documents: int = 0
    num_mentions: int = 0
    num_linked: int = 0
    num_nil: int = 0
    num_failed: int = 0
    num_cached: int = 0
    num_unproven: int = 0
    num_bad_documents: int = 0
    num_rows: int = 0

    def add(self, other: LinkCounts) -> None:
        """Add another's counts."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LinkCounts:
        """Read the fields from an object that may hold others too; what is missing is 0.

        Raises:
            ValueError: a field is no number.
        """
        found = {field.name: value.get(field.name, 0) for field in fields(cls)}
        if not all(type(number) is int for number in found.values()):
            raise ValueError(f"expected integers, got {found}")
        return cls(**found)

    def to_json(self) -> dict[str, int]:
        """Return the fields."""
        return asdict(self)
