"""JSON answers on the wire: what goes in comes out, and wrong values are named as the wire names them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.answers.answer_types import AnswerEntity, AnswerRequest, AnswerResult
from retrieval.errors import InputError
from retrieval.types import Entity, KvShare, Timings
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.serving.served import IndexDescription
from service.wire.answers import (
    answer_from_proto,
    answer_request_from_proto,
    answer_request_to_proto,
    answer_to_proto,
)

INDEX = IndexDescription("films", "v1", "d1", 3, 2, "model", "cpu")
TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
METHODS = st.sampled_from(["greedy", "sample", "beam", "disc"])
REQUESTS = st.builds(
    AnswerRequest,
    query=TEXTS.filter(lambda text: bool(text.strip())),
    schema=TEXTS | st.booleans() | st.just({"type": "object"}),
    method=METHODS,
    max_tokens=st.integers(1, 65_536),
    temperature=st.floats(0.01, 100),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    beam_size=st.integers(1, 1000),
    num_draws=st.integers(1, 256),
    whitespace=st.sampled_from(["compact", "spaced", "flexible"]),
    property_order=st.sampled_from(["schema", "any"]),
    formats=st.sampled_from(["assert", "annotate"]),
    extra_properties=st.sampled_from(["declared", "allowed"]),
    shortlist=st.none() | st.integers(1, 1000),
    forced_spans=st.booleans(),
    prompt=st.none() | TEXTS,
)
ENTITIES = st.builds(
    AnswerEntity,
    pointer=st.sampled_from(["", "/a", "/people/0/name"]),
    index=TEXTS,
    title=TEXTS,
    entities=st.lists(
        st.builds(
            Entity,
            entity_id=TEXTS,
            title=TEXTS,
            metadata=st.dictionaries(
                TEXTS, st.none() | TEXTS | st.booleans() | st.integers(-9, 9), max_size=3
            ),
        ),
        max_size=2,
    ).map(tuple),
    shares=st.lists(st.floats(0, 1), max_size=2).map(tuple),
)
RESULTS = st.builds(
    AnswerResult,
    query=TEXTS,
    method=METHODS,
    text=TEXTS,
    entities=st.lists(ENTITIES, max_size=3).map(tuple),
    logprob=st.floats(-1e6, 0),
    num_tokens=st.integers(0, 10**6),
    num_forced=st.integers(0, 10**6),
    num_drafted=st.integers(0, 10**6),
    num_accepted=st.integers(0, 10**6),
    num_forwards=st.integers(0, 10**6),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    schema_digest=TEXTS,
    compile_ms=st.floats(0, 1e6),
    mass=st.none() | st.floats(0, 1),
    mass_stderr=st.none() | st.floats(0, 1),
    timings=st.builds(lambda a, b: Timings(a, b, a + b), st.floats(0, 1e6), st.floats(0, 1e6)),
    kv=st.builds(KvShare, *[st.integers(0, 2**40)] * 3, st.integers(0, 2**31)),
)


@given(REQUESTS)
def test_a_request_comes_back_as_it_was(request: AnswerRequest) -> None:
    message = answer_request_to_proto(request, "films")
    assert message.index == "films"
    parsed = pb.AnswerRequest.FromString(message.SerializeToString())
    assert answer_request_from_proto(parsed) == request


def test_a_named_schema_comes_back_as_a_name() -> None:
    request = AnswerRequest("q", schema_name="ticket")
    assert answer_request_from_proto(answer_request_to_proto(request)) == request


@given(RESULTS)
def test_a_result_comes_back_as_it_was(result: AnswerResult) -> None:
    message = answer_to_proto(result, INDEX, queue_ms=1.5, total_ms=9.0)
    parsed = pb.AnswerResponse.FromString(message.SerializeToString())
    reply = answer_from_proto(result.query, parsed)
    assert reply.result == result
    assert (reply.queue_ms, reply.total_ms, reply.index.name) == (1.5, 9.0, "films")


def test_what_is_left_unset_takes_the_defaults() -> None:
    message = pb.AnswerRequest(query="q", schema_json="true")
    assert answer_request_from_proto(message) == AnswerRequest("q", "true")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "schema_json: needs either a schema or the name of one, got neither"),
        ({"schema_json": "true", "query": " "}, "query: must not be empty"),
        ({"schema_json": "true", "max_tokens": 0}, r"max_tokens: must be in \[1, 65536\], got 0"),
        ({"schema_json": "true", "method": 99}, "method: must be one of ANSWER_METHOD_UNSPECIFIED.*, got 99"),
        (
            {"schema_json": "true", "whitespace": 9},
            "whitespace: must be one of ANSWER_WHITESPACE_UNSPEC.*, got 9",
        ),
    ],
)
def test_wrong_fields_are_named_as_on_the_wire(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        answer_request_from_proto(pb.AnswerRequest(**{"query": "q", **fields}))  # type: ignore[arg-type]
