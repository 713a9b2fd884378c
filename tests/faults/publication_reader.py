"""Reads an index in a process of its own: `python -m tests.faults.publication_reader INDEX`.

Opens it, says so, and then reads everything again for every line of standard input. Each answer is a line of
JSON: the version and a digest of what rows, entities and trie say.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from genret.decoding.trie.title_trie import TitleTrie
from genret.retrieval.index.reader import Index
from genret.retrieval.index.small_files import digest_bytes


def titles_by_trie(index: Index) -> list[str]:
    """Return the text of every row, found by walking the trie from its root."""
    trie = TitleTrie(index.trie_arrays(), index.vocab_size)
    states = trie.start(torch.zeros(1, dtype=torch.long))
    found: list[str] = []
    while len(states):
        final = trie.is_final(states)
        found += [index.surface(rank) for rank in trie.row(states[final]).tolist()]
        states = trie.children(states[~final]).next_state
    return sorted(found)


def digest(index: Index) -> str:
    """Return a digest of all that three ways of reading give, which must agree."""
    by_rank = sorted(index.surface(rank) for rank in range(index.num_rows))
    if titles_by_trie(index) != by_rank:
        raise AssertionError("the trie and the rows disagree")
    rows = [index.row_token_ids(rank) for rank in range(index.num_rows)]
    if [index.row_of(row) for row in rows] != list(range(index.num_rows)):
        raise AssertionError("a row is not found by its tokens")
    entities = [index.entity(number) for number in range(index.num_entities)]
    return digest_bytes(repr((by_rank, rows, entities)).encode())


def main(place: Path) -> None:
    """Open once, answer every line."""
    with Index.open(place) as index:
        print(json.dumps({"version": index.version}), flush=True)
        for _ in sys.stdin:
            print(json.dumps({"version": index.version, "digest": digest(index)}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
