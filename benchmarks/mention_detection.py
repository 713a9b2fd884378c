"""Quality of found mentions on labelled documents.

    python benchmarks/mention_detection.py                                  # builds both indexes: a minute
    python benchmarks/mention_detection.py --wikipedia wiki.index --places places.index --part train

Every set of el/ is put together to documents again, so that the labelled spans are known in whole texts. A
found mention counts if it is exactly a labelled span. The catalogue is English Wikipedia's titles, with base
names as aliases ("Mercury" of "Mercury (planet)"); for `lgl` it is places of GeoNames.

Recall is of mentions that are linked to an entity of the catalogue; "named" ones have a text that is a title
or alias of that entity, as others cannot be linked to it by name. Labels are partial, so precision is low
wherever a set labels places or subjects only; "boundary" precision is that of the found mentions which
overlap a labelled one. Weights were chosen with `--part train`.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
from harness.labelled_mentions import (
    PLACES,
    WIKIPEDIA,
    LabelledDocument,
    LabelledSpan,
    catalogue_of,
    labelled_sets,
    opened_index,
    read_documents,
)
from harness.report import COUNT, FOLDER, Spread, benchmark, shown
from harness.timing import in_turn
from harness.titles import DATA, WORK

from genret.retrieval.index.reader import Index
from genret.retrieval.linking.finding.find_options import FindOptions, load_stop_words
from genret.retrieval.linking.finding.finder import MentionFinder
from genret.retrieval.linking.finding.folding import (
    fold_name,
)
from genret.retrieval.linking.finding.name_table import NameTable, build_table

_PROSE = ("geovirus", "iitb", "msnbc", "news_fair_v2", "reuters128", "rss500")
_CLASSES = (
    *("no name of the catalogue", "a name of other entities only", "inside a longer mention"),
    *("a shorter or crossing mention", "too many entities", "stop word", "number", "short capitals"),
    *("in lower case", "unlikely in its letter case"),
)


@dataclass(slots=True)
class Counts:
    """Numbers of mentions of one set."""

    found: int = 0
    right: int = 0  # found and labelled
    overlapping: int = 0  # found, and overlap a labelled one
    recalled: int = 0  # labelled with an entity of the catalogue, and found
    named: int = 0  # recalled, and a name of their entity
    lost: dict[str, int] = field(default_factory=dict)  # labelled and not found, by reason


class Side:
    """What finds the names of one index."""

    def __init__(self, index: Index) -> None:
        table = build_table(index)
        self.index = index
        self.table: NameTable = table
        self.finder = MentionFinder(table, index, FindOptions())
        self._stop_words = load_stop_words(FindOptions().stop_words)

    def is_entity(self, span: LabelledSpan) -> bool:
        """Whether the entity of a labelled span is in the catalogue."""
        return span.title is not None and bool(self.index.entities.find([span.title])[0] >= 0)

    def is_named(self, mention: str, title: str | None) -> bool:
        """Whether an entity is called so."""
        return title in self.finder.entity_ids(mention)

    def why_lost(self, text: str, span: LabelledSpan, found: set[tuple[int, int]]) -> str:
        """Return which of `_CLASSES` a labelled mention belongs to that is not found."""
        mention = text[span.start : span.end]
        name = fold_name(mention)
        key = self.table.names.get(name)
        over = [(start, end) for start, end in found if start < span.end and span.start < end]
        if key is None:
            return _CLASSES[0]
        if any(start <= span.start and span.end <= end for start, end in over):
            return _CLASSES[2]
        if over:
            return _CLASSES[3]
        if not self.is_named(mention, span.title):
            return _CLASSES[1]
        limit = FindOptions().max_short_entities if len(name) <= 3 else FindOptions().max_entities
        if self.table.num_entities(key) > (limit or 0):
            return _CLASSES[4]
        if name in self._stop_words or len(name) < FindOptions().min_chars:
            return _CLASSES[5]
        if name.isdecimal():
            return _CLASSES[6]
        if mention.isupper() and len(mention) <= 3:
            return _CLASSES[7]
        return _CLASSES[8] if mention == mention.lower() else _CLASSES[9]


@benchmark("marisa-trie", "numpy")
@WORK
@DATA
@click.option("--wikipedia", type=FOLDER, help="Index of the catalogue of most sets.", show_default="built")
@click.option("--places", type=FOLDER, help="Index of the catalogue of lgl.", show_default="built")
@click.option("--part", type=click.Choice(["dev", "train"]), default="dev", help="The documents to use.")
@click.option("--set", "sets", multiple=True, help="A set.", show_default="all")
@click.option("--repeats", type=COUNT, default=9, help="Rounds of the measurement of speed.")
def main(options: SimpleNamespace) -> dict[str, Any]:
    """Find mentions: what is found, what is lost and why, and how fast."""
    data, part = options.data, options.part
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        names = options.sets or labelled_sets(data)
        given = {WIKIPEDIA: options.wikipedia, PLACES: options.places}
        tokenizer = data / "tokenizers" / "gpt2.tokenizer.json"
        sides = {
            name: Side(opened_index(data, Path(folder), name, tokenizer, given[name]))
            for name in sorted({catalogue_of(name) for name in names})
        }
        documents = {name: read_documents(data / "el" / f"{name}.{part}.jsonl.gz") for name in names}
        figures: dict[str, Any] = {"part": part, "sets": {}}
        for name, read in documents.items():
            figures["sets"][name] = _scored(sides[catalogue_of(name)], read)
        shown("sets", figures["sets"])
        lost = Counter[str]()
        for scored in figures["sets"].values():
            lost.update(scored["counts"].lost)
        figures["lost"] = shown("lost in all sets", lost)
        prose = [document.text for name in names if name in _PROSE for document in documents[name]]
        if prose:
            figures["speed"] = speed(sides[WIKIPEDIA].finder, prose, options.repeats)
    return figures


def _scored(side: Side, documents: Sequence[LabelledDocument]) -> dict[str, Any]:
    linked = [(document, span) for document in documents for span in document.spans if side.is_entity(span)]
    named = sum(side.is_named(d.text[s.start : s.end], s.title) for d, s in linked)
    counts = Counts()
    for document in documents:
        _count(side, document, {(span.start, span.end) for span in side.finder.find(document.text)}, counts)
    percent = {
        "recall": _percent(counts.recalled, len(linked)),
        "recall of named": _percent(counts.named, named),
        "precision": _percent(counts.right, counts.found),
        "boundary": _percent(counts.right, counts.overlapping),
    }
    return {"linked": len(linked), "named": named, "counts": counts, "percent": percent}


def _percent(number: int, total: int) -> float | None:
    return 100 * number / total if total else None


def _count(side: Side, document: LabelledDocument, found: set[tuple[int, int]], counts: Counts) -> None:
    text = document.text
    labelled = {(span.start, span.end) for span in document.spans}
    counts.found += len(found)
    counts.right += len(found & labelled)
    counts.overlapping += sum(any(s < e and b < t for b, e in labelled) for s, t in found)
    for span in document.spans:
        if not side.is_entity(span):
            continue
        if (span.start, span.end) in found:
            counts.recalled += 1
            counts.named += side.is_named(text[span.start : span.end], span.title)
        else:
            reason = side.why_lost(text, span, found)
            counts.lost[reason] = counts.lost.get(reason, 0) + 1


def speed(finder: MentionFinder, texts: Sequence[str], repeats: int) -> dict[str, Any]:
    """Time the finder on texts, after a round that brings the tables into memory."""
    num_chars = sum(map(len, texts))
    (taken,) = in_turn({"find": lambda: [finder.find(text) for text in texts]}, repeats).values()
    rate = Spread.of([num_chars / took.cpu_s for took in taken])
    return shown("speed", {"characters": num_chars, "characters_per_second": rate})


if __name__ == "__main__":
    main()
