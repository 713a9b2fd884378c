"""Zeroed memory of which little is ever touched.

For large arrays NumPy asks for pages of two mebibytes. A table of many states with a row here and there would
then take two mebibytes for every row of one, and a hundred microseconds to zero them.
"""

from __future__ import annotations

import mmap
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_Number = TypeVar("_Number", bound=np.generic)

# Smaller arrays are zeroed sooner than mapped.
_LARGE = 1 << 20


def sparse_zeros(shape: tuple[int, ...], dtype: type[_Number]) -> NDArray[_Number]:
    """Zeros that take memory only where something is written, a small page at a time where that is known.

    Args:
        shape: Of the array.
        dtype: Of its numbers.
    """
    num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if num_bytes < _LARGE:
        return np.zeros(shape, dtype)
    memory = mmap.mmap(-1, num_bytes)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype).reshape(shape)
