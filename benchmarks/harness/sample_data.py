"""The sample data of this repository: catalogue, queries, small model; and its retriever."""

from __future__ import annotations

import csv
import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from genret import RetrievalResult, Retriever, RetrieveRequest
from harness.processes import build_index

DATA = Path(__file__).resolve().parents[2] / "data"
SMALL_MODEL = DATA / "small-model"
_BATCH = 32


@dataclass(frozen=True, slots=True)
class Query:
    """A query and the entity that answers it."""

    text: str
    entity_id: str


def read_tsv(file: Path) -> list[dict[str, str]]:
    """Return the rows of a TSV file with a header."""
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


def sample_queries() -> list[str]:
    """Return all queries of the sample, training queries too."""
    return [row["query"] for row in read_tsv(DATA / "queries.tsv")]


def held_out_queries(limit: int | None) -> list[Query]:
    """Return the dev and test queries, which no model is trained on, or so many of them at random."""
    rows = read_tsv(DATA / "queries.tsv")
    found = [Query(row["query"], row["entity_id"]) for row in rows if row["split"] in ("dev", "test")]
    if limit is not None and limit < len(found):
        found = random.Random(0).sample(found, limit)
    return found


@contextmanager
def sample_retriever(model: Path | None = SMALL_MODEL) -> Iterator[Retriever]:
    """Build an index of data/catalogue.tsv and open it on the CPU; None: with the default model."""
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "sample.index"
        tokenizer = () if model is None else ("--tokenizer", model)
        build_index(DATA / "catalogue.tsv", index, *tokenizer, "--evidence", "none")
        with Retriever.open(index, model, device="cpu") as retriever:
            yield retriever


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


def sample_prompts(tokens: int, number: int) -> Tensor:
    """Return prompts that end in different queries, with other queries in front of them.

    Every query stands in the checkpoint's own template, as many as fit: the model is used to such an end.

    Returns:
        Shape: (number, tokens), int64.
    """
    tokenizer = Tokenizer.from_file(str(SMALL_MODEL / "tokenizer.json"))
    settings = json.loads((SMALL_MODEL / "genret.json").read_text(encoding="utf-8"))
    template = settings["prompts"][settings["default_prompt"]]
    asked = [f"{template['prefix']}{q.text.lower()}{template['suffix']}" for q in held_out_queries(None)]
    encoded = [encoding.ids for encoding in tokenizer.encode_batch(asked, add_special_tokens=False)]
    rows = []
    for first in range(number):
        written: list[int] = []
        place = first
        while len(written) < tokens:  # from the last query to the front
            written = [*encoded[place % len(encoded)], *written]
            place += number
        rows.append(written[-tokens:])
    return torch.tensor(rows)
