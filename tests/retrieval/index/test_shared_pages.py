"""An open index costs a process no memory of its own: what torch reads are the pages of the mapped files."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from tests.index_fixtures import build, character_tokenizer

LETTERS = "abcdefghij"

# Opens an index, reads all of what walks its trie, prints where the tensors are and what the operating system
# says about the mappings of the index, and stays alive until its standard input is closed.
READER = """
import ctypes, re, sys
import torch
from decoding.trie.trie_kernels import TrieTables
from retrieval.index.reader import Index

index = Index.open(sys.argv[1], verify_digests=False)
tables = TrieTables.of(index.trie_arrays(), torch.device("cpu"))
tensors = [tables.token, tables.child_begin, tables.row_begin, tables.tail_begin]
assert all(int(t.to(torch.int64).sum()) >= 0 for t in tensors)

def is_of_the_trie(line):
    return line.rstrip().endswith("trie.arrow")

lock = ctypes.CDLL(None).mlock
for line in open("/proc/self/maps"):
    if is_of_the_trie(line):
        # A system short of memory would take pages away, and read them again; not all users may prevent it.
        low, high = (int(end, 16) for end in line.split()[0].split("-"))
        lock(ctypes.c_void_p(low), ctypes.c_size_t(high - low))
facts = {"Rss": 0, "Private_Clean": 0, "Private_Dirty": 0, "Shared_Clean": 0}
ranges, inside = [], False
for line in open("/proc/self/smaps"):
    header = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
    if header:
        inside = is_of_the_trie(line)
        if inside:
            ranges.append((int(header[1], 16), int(header[2], 16)))
    elif inside and line.split(":")[0] in facts:
        facts[line.split(":")[0]] += int(line.split()[1])
mapped = all(any(low <= t.data_ptr() < high for low, high in ranges) for t in tensors)
print(mapped, facts["Rss"], facts["Private_Clean"], facts["Private_Dirty"], facts["Shared_Clean"], flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs /proc")
def test_processes_share_the_pages_of_the_trie(tmp_path: Path) -> None:
    titles = ["".join(letters) for letters in itertools.product(LETTERS, repeat=4)]
    summary = build(tmp_path, ["title", *titles], character_tokenizer(LETTERS))
    size = (summary.index / "versions" / summary.version / "trie.arrow").stat().st_size // 1024
    readers: list[subprocess.Popen[str]] = []
    facts: list[list[str]] = []
    try:
        for _ in range(3):  # each looks while the ones before it are still there
            reader = subprocess.Popen(
                [sys.executable, "-c", READER, str(summary.index)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            readers.append(reader)
            assert reader.stdout is not None
            facts.append(reader.stdout.readline().split())
    finally:
        for reader in readers:
            reader.communicate(timeout=60)
    for mapped, rss, _, private_dirty, _ in facts:
        assert mapped == "True"  # the tensors are the mapping: zero-copy
        assert int(rss) >= size  # and have been read as a whole
        assert int(private_dirty) == 0  # without a copy of a single page
    for _, rss, private_clean, _, shared_clean in facts[1:]:
        assert int(private_clean) == 0  # what the later ones see, the first one has in memory already
        assert int(shared_clean) == int(rss)
