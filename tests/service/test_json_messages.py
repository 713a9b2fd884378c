"""Requests from JSON, replies to JSON: what is read, what is refused and how, what is written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from retrieval.errors import InputError
from service.errors import MalformedMessageError
from service.pb.genret.v1 import index_service_pb2 as index_pb
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.wire.json import message_from_json, message_to_dict, message_to_json


def read(text: str | bytes, message: Message | None = None) -> Any:
    body = text.encode() if isinstance(text, str) else text
    return message_from_json(body, message if message is not None else pb.RetrieveRequest())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", pb.RetrieveRequest()),
        ('{"query": "x", "k": 3}', pb.RetrieveRequest(query="x", k=3)),
        ('{"beam_size": 4, "minMass": 0.5}', pb.RetrieveRequest(beam_size=4, min_mass=0.5)),
        ('{"beamSize": 4.0}', pb.RetrieveRequest(beam_size=4)),
        ('{"k": null, "deny_entity_ids": null, "allowEntityIds": null}', pb.RetrieveRequest()),
        ('{"seed": 9007199254740993}', pb.RetrieveRequest(seed=2**53 + 1)),
        ('{"seed": "-9223372036854775808"}', pb.RetrieveRequest(seed=-(2**63))),
        ('{"method": "RETRIEVAL_METHOD_DISC"}', pb.RetrieveRequest(method="RETRIEVAL_METHOD_DISC")),
        ('{"allow_entity_ids": {}}', pb.RetrieveRequest(allow_entity_ids=pb.EntityIds())),
        ('{"allow_entity_ids": {"ids": ["Q1"]}}', pb.RetrieveRequest(allow_entity_ids={"ids": ["Q1"]})),
        ('{"query": "\\ud83d\\ude00 é"}', pb.RetrieveRequest(query="😀 é")),
        ('{"length_penalty": 1, "exact": true}', pb.RetrieveRequest(length_penalty=1.0, exact=True)),
    ],
)
def test_a_request_is_read(text: str, expected: pb.RetrieveRequest) -> None:
    assert read(text) == expected


@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        ('{"limit": 3}', "limit", "is no field of RetrieveRequest; fields: index, query, k, method"),
        ('{"query": 5}', "query", "must be a string, got a number"),
        ('{"query": ["a"]}', "query", "must be a string, got an array"),
        ('{"query": "\\ud800"}', "query", "half of a surrogate pair at character 0"),
        ('{"k": "3"}', "k", "must be an integer, got a string"),
        ('{"k": 1.5}', "k", "must be an integer, got 1.5"),
        ('{"k": true}', "k", "must be an integer, got a boolean"),
        ('{"k": -1}', "k", "must be in [0, 4294967295]"),
        ('{"k": 1e300}', "k", "must be in [0, 4294967295]"),
        ('{"k": 1e999}', "k", "must be an integer, got inf"),
        ('{"seed": "12a"}', "seed", "must be an integer, got '12a'"),
        ('{"seed": " 1"}', "seed", "must be an integer, got ' 1'"),
        ('{"seed": 9223372036854775808}', "seed", "must be in [-9223372036854775808, 9223372036854775807]"),
        ('{"seed": ""}', "seed", "must be an integer, got ''"),
        ('{"temperature": "NaN"}', "temperature", "must be a number, got a string"),
        ('{"temperature": 1e999}', "temperature", "is a number too large to be held"),
        (f'{{"temperature": {"9" * 400}}}', "temperature", "is a number too large to be held"),
        ('{"exact": "true"}', "exact", "must be true or false, got a string"),
        ('{"exact": 1}', "exact", "must be true or false, got a number"),
        ('{"method": "disc"}', "method", "RETRIEVAL_METHOD_AUTO, got 'disc'"),
        ('{"method": 2}', "method", "must be one of RETRIEVAL_METHOD_UNSPECIFIED, "),
        ('{"deny_entity_ids": "Q1"}', "deny_entity_ids", "must be an array, got a string"),
        ('{"deny_entity_ids": ["Q1", null]}', "deny_entity_ids[1]", "must be a string, got null"),
        ('{"allow_entity_ids": ["Q1"]}', "allow_entity_ids", "must be an object, got an array"),
        ('{"allow_entity_ids": {"ids": [7]}}', "allow_entity_ids.ids[0]", "must be a string, got a number"),
        ('{"beam_size": 1, "beamSize": 1}', "beam_size", "is given twice, as beam_size and as beamSize"),
        ('{"\\ud800": 1}', "\\ud800", "is no field of RetrieveRequest"),
    ],
)
def test_what_a_field_cannot_hold_is_refused_by_its_path(text: str, field: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text)
    assert caught.value.field == field
    assert says in caught.value.message
    assert str(caught.value).encode(), "the message can be sent"


def test_fields_of_items_are_named_by_their_place() -> None:
    text = '{"requests": [{"query": "a"}, {"query": "b", "allowEntityIds": {"ids": ["x", 1]}}]}'
    with pytest.raises(InputError, match=r"^requests\[1\]\.allow_entity_ids\.ids\[1\]: must be a string"):
        read(text, pb.BatchRetrieveRequest())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "the body is not JSON: Expecting value at line 1 column 1"),
        (b'{"query": "x",\n "k": }', "the body is not JSON: Expecting value at line 2 column 7"),
        (b'{"query": "x"} x', "the body is not JSON: Extra data at line 1 column 16"),
        (b"[]", "the body must be a JSON object, got an array"),
        (b"null", "the body must be a JSON object, got null"),
        (b'{"k": NaN}', "the body is not JSON: NaN is no JSON number"),
        (b'{"k": -Infinity}', "the body is not JSON: -Infinity is no JSON number"),
        (b'{"k": 1, "k": 2}', "the key 'k' stands twice in one object"),
        (b'{"allow_entity_ids": {"ids": [], "ids": []}}', "the key 'ids' stands twice in one object"),
        (b'{"query": "\xff"}', "the body is not UTF-8: bad byte at offset 11"),
        (b"\xef\xbb\xbf{}", "the body is not JSON: "),
        (b'{"query": "a\nb"}', "the body is not JSON: Invalid control character at at line 1 column 13"),
        (b"[" * 100_000, "the body is nested too deeply"),
        (b'{"a":' * 100_000, "the body is nested too deeply"),
        (b'{"k": ' + b"9" * 5000 + b"}", "the body holds a number with too many digits"),
    ],
)
def test_what_is_no_json_object_is_refused(text: bytes, says: str) -> None:
    with pytest.raises(MalformedMessageError) as caught:
        read(text)
    assert str(caught.value).startswith(says)


def test_two_members_of_one_choice_are_refused() -> None:
    with pytest.raises(MalformedMessageError, match="schema"):
        read('{"schema_json": "{}", "schema_name": "film"}', pb.AnswerRequest())


def test_replies_have_every_field_that_is_not_optional() -> None:
    written = message_to_dict(pb.RetrieveResponse())
    assert written["candidates"] == []
    assert written["abstained"] is False
    assert written["finish_reason"] == "FINISH_REASON_UNSPECIFIED"
    assert {"certified", "mass", "seed", "timings"}.isdisjoint(written)


def test_64_bit_integers_are_strings_and_text_is_not_escaped() -> None:
    index = index_pb.Index(name="Übersicht", num_rows=2**53 + 1)
    written = json.loads(message_to_json(index))
    assert written["num_rows"] == "9007199254740993"
    assert "Übersicht".encode() in message_to_json(index)


def test_numbers_json_lacks_are_strings() -> None:
    written = json.loads(message_to_json(pb.Candidate(logprob=float("-inf"), score=float("nan"))))
    assert (written["logprob"], written["score"]) == ("-Infinity", "NaN")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [f.name for f in pb.RetrieveRequest.DESCRIPTOR.fields] + ["ids", "requests", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(
    JSON,
    st.sampled_from(
        [pb.RetrieveRequest, pb.BatchRetrieveRequest, pb.LinkRequest, pb.AnswerRequest, pb.ScoreRequest]
    ),
)
def test_any_json_is_read_or_refused_and_what_is_read_is_written_back(
    value: Any, kind: type[Message]
) -> None:
    try:
        message = read(json.dumps(value), kind())
    except (InputError, MalformedMessageError) as error:
        str(error).encode()  # can be sent
    else:
        assert read(message_to_json(message), kind()) == message


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        read(body)
    except (InputError, MalformedMessageError) as error:
        str(error).encode()  # can be sent
