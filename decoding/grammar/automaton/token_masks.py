"""Finds the token mask of a parse stack: the vocabulary's trie and the automaton are walked together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from genret.decoding.grammar.automaton.nodes import ScalarKind
from genret.decoding.grammar.automaton.parse_stacks import (
    ByteCount,
    Entry,
    ParseStack,
    ParseStacks,
    Pop,
    Push,
    StackSegment,
    Survivors,
)
from genret.decoding.grammar.leaves.leaf import LeafTokens
from genret.decoding.grammar.token_trie import TokenNode
from genret.decoding.grammar.vocabulary import WORD_BITS, Vocabulary, tokens_of

# An array's header, an entry of the tables and the tuple of a mask.
_MASK_BYTES = 400
# The constructor of a named tuple takes three times as long.
_made = tuple.__new__


class Mask(NamedTuple):
    """The tokens that may come next."""

    # Bit t % 32 of word t // 32 is token t; read-only. Shape: (ceil(V / 32),), uint32.
    packed: NDArray[np.uint32]
    few: tuple[int, ...] | None  # The same tokens, ascending, if they are few; else None

    def tokens(self) -> NDArray[np.int64]:
        """The tokens, ascending. Shape: (n,), int64."""
        if self.few is not None:
            return np.array(self.few, dtype=np.int64)
        return tokens_of(self.packed)


_BySegments = dict["StackSegment | None", "Mask | _BySegments"]


class Masks:
    """The token masks of one grammar.

    A mask is found once for all stacks that agree on the segments that the walk looked at.
    """

    def __init__(self, vocabulary: Vocabulary, stacks: ParseStacks, memory: ByteCount) -> None:
        self._vocabulary = vocabulary
        self._stacks = stacks
        self._memory = memory
        self._by_segments: _BySegments = {}
        self._shared: dict[tuple[int, ...], Mask] = {}
        self._num_octets = vocabulary.num_words * (WORD_BITS // 8)

    def mask(self, stack: ParseStack) -> Mask:
        """The mask of a stack, found now or before."""
        found = self._by_segments.get(stack.segment)
        place = stack.below
        while found is not None:
            if type(found) is Mask:
                return found
            assert place is not None  # the walk has been there
            assert type(found) is dict
            found = found.get(place.segment)
            place = place.below
        return self._find(stack)

    def clear(self) -> None:
        """Forget all masks; they stay counted."""
        self._by_segments = {}
        self._shared = {}

    def _find(self, stack: ParseStack) -> Mask:
        walk = Walk(self._stacks, stack, self._vocabulary.root)
        mask = self._pack(walk, stack)
        if walk.depth == 1:
            self._by_segments[stack.segment] = mask
            return mask
        segments = _top_segments(stack, walk.depth)
        table = self._by_segments
        for segment in segments[:-1]:
            table = table.setdefault(segment, {})  # type: ignore[assignment]
        table[segments[-1]] = mask
        return mask

    def _pack(self, walk: Walk, stack: ParseStack) -> Mask:
        found, segment = walk.tokens, stack.segment
        if segment.is_done or (segment.ended and stack.is_complete):
            found.append(self._vocabulary.end_token_id)
        if walk.inside:
            large: list[NDArray[np.uint32]] = []
            for tokens in walk.inside:
                found += tokens.few
                if tokens.many is not None:
                    large.append(tokens.many)
            if large:
                packed = self._union(large, found)
                self._memory.num_bytes += _MASK_BYTES
                if packed.flags.writeable:
                    packed.setflags(write=False)
                    self._memory.num_bytes += packed.nbytes
                return Mask(packed, None)
        few = tuple(sorted(set(found)))
        mask = self._shared.get(few)
        if mask is None:
            packed = self._vocabulary.packed(few)
            self._memory.num_bytes += _MASK_BYTES + self._num_octets + 36 * len(few)
            mask = self._shared[few] = _made(Mask, (packed, few))
        return mask

    def _union(self, large: list[NDArray[np.uint32]], few: list[int]) -> NDArray[np.uint32]:
        """The tokens of several masks and some more; a leaf's own mask is passed on as it is."""
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


def _top_segments(stack: ParseStack, depth: int) -> list[StackSegment]:
    segments = []
    place: ParseStack | None = stack
    for _ in range(depth):
        assert place is not None  # the walk has been there
        segments.append(place.segment)
        place = place.below
    return segments


class Walk:
    """One walk, from one stack.

    A segment that lists its bytes is followed into the trie. Otherwise its leaves know their tokens, and only
    what tokens write behind a leaf's end is walked. Where tokens lead is kept only if it is recorded.
    """

    __slots__ = ("_open", "_stacks", "depth", "inside", "leaves", "places", "tokens")

    def __init__(
        self, stacks: ParseStacks, start: ParseStack, root: TokenNode, is_recorded: bool = False
    ) -> None:
        self._stacks = stacks
        self.tokens: list[int] = []  # Tokens found one by one; some may be found twice
        self.inside: list[LeafTokens] = []  # Tokens that leaves know
        self.depth = 1  # Segments looked at: all stacks with these top segments have the same tokens
        # Segments, and stacks below them, that the tokens found one by one lead to or pass.
        self.places: list[tuple[StackSegment, ParseStack | None]] | None = [] if is_recorded else None
        self.leaves: list[tuple[Entry, ParseStack]] = []  # Entries whose leaves know tokens; stacks below
        # Places in the trie with the segment, the stack below, and the height above the start's segment.
        waiting: list[tuple[TokenNode, StackSegment, ParseStack | None, int]] = [
            (root, start.segment, start.below, 0)
        ]
        self._open = waiting
        while waiting:
            node, segment, below, height = waiting.pop()
            if segment.ended:
                assert below is not None  # values are in something
                self._go_on_behind(node, segment.ended, below, height)
            out = segment.out
            if out is None:
                self._ask_leaves(node, segment, below, height)
            else:
                self._follow(node, segment, out, below, height)

    def _follow(
        self,
        node: TokenNode,
        segment: StackSegment,
        out: tuple[int, ...],
        below: ParseStack | None,
        height: int,
    ) -> None:
        """Follow every byte that a segment lists; a single way is followed without a return to the loop."""
        tokens, waiting, places = self.tokens, self._open, self.places
        while True:
            children = node.children
            num_open = len(waiting)
            for byte in out if len(out) <= len(children) else children:
                child = children.get(byte)
                if child is None:
                    continue
                step = segment.step(byte)
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
            node, segment, below, height = waiting.pop()
            out = following.out

    def _restack(
        self, child: TokenNode, byte: int, step: Push | Pop, below: ParseStack | None, height: int
    ) -> None:
        """Follow one byte that begins or ends values."""
        segment: StackSegment | Push | Pop | None = step
        while type(segment) is Pop:
            height -= 1
            self.depth = max(self.depth, 1 - height)
            assert below is not None  # the document's segment never pops
            above = below.segment.complete(segment.survivors)
            below = below.below
            segment = above if segment.is_consumed else above.step(byte)
        if segment is None:
            return
        if type(segment) is Push:
            below = self._stacks.of(segment.below, below)
            height += 1
            segment = segment.top
        self.tokens += child.tokens
        if self.places is not None:
            self.places.append((segment, below))
        if child.children:
            self._open.append((child, segment, below, height))

    def _go_on_behind(self, node: TokenNode, survivors: Survivors, below: ParseStack, height: int) -> None:
        """Go on at a place of the trie behind a value that has ended."""
        self.depth = max(self.depth, 2 - height)
        self._open.append((node, below.segment.complete(survivors), below.below, height - 1))

    def _ask_leaves(
        self, node: TokenNode, segment: StackSegment, below: ParseStack | None, height: int
    ) -> None:
        """Take the tokens that leaves know, and go on behind their ends."""
        assert below is not None  # leaves are in something
        listed: list[Entry] = []
        for entry in segment.entries:
            place, parents = entry
            kind = place.kind
            assert type(kind) is ScalarKind  # containers list their bytes
            state: int = place.progress  # type: ignore[assignment]
            found = kind.leaf.tokens(state, node)
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
            part = self._stacks.segments.segment(tuple(listed))
            out = part.out
            assert out is not None  # a leaf that knows no tokens lists its bytes
            self._follow(node, part, out, below, height)
