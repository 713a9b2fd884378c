"""Labelled mentions of el/ below the shared data: the catalogues they are linked to, and their documents.

A line of a labelled set holds one mention with up to 600 characters of text on either side. `read_documents`
puts the lines of a document together again, so that every mention has its place in one text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from genret.retrieval.index.reader import Index
from harness.processes import build_index
from harness.titles import json_lines

# Sets whose titles are places of GeoNames; those of all others are articles of Wikipedia.
PLACE_SETS = ("lgl",)
WIKIPEDIA, PLACES = "wikipedia_en", "places_geonames_lgl"
_QUALIFIED = (re.compile(r"(.+?) \([^()]*\)"), re.compile(r"([^,]+), .+"))
# Two windows are of one stretch of text if they agree over so many characters.
_OVERLAP_CHARS = 48


class LabelledSpan(NamedTuple):
    """A mention at text[start:end]; its title is None where the entity has none."""

    start: int
    end: int
    title: str | None


@dataclass(frozen=True, slots=True)
class LabelledDocument:
    """A document, or a stretch of one, and its labelled mentions."""

    doc_id: str  # stretches that do not overlap have the same
    text: str
    spans: tuple[LabelledSpan, ...]  # by start and end; they may overlap


def base_name(title: str) -> str | None:
    """Return a title without what tells it from titles like it; None where it has no such addition.

    "Mercury" of "Mercury (planet)", "Cairo" of "Cairo, Illinois".
    """
    for pattern in _QUALIFIED:
        if match := pattern.fullmatch(title):
            return match[1]
    return None


def catalogue_of(labelled_set: str) -> str:
    """Return which catalogue a set is linked to: `WIKIPEDIA` or `PLACES`."""
    return PLACES if labelled_set in PLACE_SETS else WIKIPEDIA


def labelled_sets(shared: Path) -> list[str]:
    """Return the names of the labelled sets."""
    return sorted(file.name.partition(".")[0] for file in (shared / "el").glob("*.dev.jsonl.gz"))


def write_catalogue(shared: Path, folder: Path) -> dict[str, Path]:
    """Write both catalogues, with base names as aliases; return the files of `WIKIPEDIA` and `PLACES`."""
    files = {}
    for name in (WIKIPEDIA, PLACES):
        titles = pq.read_table(shared / "titles" / f"{name}.parquet", columns=["title"]).column("title")
        aliases = [[base] if (base := base_name(title)) else [] for title in titles.to_pylist()]
        table = pa.table({"title": titles, "aliases": pa.array(aliases, pa.list_(pa.string()))})
        files[name] = folder / f"{name}.parquet"
        pq.write_table(table, files[name])
    return files


def opened_index(shared: Path, folder: Path, catalogue: str, tokenizer: Path, given: Path | None) -> Index:
    """Open the index that is given, else that of the folder, built in 20 s where it is not there."""
    path = given or folder / f"{catalogue}.index"
    if not path.exists():
        build_index(write_catalogue(shared, folder)[catalogue], path, "--tokenizer", tokenizer)
    return Index.open(path, verify_digests=False)


def read_documents(path: Path) -> list[LabelledDocument]:
    """Read a labelled set and put the windows of every document together.

    Windows that share no text stay apart; so do stretches of one document between which text is missing.
    """
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for row in json_lines(path):
        rows.setdefault(row["doc"], []).append(row)
    return [document for doc_id, of_document in rows.items() for document in _joined(doc_id, of_document)]


def _joined(doc_id: str, rows: Iterable[Mapping[str, Any]]) -> list[LabelledDocument]:
    stretches: list[_Stretch] = []
    for row in rows:
        start = len(row["left"])
        window = _Stretch(row["left"] + row["mention"] + row["right"], set())
        title = row.get("title_wp" if row.get("title_kind") == "wikidata_label" else "title")
        window.spans.add(LabelledSpan(start, start + len(row["mention"]), title))
        apart = []
        for stretch in stretches:
            offset = _offset(stretch.text, window.text)
            if offset is None:
                apart.append(stretch)
            else:
                window = stretch.joined(window, offset)
        stretches = [*apart, window]

    def order(span: LabelledSpan) -> tuple[int, int, str]:
        return span.start, span.end, span.title or ""

    return [LabelledDocument(doc_id, one.text, tuple(sorted(one.spans, key=order))) for one in stretches]


@dataclass(slots=True)
class _Stretch:
    text: str
    spans: set[LabelledSpan]

    def joined(self, other: _Stretch, offset: int) -> _Stretch:
        """Return both as one; `offset` is where the other's text begins in this one's, maybe before it."""
        if offset < 0:
            return other.joined(self, -offset)
        moved = {LabelledSpan(s.start + offset, s.end + offset, s.title) for s in other.spans}
        return _Stretch(self.text + other.text[len(self.text) - offset :], self.spans | moved)


def _offset(text: str, other: str) -> int | None:
    """Return where another text begins in a text, agreeing over the longest overlap; None: nowhere."""
    found = [(length, at) for at, length in _overlaps(text, other)]
    found += [(length, -at) for at, length in _overlaps(other, text)]
    return max(found)[1] if found else None


def _overlaps(text: str, other: str) -> Iterable[tuple[int, int]]:
    """Yield every place of `text` from which on it agrees with `other`, and over how many characters."""
    anchor = other[:_OVERLAP_CHARS]
    at = text.find(anchor)
    while at >= 0:
        length = min(len(text) - at, len(other))
        if text.startswith(other[:length], at):
            yield at, length
        at = text.find(anchor, at + 1)
