"""Texts that have ended within tokens, parted by whether it matters which text it was.

A token that ends an item of an array and begins the next one says at most where the next one begins, unless
it writes more of it. Only then can it write a text twice.
"""

from __future__ import annotations

import re

from decoding.grammar.vocabulary.token_node import TokenNode
from decoding.grammar.vocabulary.vocabulary import Vocabulary

SOME_TEXT = -2
"""Label of some text that has not been written before, whichever it is."""

# Nodes whose places are kept parted.
_MAX_NODES = 1024
_BLANKS = rb"[ \n]*"
# Behind an item a comma and at most the quote that opens the next one, or the end of the array. Whatever
# comes behind that end has nothing to do with the items.
_TELLS_NOTHING = re.compile(_BLANKS + rb"(?:," + _BLANKS + rb'"?\Z|\].*\Z|\Z)', re.DOTALL)
# What may follow an item at all.
_FOLLOWS = re.compile(_BLANKS + rb"(?:[,\]]|\Z)")


class AlikeExits:
    """Parts places behind ended texts; each place is looked at once.

    Args:
        vocabulary: Whose tokens.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        # By place: whether something may follow, and whether some token tells texts apart.
        self._kinds: dict[int, tuple[bool, bool]] = {}
        self._parted: dict[tuple[int, ...], tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def parted(self, rest: TokenNode) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The places of a node where it does not matter which text has ended, and those where it does.

        Places behind which nothing may follow an item are left out.
        """
        found = self._parted.get(rest.positions)
        if found is None:
            kinds = [(place, *self._kind(place)) for place in rest.positions]
            alike = tuple(place for place, goes_on, tells in kinds if goes_on and not tells)
            told = tuple(place for place, goes_on, tells in kinds if goes_on and tells)
            if len(self._parted) >= _MAX_NODES:
                self._parted = {}
            found = self._parted[rest.positions] = (alike, told)
        return found

    def _kind(self, place: int) -> tuple[bool, bool]:
        found = self._kinds.get(place)
        if found is None:
            trie = self._vocabulary.trie
            depth = trie.depth_view[place]
            first, behind = trie.token_begin_view[place + 1], trie.token_begin_view[trie.end_view[place]]
            rests = [self._vocabulary.written(token)[depth:] for token in trie.tokens_view[first:behind]]
            possible = [rest for rest in rests if _FOLLOWS.match(rest)]
            tells = any(not _TELLS_NOTHING.match(rest) for rest in possible)
            found = self._kinds[place] = (bool(possible), tells)
        return found
