"""The leaves of one vocabulary: equal languages are one object, so that their token masks are shared."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable

from decoding.grammar.leaves.leaf import Leaf
from decoding.grammar.leaves.sparse_leaf import SparseLeaf
from decoding.grammar.leaves.table_walk import TableWalker
from decoding.grammar.vocabulary.vocabulary import Vocabulary

_LITERALS = ((1, b"null"), (2, b"false"), (4, b"true"))


class Leaves:
    """Makes leaves, and keeps them.

    Args:
        vocabulary: Whose tokens the leaves let through.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._walker = TableWalker(vocabulary)
        self._kept: dict[Hashable, Leaf] = {}

    def literals(self, bits: int) -> Leaf:
        """`null`, `false` and `true`, by the bits of `JsonType`; all of them have label 0.

        Raises:
            ValueError: none of them is asked for.
        """
        texts = {text: 0 for bit, text in _LITERALS if bits & bit}
        return self._keep(SparseLeaf(("literals", tuple(texts)), texts, is_shared=True))

    def literal_keys(self, names: Iterable[str]) -> Leaf:
        """Strings that are given one by one, with their quotes; each one's label is its place among them."""
        texts = {json.dumps(name, ensure_ascii=False).encode(): label for label, name in enumerate(names)}
        return self._keep(SparseLeaf(("texts", tuple(texts)), texts))

    def warm_up(self) -> None:
        """Compile what is compiled."""
        self._walker.warm_up()

    def _keep(self, leaf: Leaf) -> Leaf:
        return self._kept.setdefault(leaf.key, leaf)
