"""Fields and evidence of a few entities, and BM25 by sets, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa

from genret.index_builder.build import build_index
from genret.index_builder.build_options import BuildOptions
from genret.retrieval.evidence.evidence import Evidence
from genret.retrieval.evidence.field import (
    QUERIES,
    Counted,
    Field,
    make_fields,
    query_blocks,
    text_blocks,
    write_blocks,
)
from genret.retrieval.evidence.postings import Characters, Lookup, fold_all
from genret.retrieval.index.layout import FIELD_FILES
from genret.retrieval.index.reader import Index
from genret.retrieval.progress import StepProgress
from genret.retrieval.sources.columns import ColumnMapping
from tests.index_fixtures import character_tokenizer, write_titles

WORDS = [
    "red", "blue", "green", "dog", "cat", "house", "river", "old", "new", "town", "of", "the", "über",
    "straße", "東京", "Łódź", "a", "1984", "km", "king", "queen", "jungle", "book", "film", "water", "stone",
]  # fmt: skip
HEADER = "entity_id\ttitle\taliases\tdescription\tplot\tfame"


def made_up_texts(count: int, seed: int, most_words: int = 5) -> list[str]:
    random = Random(seed)
    return [" ".join(random.choices(WORDS, k=random.randint(1, most_words))) for _ in range(count)]


def field_of(
    folder: Path,
    texts: Sequence[str],
    owner: Sequence[int] | None = None,
    num_entities: int | None = None,
    batch: int = 7,
) -> Field:
    """Write and read the field of some texts."""
    owners = np.arange(len(texts)) if owner is None else np.array(owner, np.int64)
    path = folder / "field.arrow"
    path.unlink(missing_ok=True)
    pieces = [(owners[at : at + batch], texts[at : at + batch]) for at in range(0, len(texts), batch)]
    assert list(write_blocks(path, text_blocks(pieces), False))[-1:] == [len(texts)][: len(texts)]
    most = num_entities or int(owners.max(initial=-1)) + 1
    return Field.read(pa.py_buffer(path.read_bytes()), path.name, most)


def queries_field_of(
    folder: Path, queries: Sequence[tuple[int, Sequence[Counted]]], num_entities: int
) -> Field:
    path = folder / "past.arrow"
    path.unlink(missing_ok=True)
    batches = [(np.array([entity]), [mine]) for entity, mine in queries]
    list(write_blocks(path, query_blocks(batches), True))
    return Field.read(pa.py_buffer(path.read_bytes()), path.name, num_entities, has_queries=True)


def terms_of(text: str, kind: str) -> set[int]:
    characters = Characters(fold_all([text]))
    return set((characters.words() if kind == "words" else characters.letters()).term.tolist())


class PlainBm25:
    """BM25 with term frequency 1 by sets, in float64."""

    def __init__(self, texts: Iterable[str], kind: str) -> None:
        self.kind = kind
        self.sets = [terms_of(text, kind) for text in texts]
        self.mean = max(sum(map(len, self.sets)) / max(len(self.sets), 1), 1.0)

    def idf(self, term: int) -> float:
        count = max(sum(term in one for one in self.sets), 1)
        return math.log(1 + (len(self.sets) - count + 0.5) / (count + 0.5))

    def factor(self, length: int) -> float:
        return 2.2 / (1 + 1.2 * (1 - 0.5 + 0.5 * min(length, 255) / self.mean))

    def score(self, query: str, of: set[int]) -> float:
        total = math.fsum(self.idf(term) for term in terms_of(query, self.kind) & of)
        return total * self.factor(len(of))

    def scores(self, query: str) -> list[float]:
        return [self.score(query, one) for one in self.sets]


def look_up(field: Field, query: str) -> tuple[Lookup, Lookup]:
    characters = Characters(fold_all([query]))
    return field.look_up(np.unique(characters.words().term), np.unique(characters.letters().term))


def build_catalogue(
    folder: Path, lines: Sequence[str], header: str = HEADER, weight: str | None = None
) -> Path:
    """Build an index of a TSV file, tokens being characters; it has no evidence."""
    source = write_titles(folder / "titles.tsv", [header, *lines])
    tokenizer = character_tokenizer("".join(lines))
    mapping = ColumnMapping(weight=weight)
    build_index(source, tokenizer, BuildOptions(out=folder / "it.index", mapping=mapping, evidence=None))
    return folder / "it.index"


def evidence_of(
    index: Index,
    folder: Path,
    columns: Sequence[str] = (),
    queries: Iterable[tuple[int, Sequence[Counted]]] | None = None,
) -> Evidence:
    """Make the fields of an index in a folder, and open them."""
    folder.mkdir(exist_ok=True)
    _, names = make_fields(index, columns, queries, folder, StepProgress())
    fields = {
        kind: Field.read(
            pa.py_buffer((folder / file).read_bytes()), file, index.num_entities, has_queries=kind == QUERIES
        )
        for kind, file in FIELD_FILES.items()
        if file in names
    }
    return Evidence(index, fields)
