"""Makes leaves of strings of any content and a bounded number of characters, with every legal escape.

Length bounds depend on the number of characters that each token begins: tokens are grouped by it once for a
vocabulary.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from genret.decoding.grammar.leaves.dfa_leaf import DfaLeaf
from genret.decoding.grammar.leaves.leaf import FEW_TOKENS, Exit, LeafTokens, TokenCache
from genret.decoding.grammar.leaves.table_walk import Ints, TableWalker, ranges
from genret.decoding.grammar.regular.dfa import Dfa
from genret.decoding.grammar.regular.json_spelling import spell_any_text, spell_texts
from genret.decoding.grammar.token_trie import TokenNode
from genret.decoding.grammar.vocabulary import Vocabulary

if TYPE_CHECKING:
    from genret.decoding.grammar.token_trie import FlatTrie


QUOTE = ord('"')
# Most kept places of the trie at which strings may stand; grammars with many patterns combine many.
_MAX_PROFILES = 4096


class AnyText:
    """All strings over one vocabulary: the shared part of strings with bounds.

    Args:
        vocabulary: The vocabulary.
        walker: Walker of the vocabulary.
        canonical: Whether every text has one spelling; otherwise every escape of JSON is allowed.

    Attributes:
        automaton: Automaton of all strings that can be written; start 0, before the opening quote.
        body: State between two characters; bytes other than the quote begin a character there.
        done: State behind the closing quote.
        unbounded: Leaf of the automaton.
    """

    def __init__(self, vocabulary: Vocabulary, walker: TableWalker, canonical: bool = False) -> None:
        self.vocabulary = vocabulary
        self.is_canonical = canonical
        automaton = spell_texts(Dfa.everything()) if canonical else spell_any_text()
        writable = vocabulary.writable_texts
        self.automaton = automaton if writable is None else automaton & writable
        self.body = self.automaton.step(0, QUOTE)
        self.done = self.automaton.step(self.body, QUOTE)
        self.unbounded = DfaLeaf(self.automaton, walker, is_shared=True)
        self.longest_token = vocabulary.longest_token_characters
        self._walker = walker
        self._profiles: dict[tuple[int, tuple[int, ...]], StringTokens] = {}
        self._within = TokenCache()

    @property
    def num_bytes(self) -> int:
        """Memory of the automaton and of all tokens found so far."""
        profiles = sum(profile.num_bytes for profile in list(self._profiles.values()))
        return self.unbounded.num_bytes + profiles + self._within.num_bytes

    def tokens(self, state: int, node: TokenNode, least: int, most: int) -> LeafTokens | None:
        """The tokens that begin at most `most` characters, and close the string only behind `least`."""
        if least <= 0 and most >= self.longest_token:
            return self.unbounded.tokens(state, node)
        place = (state, node.positions)
        profile = self._profiles.get(place)
        if profile is None:
            if len(self._profiles) >= _MAX_PROFILES:
                # Keep what every request needs and takes longest to find.
                common = (self.body, self.vocabulary.root.positions)
                kept = self._profiles.get(common)
                self._profiles = {} if kept is None else {common: kept}
            profile = self._profiles.setdefault(place, StringTokens(self, self._walker, *place))
        bounds = (min(least, profile.most_needed), min(most, profile.most_begun))
        found = self._within.get((place, bounds))
        if found is None:
            found = self._within.put((place, bounds), profile.within(*bounds))
        return found

    @cached_property
    def endings(self) -> tuple[bytes, ...]:
        """By state within a character, a shortest text that completes it; b"" for the other states."""
        outside = (0, self.body, self.done)
        return tuple(
            b"" if state in outside else self.unbounded.shortest(state)[:-1]
            for state in range(self.automaton.num_states)
        )

    @cached_property
    def shortest_character(self) -> bytes:
        """A shortest character, of those the first in byte order."""
        edges = self.automaton.rows[self.body]
        characters = [bytes([byte]) + self.endings[after] for byte, _, after in edges if byte != QUOTE]
        return min(characters, key=lambda character: (len(character), character))

    def warm_up(self) -> None:
        """Find the tokens of every state, and of strings that have just been opened within a token."""
        root = self.vocabulary.root
        for state in range(self.automaton.num_states):
            self.unbounded.tokens(state, root)
        profile = StringTokens(self, self._walker, self.body, root.positions)
        self._profiles[self.body, root.positions] = profile
        profile.warm_up()
        trie = self.vocabulary.trie
        for position in (trie.byte == QUOTE).nonzero()[0].tolist():
            if trie.end_view[position] > position + 1:
                self.unbounded.tokens(self.body, TokenNode(trie, (position,)))


class CountedTextLeaf:
    """Strings of `least` to `most` characters (`Leaf`).

    A state is the number of characters begun, as far as it matters, and a state of the automaton without
    bounds. Allowed tokens depend on the number no further than the longest token can tell.

    Args:
        least: Fewest characters.
        most: Most characters, at least `least`; None: no bound.
        any_text: All strings over the vocabulary.

    Attributes:
        bounds: `least` and `most`.
        is_canonical: Whether every text has one spelling.
    """

    is_shared = True

    def __init__(self, least: int, most: int | None, any_text: AnyText) -> None:
        if least < 0 or (most is not None and most < least):
            raise ValueError(f"a string of {least} to {most} characters")
        self.key: Hashable = ("strings", least, most, any_text.is_canonical)
        self.bounds = (least, most)
        self.is_canonical = any_text.is_canonical
        self._least = least
        self._most = most
        self._any = any_text
        self._base = any_text.unbounded
        self._num_states = any_text.automaton.num_states
        self._body = any_text.body
        self._done = any_text.done
        # Without a bound, counts beyond the least are not told apart.
        self._last = least if most is None else most

    @property
    def num_bytes(self) -> int:
        """Memory of this leaf alone; its tokens are shared with all strings."""
        return 200

    def step(self, state: int, byte: int) -> int:
        """The state after one byte, -1 if it is not allowed."""
        count, inner = divmod(state, self._num_states)
        after = self._base.step(inner, byte)
        if inner != self._body or after < 0:
            return after if after < 0 else count * self._num_states + after
        if byte == QUOTE:
            return count * self._num_states + after if count >= self._least else -1
        if count == self._last:
            return -1 if self._most is not None else count * self._num_states + after
        return (count + 1) * self._num_states + after

    @property
    def farthest(self) -> int:
        """Bytes of the longest of the states' shortest texts."""
        return len(self.shortest(0)) + self._base.farthest

    @property
    def labels(self) -> tuple[int, ...]:
        """All labels that texts have."""
        return (0,)

    def edges(self, state: int) -> Mapping[int, int] | None:
        """All allowed bytes and the states they lead to, if they are few."""
        count, inner = divmod(state, self._num_states)
        shift = count * self._num_states
        if inner == self._body and self._most is not None and count == self._last:
            return {QUOTE: shift + self._done}
        if inner == self._body and self._base.edges(self._body) is not None:
            following = {byte: self.step(state, byte) for byte in range(256)}
            return {byte: after for byte, after in following.items() if after >= 0}
        edges = self._base.edges(inner)
        return None if edges is None else {byte: shift + after for byte, after in edges.items()}

    def label(self, state: int) -> int:
        """0 behind the closing quote, -1 before it."""
        return 0 if state % self._num_states == self._done else -1

    def goes_on(self, state: int) -> bool:
        """Whether any byte is allowed in the state."""
        return state % self._num_states != self._done

    def shortest(self, state: int) -> bytes:
        """A shortest text that leads from the state to a final one."""
        count, inner = divmod(state, self._num_states)
        if inner == self._done:
            return b""
        opening = b'"' if not inner else self._any.endings[inner]
        return opening + self._any.shortest_character * max(0, self._least - count) + b'"'

    def tokens(self, state: int, node: TokenNode) -> LeafTokens | None:
        """The tokens below a node that pass; None if `edges` lists all bytes."""
        count, inner = divmod(state, self._num_states)
        if inner == self._body and self._most is not None and count == self._last:
            return None
        if self._base.edges(inner) is not None:
            return None
        remaining = self._any.longest_token if self._most is None else self._most - count
        return self._any.tokens(inner, node, self._least - count, remaining)


class StringTokens:
    """The tokens below some places of the trie that go on with a string of any content.

    A token's *begun* characters are those whose first byte it writes in the string; the quote is none.

    Args:
        any_text: All strings over the vocabulary.
        walker: Walker of the vocabulary.
        state: State of the table at the places.
        positions: The places.
    """

    def __init__(
        self, any_text: AnyText, walker: TableWalker, state: int, positions: tuple[int, ...]
    ) -> None:
        self._vocabulary = any_text.vocabulary
        trie = self._vocabulary.trie
        begin = (any_text.body, QUOTE)
        places, states, begun = walker.trace(any_text.unbounded.table, state, positions, begin)
        closing = states == any_text.done
        exits = np.flatnonzero(closing & (trie.end[places] > places + 1))
        self._exits = list(zip(places[exits].tolist(), begun[exits].tolist(), strict=True))
        tokens, numbers = _tokens_at(trie, places[closing], begun[closing])
        self._closing = list(zip(tokens.tolist(), numbers.tolist(), strict=True))
        tokens, numbers = _tokens_at(trie, places[~closing], begun[~closing])
        self._staying = tokens[np.argsort(numbers, kind="stable")]
        # By number of characters, the number of these tokens that begin at most so many.
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
        """Tokens that begin at most `most` characters, and close the string only behind `least` or more."""
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
