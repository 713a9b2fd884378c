"""Titles to be scored on the wire: what goes in comes out, and wrong values are named as there."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.errors import InputError
from retrieval.score_types import ScoreRequest, ScoreResult, TitleScore
from retrieval.types import KvShare, Mention, Timings
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.serving.served import IndexDescription
from service.wire.scores import (
    score_reply_from_proto,
    score_reply_to_proto,
    score_request_from_proto,
    score_request_to_proto,
)
from tests.service.fake_retriever import FakeRetriever

INDEX = IndexDescription("films", "v1", "d1", 3, 2, "model", "cpu")
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
FULL = TEXT.filter(lambda text: bool(text.strip()))
TITLES = st.lists(FULL, min_size=1, max_size=5).map(tuple)
MILLISECONDS = st.floats(0, 1e6)
SCORED = st.builds(
    TitleScore,
    title=FULL,
    logprob=st.floats(-1e6, 0),
    probability=st.floats(0, 1),
    num_tokens=st.integers(1, 10**6),
    entity_ids=st.lists(TEXT, max_size=3).map(tuple),
    entity_shares=st.lists(st.floats(0, 1), max_size=3).map(tuple),
)
TOO_LONG = st.builds(
    TitleScore, title=FULL, logprob=st.none(), probability=st.just(0.0), num_tokens=st.just(9)
)
RESULTS = st.builds(
    ScoreResult,
    query=FULL,
    scores=st.lists(SCORED | TOO_LONG, max_size=4).map(tuple),
    num_nodes=st.integers(0, 10**6),
    timings=st.builds(lambda *parts: Timings(*parts[:2], sum(parts), *parts[2:]), *[MILLISECONDS] * 4),
    kv=st.builds(KvShare, *[st.integers(0, 2**40)] * 3, st.integers(0, 2**31)),
)


def read(message: pb.ScoreRequest) -> ScoreRequest:
    return score_request_from_proto(message, FakeRetriever().mention_request)


@given(FULL, TITLES, st.none() | TEXT.filter(bool))
def test_a_request_comes_back_as_it_was(query: str, titles: tuple[str, ...], prompt: str | None) -> None:
    message = score_request_to_proto(query, titles, prompt, "films")
    parsed = pb.ScoreRequest.FromString(message.SerializeToString())
    assert parsed.index == "films"
    assert read(parsed) == ScoreRequest(query, titles, prompt)


@given(FULL, TEXT, TEXT, TITLES)
def test_a_mention_becomes_the_query_that_links_it(
    mention: str, left: str, right: str, titles: tuple[str, ...]
) -> None:
    message = score_request_to_proto(Mention(mention, left, right), titles)
    parsed = pb.ScoreRequest.FromString(message.SerializeToString())
    assert read(parsed) == ScoreRequest(f"{left}[{mention}]{right}", titles, "mention")


@given(RESULTS, MILLISECONDS, MILLISECONDS)
def test_scores_come_back_as_they_were(result: ScoreResult, queue_ms: float, total_ms: float) -> None:
    message = score_reply_to_proto(result, INDEX, queue_ms, total_ms)
    reply = score_reply_from_proto(result.query, pb.ScoreResponse.FromString(message.SerializeToString()))
    assert reply.result == result
    assert (reply.queue_ms, reply.total_ms, reply.index.name) == (queue_ms, total_ms, "films")
    for sent, score in zip(message.scores, result.scores, strict=True):
        assert sent.HasField("logprob") == sent.HasField("probability") == (score.logprob is not None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"titles": []}, "titles: must be 1 to 10000, got 0"),
        ({"titles": ["a"] * 10_001}, "titles: must be 1 to 10000, got 10001"),
        ({"titles": ["a", " "]}, r"titles\[1\]: must not be empty"),
        ({"query": " "}, "query: must not be empty"),
        ({"mention": pb.Mention()}, "mention: must not be empty"),
        (
            {"mention": pb.Mention(mention="m"), "prompt_template": "plain"},
            "prompt_template: must be empty with a mention",
        ),
    ],
)
def test_wrong_fields_are_named_as_on_the_wire(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(pb.ScoreRequest(**({"query": "q", "titles": ["a"]} | fields)))


def test_without_a_subject_the_query_is_missing() -> None:
    with pytest.raises(InputError, match="query: must not be empty"):
        read(pb.ScoreRequest(titles=["a"]))


def test_one_text_is_no_list_of_titles() -> None:
    with pytest.raises(InputError, match="titles: must be a list of texts, got one text"):
        score_request_to_proto("q", "Hamlet")
