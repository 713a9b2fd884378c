"""Makes leaves of strings of any content and a bounded number of characters, with every legal escape.

Length bounds need to know how many characters each token begins: tokens are grouped by that number once for
a vocabulary.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.grammar.leaves.dfa_leaf import DfaLeaf
from decoding.grammar.leaves.leaf import FEW_TOKENS, Exit, LeafTokens, TokenCache
from decoding.grammar.leaves.table_walk import TableWalker, TransitionTable, ranges
from decoding.grammar.regular.byte_dfa import ByteDfa
from decoding.grammar.regular.dfa import Dfa
from decoding.grammar.regular.json_spelling import spell_any_text, spell_texts
from decoding.grammar.token_trie import TokenNode
from decoding.grammar.vocabulary import Vocabulary

if TYPE_CHECKING:
    from decoding.grammar.token_trie import FlatTrie


# Places in the trie at which strings may stand; grammars with many patterns lay many of them over each other.
_MAX_PROFILES = 4096


class AnyText:
    """All strings over one vocabulary: what strings with bounds share.

    Args:
        vocabulary: Whose tokens the strings let through.
        walker: Of the vocabulary.
        canonical: Whether every text has one spelling, or every escape of JSON is allowed.
    """

    def __init__(self, vocabulary: Vocabulary, walker: TableWalker, canonical: bool = False) -> None:
        self.vocabulary = vocabulary
        self.is_canonical = canonical
        self.strings = all_strings(vocabulary.writable_texts, canonical)
        self.unbounded = DfaLeaf(self.strings.automaton, walker, is_shared=True)
        # Characters that tokens begin, and as many as can matter to bounds.
        self.longest_token = vocabulary.longest_token_characters
        self._walker = walker
        self._profiles: dict[tuple[int, tuple[int, ...]], StringTokens] = {}
        self._within = TokenCache()

    @property
    def num_states(self) -> int:
        """States of the automaton without bounds."""
        return self.strings.automaton.num_states

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
                self._forget()
            profile = self._profiles.setdefault(place, self._profile(*place))
        bounds = (min(least, profile.most_needed), min(most, profile.most_begun))
        found = self._within.get((place, bounds))
        if found is None:
            found = self._within.put((place, bounds), profile.within(*bounds))
        return found

    def _forget(self) -> None:
        """Keep what every request needs and takes longest to find."""
        place = (self.strings.body, self.vocabulary.root.positions)
        kept = self._profiles.get(place)
        self._profiles = {} if kept is None else {place: kept}

    def _profile(self, state: int, positions: tuple[int, ...]) -> StringTokens:
        return StringTokens(
            self.vocabulary, self._walker, self.strings, self.unbounded.table, state, positions
        )

    @cached_property
    def endings(self) -> tuple[bytes, ...]:
        """By state within a character, a shortest text that completes it; b"" for the other states."""
        outside = (0, self.strings.body, self.strings.done)
        return tuple(
            b"" if state in outside else self.unbounded.shortest(state)[:-1]
            for state in range(self.num_states)
        )

    @cached_property
    def shortest_character(self) -> bytes:
        """A shortest character, of those the first in byte order."""
        body = self.strings.body
        characters = [
            bytes([byte]) + self.endings[target]
            for byte, _, target in self.strings.automaton.rows[body]
            if byte != QUOTE
        ]
        return min(characters, key=lambda character: (len(character), character))

    def warm_up(self) -> None:
        """Find the tokens of every state, and of strings that have just been opened within a token."""
        root = self.vocabulary.root
        for state in range(self.num_states):
            self.unbounded.tokens(state, root)
        body = self.strings.body
        profile = self._profiles[body, root.positions] = self._profile(body, root.positions)
        profile.warm_up()
        trie = self.vocabulary.trie
        for position in (trie.byte == QUOTE).nonzero()[0].tolist():
            if trie.end_view[position] > position + 1:
                self.unbounded.tokens(body, TokenNode(trie, (position,)))


class CountedTextLeaf:
    """Strings of `least` to `most` characters (`decoding.grammar.leaves.leaf.Leaf`).

    A state is the number of characters begun, as far as it matters, and a state of the automaton without
    bounds. Which tokens may come depends on no more than the longest token can tell of the number.

    Args:
        least: Fewest characters.
        most: Most characters, at least `least`; None: no bound.
        any_text: Of the vocabulary.

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
        self._num_states = any_text.num_states
        self._body = any_text.strings.body
        self._done = any_text.strings.done
        # Without a bound, numbers beyond the least are all the same.
        self._last = least if most is None else most

    @property
    def num_bytes(self) -> int:
        """What this leaf alone holds; its tokens are shared with all strings."""
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
        """No state has a longer shortest text, in bytes."""
        return len(self.shortest(0)) + self._base.farthest

    @property
    def labels(self) -> tuple[int, ...]:
        """All labels that texts have."""
        return (0,)

    def edges(self, state: int) -> Mapping[int, int] | None:
        """All allowed bytes and the states they lead to, where they are few."""
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
        """The tokens below a node that pass, None where `edges` lists all bytes."""
        count, inner = divmod(state, self._num_states)
        if inner == self._body and self._most is not None and count == self._last:
            return None
        if self._base.edges(inner) is not None:
            return None
        remaining = self._any.longest_token if self._most is None else self._most - count
        return self._any.tokens(inner, node, self._least - count, remaining)


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
        table: TransitionTable,
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


QUOTE = ord('"')


class Strings(NamedTuple):
    """All strings, of those that can be written.

    A string's characters begin where a byte other than the quote leads out of `body`.

    Attributes:
        automaton: Starts in state 0, before the opening quote.
        body: The state between two characters.
        done: The state behind the closing quote.
    """

    automaton: ByteDfa
    body: int
    done: int


def all_strings(writable: ByteDfa | None = None, canonical: bool = False) -> Strings:
    """The automaton of all JSON strings.

    Args:
        writable: The texts that can be written at all, the quote among them; None: all.
        canonical: Whether every text has one spelling, or every escape of JSON is allowed.
    """
    automaton = spell_texts(Dfa.everything()) if canonical else spell_any_text()
    if writable is not None:
        automaton = automaton & writable
    body = automaton.step(0, QUOTE)
    return Strings(automaton, body, automaton.step(body, QUOTE))
