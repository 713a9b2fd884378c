"""Messages and the library's types say the same, whatever they hold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.errors import InputError
from retrieval.types import Candidate, KvShare, RetrievalResult, RetrieveRequest, Timings
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.serving.served import IndexDescription
from service.wire.replies import batch_reply_from_proto, reply_from_proto, reply_to_proto
from service.wire.requests import request_from_proto, request_to_proto
from service.wire.rpc_status import status_from_bytes

INDEX = IndexDescription("i", "v", "d", 3, 2, "m", "cpu")
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
FINITE = st.floats(allow_nan=False)
INT64 = st.integers(-(2**63), 2**63 - 1)

COMMON: dict[str, Any] = {
    "query": TEXT.filter(lambda text: bool(text.strip())),
    "k": st.integers(1, 1000),
    "num_draws": st.integers(1, 32),
    "temperature": st.floats(0.01, 100),
    "seed": st.none() | INT64,
    "prompt": st.none() | TEXT.filter(bool),
    "title_weight": st.none() | st.floats(1e-6, 1e6),
    "filter": st.none() | st.sampled_from(["kind = 'film'", 'year >= 1990 or not "a b" is null']),
    "allow_ids": st.none() | st.lists(TEXT, max_size=3).map(tuple),
    "deny_ids": st.lists(TEXT, max_size=3).map(tuple),
}
SAMPLES = st.none() | st.integers(1, 256)
TOP_M = st.none() | st.integers(1, 2**31 - 1)
DISC = {**COMMON, "method": st.just("disc"), "min_mass": st.none() | st.floats(0, 1)}
BEAM = {
    **COMMON,
    "method": st.just("beam"),
    "beam_size": st.none() | st.integers(1, 1000),
    "num_samples": SAMPLES,
    "top_m": TOP_M,
}
SHORTLIST: dict[str, Any] = {
    "shortlist_size": st.none() | st.integers(1, 2000),
    "vector_weight": st.none() | st.floats(0, 1000),
    "shortlist_query": st.none() | TEXT.filter(lambda text: bool(text.strip())),
}
BUDGET = st.none() | st.integers(0, 10**6)
REQUESTS = st.one_of(
    st.builds(RetrieveRequest, **BEAM, exact=st.booleans(), aggregate=st.sampled_from([None, "sum", "max"])),
    st.builds(
        RetrieveRequest,
        **BEAM,
        exact=st.just(True),
        exact_budget=BUDGET,
        length_penalty=st.floats(-4, 4).filter(bool),
        aggregate=st.sampled_from([None, "max"]),
    ),
    st.builds(RetrieveRequest, **DISC, num_samples=SAMPLES, top_m=TOP_M),
    st.builds(RetrieveRequest, **DISC, num_samples=st.integers(1, 4), beam_size=st.integers(1, 64)),
    st.builds(RetrieveRequest, **DISC, num_samples=SAMPLES, adaptive=st.booleans()),
    st.builds(RetrieveRequest, **COMMON, **SHORTLIST, method=st.just("shortlist")),
    st.builds(
        RetrieveRequest,
        **COMMON,
        **SHORTLIST,
        method=st.just("auto"),
        decoder=st.sampled_from([None, "beam"]),
        exact=st.booleans(),
    ),
    st.builds(
        RetrieveRequest,
        **COMMON,
        **SHORTLIST,
        method=st.just("auto"),
        decoder=st.just("disc"),
        num_samples=SAMPLES,
        adaptive=st.booleans(),
    ),
)
CANDIDATES = st.builds(
    Candidate,
    entity_id=TEXT,
    title=TEXT,
    surface=TEXT,
    logprob=FINITE,
    probability=st.none() | st.floats(0, 1),
    metadata=st.dictionaries(TEXT, st.none() | TEXT | INT64 | FINITE | st.booleans(), max_size=4),
    score=FINITE,
    similarity=st.none() | st.floats(-1, 1),
    shares=st.dictionaries(TEXT, FINITE, max_size=4),
)
BYTES = st.integers(0, 2**63 - 1)
MILLISECONDS = st.floats(0, 1e6)
RESULTS = st.builds(
    RetrievalResult,
    query=TEXT,
    method=st.sampled_from(["beam", "disc", "shortlist", "auto"]),
    candidates=st.lists(CANDIDATES, max_size=3).map(tuple),
    certified=st.none() | st.booleans(),
    mass=st.none() | st.floats(0, 1),
    mass_stderr=st.none() | st.floats(0, 1),
    mass_lower=st.none() | st.floats(0, 1),
    mass_upper=st.none() | st.floats(0, 1),
    abstained=st.booleans(),
    num_nodes=st.integers(0, 10**6),
    num_exact_nodes=st.integers(0, 10**6),
    num_draws=st.integers(0, 10**6),
    num_accepted=st.integers(0, 10**6),
    num_steps=st.integers(0, 10**6),
    seed=st.none() | INT64,
    timings=st.builds(lambda *parts: Timings(*parts[:2], sum(parts), *parts[2:]), *[MILLISECONDS] * 4),
    kv=st.builds(KvShare, BYTES, BYTES, BYTES, st.integers(0, 10**6)),
    num_scored=st.integers(0, 10**6),
    shortlist_size=st.integers(0, 2000),
    nothing_fits=st.none() | st.floats(0, 1),
    missing_evidence=st.lists(st.sampled_from(["names", "vectors", "ranking"]), max_size=2).map(tuple),
)


@given(REQUESTS, TEXT)
def test_requests_come_back(request: RetrieveRequest, index: str) -> None:
    message = pb.RetrieveRequest.FromString(request_to_proto(request, index).SerializeToString())
    assert message.index == index
    assert request_from_proto(message) == request


@given(RESULTS, MILLISECONDS, MILLISECONDS)
def test_answers_come_back(result: RetrievalResult, queue_ms: float, total_ms: float) -> None:
    message = reply_to_proto(result, INDEX, queue_ms, total_ms)
    reply = reply_from_proto(result.query, pb.RetrieveResponse.FromString(message.SerializeToString()))
    assert reply.result == result
    assert message.kv_usage.saved_bytes == result.kv.saved_bytes
    assert [type(v) for c in reply.result.candidates for v in sorted_values(c)] == [
        type(v) for c in result.candidates for v in sorted_values(c)
    ]
    assert (reply.queue_ms, reply.total_ms) == (queue_ms, total_ms)
    assert (reply.index.name, reply.index.version, reply.index.digest) == ("i", "v", "d")
    assert [c.rank for c in message.candidates] == list(range(1, len(result.candidates) + 1))
    assert (message.finish_reason == pb.FINISH_REASON_NO_MATCH) == result.no_match


def sorted_values(candidate: Candidate) -> list[object]:
    return [candidate.metadata[name] for name in sorted(candidate.metadata)]


def test_unset_options_take_the_librarys_defaults() -> None:
    assert request_from_proto(pb.RetrieveRequest(query="q")) == RetrieveRequest("q")


def test_no_least_mass_is_not_a_least_mass_of_zero() -> None:
    for least in (None, 0.0):
        message = pb.RetrieveRequest(query="q", method=pb.RETRIEVAL_METHOD_DISC, min_mass=least)
        assert request_from_proto(message).min_mass == least


def test_no_list_of_allowed_ids_is_not_an_empty_one() -> None:
    assert request_from_proto(pb.RetrieveRequest(query="q")).allow_ids is None
    nobody = pb.RetrieveRequest(query="q", allow_entity_ids=pb.EntityIds())
    assert request_from_proto(nobody).allow_ids == ()


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.RetrieveRequest(query="q", filter="kind ="), "filter"),
        (
            pb.RetrieveRequest(query="q", allow_entity_ids=pb.EntityIds(ids=["x"] * 100_001)),
            "allow_entity_ids.ids",
        ),
        (pb.RetrieveRequest(query="q", deny_entity_ids=["x"] * 100_001), "deny_entity_ids"),
        (pb.RetrieveRequest(query="q", min_mass=0.0), "min_mass"),
        (pb.RetrieveRequest(query="q", method=pb.RETRIEVAL_METHOD_DISC, min_mass=2.0), "min_mass"),
        (pb.RetrieveRequest(query="q", adaptive=True), "adaptive"),
        (pb.RetrieveRequest(query="q", method=pb.RETRIEVAL_METHOD_DISC, beam_size=65), "beam_size"),
        (pb.RetrieveRequest(query="q", method=pb.RETRIEVAL_METHOD_DISC, exact=True), "exact"),
        (pb.RetrieveRequest(query="q", method=pb.RETRIEVAL_METHOD_DISC, exact_budget=0), "exact_budget"),
        (pb.RetrieveRequest(query="q", exact_budget=5), "exact_budget"),
        (pb.RetrieveRequest(query="q", shortlist_size=2001), "shortlist_size"),
        (pb.RetrieveRequest(query="q", title_weight=0), "title_weight"),
        (pb.RetrieveRequest(query="q", vector_weight=-0.5), "vector_weight"),
        (pb.RetrieveRequest(query="q", shortlist_query=" "), "shortlist_query"),
        (pb.RetrieveRequest(query="q", decoder=pb.RETRIEVAL_METHOD_SHORTLIST), "decoder"),
        (
            pb.RetrieveRequest(query="q", method=pb.RETRIEVAL_METHOD_BEAM, decoder=pb.RETRIEVAL_METHOD_BEAM),
            "decoder",
        ),
        (
            pb.RetrieveRequest(query="q", method=pb.RETRIEVAL_METHOD_DISC, vector_weight=0.0),
            "vector_weight",
        ),
        (pb.RetrieveRequest(query="q", method=pb.RETRIEVAL_METHOD_SHORTLIST, exact=True), "exact"),
        (pb.RetrieveRequest(query="q", exact=True, exact_budget=2**32 - 1), "exact_budget"),
        (pb.RetrieveRequest(query="q", length_penalty=4.5), "length_penalty"),
        (pb.RetrieveRequest(query="q", length_penalty=float("nan")), "length_penalty"),
        (pb.RetrieveRequest(query="q", method=pb.RETRIEVAL_METHOD_DISC, length_penalty=1), "length_penalty"),
        (
            pb.RetrieveRequest(query="q", length_penalty=1, aggregation=pb.AGGREGATION_SUM),
            "aggregation",
        ),
        (
            pb.RetrieveRequest(query="q", method=pb.RETRIEVAL_METHOD_DISC, aggregation=pb.AGGREGATION_MAX),
            "aggregation",
        ),
    ],
)
def test_fields_out_of_range_are_named_as_in_the_message(message: pb.RetrieveRequest, field: str) -> None:
    with pytest.raises(InputError) as error:
        request_from_proto(message)
    assert error.value.field == field


def test_a_method_of_the_future_is_refused() -> None:
    with pytest.raises(InputError, match="method: must be one of RETRIEVAL_METHOD_UNSPECIFIED"):
        request_from_proto(pb.RetrieveRequest(query="q", method=9))  # type: ignore[arg-type]


def test_only_decoders_can_decode_for_auto() -> None:
    known = "RETRIEVAL_METHOD_UNSPECIFIED, RETRIEVAL_METHOD_BEAM, RETRIEVAL_METHOD_DISC"
    for number, shown in ((pb.RETRIEVAL_METHOD_AUTO, "RETRIEVAL_METHOD_AUTO"), (9, "9")):
        with pytest.raises(InputError, match=f"decoder: must be one of {known}, got {shown}"):
            request_from_proto(pb.RetrieveRequest(query="q", decoder=number))  # type: ignore[arg-type]


def test_the_servers_choice_is_auto_with_a_beam_search() -> None:
    request = request_from_proto(pb.RetrieveRequest(query="q"))
    assert (request.method, request.decoder, request.decoding) == ("auto", None, "beam")


def test_no_weight_of_vectors_is_not_a_weight_of_zero() -> None:
    for weight in (None, 0.0):
        assert request_from_proto(pb.RetrieveRequest(query="q", vector_weight=weight)).vector_weight == weight


def test_an_aggregation_of_the_future_is_refused() -> None:
    with pytest.raises(InputError, match="aggregation: must be one of AGGREGATION_UNSPECIFIED, "):
        request_from_proto(pb.RetrieveRequest(query="q", aggregation=9))  # type: ignore[arg-type]


def test_integers_beyond_64_bits_become_numbers() -> None:
    candidate = Candidate("e", "t", "t", -1.0, None, {"big": 2**70}, -1.0)
    message = reply_to_proto(RetrievalResult("q", "beam", (candidate,)), INDEX, 0, 0)
    assert message.candidates[0].metadata["big"].double_value == float(2**70)


def test_a_batch_reply_of_another_length_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        batch_reply_from_proto(["a", "b"], pb.BatchRetrieveResponse())


def test_a_trailer_that_is_no_status_is_none() -> None:
    assert status_from_bytes(b"\xff\xff\xff") is None
