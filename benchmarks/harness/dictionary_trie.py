"""The usual trie of nested dictionaries: a node maps a token to the node behind it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from genret.index_builder.runs import gather_rows

Node = dict[int, Any]


def whole_dictionary(tokens: npt.NDArray[Any], offsets: npt.NDArray[np.int64]) -> Node:
    """Return the trie of all rows, written in random order; about 1.1 KB per title.

    In the order of the alphabet, neighbours in the trie would become neighbours in memory, which titles in
    the order of a catalogue do not. Row i is tokens[offsets[i] : offsets[i + 1]].
    """
    tokens, offsets = gather_rows(tokens, offsets, np.random.default_rng(0).permutation(len(offsets) - 1))
    root: Node = {}
    for begin, end in itertools.pairwise(offsets.tolist()):
        node = root
        for token in tokens[begin:end].tolist():
            following = node.get(token)
            if following is None:
                following = node[token] = {}
            node = following
    return root


def tokens_after(root: Node, prefix: Sequence[int]) -> list[int]:
    """Walk from the root and list what may follow."""
    node = root
    for token in prefix:
        node = node[token]
    return list(node)
