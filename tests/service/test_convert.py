"""Messages, JSON and the library's types carry the same values; wrong values are named as in the message."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from genret.retrieval.answers.answer_types import AnswerEntity, AnswerRequest, AnswerResult
from genret.retrieval.arguments import RequestOption, options_of
from genret.retrieval.errors import InputError
from genret.retrieval.explanation import Explanation, ExplanationNode
from genret.retrieval.score_types import ScoreRequest, ScoreResult, TitleScore
from genret.retrieval.types import (
    METHODS,
    Candidate,
    Entity,
    KvShare,
    Mention,
    RetrievalResult,
    RetrieveRequest,
    Timings,
)
from genret.service.client.reply import IndexInfo
from genret.service.errors import MalformedMessageError
from genret.service.pb.genret.v1 import index_service_pb2 as index_pb
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.wire.json import message_from_json, message_to_dict, message_to_json
from genret.service.wire.replies import (
    answer_from_proto,
    answer_to_proto,
    batch_reply_from_proto,
    reply_from_proto,
    reply_to_proto,
    score_reply_from_proto,
    score_reply_to_proto,
)
from genret.service.wire.requests import (
    answer_request_from_proto,
    answer_request_to_proto,
    request_from_proto,
    request_to_proto,
    score_request_from_proto,
    score_request_to_proto,
)
from genret.service.wire.rpc_status import status_from_bytes
from tests.service.fake_retriever import FakeRetriever

INDEX = IndexInfo("i", "v", "d", 3, 2, "m", "cpu")
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
FINITE = st.floats(allow_nan=False)
INT64 = st.integers(-(2**63), 2**63 - 1)
COUNT = st.integers(0, 2**31 - 1)
BYTES = st.integers(0, 2**63 - 1)
MILLISECONDS = st.floats(0, 1e6)
FILLED = TEXT.filter(lambda text: bool(text.strip()))
FILTERS = st.sampled_from(["kind = 'film'", 'year >= 1990 or not "a b" is null'])
SCHEMAS = FILLED | st.booleans() | st.just({"type": "object"})
SCALARS = {str: TEXT, int: COUNT, float: FINITE, bool: st.booleans(), type(None): st.none()}


def of(kind: Any, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Values of a type; fields of a dataclass that are not given are drawn by their types."""
    if dataclasses.is_dataclass(kind):
        hints, names = get_type_hints(kind), [one.name for one in dataclasses.fields(kind)]
        return st.builds(
            kind, **{name: fields[name] if name in fields else of(hints[name]) for name in names}
        )
    arguments = get_args(kind)
    if get_origin(kind) is tuple:
        return st.lists(of(arguments[0]), max_size=3).map(tuple)
    if get_origin(kind) is Mapping:
        return st.dictionaries(TEXT, of(arguments[1]), max_size=4)
    return st.one_of(map(of, arguments)) if arguments else SCALARS[kind]


def option_values(option: RequestOption) -> st.SearchStrategy[Any]:
    if option.choices:
        return st.sampled_from(option.choices)
    if option.type is int:
        return st.integers(*map(int, option.range))
    if option.type is float:
        return st.floats(*option.range)
    if option.type is tuple:
        return st.lists(TEXT, max_size=3).map(tuple)
    return st.booleans() if option.type is bool else FILTERS if option.name == "filter" else FILLED


@st.composite
def requests(draw: st.DrawFn, kind: type[Any], **chosen: st.SearchStrategy[Any]) -> Any:
    """A request with values for as many options as go together."""
    options = options_of(kind)
    method = draw(option_values(options["method"]))
    request = kind(draw(FILLED), method=method, **draw(st.fixed_dictionaries(chosen)))
    for name in draw(st.permutations(sorted(options.keys() - {"method"}))):
        with suppress(InputError):
            request = dataclasses.replace(request, **{name: draw(option_values(options[name]))})
    return request


REQUESTS = requests(RetrieveRequest)
METADATA = st.dictionaries(TEXT, st.none() | TEXT | INT64 | FINITE | st.booleans(), max_size=4)
CANDIDATES = of(Candidate, metadata=METADATA)
TIMINGS = st.builds(lambda *parts: Timings(*parts[:2], sum(parts), *parts[2:]), *[MILLISECONDS] * 4)
KV = st.builds(KvShare, BYTES, BYTES, BYTES, COUNT)
NODES = of(ExplanationNode, state=st.sampled_from(["expanded", "pruned", "finished", "closed"]))
EXPLANATIONS = of(Explanation, nodes=st.lists(NODES, max_size=4).map(tuple))
RESULTS = of(
    RetrievalResult,
    method=st.sampled_from(METHODS),
    candidates=st.lists(CANDIDATES, max_size=3).map(tuple),
    seed=st.none() | INT64,
    timings=TIMINGS,
    kv=KV,
    explanation=st.none() | EXPLANATIONS,
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
    assert message.HasField("explanation") == (result.explanation is not None)


def sorted_values(candidate: Candidate) -> list[object]:
    return [candidate.metadata[name] for name in sorted(candidate.metadata)]


def test_unset_options_take_the_librarys_defaults() -> None:
    request = request_from_proto(pb.RetrieveRequest(query="q"))
    assert request == RetrieveRequest("q")
    assert (request.method, request.decoder, request.decoding) == ("auto", None, "beam")
    answer = pb.AnswerRequest(query="q", schema_json="true")
    assert answer_request_from_proto(answer) == AnswerRequest("q", "true")


@pytest.mark.parametrize(
    ("name", "given", "read"),
    [("min_mass", 0.0, 0.0), ("vector_weight", 0.0, 0.0), ("allow_entity_ids", pb.EntityIds(), ())],
)
def test_a_value_of_nothing_is_not_no_value(name: str, given: Any, read: object) -> None:
    method = pb.RETRIEVAL_METHOD_DISC if name == "min_mass" else pb.RETRIEVAL_METHOD_AUTO
    for sent, got in ((given, read), (None, None)):
        request = request_from_proto(pb.RetrieveRequest(query="q", method=method, **{name: sent}))
        assert getattr(request, name.replace("entity_", "")) == got


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"filter": "kind ="}, "filter"),
        ({"allow_entity_ids": pb.EntityIds(ids=["x"] * 100_001)}, "allow_entity_ids.ids"),
        ({"min_mass": 0.0}, "min_mass"),
        ({"method": "RETRIEVAL_METHOD_DISC", "beam_size": 65}, "beam_size"),
        ({"decoder": pb.RETRIEVAL_METHOD_SHORTLIST}, "decoder"),
        ({"length_penalty": 1, "aggregation": pb.AGGREGATION_SUM}, "aggregation"),
        ({"method": "RETRIEVAL_METHOD_DISC", "explain": True, "adaptive": True}, "explain"),
    ],
)
def test_fields_out_of_range_are_named_as_in_the_message(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as error:
        request_from_proto(pb.RetrieveRequest(query="q", **options))
    assert error.value.field == field


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("method", 9, "auto, beam, disc, shortlist; got 9"),
        ("aggregation", 9, "sum, max; got 9"),
        ("decoder", 9, "beam, disc; got 9"),
        ("decoder", pb.RETRIEVAL_METHOD_AUTO, "beam, disc; got 'auto'"),
    ],
)
def test_a_value_of_the_future_or_of_another_field_is_refused(field: str, value: int, said: str) -> None:
    with pytest.raises(InputError, match=f"{field}: must be one of {said}"):
        request_from_proto(pb.RetrieveRequest(query="q", **{field: value}))


def test_integers_beyond_64_bits_become_numbers() -> None:
    candidate = Candidate("e", "t", "t", -1.0, None, {"big": 2**70}, -1.0)
    message = reply_to_proto(RetrievalResult("q", "beam", (candidate,)), INDEX, 0, 0)
    assert message.candidates[0].metadata["big"].double_value == float(2**70)


def test_a_batch_reply_of_another_length_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        batch_reply_from_proto(["a", "b"], pb.BatchRetrieveResponse())


def test_a_trailer_that_is_no_status_is_none() -> None:
    assert status_from_bytes(b"\xff\xff\xff") is None


ANSWER_REQUESTS = requests(AnswerRequest, schema=SCHEMAS) | requests(AnswerRequest, schema_name=FILLED)
KNOWN = of(Entity, aliases=st.just(()), metadata=METADATA)
ENTITIES = of(AnswerEntity, entities=st.lists(KNOWN, max_size=2).map(tuple))
ANSWER_RESULTS = of(
    AnswerResult,
    method=st.sampled_from(["greedy", "sample", "beam", "disc"]),
    entities=st.lists(ENTITIES, max_size=3).map(tuple),
    seed=st.none() | INT64,
    timings=st.builds(lambda a, b: Timings(a, b, a + b), MILLISECONDS, MILLISECONDS),
    kv=KV,
)


@given(ANSWER_REQUESTS)
def test_a_request_for_json_comes_back_as_it_was(request: AnswerRequest) -> None:
    message = answer_request_to_proto(request, "films")
    assert message.index == "films"
    parsed = pb.AnswerRequest.FromString(message.SerializeToString())
    assert answer_request_from_proto(parsed) == request


@given(ANSWER_RESULTS)
def test_a_json_answer_comes_back_as_it_was(result: AnswerResult) -> None:
    message = answer_to_proto(result, INDEX, 1.5, 9.0)
    parsed = pb.AnswerResponse.FromString(message.SerializeToString())
    reply = answer_from_proto(result.query, parsed)
    assert reply.result == result
    assert (reply.queue_ms, reply.total_ms, reply.index.name) == (1.5, 9.0, "i")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "schema_json: needs either a schema or the name of one, got neither"),
        ({"schema_json": "true", "method": 99}, "method: must be one of greedy, .*; got 99"),
        ({"schema_json": "true", "whitespace": 9}, "whitespace: must be one of compact, .*; got 9"),
    ],
)
def test_wrong_fields_of_answers_are_named_as_on_the_wire(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        answer_request_from_proto(pb.AnswerRequest(**{"query": "q", **fields}))  # type: ignore[arg-type]


TITLES = st.lists(FILLED, min_size=1, max_size=5).map(tuple)
SCORED = of(TitleScore, logprob=FINITE, probability=FINITE)
TOO_LONG = st.builds(TitleScore, FILLED, st.none(), st.just(0.0), COUNT)
SCORE_RESULTS = of(
    ScoreResult, scores=st.lists(SCORED | TOO_LONG, max_size=4).map(tuple), timings=TIMINGS, kv=KV
)


def read(message: pb.ScoreRequest) -> ScoreRequest:
    return score_request_from_proto(message, FakeRetriever().mention_request)


@given(FILLED, TITLES, st.none() | TEXT.filter(bool))
def test_a_request_for_scores_comes_back_as_it_was(
    query: str, titles: tuple[str, ...], prompt: str | None
) -> None:
    message = score_request_to_proto(query, titles, prompt, "films")
    parsed = pb.ScoreRequest.FromString(message.SerializeToString())
    assert parsed.index == "films"
    assert read(parsed) == ScoreRequest(query, titles, prompt)


@given(FILLED, TEXT, TEXT, TITLES)
def test_a_mention_becomes_the_query_that_links_it(
    mention: str, left: str, right: str, titles: tuple[str, ...]
) -> None:
    message = score_request_to_proto(Mention(mention, left, right), titles)
    parsed = pb.ScoreRequest.FromString(message.SerializeToString())
    assert read(parsed) == ScoreRequest(f"{left}[{mention}]{right}", titles, "mention")


@given(SCORE_RESULTS, MILLISECONDS, MILLISECONDS)
def test_scores_come_back_as_they_were(result: ScoreResult, queue_ms: float, total_ms: float) -> None:
    message = score_reply_to_proto(result, INDEX, queue_ms, total_ms)
    reply = score_reply_from_proto(result.query, pb.ScoreResponse.FromString(message.SerializeToString()))
    assert reply.result == result
    assert (reply.queue_ms, reply.total_ms, reply.index.name) == (queue_ms, total_ms, "i")
    for sent, score in zip(message.scores, result.scores, strict=True):
        assert sent.HasField("logprob") == sent.HasField("probability") == (score.logprob is not None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"titles": ["a", " "]}, r"titles\[1\]: must not be empty"),
        ({"mention": pb.Mention()}, "mention: must not be empty"),
        (
            {"mention": pb.Mention(mention="m"), "prompt_template": "plain"},
            "prompt_template: must be empty with a mention",
        ),
    ],
)
def test_wrong_fields_of_scores_are_named_as_on_the_wire(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(pb.ScoreRequest(**({"query": "q", "titles": ["a"]} | fields)))


def test_one_text_is_no_list_of_titles() -> None:
    with pytest.raises(InputError, match="titles: must be a list of texts, got one text"):
        score_request_to_proto("q", "Hamlet")


def read_json(text: str | bytes, message: Message | None = None) -> Any:
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
        ('{"method": "disc", "aggregation": "max"}', pb.RetrieveRequest(method=2, aggregation=2)),
        ('{"allow_entity_ids": {}}', pb.RetrieveRequest(allow_entity_ids=pb.EntityIds())),
        ('{"allow_entity_ids": {"ids": ["Q1"]}}', pb.RetrieveRequest(allow_entity_ids={"ids": ["Q1"]})),
        ('{"query": "\\ud83d\\ude00 é"}', pb.RetrieveRequest(query="😀 é")),
        ('{"length_penalty": 1, "exact": true}', pb.RetrieveRequest(length_penalty=1.0, exact=True)),
    ],
)
def test_a_request_is_read(text: str, expected: pb.RetrieveRequest) -> None:
    assert read_json(text) == expected


@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        ('{"limit": 3}', "limit", "is no field of RetrieveRequest; there are: index, query, k, method"),
        ('{"evidence": false}', "evidence", "; did you mean method? there are: index, "),
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
        ('{"method": "dics"}', "method", "shortlist, auto; got 'dics', did you mean 'disc'?"),
        ('{"method": 2}', "method", "must be one of beam, disc, shortlist, auto; got 2"),
        ('{"method": ["disc"]}', "method", "; got ['disc']"),
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
        read_json(text)
    assert caught.value.field == field
    assert says in caught.value.message
    assert str(caught.value).encode(), "the message can be sent"


def test_fields_of_items_are_named_by_their_place() -> None:
    text = '{"requests": [{"query": "a"}, {"query": "b", "allowEntityIds": {"ids": ["x", 1]}}]}'
    with pytest.raises(InputError, match=r"^requests\[1\]\.allow_entity_ids\.ids\[1\]: must be a string"):
        read_json(text, pb.BatchRetrieveRequest())
    with pytest.raises(
        InputError, match=r"^schema_json: must be a string, got an object; send the schema as "
    ):
        read_json('{"schema_json": {"type": "object"}}', pb.AnswerRequest())


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
        read_json(text)
    assert str(caught.value).startswith(says)


def test_two_members_of_one_choice_are_refused() -> None:
    with pytest.raises(MalformedMessageError, match="schema"):
        read_json('{"schema_json": "{}", "schema_name": "film"}', pb.AnswerRequest())


def test_replies_have_every_field_that_is_not_optional() -> None:
    written = message_to_dict(pb.RetrieveResponse())
    assert written["candidates"] == []
    assert written["abstained"] is False
    assert written["finish_reason"] == "FINISH_REASON_UNSPECIFIED"
    assert {"certified", "mass", "seed", "timings"}.isdisjoint(written)


def test_numbers_that_json_lacks_are_strings_and_text_is_not_escaped() -> None:
    index = message_to_json(index_pb.Index(name="Übersicht", num_rows=2**53 + 1))
    assert json.loads(index)["num_rows"] == "9007199254740993"
    assert "Übersicht".encode() in index
    written = json.loads(message_to_json(pb.Candidate(logprob=float("-inf"), score=float("nan"))))
    assert (written["logprob"], written["score"]) == ("-Infinity", "NaN")


KEYS = st.sampled_from([*pb.RetrieveRequest.DESCRIPTOR.fields_by_name, "ids", "requests", "x"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
MESSAGES = [pb.RetrieveRequest, pb.BatchRetrieveRequest, pb.LinkRequest, pb.AnswerRequest]
MESSAGES += [pb.ScoreRequest, pb.CompleteRequest]


@given(JSON, st.sampled_from(MESSAGES))
def test_any_json_is_read_or_refused_and_what_is_read_is_written_back(
    value: Any, kind: type[Message]
) -> None:
    try:
        message = read_json(json.dumps(value), kind())
    except (InputError, MalformedMessageError) as error:
        str(error).encode()  # can be sent
    else:
        assert read_json(message_to_json(message), kind()) == message
