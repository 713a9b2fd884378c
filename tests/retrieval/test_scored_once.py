"""`auto` asks the model once for a form: what the beams found is as if every form had been scored anew."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest

from genret import RetrievalResult, Retriever, RetrieveRequest
from genret.decoding.row_scores import score_rows
from genret.index_builder.build_options import EvidenceOptions
from genret.retrieval.methods.decoded_methods import Decoded, decode_by_beam
from genret.retrieval.methods.scored_methods import EntityScorer
from genret.retrieval.prompts import FEW_SHOT
from tests.checkpoints import checkpoint_config, make_checkpoint, make_index, train_tokenizer
from tests.table_retrievers import answers

_WORDS = ["Nile", "Paris", "Ham", "Mercury", "Amazon", "of", "Light", "Texas", "Curie", "Hill"]
_NUM_ENTITIES = 130  # more than are scored without being proposed
_POSITIONS = 140
_QUERIES = ("nile river", "mercury of paris", "who wrote Light of Texas", "zzz")
# What costs, and what is rounded, is compared apart.
_COSTS = ("num_nodes", "num_steps", "timings", "kv", "seed")
_ROUNDED = ("candidates", "nothing_fits", "mass", "mass_stderr", "mass_lower", "mass_upper")


def catalogue() -> str:
    draw = random.Random(7)

    def text(least: int, most: int) -> str:
        return " ".join(draw.choices(_WORDS, k=draw.randint(least, most)))

    lines = ["entity_id\ttitle\taliases\tkind"]
    for number in range(_NUM_ENTITIES):
        aliases = [text(1, 2) for _ in range(draw.randint(0, 4))]
        if number % 40 == 0:
            aliases.append(text(150, 160))  # longer than there is room for
        lines.append(f"E{number}\t{text(1, 3)} {number % 23}\t{'|'.join(aliases)}\t{'ab'[number % 2]}")
    return "\n".join(lines) + "\n"


class Anew(EntityScorer):
    """Scores every form, whatever was found."""

    def score(self, *args: Any) -> Any:
        *others, found = args
        return super().score(*others, [{} for _ in found])


@pytest.fixture(scope="module", params=["llama", "bart"])
def once(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retriever]:
    folder = tmp_path_factory.mktemp(request.param)
    config = checkpoint_config()
    config = replace(config, prompts={**config.prompts, "few-shot": replace(FEW_SHOT, prefix="b" * 20)})
    tokenizer = train_tokenizer([catalogue()])
    checkpoint = make_checkpoint(
        folder / "model", request.param, tokenizer=tokenizer, config=config, max_positions=_POSITIONS
    )
    index = make_index(folder, checkpoint, catalogue(), evidence=EvidenceOptions())
    with Retriever.open(index, checkpoint, device="cpu", dtype="float64") as opened:
        lengths = [len(opened.index.row_token_ids(row)) for row in range(opened.index.num_rows)]
        assert max(lengths) > _POSITIONS > min(lengths)
        yield opened


@pytest.fixture(scope="module")
def anew(once: Retriever) -> Retriever:
    parts = (once.index, once.model, once.tokenizer, once.config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("genret.retrieval.methods.batches.EntityScorer", Anew)
        return Retriever(*parts, ranker=once.ranker, is_named=False)


def check_same(one: RetrievalResult, other: RetrievalResult) -> None:
    for field in fields(RetrievalResult):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if field.name in _COSTS:
            continue
        if field.name not in _ROUNDED:
            assert mine == theirs, field.name
        elif field.name != "candidates":
            assert mine == pytest.approx(theirs, abs=1e-9), field.name
    for mine, theirs in zip(one.candidates, other.candidates, strict=True):
        told = {"logprob": 0.0, "score": 0.0, "probability": None, "shares": {}}
        assert replace(mine, **told) == replace(theirs, **told)
        for name in told:
            assert getattr(mine, name) == pytest.approx(getattr(theirs, name), abs=1e-9), name


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k": 3},
        {"k": 60, "beam_size": 40},
        {"beam_size": 1},
        {"filter": "kind = 'a'", "shortlist_size": 30},
        {"deny_ids": tuple(f"E{n}" for n in range(5)), "title_weight": 0.5},
        {"allow_ids": tuple(f"E{n}" for n in range(90))},
        {"exact": True, "exact_budget": 50},
        {"exact": True, "k": 30},
        {"aggregate": "max", "length_penalty": 0.7},
        {"prompt": "few-shot"},
        {"decoder": "disc", "num_samples": 4, "seed": 3},
        {"decoder": "disc", "num_samples": 4, "seed": 3, "temperature": 2.0},
    ],
    ids=str,
)
def test_an_answer_is_as_if_all_forms_were_scored(
    once: Retriever, anew: Retriever, options: dict[str, Any]
) -> None:
    requests = [RetrieveRequest(query, **options) for query in _QUERIES]
    alone = [answers(once, request)[0] for request in requests]
    expected = answers(anew, *requests)
    for found in (answers(once, *requests), alone):
        for mine, theirs in zip(found, expected, strict=True):
            check_same(mine, theirs)


def test_the_model_is_asked_for_what_no_beam_found_and_nothing_else(
    once: Retriever, anew: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[tuple[int, ...]]] = []
    found: list[set[tuple[int, ...]]] = []

    def recorded_rows(session: Any, rows: Any, *args: Any) -> Any:
        asked.append({tuple(row) for row in rows[0]})
        return score_rows(session, rows, *args)

    def recorded_beams(*args: Any) -> Any:
        (outcome,) = decode_by_beam(*args)
        assert isinstance(outcome, Decoded)
        found.append({row.token_ids for row in outcome.rows.values()})
        return [outcome]

    monkeypatch.setattr("genret.retrieval.methods.scored_methods.score_rows", recorded_rows)
    monkeypatch.setattr("genret.retrieval.methods.batches.decode_by_beam", recorded_beams)
    request = RetrieveRequest("nile river", k=60, beam_size=40)
    mine, theirs = (answers(retriever, request)[0] for retriever in (once, anew))
    assert found[0] == found[1]
    assert asked[0] == asked[1] - found[1]
    assert asked[0] < asked[1]
    assert mine.num_nodes < theirs.num_nodes
