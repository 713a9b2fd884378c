from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from decoding.trie.trie_arrays import TrieDeriver
from index_builder.version_files import ArraySpill

ROWS = [(1, 2, 0), (1, 3, 0), (2, 0), (2, 1, 1, 0), (2, 1, 2, 0), (7, 0)]


def test_arrays_come_back_in_any_order(tmp_path: Path) -> None:
    spill = ArraySpill(tmp_path / "spill")
    arrays = [np.arange(5, dtype=np.uint16), np.empty(0, dtype=np.int32), np.arange(9, dtype=np.int64)[::2]]
    loads = [spill.put(array) for array in arrays]
    for array, load in reversed(list(zip(arrays, loads, strict=True))):
        for _ in range(2):
            assert load().tolist() == array.tolist()
            assert load().dtype == array.dtype
    spill.remove()
    spill.remove()
    assert not list(tmp_path.iterdir())


def test_a_file_cut_off_is_named(tmp_path: Path) -> None:
    spill = ArraySpill(tmp_path / "spill")
    load = spill.put(np.arange(5, dtype=np.int32))
    os.truncate(tmp_path / "spill", 12)
    with pytest.raises(OSError, match=r"spill ends early: expected 5 items at 0, got 3"):
        load()


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    spill = ArraySpill(Path("/dev/full"))
    with pytest.raises(OSError, match="No space left") as caught:
        spill.put(np.arange(5, dtype=np.int32))
    assert caught.value.filename == "/dev/full"


@pytest.mark.parametrize("block", [1, 2, 6])
def test_a_trie_is_the_same_whether_its_pieces_wait_in_memory_or_on_disk(tmp_path: Path, block: int) -> None:
    spill = ArraySpill(tmp_path / "spill")
    derivers = [TrieDeriver(np.uint8), TrieDeriver(np.uint8, spill.put)]
    for deriver in derivers:
        for begin in range(0, len(ROWS), block):
            rows = ROWS[begin : begin + block]
            tokens = np.array([token for row in rows for token in row], dtype=np.uint8)
            deriver.add(tokens, np.cumsum([0, *map(len, rows)]))
    one, other = (deriver.finish() for deriver in derivers)
    for name in one._fields:
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
