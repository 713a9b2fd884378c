"""Sorted runs: what a build merges.

A run holds entities in the lexicographic order of their titles' rows, and the forms (titles and aliases) of
these entities in the lexicographic order of their own rows. The shards of a build are runs, and so is a
version that is already there: a build merges shards, an update merges the live version with shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from retrieval.index.layout import ENTITY_BATCH_ROWS

IntArray = npt.NDArray[np.signedinteger]


@dataclass(frozen=True, slots=True)
class FormSlice:
    """F forms of one run, neighbours in its order.

    Attributes:
        tokens: Their rows, concatenated; ascending, equal rows may repeat. Shape: (total tokens,), unsigned.
        offsets: Row i is tokens[offsets[i] : offsets[i + 1]]; offsets[0] = 0. Shape: (F + 1,), int64.
        entity: The run's number of the entity of each form. Shape: (F,), int64.
        form: 0 for the title, n for the n-th alias. Shape: (F,), int32.
    """

    tokens: IntArray
    offsets: IntArray
    entity: IntArray
    form: IntArray


class Run(Protocol):
    """One sorted run. Reading a slice costs memory for the slice alone.

    Attributes:
        num_entities: Entities, dropped ones included.
        num_forms: Forms of all of them.
        keep: Which entities take part in the merge. Shape: (num_entities,), bool.
        has_ids: Whether any entity's id differs from its title.
    """

    num_entities: int
    num_forms: int
    keep: npt.NDArray[np.bool_]
    has_ids: bool

    def find(self, row: Sequence[int]) -> int:
        """Return how many forms sort before `row` (the lower bound), in 0 … num_forms."""

    def row(self, number: int) -> tuple[int, ...]:
        """Return the row of form `number`."""

    def forms(self, begin: int, end: int) -> FormSlice:
        """Return forms begin … end - 1."""

    def entities(self, begin: int, end: int) -> pa.Table:
        """Return entities begin … end - 1.

        Columns: `entity_id` and `title` (string), `aliases` (list<string>), and the metadata columns in the
        order and with the types of the version that is being made.
        """

    def close(self) -> None:
        """Let go of the files."""


def windows(numbers: IntArray) -> Iterator[tuple[int, int, slice]]:
    """Divide ascending entity numbers into spans of at most 65,536, for reading entities span by span.

    Args:
        numbers: Shape: (n,).

    Yields:
        The lowest number of a span, one more than its highest, and which of `numbers` are in it.
    """
    begin = 0
    while begin < len(numbers):
        low = int(numbers[begin])
        end = int(np.searchsorted(numbers, low + ENTITY_BATCH_ROWS))
        yield low, int(numbers[end - 1]) + 1, slice(begin, end)
        begin = end
