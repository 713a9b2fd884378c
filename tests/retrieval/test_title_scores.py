"""Scores of given titles against forwards of every title by itself: tables, and tiny transformers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genret import Mention, Retriever
from genret.decoding.cancellation import CancelToken
from genret.decoding.errors import DecodingCancelledError
from genret.retrieval.errors import InputError, ModelError
from genret.retrieval.index.reader import Index
from genret.retrieval.score_types import MAX_SCORED_TITLES, ScoreRequest, ScoreResult
from genret.retrieval.text import Rendering
from tests.checkpoints import make_checkpoint, make_index, plain_logprob, plain_model
from tests.entity_oracle import owners, shares
from tests.fakes import TableModel
from tests.table_retrievers import CONFIG, POISON, TOKENIZER, CountingModel, poisoned

TITLES = ["Amazon", "Paris", "Paris, Texas", "Quicksilver", "no such title", "Zürich", "a", "Hamlet"]


@pytest.fixture(scope="module")
def retriever(table_index: Path) -> Iterator[Retriever]:
    index = Index.open(table_index)
    model = CountingModel(poisoned(TableModel.random(TOKENIZER.vocab_size, seed=1)))
    with Retriever(index, model, TOKENIZER, CONFIG) as opened:
        yield opened


def row_of(retriever: Retriever, title: str) -> list[int]:
    (row,) = retriever.tokenizer.encode_titles([title], retriever.index.rendering)
    return row


def expected(retriever: Retriever, query: str, title: str, prompt: str | None = None) -> float:
    tokens = retriever.config.prompt(prompt).encode(retriever.tokenizer, query)
    model: Any = retriever.model
    return float(model.logprob(tokens, row_of(retriever, title)))


@settings(max_examples=40, deadline=None)
@given(titles=st.lists(st.sampled_from(TITLES) | st.text("abcé ,", min_size=1).filter(str.strip), min_size=1))
def test_scores_are_those_of_every_title_alone(retriever: Retriever, titles: list[str]) -> None:
    result = retriever.score("a river", titles)
    times = result.timings
    assert times.total_ms == pytest.approx(times.prefill_ms + times.score_ms)
    assert (times.decode_ms, times.shortlist_ms) == (0.0, 0.0)
    rows = [tuple(row_of(retriever, " ".join(title.split()))) for title in titles]
    logprobs = [expected(retriever, "a river", " ".join(title.split())) for title in titles]
    assert result.query == "a river"
    assert [score.title for score in result.scores] == titles
    assert [score.logprob for score in result.scores] == pytest.approx(logprobs, abs=1e-4)
    assert [score.num_tokens for score in result.scores] == [len(row) for row in rows]
    total = math.fsum(math.exp(logprob) for logprob in dict(zip(rows, logprobs, strict=True)).values())
    for score, logprob in zip(result.scores, logprobs, strict=True):
        assert score.probability == pytest.approx(math.exp(logprob) / total, rel=1e-3)
    # The beginnings that titles share once, their last tokens not at all.
    assert result.num_nodes == len({row[:depth] for row in rows for depth in range(1, len(row))})


def test_titles_are_looked_up_in_the_catalogue(retriever: Retriever) -> None:
    scores = retriever.score(
        "one", ["Amazon", "Quicksilver", "City of Light", "Rome", " Paris,\tTexas "]
    ).scores
    ids = [score.entity_ids for score in scores]
    assert ids == [("Q8", "Q9"), ("Q10", "Q11"), ("Q4",), (), ("Q5",)]
    assert scores[-1].title == " Paris,\tTexas "
    one, other = retriever.score("one", ["Maria Skłodowska é", "Maria  Skłodowska e\u0301"]).scores
    assert (one.logprob, one.num_tokens) == (other.logprob, other.num_tokens)
    assert one.probability == other.probability == pytest.approx(1.0), "one title, which stands there twice"


SHARED_FORMS = (
    "entity_id\ttitle\taliases\n"
    "Q1\tAmazon\t\nQ2\tAmazon\t\nQ3\tRiver\tAmazon\nQ4\tShop\tAmazon|Store\nQ5\tNile\tRiver\n"
)


@pytest.mark.parametrize("weights", [None, [1, 3, 50, 0, 7], [0, 0, 0, 0, 0]])
@pytest.mark.parametrize("title_weight", [0.5, 10.0])
def test_entities_share_a_form_by_role_and_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: list[float] | None, title_weight: float
) -> None:
    monkeypatch.setattr(Index, "weights", None if weights is None else np.array(weights, dtype=float))
    index = Index.open(make_index(tmp_path, TOKENIZER, SHARED_FORMS, rendering=CONFIG.rendering))
    config = replace(CONFIG, title_weight=title_weight)
    ids = [index.entity(number).entity_id for number in range(index.num_entities)]
    given = None if weights is None else dict(enumerate(weights))
    with Retriever(index, TableModel.random(TOKENIZER.vocab_size, seed=1), TOKENIZER, config) as opened:
        for score in opened.score("one", ["Amazon", "River", "Store", "none"]).scores:
            row = index.row_of(row_of(opened, score.title))
            wanted = shares(owners(index).get(row, {}), given, title_weight)
            by_id = {ids[number]: share for number, share in wanted.items()}
            assert dict(zip(score.entity_ids, score.entity_shares, strict=True)) == pytest.approx(by_id)
            assert list(score.entity_shares) == sorted(score.entity_shares, reverse=True)
            assert math.fsum(score.entity_shares) == pytest.approx(1.0 if wanted else 0.0)


def test_one_title_or_any_iterable(retriever: Retriever) -> None:
    (alone,) = retriever.score("one", "Paris").scores
    (first, _) = retriever.score("one", (title for title in ("Paris", "Nile"))).scores
    assert (alone.probability, alone.logprob) == (1.0, first.logprob)
    with pytest.raises(InputError, match="titles: must be a list of texts, got one text"):
        ScoreRequest("one", "Paris")  # type: ignore[arg-type]
    assert ScoreRequest("one", ["Paris"]).titles == ("Paris",)  # type: ignore[arg-type]


def test_mentions_and_templates(retriever: Retriever) -> None:
    mention = Mention("Amazon", left="rain over the ", right=" basin")
    result = retriever.score(mention, ["Amazon"])
    assert result.query == "rain over the [Amazon] basin"
    wanted = expected(retriever, result.query, "Amazon", "mention")
    assert result.scores[0].logprob == pytest.approx(wanted, abs=1e-4)
    same = retriever.score(result.query, ["Amazon"], prompt="mention")
    assert same.scores == result.scores


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"query": " "}, "query: must not be empty"),
        ({"query": 3}, "query: must be text, got int"),
        ({"query": Mention(" ")}, "mention: must not be empty"),
        ({"query": Mention("a"), "prompt": "plain"}, "prompt: is the checkpoint's mention template"),
        ({"prompt": "absent"}, "prompt: unknown template 'absent'"),
        ({"prompt": 3}, "prompt: must be text, got int"),
        ({"titles": []}, f"titles: must be 1 to {MAX_SCORED_TITLES}, got 0"),
        ({"titles": ["a"] * 10_001}, "titles: must be 1 to 10000, got 10001"),
        ({"titles": ["a", "b", "c", " \t"]}, r"titles\[3\]: must not be empty"),
        ({"titles": ["a", 3]}, r"titles\[1\]: must be a str, got int"),
        ({"titles": 3}, "titles: must be a str or a list of them, got int"),
        (
            {"titles": ["a", "b\ud800"]},
            r"titles\[1\]: not valid Unicode: half a surrogate pair at character 2",
        ),
    ],
)
def test_wrong_arguments(retriever: Retriever, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        retriever.score(**{"query": "one", "titles": ["Paris"], **arguments})


def test_tokens_that_the_model_does_not_know_name_the_title(tmp_path: Path) -> None:
    """The model knows the tokens of the index, which are single letters, and no others."""
    index = Index.open(make_index(tmp_path, TOKENIZER, "title\na\nb\n", rendering=CONFIG.rendering))
    known = index.manifest.tokenizer.max_token_id + 1
    model = TableModel.random(known, seed=1)
    with Retriever(index, model, TOKENIZER, CONFIG) as retriever:
        largest = max(row_of(retriever, "Hamlet"))
        assert largest >= known
        assert retriever.score("a", ["a"]).scores[0].probability == 1.0
        with pytest.raises(InputError) as error:
            retriever.score("a", ["a", "Hamlet"])
    assert str(error.value).startswith(f"titles[1]: holds token {largest}, which the model does not know")


def test_titles_that_merge_with_the_prompt_are_named(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    def merging(titles: list[str], rendering: Rendering) -> list[list[int] | None]:
        return [None if title == "Nile" else [5, 1] for title in titles]

    monkeypatch.setattr(retriever.tokenizer, "encode_titles", merging)
    with pytest.raises(InputError, match=r"titles\[2\]: 'Nile ' merges with the prompt's last tokens"):
        retriever.score("one", ["Paris", "Berlin", "Nile "])


def test_a_batch_gives_everyone_their_own(retriever: Retriever) -> None:
    cancelled = CancelToken()
    cancelled.cancel()
    requests = [
        ScoreRequest("one", ("Paris", "Nile")),
        ScoreRequest(f"two {POISON}", ("Paris",)),
        ScoreRequest("three", ("Paris",) * 3, "mention"),
        ScoreRequest("four", ("Paris",), "absent"),
        ScoreRequest("five", ("Paris",)),
        ScoreRequest("six " * 3, tuple(TITLES)),
    ]
    prompts = retriever.model.prompts  # type: ignore[attr-defined]
    prompts.clear()
    (left,) = retriever.score_batch(requests[4:5], [cancelled])
    assert isinstance(left, DecodingCancelledError)
    assert not prompts
    replies = retriever.score_batch(requests, [None, None, CancelToken(), None, cancelled, None])
    assert prompts == [4, 1, 1, 1, 1], "who has left is not computed, and each alone once logits break"
    kinds = [ScoreResult, ModelError, ScoreResult, InputError, DecodingCancelledError, ScoreResult]
    assert [type(reply) for reply in replies] == kinds
    for request, reply in zip(requests, replies, strict=True):
        if isinstance(reply, ScoreResult):
            assert (
                reply.scores == retriever.score(request.query, request.titles, prompt=request.prompt).scores
            )
    with pytest.raises(ModelError, match="NaN or infinite logits"):
        retriever.score(POISON, ["Paris"])
    assert retriever.score_batch([]) == []


@pytest.mark.parametrize("architecture", ["llama", "bart"])
def test_transformers_score_titles_that_fit(
    architecture: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Against plain forwards; a title longer than the model's positions has no score."""
    folder = make_checkpoint(tmp_path_factory.mktemp("model"), architecture, max_positions=60)
    index = make_index(tmp_path_factory.mktemp("index"), folder)
    plain = plain_model(folder)
    titles = [*TITLES, "$" * 90, "Paris"]
    with Retriever.open(index, folder, device="cpu") as retriever:
        result = retriever.score("who wrote hamlet", titles)
        prompt = retriever.config.prompt(None).encode(retriever.tokenizer, "who wrote hamlet")
        for title, score in zip(titles, result.scores, strict=True):
            row = row_of(retriever, title)
            assert score.num_tokens == len(row)
            if title.startswith("$"):
                assert (score.logprob, score.probability) == (None, None)
                continue
            assert score.logprob == pytest.approx(plain_logprob(plain, prompt, row), abs=1e-4)
        assert result.kv.peak_bytes > 0
