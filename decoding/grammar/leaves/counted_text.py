"""Makes leaves of strings whose characters are counted beside their automaton, in Unicode code points.

An automaton that counts to 255 itself has 255 times the states. What matters of a count is how many more
characters must and may come: whether a text can then be completed is told by `CompletionCosts`, and what a
token does to a string, the characters it begins and the state behind it, is found once for all counts.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from genret.decoding.bounded_cache import BoundedCache
from genret.decoding.grammar.leaves.dfa_leaf import MAX_LISTED_EDGES, DfaLeaf
from genret.decoding.grammar.leaves.leaf import LeafTokens, TokenCache, TokenWalk
from genret.decoding.grammar.leaves.table_walk import TableWalker, ranges
from genret.decoding.grammar.regular.byte_dfa import ByteDfa
from genret.decoding.grammar.regular.completions import CHARACTER, NO_WAY, CompletionCosts, Completions
from genret.decoding.grammar.regular.dfa import ENDLESS
from genret.decoding.grammar.regular.json_spelling import BETWEEN
from genret.decoding.grammar.regular.ranges import Ranges
from genret.decoding.grammar.token_trie import TokenNode

QUOTE = ord('"')
_PROFILE_BYTES = 64 << 20
# States whose bytes are kept.
_MOST_LISTED = 512
_LEAF_BYTES = 200
_Longs = NDArray[np.int64]


class CountableTexts:
    """Strings without bounds: the part that strings of any lengths share.

    The automaton has the label `BETWEEN` between characters; `is_shared` and `strings` are as for `DfaLeaf`.
    """

    def __init__(
        self,
        automaton: ByteDfa,
        walker: TableWalker,
        is_shared: bool = False,
        strings: tuple[DfaLeaf, int] | None = None,
    ) -> None:
        self.automaton = automaton
        self.body = automaton.step(0, QUOTE)  # State behind the opening quote
        self.unbounded = DfaLeaf(automaton, walker, is_shared, strings)
        self.is_between = automaton.labels == BETWEEN  # Shape: (S,), bool
        self.longest_token = walker.vocabulary.longest_token_characters
        self.vocabulary = walker.vocabulary
        self._walker = walker
        self._profiles: BoundedCache[tuple[int, tuple[int, ...]], StringTokens] = BoundedCache(
            _PROFILE_BYTES, lambda place, made: made.num_bytes, math.inf
        )
        self._kept = TokenCache()

    @property
    def num_bytes(self) -> int:
        """Memory of the automaton and of all tokens found so far."""
        return self.unbounded.num_bytes + self._profiles.size + self._kept.size

    @cached_property
    def completions(self) -> Completions:
        """The ways to complete a string."""
        return Completions.of_bytes(self.automaton, self.is_between)

    def profile(self, state: int, node: TokenNode) -> StringTokens:
        """The tokens below a node, from a state on."""
        place = (state, node.positions)
        found = self._profiles.peek(place)
        return found or self._profiles.put(place, StringTokens(self, self._walker, *place, self._kept))

    def warm_up(self) -> None:
        """Find the tokens of every state, and of strings that have just been opened within a token."""
        vocabulary = self.vocabulary
        for state in range(self.automaton.num_states):
            self.unbounded.tokens(state, vocabulary.root)
        profile = self.profile(self.body, vocabulary.root)
        costs = self.completions.costs(0)
        for most in range(self.longest_token):
            profile.within(((0, most),), 0, costs)
        trie = vocabulary.trie
        for position in (trie.byte == QUOTE).nonzero()[0].tolist():
            if trie.end_view[position] > position + 1:
                self.unbounded.tokens(self.body, TokenNode(trie, (position,)))


class CountedTextLeaf:
    """Strings of some numbers of characters (`Leaf`).

    A state is the number of characters begun, as far as it matters, and a state of the automaton.

    Args:
        texts: The strings, of any length.
        lengths: Ranges of lengths, at least one; the last may be `ENDLESS`.
    """

    def __init__(self, texts: CountableTexts, lengths: Ranges) -> None:
        self.texts = texts
        self.lengths = lengths
        self.is_shared = texts.unbounded.is_shared
        self.key: Hashable = ("strings", lengths, texts.automaton.digest)
        self._base = texts.unbounded
        self._costs = texts.completions.costs(lengths[-1][0])
        self._num_states = texts.automaton.num_states
        self._is_between = texts.is_between.tolist()
        # With no upper bound, counts beyond the last lower one are not told apart.
        self._last = lengths[-1][0] if lengths[-1][1] == ENDLESS else ENDLESS
        self._listed: dict[int, dict[int, int] | None] = {}

    @property
    def is_empty(self) -> bool:
        """Whether there is no such string; then nothing else may be asked."""
        return self._cost(0, 0) >= NO_WAY

    @property
    def num_bytes(self) -> int:
        """Memory of this leaf alone, and of the strings where no other grammar shares them."""
        own = _LEAF_BYTES * (1 + len(self._listed)) + self._costs.num_bytes
        return own if self.is_shared else own + self.texts.num_bytes

    @property
    def farthest(self) -> int:
        """Bytes of the longest of the states' shortest texts."""
        return self._costs.dearest

    @property
    def labels(self) -> tuple[int, ...]:
        """All labels that texts have."""
        return (0,)

    def step(self, state: int, byte: int) -> int:
        """The state after one byte, -1 if it is not allowed."""
        count, inner = divmod(state, self._num_states)
        after = self._base.step(inner, byte)
        if after < 0:
            return -1
        if self._is_between[inner] and byte != QUOTE:
            count = min(count + 1, self._last)
        return count * self._num_states + after if self._cost(count, after) < NO_WAY else -1

    def edges(self, state: int) -> dict[int, int] | None:
        """All allowed bytes and the states they lead to, if they are few."""
        if state in self._listed:
            return self._listed[state]
        count, inner = divmod(state, self._num_states)
        few = self._base.edges(inner)
        if few is None and self._is_free(count):
            return None
        found: dict[int, int] = {}
        for first, last, _ in self.texts.automaton.rows[inner]:
            after = self.step(state, first)  # all bytes of an edge lead to one state
            if after >= 0:
                found.update(dict.fromkeys(range(first, last + 1), after))
        if len(self._listed) >= _MOST_LISTED:
            self._listed = {}
        listed = found if few is not None or len(found) <= MAX_LISTED_EDGES else None
        self._listed[state] = listed
        return listed

    def label(self, state: int) -> int:
        """0 behind the closing quote, -1 before it."""
        return max(self._base.label(state % self._num_states), -1)

    def goes_on(self, state: int) -> bool:
        """Whether any byte is allowed in the state."""
        return self._base.goes_on(state % self._num_states)

    def shortest(self, state: int) -> bytes:
        """A text of the fewest characters, of these of the fewest bytes, that leads to a final state."""
        count, state = divmod(state, self._num_states)
        cost = self._cost(count, state)
        least = next(
            max(least - count, 0)
            for least, _ in self.lengths
            if self._costs.of(max(least - count, 0), state) == cost
        )
        written: list[bytes] = []
        rows, costs = self.texts.automaton.rows, self._costs
        while cost:
            begins = self._is_between[state]
            for byte, _, after in rows[state]:
                step = CHARACTER + 1 if begins and byte != QUOTE else 1
                rest = max(least - 1, 0) if step > 1 else least
                if costs.of(rest, after) == cost - step:
                    break
            else:
                raise ValueError("no text is left")
            repeats = 1
            if after == state:
                # Characters are alike until so few are left that their number matters.
                repeats = max(least - costs.settled, 1)
            written.append(bytes([byte]) * repeats)
            cost -= step * repeats
            least, state = (max(least - repeats, 0) if step > 1 else least), after
        return b"".join(written)

    def tokens(self, state: int, node: TokenNode) -> LeafTokens | None:
        """The tokens below a node that pass; None if `edges` lists all bytes."""
        if self.edges(state) is not None:
            return None
        count, inner = divmod(state, self._num_states)
        if self._is_free(count):
            return self._base.tokens(inner, node)
        return self.texts.profile(inner, node).within(self.lengths, count, self._costs)

    def _is_free(self, count: int) -> bool:
        """Whether no token can tell the string from one without bounds."""
        least, most = next(bounds for bounds in self.lengths if bounds[1] >= count)
        return least <= count and most - count >= self.texts.longest_token + self._costs.farthest

    def _cost(self, count: int, inner: int) -> int:
        """The cost of the cheapest completion, `NO_WAY` for none."""
        for least, most in self.lengths:
            if count <= most:
                cost = self._costs.of(max(least - count, 0), inner)
                if cost < NO_WAY and cost >> 32 <= most - count:
                    return cost
        return NO_WAY


class StringTokens:
    """The tokens below some places of the trie that go on with a string from a state on.

    Tokens that begin as many characters and lead to the same state are one class; `kept` keeps the tokens of
    sets of classes.
    """

    def __init__(
        self,
        texts: CountableTexts,
        walker: TableWalker,
        state: int,
        positions: tuple[int, ...],
        kept: TokenCache,
    ) -> None:
        self._vocabulary = texts.vocabulary
        self._place = (state, positions)
        self._kept = kept
        trie, table = self._vocabulary.trie, texts.unbounded.table
        places, states, begun = walker.trace(table, state, positions, texts.is_between)
        key = begun.astype(np.int64) * texts.automaton.num_states + states
        number = np.zeros(key.max(initial=0) + 1, np.int32)
        number[key] = 1
        keys = np.flatnonzero(number)
        number[keys] = np.arange(len(keys))
        self._begun, self._states = np.divmod(keys, texts.automaton.num_states)
        is_exit = (table.label[states] >= 0) & (trie.end[places] > places + 1)
        self._exits, self._class_of_exit = places[is_exit], number[key[is_exit]]
        runs, owner = ranges(trie.token_begin[places], trie.token_begin[places + 1])
        self._tokens, self._class_of_token = trie.tokens[runs], number[key][owner]

    @property
    def num_bytes(self) -> int:
        """Memory of the classes."""
        arrays = (self._tokens, self._class_of_token, self._exits, self._class_of_exit)
        return sum(array.nbytes for array in (*arrays, self._begun, self._states))

    def within(self, lengths: Ranges, count: int, costs: CompletionCosts) -> LeafTokens:
        """Those behind which a string, `count` characters of which are begun, can have one of the lengths."""
        passes = np.zeros(len(self._begun), np.bool_)
        begun = self._begun + count
        for least, most in lengths:
            if most >= count:
                cost = costs.of_all(np.maximum(least - begun, 0), self._states)
                passes |= (cost < NO_WAY) & (cost >> 32 <= most - begun)
        key = (self._place, passes.tobytes())
        found = self._kept.get(key)
        if found is None:
            tokens = np.unique(self._tokens[passes[self._class_of_token]])
            exits: list[int] = np.unique(self._exits[passes[self._class_of_exit]]).tolist()
            walk = TokenWalk(tokens.tolist(), None, {0: exits} if exits else {})
            found = self._kept.put(key, walk.leaf_tokens(self._vocabulary))
        return found
