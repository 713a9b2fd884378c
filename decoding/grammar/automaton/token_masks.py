"""Finds the token mask of a configuration: the vocabulary's trie and the automaton are walked together.

A mask is found once for all stacks that agree on the levels that the walk looked at.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.grammar.automaton.configurations import ParseStack, ParseStacks
from decoding.grammar.automaton.levels import (
    ByteCount,
    Entry,
    Pop,
    Push,
    StackSegment,
    StackSegments,
    Survivors,
)
from decoding.grammar.automaton.nodes import ScalarKind
from decoding.grammar.leaves.leaf import LeafTokens
from decoding.grammar.token_trie import TokenNode
from decoding.grammar.vocabulary import WORD_BITS, Vocabulary

# An array's header, an entry of the tables and what they keep of a mask.
_MASK_BYTES = 400
_SETTING_ONE_BY_ONE = 500
_WORD = np.dtype("<u4")
# The constructor of a named tuple takes three times as long.
_made = tuple.__new__


class Mask(NamedTuple):
    """The tokens that may come next.

    Attributes:
        packed: Bit t % 32 of word t // 32 is token t; read-only. Shape: (ceil(V / 32),), uint32.
        few: The same tokens, ascending, where they are few; None where they are not.
    """

    packed: NDArray[np.uint32]
    few: tuple[int, ...] | None

    def tokens(self) -> NDArray[np.int64]:
        """All of them, ascending. Shape: (n,), int64."""
        if self.few is not None:
            return np.array(self.few, dtype=np.int64)
        return np.flatnonzero(np.unpackbits(self.packed.view(np.uint8), bitorder="little"))


_ByLevels = dict["StackSegment | None", "Mask | _ByLevels"]


class Masks:
    """The masks of one grammar.

    Args:
        vocabulary: Whose tokens.
        levels: Of the grammar.
        configurations: Of the grammar.
        memory: Counts what masks take.
    """

    def __init__(
        self, vocabulary: Vocabulary, levels: StackSegments, configurations: ParseStacks, memory: ByteCount
    ) -> None:
        self._vocabulary = vocabulary
        self._levels = levels
        self._configurations = configurations
        self._memory = memory
        self._by_levels: _ByLevels = {}
        self._shared: dict[tuple[int, ...], Mask] = {}
        self._num_octets = vocabulary.num_words * (WORD_BITS // 8)

    def mask(self, configuration: ParseStack) -> Mask:
        """The mask of a configuration, found now or before."""
        found = self._by_levels.get(configuration.level)
        place = configuration.below
        while found is not None:
            if type(found) is Mask:
                return found
            assert place is not None  # the walk has been there
            assert type(found) is dict
            found = found.get(place.level)
            place = place.below
        return self._find(configuration)

    def clear(self) -> None:
        """Forget all masks; they are still counted."""
        self._by_levels = {}
        self._shared = {}

    def _find(self, configuration: ParseStack) -> Mask:
        walk = Walk(self._levels, self._configurations, configuration, self._vocabulary.root)
        mask = self._pack(walk, configuration)
        if walk.depth == 1:
            self._by_levels[configuration.level] = mask
            return mask
        levels = _top_levels(configuration, walk.depth)
        table = self._by_levels
        for level in levels[:-1]:
            table = table.setdefault(level, {})  # type: ignore[assignment]
        table[levels[-1]] = mask
        return mask

    def _pack(self, walk: Walk, configuration: ParseStack) -> Mask:
        found, level = walk.tokens, configuration.level
        if level.is_done or (level.ended and configuration.is_complete):
            found.append(self._vocabulary.end_token_id)
        if walk.inside:
            large: list[NDArray[np.uint32]] = []
            for tokens in walk.inside:
                found += tokens.few
                if tokens.many is not None:
                    large.append(tokens.many)
            if large:
                return self._many(self._union(large, found))
        few = tuple(sorted(set(found)))
        mask = self._shared.get(few)
        if mask is None:
            packed = self._bits(few)
            self._memory.num_bytes += _MASK_BYTES + self._num_octets + 36 * len(few)
            mask = self._shared[few] = _made(Mask, (packed, few))
        return mask

    def _many(self, packed: NDArray[np.uint32]) -> Mask:
        num_bytes = _MASK_BYTES
        if packed.flags.writeable:
            packed.setflags(write=False)
            num_bytes += packed.nbytes
        self._memory.num_bytes += num_bytes
        return Mask(packed, None)

    def _union(self, large: list[NDArray[np.uint32]], few: list[int]) -> NDArray[np.uint32]:
        """The tokens of several masks and some more. A leaf's own mask is handed on as it is."""
        union = large[0]
        if len(large) > 1:
            union = np.bitwise_or.reduce(large)
        octets = union.data.cast("B")
        for token in few:
            if not octets[token >> 3] >> (token & 7) & 1:
                break
        else:
            return union
        if not union.flags.writeable:
            union = union.copy()
            octets = union.data.cast("B")
        for token in few:
            octets[token >> 3] |= 1 << (token & 7)
        return union

    def _bits(self, tokens: tuple[int, ...]) -> NDArray[np.uint32]:
        """A read-only mask of tokens."""
        if len(tokens) > _SETTING_ONE_BY_ONE:
            packed = self._vocabulary.packed(tokens)
            packed.setflags(write=False)
            return packed
        octets = bytearray(self._num_octets)
        for token in tokens:
            octets[token >> 3] |= 1 << (token & 7)
        return np.frombuffer(bytes(octets), _WORD)


def _top_levels(configuration: ParseStack, depth: int) -> list[StackSegment]:
    levels = []
    place: ParseStack | None = configuration
    for _ in range(depth):
        assert place is not None  # the walk has been there
        levels.append(place.level)
        place = place.below
    return levels


class Walk:
    """One walk, from one configuration.

    Where a level lists its bytes, they are followed into the trie. Where it does not, its leaves know their
    tokens already, and only what tokens write behind a leaf's end is walked.

    Args:
        levels: Of the grammar.
        configurations: Of the grammar.
        start: Where tokens begin.
        root: Of the vocabulary's trie.
        is_recorded: Whether to keep where tokens lead.

    Attributes:
        tokens: Tokens found one by one; some may be found twice.
        inside: Tokens that leaves know.
        depth: Levels that were looked at: the tokens are those of every stack whose top so many levels are
            the same.
        places: Levels and stacks that tokens found one by one lead to, or pass; only if recorded.
        leaves: Entries whose leaves know tokens, and the stacks they are on; only if recorded.
    """

    __slots__ = ("_configurations", "_levels", "_open", "depth", "inside", "leaves", "places", "tokens")

    def __init__(
        self,
        levels: StackSegments,
        configurations: ParseStacks,
        start: ParseStack,
        root: TokenNode,
        is_recorded: bool = False,
    ) -> None:
        self._levels = levels
        self._configurations = configurations
        self.tokens: list[int] = []
        self.inside: list[LeafTokens] = []
        self.depth = 1
        self.places: list[tuple[StackSegment, ParseStack | None]] | None = [] if is_recorded else None
        self.leaves: list[tuple[Entry, ParseStack]] = []
        # Places in the trie with the level and the stack there, and how much higher than the start's it is.
        waiting: list[tuple[TokenNode, StackSegment, ParseStack | None, int]] = [
            (root, start.level, start.below, 0)
        ]
        self._open = waiting
        while waiting:
            node, level, below, height = waiting.pop()
            if level.ended:
                self._leave(node, level, below, height)
            out = level.out
            if out is None:
                self._ask_leaves(node, level, below, height)
            else:
                self._follow(node, level, out, below, height)

    def _follow(
        self,
        node: TokenNode,
        level: StackSegment,
        out: tuple[int, ...],
        below: ParseStack | None,
        height: int,
    ) -> None:
        """Follow every byte that a level lists; as long as there is one only, without coming back."""
        tokens, waiting, places = self.tokens, self._open, self.places
        while True:
            children = node.children
            num_open = len(waiting)
            for byte in out if len(out) <= len(children) else children:
                child = children.get(byte)
                if child is None:
                    continue
                step = level.step(byte)
                if type(step) is StackSegment:
                    tokens += child.tokens
                    if places is not None:
                        places.append((step, below))
                    if child.children:
                        waiting.append((child, step, below, height))
                elif step is not None:
                    self._restack(child, byte, step, below, height)
            if len(waiting) != num_open + 1:
                return
            following = waiting[-1][1]
            if following.leaf is not None or following.ended or following.out is None:
                return
            node, level, below, height = waiting.pop()
            out = following.out

    def _restack(
        self, child: TokenNode, byte: int, step: Push | Pop, below: ParseStack | None, height: int
    ) -> None:
        """Follow one byte that begins or ends values."""
        level: StackSegment | Push | Pop | None = step
        while type(level) is Pop:
            height -= 1
            self.depth = max(self.depth, 1 - height)
            assert below is not None  # the document's level never pops
            above = below.level.complete(level.survivors)
            below = below.below
            level = above if level.is_consumed else above.step(byte)
        if level is None:
            return
        if type(level) is Push:
            below = self._configurations.of(level.below, below)
            height += 1
            level = level.top
        self.tokens += child.tokens
        if self.places is not None:
            self.places.append((level, below))
        if child.children:
            self._open.append((child, level, below, height))

    def _leave(self, node: TokenNode, level: StackSegment, below: ParseStack | None, height: int) -> None:
        """Go on as if the value, a number, had ended before the node's next bytes."""
        assert below is not None  # values are in something
        self._go_on_behind(node, level.ended, below, height)

    def _go_on_behind(self, node: TokenNode, survivors: Survivors, below: ParseStack, height: int) -> None:
        """Go on at a place of the trie behind a value that has ended."""
        self.depth = max(self.depth, 2 - height)
        self._open.append((node, below.level.complete(survivors), below.below, height - 1))

    def _ask_leaves(
        self, node: TokenNode, level: StackSegment, below: ParseStack | None, height: int
    ) -> None:
        """Take the tokens that leaves know, and go on behind their ends."""
        assert below is not None  # leaves are in something
        listed: list[Entry] = []
        for entry in level.entries:
            place, parents = entry
            frame = place.frame
            assert type(frame) is ScalarKind  # containers list their bytes
            state: int = place.progress  # type: ignore[assignment]
            found = frame.leaf.tokens(state, node)
            if found is None:
                listed.append(entry)
                continue
            self.inside.append(found)
            if self.places is not None:
                self.leaves.append((entry, below))
            for label, rest in found.exits:
                behind = tuple([(parent, label) for parent in parents])
                self._go_on_behind(rest, behind, below, height)
        if listed:
            part = self._levels.level(tuple(listed))
            out = part.out
            assert out is not None  # a leaf that knows no tokens lists its bytes
            self._follow(node, part, out, below, height)
