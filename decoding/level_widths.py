"""How many children a trie's states have at most, by depth: the widths that static shapes need."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from decoding.trie_arrays import TrieArrays


class LevelWidths:
    """Most children of any state after a number of tokens; known to the host, reckoned on first use.

    Nodes are numbered in level order, so the children of one level are the next level, and a pass over
    the runs of children is enough (6 M titles: 20 ms).

    Args:
        arrays: Of the trie; only `child_begin` is kept.
    """

    def __init__(self, arrays: TrieArrays) -> None:
        self._child_begin = arrays.child_begin
        self._depth = arrays.depth

    def at(self, depth: int) -> int:
        """Return the most children of any state `depth` tokens deep, 0 from the longest row's end on.

        Raises:
            ValueError: the depth is negative.
        """
        if depth < 0:
            raise ValueError(f"depth: expected 0 or more, got {depth}")
        if depth >= self._depth:
            return 0
        # A row that goes on below the nodes does so in its tail, one token at a time.
        return max(self._of_nodes[depth], 1) if depth < len(self._of_nodes) else 1

    @cached_property
    def _of_nodes(self) -> list[int]:
        """Most child nodes of a node, by level."""
        widths, begin, end = [], 0, 1
        while begin < end:
            widths.append(int(np.diff(self._child_begin[begin : end + 1]).max()))
            begin, end = end, int(self._child_begin[end])
        return widths
