"""Rows made up on the fly, in any number: what a catalogue of titles looks like to a trie, without titles."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

VOCAB_SIZE = 50_257
_END = VOCAB_SIZE - 1
# Tokens that tell the rows apart: how many there are at each depth, and how much the first are preferred.
_FAN_OUT = (50_256, 4_096, 512, 128)
_SKEW = (4, 3, 2, 2)
_LONGEST_TAIL = 8
_BLOCK = 1 << 22


class SyntheticRows:
    """About N distinct rows of 5 to 12 tokens in order, none a prefix of another.

    The first four tokens are skewed, so that a few prefixes have most of the rows; the others are random.

    Args:
        number: N. Rows that come out equal are left out, a few in a hundred.

    Attributes:
        tokens: All rows, one after the other. Shape: (total,), uint16.
        offsets: Row r is tokens[offsets[r] : offsets[r + 1]]. Shape: (R + 1,), int64.
    """

    def __init__(self, number: int) -> None:
        rng = np.random.default_rng(0)
        keys = np.unique(np.concatenate([_keys(rng, size) for size in _sizes(number)]))
        lengths = len(_FAN_OUT) + 1 + rng.integers(0, _LONGEST_TAIL, len(keys))
        self.offsets = np.zeros(len(keys) + 1, dtype=np.int64)
        np.cumsum(lengths, out=self.offsets[1:])
        self.tokens = np.empty(self.offsets[-1], dtype=np.uint16)
        for first in range(0, len(self.tokens), _BLOCK):
            piece = self.tokens[first : first + _BLOCK]
            piece[:] = rng.integers(0, _END, len(piece), dtype=np.uint16)
        for depth in reversed(range(len(_FAN_OUT))):
            keys, token = np.divmod(keys, _FAN_OUT[depth])
            self.tokens[self.offsets[:-1] + depth] = token
        self.tokens[self.offsets[1:] - 1] = _END

    def row(self, rank: int) -> tuple[int, ...]:
        """Return the tokens of a row."""
        return tuple(self.tokens[self.offsets[rank] : self.offsets[rank + 1]].tolist())


def _sizes(number: int) -> list[int]:
    return [min(_BLOCK, number - first) for first in range(0, number, _BLOCK)]


def _keys(rng: np.random.Generator, size: int) -> npt.NDArray[np.int64]:
    """Return integers whose order is that of the first tokens they stand for."""
    keys = np.zeros(size, dtype=np.int64)
    for fan_out, skew in zip(_FAN_OUT, _SKEW, strict=True):
        keys = keys * fan_out + (fan_out * rng.random(size) ** skew).astype(np.int64)
    return keys
