"""`genret train --encoder`: an encoder that finds its entities, resumed, taught, refused."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from transformers import TrainingArguments

from genret.retrieval.text import TextTokenizer
from genret.retrieval.training.encoder_training import (
    ContrastiveTrainer,
    EncodedPair,
    PairCollator,
    build_encoder,
    encode_pair,
)
from genret.retrieval.training.examples import BESIDE_TEXTS, Example, ExampleGenerator, ExampleOptions
from genret.retrieval.training.presets import train_tokenizer
from genret.retrieval.training.quality import nearest_rankings
from genret.retrieval.training.trainer import Budget, TrainerOptions
from genret.retrieval.training.training_data import TrainingEntity, TrainingQuery, read_catalogue
from genret.retrieval.vectors.embedder import VectorMethod, open_model
from genret.retrieval.vectors.encoder import mean_states
from tests.retrieval.training.test_training_run import check_resumed, trained, weights

QUERIES = (
    "query\tentity_id\tsplit\n"
    "pharaohs sailed on it\t1\ttrain\n"
    "where the lorelei sings\t2\ttrain\n"
    "hillary climbed it first\t3\ttrain\n"
    "the savage peak\t4\ttrain\n"
    "hillary was the first up there\t3\tdev\n"
    "a peak that is savage\t4\ttest\n"
)
PAIRS = [
    EncodedPair((5, 6, 7), (8,), "a", "first"),
    EncodedPair((9,), (10, 11), "b", "second"),
    EncodedPair((12,), (13,), "a", "third"),
]


@pytest.fixture
def data(data: Path) -> Path:
    (data / "queries.tsv").write_text(QUERIES, encoding="utf-8")
    return data


class TableEmbedder:
    """Texts with vectors of their own; counts the texts it was given."""

    dimensions = 2
    fingerprint = "table"

    def __init__(self, table: dict[str, tuple[float, float]]) -> None:
        self._table = table
        self.asked: list[str] = []

    def embed_texts(self, texts: list[str]) -> np.ndarray:
        self.asked += texts
        return np.array([self._table[text] for text in texts], dtype=np.float32).reshape(-1, 2)

    embed_queries = embed_texts


def test_an_encoder_opens_as_vectors_and_finds_what_it_was_taught(data: Path) -> None:
    result = trained(data, "out", "--encoder", "--max-steps", "60", "--eval-steps", "30", "--test")
    metrics = json.loads(result.stdout)
    assert metrics == json.loads((data / "out" / "metrics.json").read_text())
    assert metrics["steps"] == 60
    with_queries = {f"{split}, training queries as texts" for split in ("dev", "test")}
    assert set(metrics["hits"]) >= {"dev", "test", "exact title", "description"} | with_queries
    assert metrics["hits"]["dev"]["hits_at_1"] == 1
    assert result.stderr.count("\ndev (first 1), nearest texts  hits@1") == 2
    assert result.stderr.count("\ndev, nearest texts  hits@1") == 1
    assert {tensor.dtype for tensor in weights(data / "out").values()} == {torch.float16}

    embedder = open_model(VectorMethod.parse(f"encoder:{data / 'out'}"))
    asked = [TrainingQuery(text, "") for text in ("PHARAOHS sailed", "mount everst", "Cologne river", "peak")]
    ranked = nearest_rankings(embedder, read_catalogue(data / "catalogue.tsv"), asked)
    assert [best[0] for best in ranked[:3]] == ["1", "3", "2"]
    assert set(ranked[3]) == {"1", "2", "3", "4"}


def test_a_killed_run_resumes_to_the_same_weights(data: Path) -> None:
    check_resumed(data, "model.safetensors", "--encoder", steps=8)


def test_a_teacher_is_imitated(data: Path) -> None:
    trained(data, "teacher", "--encoder", "--max-steps", "2")
    result = trained(data, "out", "--encoder", "--max-steps", "2", "--teacher", f"encoder:{data / 'teacher'}")
    assert json.loads(result.stdout)["teacher"] == f"encoder:{data / 'teacher'}"
    taught, alone = weights(data / "out"), weights(data / "teacher")
    assert any(not torch.equal(tensor, alone[name]) for name, tensor in taught.items())


def test_every_example_has_a_text_of_its_entity(data: Path) -> None:
    entities = read_catalogue(data / "catalogue.tsv")
    queries = [TrainingQuery("pharaohs sailed on it", "1"), TrainingQuery("the savage peak", "4")]
    options = ExampleOptions(first=BESIDE_TEXTS, later=BESIDE_TEXTS, texts=True)
    generator, random = ExampleGenerator(entities, queries, options), Random(3)
    texts = {e.entity_id: {*e.surfaces, e.description} for e in entities}
    for query in queries:
        texts[query.entity_id].add(query.text)
    seen: dict[str, set[str]] = {entity_id: set() for entity_id in texts}
    for index in range(400):
        example = generator.draw(index, random)
        seen[example.entity_id or ""].add(example.text or "")
    assert seen == texts


def test_pairs_without_tokens_are_left_out_and_long_ones_cut() -> None:
    tokenizer = TextTokenizer(train_tokenizer(["a b c d"], 300), None, "test")
    encode = partial(encode_pair, tokenizer, 3)
    got = encode(Example("t", "name", query="a b c d e", entity_id="1", text="b"))
    assert (len(got.prompt_ids), len(got.title_ids)) == (3, 1)
    assert encode(Example("t", "name", query="", entity_id="1", text="b")) is None
    assert encode(Example("t", "invented", query="b")) is None


def test_batches_mark_texts_of_the_same_entity_and_ask_the_teacher_once() -> None:
    teacher = TableEmbedder({"first": (1, 0), "second": (0, 1), "third": (1, 0)})
    collator = PairCollator(teacher)  # type: ignore[arg-type]
    for _ in range(2):
        batch = collator(PAIRS)
    assert teacher.asked == ["first", "second", "third"]
    assert batch["query_ids"].tolist() == [[5, 6, 7], [9, 0, 0], [12, 0, 0]]
    assert batch["query_mask"].sum(1).tolist() == [3, 1, 1]
    assert batch["text_ids"].tolist() == [[8, 0], [10, 11], [13, 0]]
    assert batch["text_mask"].sum(1).tolist() == [1, 2, 1]
    assert batch["same"].nonzero().tolist() == [[0, 2], [2, 0]]
    assert batch["taught"].tolist() == [[1, 0, 1], [0, 1, 0], [1, 0, 1]]
    assert "taught" not in PairCollator()(PAIRS)


@torch.no_grad()
def test_the_loss_is_the_cross_entropy_of_the_right_text(tmp_path: Path) -> None:
    model = build_encoder(train_tokenizer(["a b c d"], 300))
    model.train(False)
    trainer = ContrastiveTrainer(
        model=model,
        options=TrainerOptions(optimizer="adamw"),
        budget=Budget(1, None),
        args=TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[]),
    )
    batch = PairCollator()(PAIRS)
    queries = mean_states(model, batch["query_ids"], batch["query_mask"])
    texts = mean_states(model, batch["text_ids"], batch["text_mask"])
    compared = [[0, 1], [0, 1, 2], [1, 2]]  # pairs 0 and 2 are of one entity
    losses = [
        -table[i, compared[i]].log_softmax(0)[compared[i].index(i)]
        for table in (queries @ texts.T / 0.1, texts @ queries.T / 0.1)
        for i in range(3)
    ]
    expected = float(sum(losses)) / 6
    assert float(trainer.compute_loss(model, batch)) == pytest.approx(expected, rel=1e-5)
    # The divergence from a teacher is zero where its similarities are the encoder's own.
    taught = batch | {"taught": texts @ texts.T}
    assert float(trainer.compute_loss(model, taught)) == pytest.approx(expected, rel=1e-5)
    taught = batch | {"taught": -texts @ texts.T}
    assert float(trainer.compute_loss(model, taught)) > expected + 0.1


def test_entities_rank_by_their_most_similar_text() -> None:
    entities = [TrainingEntity("1", "north", ("east",)), TrainingEntity("2", "north-east")]
    table = {"north": (0, 1), "east": (1, 0), "north-east": (0.7, 0.7), "ask": (0.8, 0.6), "mine": (0.8, 0.6)}
    embedder, asked = TableEmbedder(table), [TrainingQuery("ask", "1")]
    assert nearest_rankings(embedder, entities, asked) == [["2", "1"]]  # type: ignore[arg-type]
    training = [TrainingQuery("mine", "1")]
    assert nearest_rankings(embedder, entities, asked, training) == [["1", "2"]]  # type: ignore[arg-type]
