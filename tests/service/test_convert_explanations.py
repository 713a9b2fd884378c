"""Explanations survive the way over the wire."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.errors import InputError
from retrieval.explanation import Explanation, ExplanationDraw, ExplanationNode
from retrieval.types import RetrievalResult, RetrieveRequest
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.serving.served import IndexDescription
from service.wire.replies import (
    explanation_from_proto,
    explanation_to_proto,
    reply_from_proto,
    reply_to_proto,
)
from service.wire.requests import request_from_proto, request_to_proto

_COUNTS = st.integers(0, 2**32 - 1)
_LOGPROBS = st.floats(max_value=0.0, allow_nan=False)
_MASSES = st.floats(0.0, 1.0)
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)

_NODES = st.builds(
    ExplanationNode,
    parent=st.none() | _COUNTS,
    depth=_COUNTS,
    token_id=_COUNTS,
    text=_TEXTS,
    logprob=_LOGPROBS,
    total_logprob=_LOGPROBS,
    valid_mass=st.none() | _MASSES,
    num_valid=st.none() | _COUNTS,
    state=st.sampled_from(["expanded", "pruned", "finished", "closed"]),
    candidate_rank=st.none() | _COUNTS,
)
_DRAWS = st.builds(
    ExplanationDraw,
    sample=_COUNTS,
    draw=_COUNTS,
    node=_COUNTS,
    valid_mass=_MASSES,
    acceptance_probability=_MASSES,
    accepted=st.booleans(),
    chosen=st.booleans(),
)
_EXPLANATIONS = st.builds(
    Explanation,
    nodes=st.lists(_NODES, max_size=4).map(tuple),
    draws=st.lists(_DRAWS, max_size=4).map(tuple),
    truncated=st.booleans(),
)


@given(_EXPLANATIONS)
def test_an_explanation_comes_back_as_it_was(explanation: Explanation) -> None:
    sent = explanation_to_proto(explanation).SerializeToString()
    assert explanation_from_proto(pb.Explanation.FromString(sent)) == explanation


@pytest.mark.parametrize("explanation", [None, Explanation(), Explanation(truncated=True)])
def test_a_reply_carries_its_explanation(explanation: Explanation | None) -> None:
    result = RetrievalResult("q", "beam", (), certified=True, explanation=explanation)
    index = IndexDescription("i", "1", "d", 1, 1, "m", "cpu")
    message = reply_to_proto(result, index, 1.0, 2.0)
    assert message.HasField("explanation") == (explanation is not None)
    assert reply_from_proto("q", message).result.explanation == explanation


@pytest.mark.parametrize("explain", [False, True])
def test_a_request_says_whether_it_wants_one(explain: bool) -> None:
    request = RetrieveRequest("q", method="disc", explain=explain)
    assert request_to_proto(request).explain == explain
    assert request_from_proto(request_to_proto(request)) == request


@pytest.mark.parametrize("options", [{"adaptive": True}, {"beam_size": 2}])
def test_what_cannot_be_explained_is_refused_by_name(options: dict[str, Any]) -> None:
    message = pb.RetrieveRequest(query="q", method=pb.RETRIEVAL_METHOD_DISC, explain=True, **options)
    with pytest.raises(InputError, match="cannot be combined with") as caught:
        request_from_proto(message)
    assert caught.value.field == "explain"


def test_every_field_of_the_library_has_one_on_the_wire() -> None:
    for ours, theirs in (
        (Explanation, pb.Explanation),
        (ExplanationNode, pb.ExplanationNode),
        (ExplanationDraw, pb.ExplanationDraw),
    ):
        assert {field.name for field in dataclasses.fields(ours)} == set(theirs.DESCRIPTOR.fields_by_name)
