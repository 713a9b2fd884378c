"""Writes a report, given as a list of blocks, as Markdown or as one HTML file without scripts.

Texts of blocks are plain, except for words between backticks, which are set as code. Drawings of the Markdown
are files beside it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


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
class TermList:
    """Terms with their meanings."""

    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Text to be shown unchanged."""

    text: str


@dataclass(frozen=True, slots=True)
class Cell:
    """A table cell: its text, small print of one or more lines (an interval), and whether it is the best."""

    text: str
    note: str = ""
    is_best: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A caption, the names of the columns, and rows of as many cells; the first cell of a row names it."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawing as SVG in the colour of the text around it, its caption, and its file's name, no suffix."""

    name: str
    svg: str
    caption: str


Block = Heading | Paragraph | TermList | Code | Table | Drawing


def to_html(document: Sequence[Block]) -> str:
    """Return a document as a complete page; its title is the first heading."""
    title = next((block.text for block in document if isinstance(block, Heading)), "Evaluation")
    body = "\n".join(_html_block(block) for block in document)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
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


STYLE = """
:root { --ink: #1b1f24; --faint: #5b6470; --page: #ffffff; --line: #d5dae0; --shade: #f3f5f8;
  --best: #e3f1e6; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --faint: #a3acb8; --page: #14171b; --line: #363d46; --shade: #1d2127;
    --best: #1f3a29; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 78rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 1rem; }
h2 { font-size: 1.3rem; margin: 2.6rem 0 .6rem; padding-top: .6rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.08rem; margin: 2rem 0 .5rem; }
p, dl { max-width: 46rem; }
code { font: .92em ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  overflow-wrap: anywhere; }
pre { background: var(--shade); border: 1px solid var(--line); border-radius: 6px; padding: .8rem 1rem;
  white-space: pre-wrap; overflow-wrap: anywhere; }
dt { font-weight: 600; margin-top: .7rem; }
dd { margin: .1rem 0 0; color: var(--ink); }
.scroll { overflow-x: auto; margin: 1rem 0 1.4rem; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--faint); padding: 0 0 .5rem; position: sticky; left: 0; }
th, td { padding: .4rem .7rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; vertical-align: top; }
thead th { border-bottom: 2px solid var(--line); vertical-align: bottom; font-weight: 600;
  white-space: normal; min-width: 4.2rem; }
th[scope="row"], thead th:first-child { text-align: left; position: sticky; left: 0;
  background: var(--page); font-weight: 600; }
th[scope="row"] code { display: inline-block; width: max-content; max-width: min(18rem, 38vw);
  white-space: normal; overflow-wrap: anywhere; }
td small, th small { display: block; color: var(--faint); font-size: .8em; font-weight: 400; }
td.best { background: var(--best); font-weight: 700; }
figure { margin: 1.2rem 0 1.6rem; max-width: 50rem; overflow-x: auto; }
figure svg { width: 100%; min-width: 32rem; height: auto; display: block; }
figcaption { color: var(--faint); font-size: .9rem; position: sticky; left: 0; }
@media print {
  :root { --ink: #000; --faint: #444; --page: #fff; --line: #bbb; --shade: #f5f5f5; --best: #e3f1e6; }
  body { font-size: 10pt; } main { max-width: none; padding: 0; }
  .scroll { overflow: visible; } table { font-size: 7.5pt; } th, td { padding: .2rem .3rem; }
  thead th, figure svg { min-width: 0; }
  figure, tr { break-inside: avoid; } h2, h3 { break-after: avoid; }
}
"""
