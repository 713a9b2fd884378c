"""Arrays in the one layout that is written: equal values give equal bytes, wherever they come from.

Arrow lets arrays of equal values differ: under nulls, in the bits behind the last one, and, as its file
writer copies up to seven bytes too many of a buffer that is longer than needed, behind every slice.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


def canonical(array: pa.Array) -> pa.Array:
    """Return the same values with zeros under nulls and with buffers that end where the values end.

    Args:
        array: Of strings, numbers or bools, or a list of such without nulls.
    """
    bitmap = None
    if array.null_count:
        bitmap = _bits(array.is_valid())
        empty = pa.scalar("" if pa.types.is_string(array.type) else 0).cast(array.type)
        array = pc.fill_null(array, empty)
    kind, length = array.type, len(array)
    if pa.types.is_boolean(kind):
        return pa.Array.from_buffers(kind, length, [bitmap, _bits(array)])
    if pa.types.is_list(kind):
        offsets, low, high = _offsets(array)
        values = canonical(array.values.slice(low, high - low))
        return pa.Array.from_buffers(kind, length, [bitmap, offsets], children=[values])
    if pa.types.is_string(kind):
        offsets, low, high = _offsets(array)
        data = array.buffers()[2]
        return pa.Array.from_buffers(
            kind, length, [bitmap, offsets, pa.py_buffer(b"") if data is None else data[low:high]]
        )
    width = kind.bit_width // 8
    data = array.buffers()[1][array.offset * width : (array.offset + length) * width]
    return pa.Array.from_buffers(kind, length, [bitmap, data])


def _offsets(array: pa.Array) -> tuple[pa.Buffer, int, int]:
    """Return offsets that begin at 0, and where the values begin and end in their own buffer."""
    buffer = array.buffers()[1]
    if not len(array) or buffer is None:
        return pa.py_buffer(np.zeros(1, dtype=np.int32)), 0, 0
    stored: npt.NDArray[np.int32] = np.frombuffer(buffer, dtype=np.int32)
    stored = stored[array.offset : array.offset + len(array) + 1]
    return pa.py_buffer(stored - stored[0]), int(stored[0]), int(stored[-1])


def _bits(flags: pa.Array) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags.to_numpy(zero_copy_only=False), bitorder="little"))
