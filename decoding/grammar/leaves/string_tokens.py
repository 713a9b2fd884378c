"""Which tokens a string lets through, by how many characters they begin: what length bounds need to know."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from decoding.grammar.leaves.leaf import FEW_TOKENS, Exit, LeafTokens
from decoding.grammar.leaves.numpy_walk import ranges
from decoding.grammar.leaves.string_table import QUOTE, Strings
from decoding.grammar.leaves.table_walk import Table, TableWalker

if TYPE_CHECKING:
    from decoding.grammar.vocabulary.flat_trie import FlatTrie
    from decoding.grammar.vocabulary.vocabulary import Vocabulary

Ints = NDArray[np.int32]


class StringTokens:
    """The tokens below some places of the trie that go on with a string of any content.

    A token's *begun* characters are those whose first byte it writes in the string; the quote is none.

    Args:
        vocabulary: Whose tokens.
        walker: Of the vocabulary.
        strings: All strings that can be written,
        table: and their automaton as walks read it.
        state: Of the table, at the places.
        positions: The places.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        walker: TableWalker,
        strings: Strings,
        table: Table,
        state: int,
        positions: tuple[int, ...],
    ) -> None:
        self._vocabulary = vocabulary
        trie = vocabulary.trie
        places, states, begun = walker.trace(table, state, positions, (strings.body, QUOTE))
        closing = states == strings.done
        exits = np.flatnonzero(closing & (trie.end[places] > places + 1))
        self._exits = list(zip(places[exits].tolist(), begun[exits].tolist(), strict=True))
        tokens, numbers = _tokens_at(trie, places[closing], begun[closing])
        self._closing = list(zip(tokens.tolist(), numbers.tolist(), strict=True))
        tokens, numbers = _tokens_at(trie, places[~closing], begun[~closing])
        self._staying = tokens[np.argsort(numbers, kind="stable")]
        # How many of them begin at most so many characters.
        self._bounds: list[int] = np.cumsum(np.bincount(numbers, minlength=1)).tolist()
        ends = [number for _, number in self._exits + self._closing]
        self.most_needed = max(ends, default=-1) + 1
        self.most_begun = max(len(self._bounds) - 1, self.most_needed)
        self._staying_masks: dict[int, NDArray[np.uint32]] = {}

    @property
    def num_bytes(self) -> int:
        """Memory of the tokens and of the masks made so far."""
        masks = len(self._staying_masks) * self._vocabulary.num_words * 4
        return self._staying.nbytes + masks + 100 * (len(self._exits) + len(self._closing))

    def within(self, least: int, most: int) -> LeafTokens:
        """Those that begin at most `most` characters, and close the string only behind at least `least`."""
        ended: list[int] = [token for token, number in self._closing if least <= number <= most]
        exits = [place for place, number in self._exits if least <= number <= most]
        rests = (Exit(0, self._vocabulary.rest(exits)),) if exits else ()
        num_staying = self._bounds[min(most, len(self._bounds) - 1)]
        if num_staying + len(ended) <= FEW_TOKENS:
            few = ended + self._staying[:num_staying].tolist()
            return LeafTokens(tuple(sorted(few)), None, rests)
        mask = self._staying_mask(num_staying).copy()
        for token in ended:
            mask[token >> 5] |= np.uint32(1 << (token & 31))
        mask.flags.writeable = False
        return LeafTokens((), mask, rests)

    def warm_up(self) -> None:
        """Make the masks of all bounds."""
        for num_staying in self._bounds:
            self._staying_mask(num_staying)

    def _staying_mask(self, num_staying: int) -> NDArray[np.uint32]:
        mask = self._staying_masks.get(num_staying)
        if mask is None:
            mask = self._vocabulary.packed(self._staying[:num_staying])
            self._staying_masks[num_staying] = mask
        return mask


def _tokens_at(trie: FlatTrie, places: Ints, numbers: Ints) -> tuple[Ints, Ints]:
    """List the tokens that end at some places, each with its place's number."""
    runs, owner = ranges(trie.token_begin[places], trie.token_begin[places + 1])
    return trie.tokens[runs], numbers[owner]
