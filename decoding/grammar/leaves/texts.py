"""Texts that have been written as values of one grammar, as small numbers."""

from __future__ import annotations

import threading

# A node's dict, its entry with the parent and its places in the lists, measured with tracemalloc.
_NODE_BYTES = 190


class Texts:
    """Numbers byte strings, and places within them, in the order they are met. Equal texts, equal numbers.

    A place is a prefix: 0 is the empty one. Safe to use from several threads.
    """

    __slots__ = ("_children", "_last_bytes", "_lock", "_numbers", "_parents", "_places")

    def __init__(self) -> None:
        self._children: list[dict[int, int]] = [{}]
        self._parents = [-1]
        self._last_bytes = bytearray(1)
        self._numbers = [-1]
        self._places: list[int] = []
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Memory of all texts and prefixes, about."""
        return _NODE_BYTES * len(self._parents)

    def after(self, place: int, byte: int) -> int:
        """The place one byte further."""
        following = self._children[place].get(byte)
        if following is None:
            with self._lock:
                following = self._children[place].get(byte)
                if following is None:
                    following = len(self._parents)
                    self._children.append({})
                    self._parents.append(place)
                    self._last_bytes.append(byte)
                    self._numbers.append(-1)
                    # Last, so that who finds the place finds all that belongs to it.
                    self._children[place][byte] = following
        return following

    def known(self, place: int, byte: int) -> int:
        """The place one byte further if it has been met, else -1."""
        return -1 if place < 0 else self._children[place].get(byte, -1)

    def place_of(self, text: bytes, place: int = 0) -> int:
        """The place behind a text, or behind some more bytes."""
        for byte in text:
            place = self.after(place, byte)
        return place

    def number(self, place: int) -> int:
        """The number of the text that ends at a place."""
        number = self._numbers[place]
        if number < 0:
            with self._lock:
                number = self._numbers[place]
                if number < 0:
                    self._places.append(place)
                    number = self._numbers[place] = len(self._places) - 1
        return number

    def bytes_of(self, number: int) -> bytes:
        """The text with a number."""
        place = self._places[number]
        written = bytearray()
        while place:
            written.append(self._last_bytes[place])
            place = self._parents[place]
        written.reverse()
        return bytes(written)
