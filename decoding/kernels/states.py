"""How a place in a trie is packed into one integer.

A state is `row_end << 31 | position`. The position is that of the last edge in the trie's tokens, in a
node or in a tail (0: the root); the rows below it end before rank row_end. Inside a tail row_end - 1 is the
row itself, so a state never looks for the row it is in. Under row filters lane n counts its ranks from
n * (R + 1) on. State -1 is "no such state".
"""

from __future__ import annotations

from torch import Tensor

POSITION_BITS = 31
POSITION_MASK = (1 << POSITION_BITS) - 1


def pack(position: Tensor, row_end: Tensor) -> Tensor:
    """Return states. Any shape, int64."""
    return (row_end << POSITION_BITS) | position


def pack_root(row_end: int) -> int:
    """Return the state of the root of rows that end before rank `row_end`."""
    return row_end << POSITION_BITS


def unpack(states: Tensor) -> tuple[Tensor, Tensor]:
    """Return (position, row_end) of states. Shapes: (n,), int64.

    State -1 gives a position behind every trie, which has no children, and row_end 0.
    """
    return states & POSITION_MASK, (states >> POSITION_BITS).clamp_(min=0)
