"""A report as Markdown; drawings are files beside it."""

from __future__ import annotations

import re

from retrieval.evaluation.reporting.blocks import (
    Block,
    Cell,
    Code,
    Document,
    Drawing,
    Heading,
    Paragraph,
    Points,
    Table,
    Terms,
)

PLOTS_FOLDER = "plots"
# What would be taken for markup, outside of backticks.
_MARKUP = re.compile(r"([\\*_\[\]<>|#])")


def to_markdown(document: Document) -> str:
    """Return a document as GitHub-flavoured Markdown."""
    return "\n\n".join(_block(block) for block in document) + "\n"


def _block(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f"{'#' * level} {_text(text)}"
        case Paragraph(text):
            return _text(text)
        case Points(items):
            return "\n".join(f"- {_text(item)}" for item in items)
        case Terms(items):
            return "\n".join(f"- **{_text(term)}**: {_text(meaning)}" for term, meaning in items)
        case Code(text):
            return f"```\n{text}\n```"
        case Drawing(name, _, caption):
            return f"![{_text(caption)}]({PLOTS_FOLDER}/{name}.svg)\n\n*{_text(caption)}*"
        case Table():
            return _table(block)


def _table(table: Table) -> str:
    lines = [
        _row([_text(name) for name in table.header]),
        _row(["---", *["--:"] * (len(table.header) - 1)]),
        *(_row([_cell(cell) for cell in row]) for row in table.rows),
    ]
    return f"*{_text(table.caption)}*\n\n" + "\n".join(lines)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    text = f"**{_text(cell.text)}**" if cell.is_best else _text(cell.text)
    return f"{text} <sub>{_text(' '.join(cell.note.splitlines()))}</sub>" if cell.note else text


def _text(text: str) -> str:
    """Escape what stands outside of backticks; inside, only what would end a table's cell."""
    parts = text.split("`")
    for place in range(0, len(parts), 2):
        parts[place] = _MARKUP.sub(r"\\\1", parts[place])
    for place in range(1, len(parts), 2):
        parts[place] = parts[place].replace("|", "\\|")
    return "`".join(parts)
