"""The shipped checkpoint and encoder: complete, small, and as good on the sample as their metrics say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from genret.decoding.model.hf_model import HFLanguageModel
from genret.retrieval.defaults import sample_catalogue, small_model_dir
from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.text import Rendering, TextTokenizer
from genret.retrieval.training.quality import Hits, TitleRows, count_hits, measure_hits, nearest_rankings
from genret.retrieval.training.training_data import (
    TrainingEntity,
    TrainingQuery,
    read_catalogue,
    read_queries,
)
from genret.retrieval.training.training_run import load_model
from genret.retrieval.vectors.embedder import VectorMethod, open_model

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


def test_the_checkpoint_opens_as_serving_opens_it() -> None:
    tokenizer, config = TextTokenizer.load(FOLDER), CheckpointConfig.load(FOLDER)
    assert config.rendering == Rendering(prefix=" ", end_token="</s>")
    assert config.prompt(None).lowercase
    assert config.prompt(config.mention_prompt).mention_format
    model = HFLanguageModel.load(FOLDER, device="cpu")
    assert model.vocab_size == tokenizer.vocab_size


def test_every_title_of_the_sample_comes_back_from_its_tokens() -> None:
    tokenizer, rendering = TextTokenizer.load(FOLDER), CheckpointConfig.load(FOLDER).rendering
    assert rendering is not None
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
