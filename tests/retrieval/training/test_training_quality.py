"""Hits@k, the probes, and how good the shipped checkpoint and encoder are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.harness.bm25 import bm25_rankings
from genret.retrieval.defaults import sample_catalogue, small_model_dir
from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.text import TextTokenizer
from genret.retrieval.training.presets import scratch_config
from genret.retrieval.training.quality import (
    Hits,
    TitleRows,
    count_hits,
    measure_hits,
    mention_probes,
    nearest_rankings,
    noise_probes,
)
from genret.retrieval.training.training_data import (
    TrainingEntity,
    TrainingQuery,
    read_catalogue,
    read_queries,
)
from genret.retrieval.training.training_run import load_model
from genret.retrieval.vectors.embedder import VectorMethod, open_model

ENTITIES = [
    TrainingEntity("1", "Nile", ("an-Nil",), "Longest river of Africa, through Egypt and Sudan"),
    TrainingEntity("2", "Rhine", (), "River of Germany that flows past Cologne"),
    TrainingEntity("3", "Everest", ("Sagarmatha",), "Highest mountain above the sea"),
]


def test_hits_count_the_first_and_the_first_ten() -> None:
    queries = [TrainingQuery("q", "a")] * 4
    rankings = [["a"], ["b", "a"], [*"bcdefghijk", "a"], []]
    hits = count_hits(rankings, queries)
    assert (hits.hits_at_1, hits.hits_at_10, hits.num_queries) == (0.25, 0.5, 4)
    assert hits.to_json() == {"hits_at_1": 0.25, "hits_at_10": 0.5, "num_queries": 4}


def test_bm25_finds_words_and_nothing_without_them() -> None:
    queries = [TrainingQuery("longest river in africa", "1"), TrainingQuery("xyzzy", "2")]
    rankings = bm25_rankings(ENTITIES, queries)
    assert rankings[0][0] == "1"
    assert rankings[1] == []
    asked = [TrainingQuery("lorelei rock", "2")]
    assert bm25_rankings(ENTITIES, asked) == [[]]
    assert bm25_rankings(ENTITIES, asked, [TrainingQuery("the lorelei sings there", "2")])[0][0] == "2"


def test_probes_ask_for_what_the_catalogue_says_and_are_seeded() -> None:
    probes = noise_probes(ENTITIES, seed=4)
    assert probes == noise_probes(ENTITIES, seed=4)
    assert {q.text for q in probes["exact title"]} == {"Nile", "Rhine", "Everest"}
    assert {q.text for q in probes["alias"]} == {"an-Nil", "Sagarmatha"}
    assert {q.text for q in probes["description"]} == {e.description for e in ENTITIES}
    assert "alias" not in noise_probes([TrainingEntity("1", "Nile")], seed=4)


def test_mention_probes_mark_the_name_and_drop_its_bracket() -> None:
    planet = TrainingEntity("4", "Mercury (planet)", (), "Innermost and smallest planet of the Sun")
    (probe,) = mention_probes([planet], scratch_config(), seed=1)
    assert "[ Mercury ]" in probe.text
    assert "Innermost and smallest" in probe.text
    assert probe.entity_id == "4"


FOLDER = small_model_dir()
ENCODER = Path(__file__).parents[3] / "data" / "default-encoder"
CATALOGUE = sample_catalogue()


@pytest.mark.parametrize(
    ("folder", "also", "most_bytes"), [(FOLDER, {"genret.json"}, 20_000_000), (ENCODER, set(), 8_000_000)]
)
def test_they_are_small_and_complete(folder: Path, also: set[str], most_bytes: int) -> None:
    files = {file.name: file.stat().st_size for file in folder.iterdir()}
    assert set(files) >= {"config.json", "metrics.json", "model.safetensors", "tokenizer.json"} | also
    assert sum(files.values()) <= most_bytes
    assert not [name for name in files if name.endswith((".bin", ".pt", ".pkl"))]


def test_every_title_of_the_sample_comes_back_from_its_tokens() -> None:
    tokenizer, rendering = TextTokenizer.load(FOLDER), CheckpointConfig.load(FOLDER).rendering
    titles = [surface for e in read_catalogue(CATALOGUE) for surface in e.surfaces]
    rows = tokenizer.encode_titles(titles, rendering)
    assert [tokenizer.decode(row or []) for row in rows] == [f" {title}" for title in titles]


def check_hits(hits: Hits, folder: Path, tolerance: float) -> None:
    said = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["hits"]["dev"]
    assert hits.hits_at_1 == pytest.approx(said["hits_at_1"], abs=tolerance)
    assert hits.hits_at_10 == pytest.approx(said["hits_at_10"], abs=tolerance)


def dev_queries(entities: list[TrainingEntity]) -> list[TrainingQuery]:
    queries = read_queries(CATALOGUE.with_name("queries.tsv"), entities)
    return [query for query in queries if query.split == "dev"]


def test_hits_of_the_checkpoint_on_the_dev_queries_are_those_of_its_metrics() -> None:
    entities = read_catalogue(CATALOGUE)
    titles = TitleRows(TextTokenizer.load(FOLDER), CheckpointConfig.load(FOLDER), entities)
    hits = measure_hits(load_model(str(FOLDER)), titles, dev_queries(entities)[:100])
    # A part of the queries, so only about as good: four standard errors of a share over 100 queries.
    check_hits(hits, FOLDER, 0.2)


def test_hits_of_the_encoder_on_the_dev_queries_are_those_of_its_metrics() -> None:
    entities = read_catalogue(CATALOGUE)
    dev, embedder = dev_queries(entities), open_model(VectorMethod.parse(f"encoder:{ENCODER}"))
    # Rounding differs from machine to machine, so a query or two may.
    check_hits(count_hits(nearest_rankings(embedder, entities, dev), dev), ENCODER, 0.01)
