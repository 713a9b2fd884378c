"""Reading a text with links back: the text, and the links with their places in both."""

from __future__ import annotations

from dataclasses import dataclass

from decoding.markup.spelling import BACKSLASH, CLOSE, OPEN, TITLE_CLOSE, TITLE_OPEN


@dataclass(frozen=True, slots=True)
class Link:
    """One link; places are in bytes.

    Attributes:
        begin: Where the mention begins in the text.
        end: Where it ends.
        title: The title, as it is, not as it is spelled.
        opened: Where the link begins in the annotated text, its bracket.
        titled: Where the title begins there.
        closed: Where the link ends there, behind the parenthesis.
    """

    begin: int
    end: int
    title: bytes
    opened: int
    titled: int
    closed: int


@dataclass(frozen=True, slots=True)
class Annotated:
    """What was read.

    Attributes:
        text: Without links and backslashes.
        links: In order.
    """

    text: bytes
    links: tuple[Link, ...]


def read_annotated(written: bytes) -> Annotated:
    """Read what an `AnnotationGrammar` has let through.

    Raises:
        ValueError: it is no text with links in it; the place is named.
    """
    text = bytearray()
    links: list[Link] = []
    opened = begin = -1
    at = 0
    while at < len(written):
        byte = written[at]
        if byte == BACKSLASH:
            at += 1
            if at == len(written):
                raise ValueError(f"byte {at}: expected a character behind the backslash, got the end")
            text.append(written[at])
        elif byte == OPEN:
            if opened >= 0:
                raise ValueError(f"byte {at}: a mention begins inside of another")
            opened, begin = at, len(text)
        elif byte == CLOSE:
            if opened < 0 or written[at + 1 : at + 2] != bytes([TITLE_OPEN]):
                raise ValueError(f"byte {at}: expected the end of a mention and a title")
            title, closed = _read_title(written, at + 2)
            links.append(Link(begin, len(text), title, opened, at + 2, closed))
            opened, at = -1, closed - 1
        else:
            text.append(byte)
        at += 1
    if opened >= 0:
        raise ValueError(f"byte {opened}: the mention that begins here does not end")
    return Annotated(bytes(text), tuple(links))


def _read_title(written: bytes, at: int) -> tuple[bytes, int]:
    """The title that begins at a place, and the place behind its parenthesis."""
    title = bytearray()
    begin, depth = at, 0
    while at < len(written):
        byte = written[at]
        if byte == TITLE_CLOSE and not depth:
            return bytes(title), at + 1
        if byte == BACKSLASH and at + 1 < len(written):
            at += 1
        else:
            depth += (byte == TITLE_OPEN) - (byte == TITLE_CLOSE)
        title.append(written[at])
        at += 1
    raise ValueError(f"byte {begin}: the title that begins here does not end")
