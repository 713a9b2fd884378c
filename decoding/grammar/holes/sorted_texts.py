"""Texts in the order of their bytes, without a copy of any of them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from decoding.grammar.holes.text_batches import TextBatches


class SortedTexts:
    """Some of the texts of a catalogue, in order.

    Under a filter it is the same catalogue with a shorter order: every run of it then has a text that the
    filter allows, without looking.

    Args:
        batches: All texts of the catalogue, by number.
        order: Numbers of those that belong to the set, ascending by the texts' bytes, equal texts by number;
            all in range. Shape: (n,), int32.
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
        """Return those whose number is allowed. Shape of `allowed`: (texts of the catalogue,)."""
        return SortedTexts(self.batches, self.order[allowed[self.order]])

    def text(self, position: int) -> bytes:
        """The bytes of the text at a position of the order."""
        return self.batches.text(self.order_view[position])

    def byte(self, position: int, depth: int) -> int:
        """A byte of the text at a position of the order, -1 behind its end."""
        number = self.order_view[position]
        batch, row = number >> self.batches.shift, number & self._row_mask
        offsets = self.batches.offset_views[batch]
        at = offsets[row] + depth
        return self.batches.data_views[batch][at] if at < offsets[row + 1] else -1

    def length(self, position: int) -> int:
        """Bytes of the text at a position of the order."""
        number = self.order_view[position]
        row = number & self._row_mask
        offsets = self.batches.offset_views[number >> self.batches.shift]
        return offsets[row + 1] - offsets[row]

    def numbers(self, begin: int, end: int) -> tuple[int, ...]:
        """Numbers of the texts of a run, ascending."""
        return tuple(sorted(self.order_view[begin:end]))
