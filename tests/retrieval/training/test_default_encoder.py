"""The shipped encoder: complete, small, and as good on the sample catalogue as its metrics say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from retrieval.defaults import sample_catalogue
from retrieval.training.quality import count_hits, nearest_rankings
from retrieval.training.training_data import read_catalogue, read_queries
from retrieval.vectors.embedder import VectorMethod, open_model

FOLDER = Path(__file__).parents[3] / "data" / "default-encoder"
CATALOGUE = sample_catalogue()
MOST_BYTES = 8_000_000


def test_it_is_small_and_complete() -> None:
    files = {file.name: file.stat().st_size for file in FOLDER.iterdir()}
    assert set(files) >= {"config.json", "metrics.json", "model.safetensors", "tokenizer.json"}
    assert sum(files.values()) <= MOST_BYTES
    assert not [name for name in files if name.endswith((".bin", ".pt", ".pkl"))]


def test_hits_on_the_dev_queries_are_those_of_its_metrics() -> None:
    said = json.loads((FOLDER / "metrics.json").read_text(encoding="utf-8"))["hits"]["dev"]
    entities = read_catalogue(CATALOGUE)
    queries = read_queries(CATALOGUE.with_name("queries.tsv"), entities)
    dev = [query for query in queries if query.split == "dev"]
    embedder = open_model(VectorMethod.parse(f"encoder:{FOLDER}"))
    hits = count_hits(nearest_rankings(embedder, entities, dev), dev)
    # Rounding differs from machine to machine, so a query or two may.
    assert hits.hits_at_1 == pytest.approx(said["hits_at_1"], abs=0.01)
    assert hits.hits_at_10 == pytest.approx(said["hits_at_10"], abs=0.01)
