"""Real titles and tokenizers from the directory named by GENRET_SHARED_DATA; tests skip without them."""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from genret.retrieval.text import TextTokenizer

SHARED = Path(os.environ.get("GENRET_SHARED_DATA", Path(__file__).parents[1] / "../shared/data"))
END_TOKENS = {  # of every tokenizer there, where the file itself names none
    "gpt2": None,
    "cl100k_base": "Ċ",
    "o200k_base": "Ċ",
    "mistral_v1_sp32k": None,
    "mistral_v3_sp32k": None,
    "titles_bytebpe8k": None,
    "titles_unigram32k": None,
    "titles_wordpiece16k_uncased": None,
}


def shared_file(*parts: str) -> Path:
    """Return a file of the shared data, or skip the test."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{'/'.join(parts)} is not in GENRET_SHARED_DATA ({SHARED})")
    return path


def schema_rows(name: str = "real_world.dev.jsonl.gz") -> Iterator[dict[str, Any]]:
    """Rows of a file of schemas, each with labelled values."""
    with gzip.open(shared_file("schemas", name), "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


@cache
def load_tokenizer(name: str) -> TextTokenizer:
    return TextTokenizer.load(shared_file("tokenizers", f"{name}.tokenizer.json"))


def wikipedia_titles() -> list[str]:
    table = pq.read_table(shared_file("titles", "wikipedia_en.parquet"), columns=["title"])
    titles: list[str] = table.column("title").to_pylist()
    return titles


def odd_titles() -> list[str]:
    """Every text of the edge cases: titles, what they were before cleaning, what they collide with, fakes."""
    with shared_file("titles", "edge_titles.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    found = [json.loads(row["title_json"]) for row in rows]
    found += [json.loads(row[field]) for row in rows for field in ("raw_json", "partner_json") if row[field]]
    made_up = shared_file("titles", "adversarial_synthetic.json").read_text(encoding="utf-8")
    return [*found, *json.loads(made_up)]
