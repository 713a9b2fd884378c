"""Keeps a build within its memory limit: divides it among the steps, and cuts runs to fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from genret.index_builder.runs import Run
from genret.retrieval.errors import InputError

MIB = 1 << 20
DEFAULT_MEMORY_LIMIT = 2 << 30
MIN_MEMORY_LIMIT = 512 * MIB

# Interpreter, NumPy, Arrow and a tokenizer, before the first title is read.
_BASE = 300 * MIB


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """A limit on the resident memory of the process, in bytes.

    Raises:
        InputError: the limit is too small to work with.
    """

    limit_bytes: int = DEFAULT_MEMORY_LIMIT

    def __post_init__(self) -> None:
        if self.limit_bytes < MIN_MEMORY_LIMIT:
            raise InputError(
                "memory_limit",
                f"must be at least {MIN_MEMORY_LIMIT // MIB} MiB, got {self.limit_bytes} bytes",
            )

    @property
    def free_bytes(self) -> int:
        """Memory left for data."""
        return self.limit_bytes - _BASE


# Memory of a form while its range is merged, beside 16 bytes per token: numbers, sort keys, places.
_FORM_BYTES = 200
_TOKEN_BYTES = 16
# The same for a form of eight tokens, these included.
TYPICAL_FORM_BYTES = _FORM_BYTES + 8 * _TOKEN_BYTES


def cut(runs: Sequence[Run], block_bytes: int) -> list[list[tuple[int, int]]]:
    """Divide the forms of all runs into ranges of rows, ascending, of about `block_bytes` in a merge.

    The boundary rows are sampled from the runs at regular distances, a quarter of a range apart, so a range
    may be half as large again as wanted. Equal rows are never divided: a row that repeats millions of times
    makes one range that large, at some 330 bytes per repetition.

    Returns for every range the forms [begin, end) of each run. Shape: (ranges, runs).
    """
    bounds = [[run.find(row) for run in runs] for row in _splitters(runs, block_bytes)]
    edges = [[0] * len(runs), *bounds, [run.num_forms for run in runs]]
    ranges = [list(zip(low, high, strict=True)) for low, high in pairwise(edges)]
    return [spans for spans in ranges if any(begin < end for begin, end in spans)]


def _splitters(runs: Sequence[Run], block_bytes: int) -> list[tuple[int, ...]]:
    per_range = block_bytes // TYPICAL_FORM_BYTES
    step = max(per_range // (4 * max(len(runs), 1)), 1)
    sample = sorted(run.row(form) for run in runs for form in range(step // 2, run.num_forms, step))
    splitters: list[tuple[int, ...]] = []
    size = 0
    for row in sample:
        size += step * (_FORM_BYTES + _TOKEN_BYTES * len(row))
        if size >= block_bytes and (not splitters or row > splitters[-1]):
            splitters.append(row)
            size = 0
    return splitters
