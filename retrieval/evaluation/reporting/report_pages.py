"""Writes a report, given as a list of blocks, as Markdown or as one HTML file without scripts.

Texts of blocks are plain, except for words between backticks, which are set as code. Drawings of the Markdown
are files beside it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple


class Heading(NamedTuple):
    """A heading of level 1 to 3."""

    level: int
    text: str


class Paragraph(NamedTuple):
    """Running text."""

    text: str


class TermList(NamedTuple):
    """Terms with their meanings."""

    items: tuple[tuple[str, str], ...]


class Code(NamedTuple):
    """Text to be shown unchanged."""

    text: str


class Cell(NamedTuple):
    """A table cell: its text, small print of one or more lines (an interval), and whether it is the best."""

    text: str
    note: str = ""
    is_best: bool = False


class Table(NamedTuple):
    """A caption, the names of the columns, and rows of as many cells; the first cell of a row names it."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


class Drawing(NamedTuple):
    """A drawing as SVG in the colour of the text around it, its caption, and its file's name, no suffix."""

    name: str
    svg: str
    caption: str


Block = Heading | Paragraph | TermList | Code | Table | Drawing
_STYLE = Path(__file__).with_name("report.css")


def to_html(document: Sequence[Block]) -> str:
    """Return a document as a complete page; its title is the first heading."""
    title = next((block.text for block in document if isinstance(block, Heading)), "Evaluation")
    body = "\n".join(_html_block(block) for block in document)
    style = _STYLE.read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        "</body>\n</html>\n"
    )


def _html_block(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f"<h{level}>{_html_text(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{_html_text(text)}</p>"
        case TermList(items):
            pairs = (f"<dt>{_html_text(term)}</dt><dd>{_html_text(meaning)}</dd>" for term, meaning in items)
            return f"<dl>{''.join(pairs)}</dl>"
        case Code(text):
            return f"<pre><code>{escape(text)}</code></pre>"
        case Drawing(_, svg, caption):
            return (
                f'<figure role="img" aria-label="{escape(caption)}">{svg}'
                f"<figcaption>{_html_text(caption)}</figcaption></figure>"
            )
        case Table():
            return _html_table(block)


def _html_table(table: Table) -> str:
    header = "".join(f'<th scope="col">{_html_text(name)}</th>' for name in table.header)
    rows = "\n".join(_html_row(row) for row in table.rows)
    return (
        f'<div class="scroll" tabindex="0"><table><caption>{_html_text(table.caption)}</caption>'
        f"<thead><tr>{header}</tr></thead>\n<tbody>{rows}</tbody></table></div>"
    )


def _html_row(row: tuple[Cell, ...]) -> str:
    cells = [f'<th scope="row">{_html_cell(row[0])}</th>']
    for cell in row[1:]:
        best = ' class="best"' if cell.is_best else ""
        cells.append(f"<td{best}>{_html_cell(cell)}</td>")
    return f"<tr>{''.join(cells)}</tr>"


def _html_cell(cell: Cell) -> str:
    notes = "".join(f"<small>{_html_text(line)}</small>" for line in cell.note.splitlines())
    return _html_text(cell.text) + notes


def _html_text(text: str) -> str:
    return re.sub(r"`([^`]*)(?:`|$)", r"<code>\1</code>", escape(text))


PLOTS_FOLDER = "plots"
_MARKUP = re.compile(r"([\\*_\[\]<>|#])")


def to_markdown(document: Sequence[Block]) -> str:
    """Return a document as GitHub-flavoured Markdown."""
    return "\n\n".join(_markdown_block(block) for block in document) + "\n"


def _markdown_block(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f"{'#' * level} {_markdown_text(text)}"
        case Paragraph(text):
            return _markdown_text(text)
        case TermList(items):
            return "\n".join(
                f"- **{_markdown_text(term)}**: {_markdown_text(meaning)}" for term, meaning in items
            )
        case Code(text):
            return f"```\n{text}\n```"
        case Drawing(name, _, caption):
            return f"![{_markdown_text(caption)}]({PLOTS_FOLDER}/{name}.svg)\n\n*{_markdown_text(caption)}*"
        case Table():
            return _markdown_table(block)


def _markdown_table(table: Table) -> str:
    lines = [
        [_markdown_text(name) for name in table.header],
        ["---", *["--:"] * (len(table.header) - 1)],
        *([_markdown_cell(cell) for cell in row] for row in table.rows),
    ]
    return f"*{_markdown_text(table.caption)}*\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _markdown_cell(cell: Cell) -> str:
    text = f"**{_markdown_text(cell.text)}**" if cell.is_best else _markdown_text(cell.text)
    return f"{text} <sub>{_markdown_text(' '.join(cell.note.splitlines()))}</sub>" if cell.note else text


def _markdown_text(text: str) -> str:
    """Escape markup outside of backticks; inside, only what would end a table's cell."""
    parts = text.split("`")
    for place in range(0, len(parts), 2):
        parts[place] = _MARKUP.sub(r"\\\1", parts[place])
    for place in range(1, len(parts), 2):
        parts[place] = parts[place].replace("|", "\\|")
    return "`".join(parts)
