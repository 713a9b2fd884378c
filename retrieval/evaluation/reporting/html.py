"""A report as one HTML file: no script, nothing from elsewhere, light and dark, on a phone and on paper."""

from __future__ import annotations

from html import escape

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
from retrieval.evaluation.reporting.style import STYLE


def to_html(document: Document) -> str:
    """Return a document as a complete page; its title is the first heading."""
    title = next((block.text for block in document if isinstance(block, Heading)), "Evaluation")
    body = "\n".join(_block(block) for block in document)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        "</body>\n</html>\n"
    )


def _block(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f"<h{level}>{_text(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{_text(text)}</p>"
        case Points(items):
            return "<ul>" + "".join(f"<li>{_text(item)}</li>" for item in items) + "</ul>"
        case Terms(items):
            pairs = (f"<dt>{_text(term)}</dt><dd>{_text(meaning)}</dd>" for term, meaning in items)
            return f"<dl>{''.join(pairs)}</dl>"
        case Code(text):
            return f"<pre><code>{escape(text)}</code></pre>"
        case Drawing(_, svg, caption):
            return (
                f'<figure role="img" aria-label="{escape(caption)}">{svg}'
                f"<figcaption>{_text(caption)}</figcaption></figure>"
            )
        case Table():
            return _table(block)


def _table(table: Table) -> str:
    header = "".join(f'<th scope="col">{_text(name)}</th>' for name in table.header)
    rows = "\n".join(_row(row) for row in table.rows)
    return (
        f'<div class="scroll" tabindex="0"><table><caption>{_text(table.caption)}</caption>'
        f"<thead><tr>{header}</tr></thead>\n<tbody>{rows}</tbody></table></div>"
    )


def _row(row: tuple[Cell, ...]) -> str:
    first, *others = row
    return f'<tr><th scope="row">{_inner(first)}</th>{"".join(_cell(cell) for cell in others)}</tr>'


def _cell(cell: Cell) -> str:
    return f'<td class="best">{_inner(cell)}</td>' if cell.is_best else f"<td>{_inner(cell)}</td>"


def _inner(cell: Cell) -> str:
    notes = "".join(f"<small>{_text(line)}</small>" for line in cell.note.splitlines())
    return _text(cell.text) + notes


def _text(text: str) -> str:
    parts = [escape(part) for part in text.split("`")]
    for place in range(1, len(parts), 2):
        parts[place] = f"<code>{parts[place]}</code>"
    return "".join(parts)
