"""JSON made of the descriptors at every path of HTTP: of wrong types, doubled or unknown keys, cut off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from service.gateway.endpoints import ENDPOINTS, NDJSON_TYPE, Endpoint
from service.gateway.http_calls import HTTP_STATUS
from tests.service.any_message import STRINGS, scalar
from tests.service.fake_retriever import FakeRetriever
from tests.service.fuzzed_server import LEGAL, SERVER_LIMIT_S, Code
from tests.service.http_gateway import serving_in_a_thread

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
TEXTS = st.sampled_from(
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"query": NaN}',
        b"\xff",
        b'{"k": 1, "k": 2}',
        b"[" * 100_000,
        b'"' + b"x" * 9999,
    ]
)


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
    found: dict[str, Any] = (
        {"query": "a"} if "query" in kind.fields_by_name and draw(st.integers(0, 4)) else {}
    )
    if kind.fields:
        for field in draw(st.lists(st.sampled_from(list(kind.fields)), max_size=4)):
            found[draw(st.sampled_from([field.name, field.json_name]))] = draw(value(field, depth))
    if not draw(st.integers(0, 5)):
        found[draw(st.text(max_size=5))] = draw(ANYTHING)
    return found


def bodies(endpoint: Endpoint) -> st.SearchStrategy[bytes]:
    whole = (objects(endpoint.row.descriptor.input_type) | ANYTHING).map(
        lambda found: json.dumps(found).encode()
    )
    cut = st.tuples(whole, st.integers(0, 50)).map(lambda pair: pair[0][: -pair[1] or None])
    one = whole | whole | cut | TEXTS | st.binary(max_size=50)
    return st.lists(one, max_size=5).map(b"\n".join) if endpoint.row.is_stream else one


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with (
        serving_in_a_thread(FakeRetriever(), max_request_seconds=SERVER_LIMIT_S) as address,
        httpx.Client(base_url=address, timeout=20, trust_env=False) as found,
    ):
        yield found


def explore(client: httpx.Client, endpoint: Endpoint, examples: int, derandomize: bool) -> None:
    """Send bodies to a path; every reply is JSON, and none says that the server is to blame."""
    path = endpoint.path.replace("{name}", "fake")
    headers = {"content-type": NDJSON_TYPE if endpoint.row.is_stream else "application/json"}

    @settings(
        max_examples=examples,
        derandomize=derandomize,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
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


@pytest.mark.parametrize("endpoint", POSTS, ids=lambda endpoint: endpoint.method)
def test_some_json_of_the_wrong_types(client: httpx.Client, endpoint: Endpoint) -> None:
    explore(client, endpoint, 40, derandomize=True)


@pytest.mark.soak
@pytest.mark.parametrize("endpoint", POSTS, ids=lambda endpoint: endpoint.method)
def test_much_json_of_the_wrong_types(client: httpx.Client, endpoint: Endpoint) -> None:
    explore(client, endpoint, 800, derandomize=False)
