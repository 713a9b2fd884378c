"""The OpenAPI document describes what the server accepts; requests by it and against it are answered so."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import jsonschema
import pytest
import schemathesis
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.retrieval.errors import InputError
from genret.service.gateway.endpoints import ENDPOINTS, FORM_ENDPOINTS, NDJSON_TYPE, Endpoint
from genret.service.gateway.forms import Form
from genret.service.gateway.http_app import OPENAPI_FILE
from genret.service.gateway.http_calls import HTTP_STATUS
from genret.service.pb.genret.v1 import index_service_pb2 as index_pb
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.pb.openapi import CONSTRAINTS, REQUIRED
from genret.service.wire.requests import (
    answer_request_from_proto,
    complete_request_from_proto,
    request_from_proto,
    score_request_from_proto,
)
from tests.service.any_message import STRINGS, scalar
from tests.service.fake_retriever import FakeRetriever
from tests.service.fuzzed_server import LEGAL, SERVER_LIMIT_S, Code, many, some
from tests.service.http_gateway import client_in_a_thread
from tests.service.openapi_cases import document, quiet

DOCUMENT: dict[str, Any] = json.loads(OPENAPI_FILE.read_text(encoding="utf-8"))
FORMS: list[Form] = [endpoint.form for endpoint in FORM_ENDPOINTS if endpoint.form is not None]
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
READERS: dict[str, Callable[[Any], object]] = {
    "RetrieveRequest": request_from_proto,
    "AnswerRequest": answer_request_from_proto,
    "CompleteRequest": complete_request_from_proto,
    "ScoreRequest": lambda message: score_request_from_proto(message, FakeRetriever().mention_request),
}
# What a mention is refused for is the retriever's to say, behind the wire.
BLANKS = [key for key, rules in CONSTRAINTS.items() if "pattern" in rules and not key.startswith("Mention.")]


def test_the_document_is_that_of_the_proto() -> None:
    pytest.importorskip("grpc_tools")
    from genret.service.pb.openapi import rendered
    from tests.service.test_proto_stubs import PROTO

    fresh = rendered(PROTO)
    assert OPENAPI_FILE.read_text(encoding="utf-8") == fresh, "run: python -m genret.service.pb.openapi"


def test_every_method_of_the_api_has_a_path() -> None:
    services = [*pb.DESCRIPTOR.services_by_name.values(), *index_pb.DESCRIPTOR.services_by_name.values()]
    methods = {(service.name, method.name) for service in services for method in service.methods}
    assert {(e.service, e.method) for e in ENDPOINTS} == methods
    operations = [o["operationId"] for path in DOCUMENT["paths"].values() for o in path.values()]
    assert sorted(operations) == sorted([*(name for _, name in methods), *(form.name for form in FORMS)])


def walk(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walk(inner)


def test_every_reference_leads_somewhere() -> None:
    references = [part["$ref"] for part in walk(DOCUMENT) if isinstance(part.get("$ref"), str)]
    assert references
    for reference in references:
        found: Any = DOCUMENT
        for step in reference.removeprefix("#/").split("/"):
            assert step in found, reference
            found = found[step]


def test_schemas_are_json_schemas_and_examples_fit_them() -> None:
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    examples = 0
    for path in DOCUMENT["paths"].values():
        for operation in path.values():
            for media in operation.get("requestBody", {}).get("content", {}).values():
                if "example" in media:
                    examples += 1
                    schema = {**media["schema"], "components": DOCUMENT["components"]}
                    jsonschema.validate(media["example"], schema)
    assert examples == 5 + sum(form.example is not None for form in FORMS)


def test_everything_the_proto_says_is_said() -> None:
    for name, schema in SCHEMAS.items():
        if name in ("Error", "Number"):
            continue
        assert schema.get("description"), name
        for field, described in schema.get("properties", {}).items():
            assert described.get("description"), f"{name}.{field}"
    query = SCHEMAS["RetrieveRequest"]["properties"]["query"]
    assert query["description"].startswith("The query text. Must not be blank")
    methods = SCHEMAS["RetrievalMethod"]["description"]
    assert "`RETRIEVAL_METHOD_DISC`: Samples from the model's own" in methods


def test_everything_in_a_form_is_described() -> None:
    for endpoint in FORM_ENDPOINTS:
        assert endpoint.form is not None
        for schema in (endpoint.form.request or {}, endpoint.form.reply, endpoint.form.error or {}):
            for part in walk(schema):
                for name, described in part.get("properties", {}).items():
                    assert "properties" in described or described.get("description"), (endpoint.path, name)


def test_options_of_mentions_leave_out_what_each_mention_says_itself() -> None:
    left_out = set(SCHEMAS["RetrieveRequest"]["properties"]) - set(SCHEMAS["LinkOptions"]["properties"])
    assert left_out == {"index", "query", "prompt_template"}
    assert "required" not in SCHEMAS["LinkOptions"]


def message_with(name: str, field: str, value: Any) -> Any:
    """A message that is right but for one field."""
    options: dict[str, Any] = {"prefix" if name == "CompleteRequest" else "query": "x", field: value}
    if name == "AnswerRequest":
        options["schema_json"] = "{}"
    if name == "ScoreRequest":
        options = {"titles": ["x"]} | options
    if field == "min_mass":
        options["method"] = pb.RETRIEVAL_METHOD_DISC
    if field == "exact_budget":
        options["exact"] = True
    return getattr(pb, name)(**options)


BOUNDS = [
    (name, field, low_or_high, rules[low_or_high])
    for (name, field), rules in ((tuple(key.split(".")), rules) for key, rules in CONSTRAINTS.items())
    for low_or_high in ("minimum", "maximum")
    if low_or_high in rules
]


@pytest.mark.parametrize(("name", "field", "end", "bound"), BOUNDS)
def test_bounds_are_those_the_server_holds_to(name: str, field: str, end: str, bound: float) -> None:
    READERS[name](message_with(name, field, bound))
    kind = getattr(pb, name).DESCRIPTOR.fields_by_name[field]
    step = 1 if kind.cpp_type != kind.CPPTYPE_DOUBLE else 1e-3
    beyond = bound - step if end == "minimum" else bound + step
    if beyond < 0 and kind.cpp_type == kind.CPPTYPE_UINT32:
        return  # the type itself refuses it
    with pytest.raises(InputError) as caught:
        READERS[name](message_with(name, field, beyond))
    assert caught.value.field == field


@pytest.mark.parametrize("key", BLANKS)
def test_what_must_not_be_blank_may_not(key: str) -> None:
    name, field = key.split(".")
    described = getattr(pb, name).DESCRIPTOR.fields_by_name[field]
    assert field in REQUIRED[name] or described.containing_oneof is not None
    for blank in ("", " ", "\t\n\u2003"):
        with pytest.raises(InputError) as caught:
            READERS[name](message_with(name, field, blank))
        assert caught.value.field == field


@pytest.mark.parametrize(
    ("key", "name", "field"),
    [
        ("ScoreRequest.titles", "ScoreRequest", "titles"),
        ("RetrieveRequest.deny_entity_ids", "RetrieveRequest", "deny_entity_ids"),
        ("EntityIds.ids", "RetrieveRequest", "allow_entity_ids"),
    ],
)
def test_lists_end_where_the_document_says(key: str, name: str, field: str) -> None:
    def ask(number: int) -> None:
        texts = [str(i) for i in range(number)]
        value = {"ids": texts} if key == "EntityIds.ids" else texts
        READERS[name](message_with(name, field, value))

    rules = CONSTRAINTS[key]
    least = rules.get("minItems", 0)
    for number in (least, rules["maxItems"]):
        ask(number)
    for number in (*range(least), rules["maxItems"] + 1):
        with pytest.raises(InputError, match=f"{field}.*: "):
            ask(number)


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with client_in_a_thread(FakeRetriever(), max_request_seconds=SERVER_LIMIT_S) as found:
        yield found


cases = document(coverage=False)


@cases.parametrize()
@settings(quiet, max_examples=40)
def test_some_requests_are_answered_or_refused_as_documented(
    case: schemathesis.Case, client: httpx.Client
) -> None:
    case.call_and_validate(base_url=str(client.base_url))


Cpp = FieldDescriptor
ALLOWED = {HTTP_STATUS[code] for code in LEGAL if code is not Code.OK} | {200}
POSTS = [endpoint for endpoint in ENDPOINTS if endpoint.verb == "POST"]
# Values that no reader of JSON in Python makes of a message's own.
_ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, [], {}, "", "\ud800", "1e3", "-0", 10**400, -1, 0.5, 1e308, [[]], [None], {"a": 1}, {"": ""}]
)
_LEAVES = _ODD | st.sampled_from(STRINGS) | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
ANYTHING = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab\0", max_size=2), inner),
    max_leaves=6,
)
NO_OBJECTS = (b"", b"{", b"[]", b"null", b'{"query": NaN}', b"\xff", b'{"k": 1, "k": 2}')
TEXTS = st.sampled_from([*NO_OBJECTS, b"[" * 100_000, b'"' + b"x" * 9999])


def value(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    """Values of a field: of its own type, mostly."""
    if field.message_type is not None:
        one: st.SearchStrategy[Any] = objects(field.message_type, depth - 1) if depth else ANYTHING
    elif field.cpp_type == Cpp.CPPTYPE_ENUM:
        one = st.sampled_from([v.name for v in field.enum_type.values])
    else:
        one = scalar(field)
    return (st.lists(one, max_size=3) if field.is_repeated else one) | one | ANYTHING


@st.composite
def objects(draw: st.DrawFn, kind: Descriptor, depth: int = 3) -> dict[str, Any]:
    """An object for a message, with fields under either name, and now and then one that there is not."""
    is_asked = "query" in kind.fields_by_name and draw(st.integers(0, 4))
    found: dict[str, Any] = {"query": "a"} if is_asked else {}
    if kind.fields:
        for field in draw(st.lists(st.sampled_from(list(kind.fields)), max_size=4)):
            found[draw(st.sampled_from([field.name, field.json_name]))] = draw(value(field, depth))
    if not draw(st.integers(0, 5)):
        found[draw(st.text(max_size=5))] = draw(ANYTHING)
    return found


def bodies(endpoint: Endpoint) -> st.SearchStrategy[bytes]:
    values = objects(endpoint.row.descriptor.input_type) | ANYTHING
    whole = values.map(lambda found: json.dumps(found).encode())
    cut = st.tuples(whole, st.integers(0, 50)).map(lambda pair: pair[0][: -pair[1] or None])
    one = whole | whole | cut | TEXTS | st.binary(max_size=50)
    return st.lists(one, max_size=5).map(b"\n".join) if endpoint.row.is_stream else one


@pytest.mark.parametrize("budget", [some(40), pytest.param(many(40), marks=pytest.mark.soak)])
@pytest.mark.parametrize("endpoint", POSTS, ids=lambda endpoint: endpoint.method)
def test_json_of_the_wrong_types(client: httpx.Client, endpoint: Endpoint, budget: settings) -> None:
    """Send bodies to a path; every reply is JSON, and none says that the server is to blame."""
    path = endpoint.path.replace("{name}", "fake")
    headers = {"content-type": NDJSON_TYPE if endpoint.row.is_stream else "application/json"}

    @budget
    @given(bodies(endpoint))
    def send(body: bytes) -> None:
        response = client.post(path, content=body, headers=headers)
        assert response.status_code in ALLOWED, response.text[:500]
        for line in response.content.splitlines() if endpoint.row.is_stream else [response.content]:
            answer = json.loads(line)
            if response.status_code != 200:
                assert answer["error"]["code"] == response.status_code
                assert answer["error"]["status"] in {code.name for code in LEGAL}
        assert b"INTERNAL" not in response.content
        assert b"Traceback" not in response.content

    send()
    answered = client.post("/v1/retrieve", json={"query": "a"})
    assert (answered.status_code, len(answered.json()["candidates"])) == (200, 2)
