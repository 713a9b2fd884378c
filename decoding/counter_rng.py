"""Makes counter-based uniforms: a number is a pure function of (seed, stream, draw, step).

With a shared generator, a request's answer would depend on what else is in the batch. Here every uniform is
the hash of its own coordinates, so a seed gives the same draws alone and in a batch, on CPU and CUDA. The
mixer is the finaliser of SplitMix64 (Steele, Lea and Flood, 2014), chained over the coordinates.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _signed(value: int) -> int:
    value &= _MASK64
    return value - (1 << 64) if value >> 63 else value


def _shift_right(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)  # torch's >> keeps the sign, the hash must not


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift_right(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift_right(x, 31)


def hash_key(seed: Tensor, *coordinates: Tensor | int) -> Tensor:
    """Return the hashes of broadcast int64 coordinates (e.g. stream, draw, step), for `uniforms_of`."""
    return extend_key(_mix(seed + _signed(_GOLDEN)), *coordinates)


def extend_key(key: Tensor, *coordinates: Tensor | int) -> Tensor:
    """Return hashes with further coordinates appended; `key` is not hashed again."""
    for coordinate in coordinates:
        key = _mix((key ^ coordinate) * _signed(0xD1342543DE82EF95) + _signed(_GOLDEN))
    return key


def uniforms_of(key: Tensor) -> Tensor:
    """Return the uniforms of hashes: odd multiples of 2**-53, so that logarithms are finite. float64."""
    return _shift_right(key, 12).to(torch.float64) * 2.0**-52 + 2.0**-53


def uniforms(seed: Tensor, *coordinates: Tensor | int) -> Tensor:
    """Return uniforms in (0, 1), one per broadcast element of the arguments: `uniforms_of(hash_key(...))`."""
    return uniforms_of(hash_key(seed, *coordinates))
