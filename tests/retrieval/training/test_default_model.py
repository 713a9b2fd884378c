"""The shipped checkpoint: complete, small, and as good on the sample catalogue as its metrics say."""

from __future__ import annotations

import json

import pytest

from decoding.model.hf_model import HFLanguageModel
from retrieval.defaults import sample_catalogue, small_model_dir
from retrieval.prompts import CheckpointConfig
from retrieval.text import Rendering, TextTokenizer
from retrieval.training.quality import TitleRows, measure_hits
from retrieval.training.training_data import read_catalogue, read_queries
from retrieval.training.training_run import load_model

FOLDER = small_model_dir()
CATALOGUE = sample_catalogue()
QUERIES = CATALOGUE.with_name("queries.tsv")
MOST_BYTES = 20_000_000


def test_it_is_small_and_complete() -> None:
    files = {file.name: file.stat().st_size for file in FOLDER.iterdir()}
    assert set(files) >= {"config.json", "genret.json", "metrics.json", "model.safetensors", "tokenizer.json"}
    assert sum(files.values()) <= MOST_BYTES
    assert not [name for name in files if name.endswith((".bin", ".pt", ".pkl"))]


def test_it_opens_as_serving_opens_it() -> None:
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


def test_hits_on_the_dev_queries_are_those_of_its_metrics() -> None:
    metrics = json.loads((FOLDER / "metrics.json").read_text(encoding="utf-8"))
    entities = read_catalogue(CATALOGUE)
    dev = [q for q in read_queries(QUERIES, entities) if q.split == "dev"][:100]
    titles = TitleRows(TextTokenizer.load(FOLDER), CheckpointConfig.load(FOLDER), entities)
    hits = measure_hits(load_model(str(FOLDER)), titles, dev)
    said = metrics["hits"]["dev"]
    # A part of the queries, so only about as good: four standard errors of a share over 100 queries.
    assert hits.hits_at_1 == pytest.approx(said["hits_at_1"], abs=0.2)
    assert hits.hits_at_10 == pytest.approx(said["hits_at_10"], abs=0.2)
