"""Hits@k, the probes and the BM25 row."""

from __future__ import annotations

import pytest

from benchmarks.default_model import bm25_rankings
from genret.retrieval.errors import InputError
from genret.retrieval.training.presets import scratch_config
from genret.retrieval.training.quality import count_hits, mention_probes, noise_probes
from genret.retrieval.training.training_data import TrainingEntity, TrainingQuery

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


def test_nothing_to_measure_is_an_error() -> None:
    with pytest.raises(InputError, match="at least one query"):
        count_hits([], [])


def test_bm25_finds_words_and_nothing_without_them() -> None:
    queries = [TrainingQuery("longest river in africa", "1"), TrainingQuery("xyzzy", "2")]
    rankings = bm25_rankings(ENTITIES, queries)
    assert rankings[0][0] == "1"
    assert rankings[1] == []


def test_bm25_may_learn_from_training_queries() -> None:
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
