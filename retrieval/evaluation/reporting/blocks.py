"""What a report consists of, before it is written as Markdown or as HTML.

Texts are plain, but for words between backticks, which are set as code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of level 1 to 3."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Running text."""

    text: str


@dataclass(frozen=True, slots=True)
class Points:
    """A list of short statements."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Terms:
    """Words and what they mean."""

    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Text to be taken as it stands."""

    text: str


@dataclass(frozen=True, slots=True)
class Cell:
    """One place of a table.

    Attributes:
        text: What stands there.
        note: What stands there in small print, such as an interval; a line each.
        is_best: Whether it is the best of its column.
    """

    text: str
    note: str = ""
    is_best: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a header; the first cell of a row names it.

    Attributes:
        caption: What it shows.
        header: Names of the columns.
        rows: As wide as the header each.
    """

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawing as SVG, in the colour of the text around it.

    Attributes:
        name: Of its file, without an ending.
        svg: The drawing.
        caption: What it shows.
    """

    name: str
    svg: str
    caption: str


Block = Heading | Paragraph | Points | Terms | Code | Table | Drawing
Document = Sequence[Block]
