"""Token masks of configurations, found once for all stacks that agree on what has to be looked at."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.grammar.automaton.configurations import Configuration, Configurations
from decoding.grammar.automaton.levels import Level, Levels
from decoding.grammar.automaton.memory import Memory
from decoding.grammar.automaton.walker import Walk
from decoding.grammar.vocabulary.vocabulary import WORD_BITS, Vocabulary

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


_ByLevels = dict["Level | None", "Mask | _ByLevels"]


class Masks:
    """The masks of one grammar.

    Args:
        vocabulary: Whose tokens.
        levels: Of the grammar.
        configurations: Of the grammar.
        memory: Counts what masks take.
    """

    def __init__(
        self, vocabulary: Vocabulary, levels: Levels, configurations: Configurations, memory: Memory
    ) -> None:
        self._vocabulary = vocabulary
        self._levels = levels
        self._configurations = configurations
        self._memory = memory
        self._by_levels: _ByLevels = {}
        self._shared: dict[tuple[int, ...], Mask] = {}
        self._num_octets = vocabulary.num_words * (WORD_BITS // 8)

    def mask(self, configuration: Configuration) -> Mask:
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

    def _find(self, configuration: Configuration) -> Mask:
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

    def _pack(self, walk: Walk, configuration: Configuration) -> Mask:
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


def _top_levels(configuration: Configuration, depth: int) -> list[Level]:
    levels = []
    place: Configuration | None = configuration
    for _ in range(depth):
        assert place is not None  # the walk has been there
        levels.append(place.level)
        place = place.below
    return levels
