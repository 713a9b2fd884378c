"""Memory that takes a page for what is written and none for the rest."""

from __future__ import annotations

import sys
from mmap import PAGESIZE
from pathlib import Path

import numpy as np
import pytest

from decoding.grammar.leaves.table_walk import sparse_zeros


@pytest.mark.parametrize("shape", [(0, 4), (3,), (7, 5, 2), (4097, 256)])
@pytest.mark.parametrize("dtype", [np.int32, np.uint64, np.uint8])
def test_sparse_memory_is_an_array_of_zeros(shape: tuple[int, ...], dtype: type[np.generic]) -> None:
    made = sparse_zeros(shape, dtype)
    assert made.shape == shape
    assert made.dtype == dtype
    assert made.flags.c_contiguous
    assert made.flags.writeable
    assert not made.any()
    made[...] = 1
    assert (made == 1).all()


@pytest.mark.skipif(sys.platform != "linux", reason="the resident set is read in Linux's unit")
def test_a_row_here_and_there_takes_a_page_of_memory_each() -> None:
    rows = sparse_zeros((1 << 18, 256), np.int32)
    touched = range(0, 1 << 18, 2048)
    before = _resident_bytes()
    for row in touched:
        rows[row, :] = 1
    assert _resident_bytes() - before < 64 * PAGESIZE * len(touched)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGESIZE
