"""The default model over the sample catalogue, and the queries nobody trained it on."""

from __future__ import annotations

import csv
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.processes import measured

from genret import RetrievalResult, Retriever, RetrieveRequest

_DATA = Path(__file__).resolve().parent.parent.parent / "data"
_BUILD = "from genret.index_builder.cli import build_command; build_command()"
_SPLITS = ("dev", "test")
_BATCH = 32


@dataclass(frozen=True, slots=True)
class Query:
    """A query and the entity that answers it."""

    text: str
    entity_id: str


@contextmanager
def sample_retriever() -> Iterator[Retriever]:
    """Build an index of data/catalogue.tsv and open it with the default model, on the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "sample.index"
        tokenizer = ["--tokenizer", str(_DATA / "small-model")]
        command = [sys.executable, "-c", _BUILD, str(_DATA / "catalogue.tsv"), *tokenizer]
        measured([*command, "--out", str(index), "--evidence", "none", "--quiet"])
        with Retriever.open(index, device="cpu") as retriever:
            yield retriever


def held_out_queries(limit: int | None) -> list[Query]:
    """Return the dev and test queries, or so many of them."""
    with (_DATA / "queries.tsv").open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    found = [Query(row["query"], row["entity_id"]) for row in rows if row["split"] in _SPLITS]
    if limit is not None and limit < len(found):
        found = random.Random(0).sample(found, limit)
    return found


def answers(retriever: Retriever, requests: Sequence[RetrieveRequest]) -> list[RetrievalResult]:
    """Answer requests in batches.

    Raises:
        Exception: the first error a request ended with.
    """
    results: list[RetrievalResult] = []
    for first in range(0, len(requests), _BATCH):
        for reply in retriever.retrieve_batch(requests[first : first + _BATCH]):
            if isinstance(reply, Exception):
                raise reply
            results.append(reply)
    return results
