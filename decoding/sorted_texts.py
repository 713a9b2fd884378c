"""Reads texts as bytes in place, by number, and keeps some of them in the order of their bytes.

Texts lie in pieces of memory, such as the batches of a mapped index file, and are never copied as a whole.
The index format orders titles so, and grammars follow titles in that order.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]


class TextBatches:
    """Texts in batches of equal size, as UTF-8 bytes: text n is text n % rows of batch n // rows.

    Args:
        offsets: Per batch the begin of each text in `data`, then the end of the last. Shape: (n + 1,), int32.
        data: Per batch the bytes. Shape: (B,), uint8.
        rows: Texts of every batch but the last, which may have fewer; a power of two.

    Raises:
        ValueError: the sizes do not fit together, or a text does not lie inside its batch's bytes.
    """

    def __init__(
        self, offsets: Sequence[npt.NDArray[np.int32]], data: Sequence[npt.NDArray[np.uint8]], rows: int
    ) -> None:
        if rows < 1 or rows & (rows - 1):
            raise ValueError(f"rows: expected a power of two, got {rows}")
        if len(offsets) != len(data):
            raise ValueError(f"expected as many offsets as data, got {len(offsets)} and {len(data)}")
        for number, (begins, texts) in enumerate(zip(offsets, data, strict=True)):
            _check(number, begins, texts, rows, number == len(offsets) - 1)
        self.offsets = tuple(offsets)
        self.data = tuple(data)
        # Memory views hand out plain ints, at a third of the time of an array's element.
        self.offset_views = tuple(begins.data for begins in self.offsets)
        self.data_views = tuple(texts.data for texts in self.data)
        self.shift = rows.bit_length() - 1
        self.num_texts = sum(len(begins) - 1 for begins in offsets)
        # Addresses of each batch's offsets and bytes, for compiled loops; the views keep them valid.
        places = [
            (begins.ctypes.data, texts.ctypes.data) for begins, texts in zip(offsets, data, strict=True)
        ]
        self.addresses: Longs = np.array(places, dtype=np.int64)

    @classmethod
    def of(cls, texts: Iterable[bytes], rows: int = 1 << 16) -> TextBatches:
        """Copy texts into batches."""
        kept = list(texts)
        offsets, data = [], []
        for begin in range(0, len(kept), rows):
            part = kept[begin : begin + rows]
            offsets.append(np.cumsum([0, *map(len, part)], dtype=np.int32))
            data.append(np.frombuffer(b"".join(part), dtype=np.uint8))
        return cls(offsets, data, rows)

    def text(self, number: int) -> bytes:
        """Return the bytes of one text."""
        batch, row = number >> self.shift, number & ((1 << self.shift) - 1)
        begin, end = self.offsets[batch][row : row + 2].tolist()
        return self.data[batch][begin:end].tobytes()

    def units(self, of_bytes: bool) -> list[bytes]:
        """Return the distinct bytes, or characters, of all texts, ascending. One pass over the bytes.

        A byte that is no part of UTF-8 is a character of its own.
        """
        seen = np.zeros(1 << 8 if of_bytes else sys.maxunicode + 1, dtype=np.bool_)
        for begins, data in zip(self.offsets, self.data, strict=True):
            texts = data[begins[0] : begins[-1]]
            if not of_bytes:
                decoded = texts.tobytes().decode("utf-8", "surrogateescape")
                texts = np.frombuffer(decoded.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
            seen[texts] = True
        found = np.flatnonzero(seen).tolist()
        if of_bytes:
            return [bytes([byte]) for byte in found]
        return [chr(code).encode("utf-8", "surrogateescape") for code in found]

    def first_with(self, unit: bytes) -> bytes:
        """Return the first text that has a byte or character; ValueError if none has."""
        for begins, data in zip(self.offsets, self.data, strict=True):
            at = data[begins[0] : begins[-1]].tobytes().find(unit)
            if at >= 0:
                row = int(np.searchsorted(begins, at + begins[0], side="right")) - 1
                return data[begins[row] : begins[row + 1]].tobytes()
        raise ValueError(f"no text has {unit!r}")

    def lengths(self, numbers: npt.NDArray[np.integer]) -> Longs:
        """Return the bytes of each text. Shape: (n,), int64."""
        rows = numbers & ((1 << self.shift) - 1)
        found = np.empty(len(numbers), dtype=np.int64)
        if len(self.offsets) == 1:
            (begins,) = self.offsets
            found[:] = begins[rows + 1] - begins[rows]
            return found
        batch = (numbers >> self.shift).astype(np.uint16 if len(self.offsets) < 1 << 16 else np.int64)
        order = np.argsort(batch, kind="stable")
        counts = np.bincount(batch, minlength=len(self.offsets))
        ends = np.cumsum(counts)
        for number in np.flatnonzero(counts).tolist():
            places = order[ends[number] - counts[number] : ends[number]]
            begins, at = self.offsets[number], rows[places]
            found[places] = begins[at + 1] - begins[at]
        return found


def _check(
    number: int, begins: npt.NDArray[np.int32], texts: npt.NDArray[np.uint8], rows: int, is_last: bool
) -> None:
    if begins.dtype != np.int32 or texts.dtype != np.uint8:
        raise ValueError(f"batch {number}: expected int32 and uint8, got {begins.dtype} and {texts.dtype}")
    if not (begins.flags.c_contiguous and texts.flags.c_contiguous):
        raise ValueError(f"batch {number}: expected contiguous arrays")
    count = len(begins) - 1
    if not (1 <= count <= rows if is_last else count == rows):
        raise ValueError(f"batch {number}: expected {rows} texts, got {count}")
    if begins[0] < 0 or begins[-1] > len(texts) or bool((begins[1:] < begins[:-1]).any()):
        raise ValueError(f"batch {number}: a text does not lie inside its {len(texts)} bytes")


class SortedTexts:
    """Some of the texts of a catalogue, in order.

    A filtered set has the same texts and a shorter order, so every run of the order holds allowed texts only.

    Args:
        batches: All texts of the catalogue, by number.
        order: Numbers of the texts in the set, ascending by the texts' bytes, equal texts by number; all in
            range. Shape: (n,), int32.
    """

    __slots__ = ("_row_mask", "batches", "order", "order_view")

    def __init__(self, batches: TextBatches, order: npt.NDArray[np.int32]) -> None:
        self.batches = batches
        self.order = np.ascontiguousarray(order, dtype=np.int32).view()
        self.order.flags.writeable = False  # compiled loops are compiled for this
        self.order_view = self.order.data
        self._row_mask = (1 << batches.shift) - 1

    @classmethod
    def of(cls, texts: Iterable[bytes]) -> SortedTexts:
        """Copy and sort a few texts."""
        kept = list(texts)
        order = sorted(range(len(kept)), key=kept.__getitem__)
        return cls(TextBatches.of(kept), np.array(order, dtype=np.int32))

    def __len__(self) -> int:
        return len(self.order_view)

    def among(self, allowed: npt.NDArray[np.bool_]) -> SortedTexts:
        """Return the texts whose number is allowed. Shape of `allowed`: (texts of the catalogue,)."""
        return SortedTexts(self.batches, self.order[allowed[self.order]])

    def text(self, position: int) -> bytes:
        """Return the text at a position of the order."""
        return self.batches.text(self.order_view[position])

    def byte(self, position: int, depth: int) -> int:
        """Return a byte of the text at a position of the order, -1 behind its end."""
        number = self.order_view[position]
        batch, row = number >> self.batches.shift, number & self._row_mask
        offsets = self.batches.offset_views[batch]
        at = offsets[row] + depth
        return self.batches.data_views[batch][at] if at < offsets[row + 1] else -1

    def length(self, position: int) -> int:
        """Return the bytes of the text at a position of the order."""
        number = self.order_view[position]
        row = number & self._row_mask
        offsets = self.batches.offset_views[number >> self.batches.shift]
        return offsets[row + 1] - offsets[row]

    def numbers(self, begin: int, end: int) -> tuple[int, ...]:
        """Return the numbers of the texts of a run, ascending."""
        return tuple(sorted(self.order_view[begin:end]))
