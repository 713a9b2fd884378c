"""Filters through the retriever: what is refused, what is shared, and what is never decoded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from genret import Mention, RetrievalResult, Retriever, RetrieveRequest
from genret.decoding.cancellation import CancelToken
from genret.decoding.errors import DeadlineExceededError, DecodingCancelledError
from genret.retrieval.errors import InputError
from genret.retrieval.filters import entity_filter as store
from genret.retrieval.index.reader import Index
from tests.fakes import TableModel, recorded
from tests.table_retrievers import CONFIG, METHODS, TOKENIZER, CountingModel

HAS = "the index has: entity_id, kind, title"


@pytest.fixture
def retriever(table_index: Path) -> Iterator[Retriever]:
    model = CountingModel(TableModel.random(TOKENIZER.vocab_size, seed=1))
    with Retriever(Index.open(table_index), model, TOKENIZER, CONFIG) as opened:
        yield opened


def ids(result: Any) -> set[str]:
    assert isinstance(result, RetrievalResult)
    return {candidate.entity_id for candidate in result.candidates}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"filter": "kind = 'city'"}, {"Q4", "Q5", "Q6"}),
        ({"filter": "entity_id in ('Q1', 'Q7')"}, {"Q1", "Q7"}),
        ({"filter": "title like 'Merc%' and kind != 'planet'"}, {"Q10"}),
        ({"allow_ids": ["Q1", "Q2", "nobody"]}, {"Q1", "Q2"}),
        ({"filter": "kind = 'city'", "deny_ids": ["Q5", "Q1", "nobody"]}, {"Q4", "Q6"}),
        ({"filter": "kind = 'city'", "allow_ids": ["Q1", "Q5", "Q6"], "deny_ids": ["Q6"]}, {"Q5"}),
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_answers_pass_all_three(
    retriever: Retriever, method: str, options: dict[str, Any], expected: set[str]
) -> None:
    sampled = {"num_samples": 256, "seed": 1, "temperature": 20.0} if method == "disc" else {}
    first, second = retriever.retrieve(["one", "two"], k=12, method=method, **sampled, **options)
    assert ids(first) <= expected
    assert ids(second) <= expected
    if method != "disc":
        assert ids(first) == ids(second) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"filter": "year = 3"}, f"filter: at character 1: unknown column 'year'; {HAS}"),
        ({"filter": "kind = 'x"}, "filter: at character 8: this string is not closed; expected another '"),
        ({"deny_ids": ["x"] * 100_001}, "deny_ids: at most 100,000 ids, got 100,001"),
    ],
)
def test_wrong_filters_are_refused_before_anything_is_decoded(
    retriever: Retriever, options: dict[str, Any], message: str
) -> None:
    calls = [
        lambda: retriever.retrieve(["one", "two"], **options),
        lambda: retriever.link(Mention("one"), **options),
    ]
    for call in calls:
        with pytest.raises(InputError) as error:
            call()
        assert str(error.value) == message
    assert retriever.model.prompts == []  # type: ignore[attr-defined]
    assert retriever.filters.stats.misses == 0


def test_a_bad_predicate_fails_its_request_alone(retriever: Retriever) -> None:
    requests = [
        RetrieveRequest("one", filter="kind = 'city'"),
        RetrieveRequest("two", filter="year > 3"),
        RetrieveRequest("three"),
    ]
    good, bad, open_ = retriever.retrieve_batch(requests)
    assert ids(good) == {"Q4", "Q5", "Q6"}
    assert isinstance(bad, InputError)
    assert bad.field == "filter"
    assert len(ids(open_)) == 10
    with pytest.raises(InputError):  # what the service asks before a request is queued
        retriever.prompt_tokens(requests[1])
    with pytest.raises(InputError):
        retriever.check_filter("year > 3")
    retriever.check_filter("kind > 'a'")


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_filter_is_no_match_without_a_forward(retriever: Retriever, method: str) -> None:
    options: list[dict[str, Any]] = [{"filter": "kind = 'poem'"}, {"allow_ids": ()}, {"filter": "null"}]
    requests = [RetrieveRequest("x", method=method, **entry) for entry in options]
    replies = retriever.retrieve_batch(requests)
    for reply in replies:
        assert isinstance(reply, RetrievalResult)
        assert reply.no_match
        assert reply.method == method
        if method != "disc":
            assert reply.certified
        else:
            assert (reply.mass, reply.mass_stderr, reply.num_draws) == (0.0, 0.0, 0)
            assert reply.seed is not None
    assert retriever.model.prompts == []  # type: ignore[attr-defined]
    mixed = retriever.retrieve_batch([*requests, RetrieveRequest("y", method=method), requests[0]])
    assert [isinstance(r, RetrievalResult) and r.no_match for r in mixed] == [True] * 3 + [False, True]
    assert retriever.model.prompts == [1]  # type: ignore[attr-defined]


def test_one_filter_is_made_once(retriever: Retriever) -> None:
    spellings = ["kind = 'city' and title > 'A'", "title > 'A' AND (kind == 'city')"]
    for text in [*spellings, *spellings]:
        retriever.retrieve(["one", "two"], filter=text)
    stats = retriever.filters.stats
    assert (stats.misses, stats.entries) == (1, 1)
    assert stats.hits == 3
    data = 12 + 4 * (retriever.index.num_rows + 1)
    assert data < stats.num_bytes < data + 4096
    retriever.close()
    assert retriever.filters.stats.num_bytes == 0


def test_filters_that_do_not_fit_together_share_no_batch(
    table_index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_MAX_BATCH_BYTES", 1)
    model = TableModel.random(TOKENIZER.vocab_size, seed=1)
    kinds = ["work", "city", "river", "work", "work"]
    with Retriever(Index.open(table_index), model, TOKENIZER, CONFIG, filter_cache_bytes=0) as retriever:
        requests = [RetrieveRequest("x", k=3, filter=f"kind = '{kind}'") for kind in kinds]
        replies = retriever.retrieve_batch([*requests, RetrieveRequest("x", k=12)])
        assert [ids(reply) for reply in replies[:2]] == [{"Q1", "Q2", "Q3"}, {"Q4", "Q5", "Q6"}]
        assert [ids(reply) for reply in replies[3:5]] == [{"Q1", "Q2", "Q3"}] * 2
        assert len(ids(replies[5])) == 12
        assert retriever.filters.stats.misses == 4  # neighbours share, the first "work" is gone by then
        assert retriever.filters.stats.num_bytes == 0
        with retriever.open_another(table_index) as second:
            assert (second.filters.stats.misses, second.filters.stats.max_bytes) == (0, 0)


def test_links_are_to_allowed_entities(retriever: Retriever) -> None:
    (linked,) = retriever.link(Mention("Amazon"), k=5, filter="kind = 'river'", deny_ids=["Q7"])
    assert ids(linked) == {"Q8"}
    asked = RetrieveRequest("-", k=1, filter="kind = 'river'", allow_ids=("Q7",))
    request = retriever.mention_request(Mention("Amazon"), asked)
    (reply,) = retriever.retrieve_batch([request])
    assert ids(reply) == {"Q7"}


def test_a_list_of_ids_is_digested_once_for_all_requests_and_batches(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = SimpleNamespace(blake2b=hashlib.blake2b)
    monkeypatch.setattr("genret.retrieval.arguments.hashlib", module)
    digested = recorded(monkeypatch, module, "blake2b")
    queries = [f"query {n}" for n in range(5)]
    results = retriever.retrieve(queries, method="disc", deny_ids=["Q1", "Q2"], batch_size=2)
    assert [ids(result) & {"Q1", "Q2"} for result in results] == [set()] * 5
    assert len(digested) == 1
    request = RetrieveRequest("x", deny_ids=("Q1", "Q2"))
    assert replace(request, seed=1).deny_ids is request.deny_ids
    retriever.retrieve_batch([request, replace(request, query="y")])
    assert len(digested) == 2
    assert retriever.filters.stats.misses == 1


def test_a_request_that_is_given_up_while_its_filter_is_made_leaves_the_others_alone(
    retriever: Retriever,
) -> None:
    gone, late = CancelToken(), CancelToken(deadline=0.0)
    gone.cancel()
    requests = [RetrieveRequest("x", filter="kind = 'city'") for _ in range(4)]
    replies = retriever.retrieve_batch(requests, [gone, late, None, CancelToken()])
    assert [type(reply) for reply in replies[:2]] == [DecodingCancelledError, DeadlineExceededError]
    assert [ids(reply) for reply in replies[2:]] == [{"Q4", "Q5", "Q6"}] * 2
    assert retriever.filters.stats.entries == 1
    assert sum(retriever.model.prompts) == 2  # type: ignore[attr-defined]
