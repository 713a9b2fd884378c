"""The client of OpenAI speaks to the server: answers, events, refusals, models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel

from genret.decoding.errors import PromptTooLongError
from genret.service.errors import OverloadedError
from genret.service.gateway.endpoints import FORM_ENDPOINTS
from tests.service.fake_retriever import FakeRetriever, served
from tests.service.http_gateway import client_in_a_thread, connected, serving_in_a_thread
from tests.service.secured_server import tokens_in

SECRET = "s3cret-" + "x" * 40
SCHEMA = {"type": "object", "properties": {"title": {"type": "string", "x-genret-index": "titles"}}}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "play", "schema": SCHEMA, "strict": True}}
ASKED: Any = [{"role": "user", "content": "who wrote hamlet"}]


class Play(BaseModel):
    title: str


FAKE = FakeRetriever(
    errors={
        "full": OverloadedError("QUEUE_FULL", "the queue is full", 1.5),
        "long": PromptTooLongError("the prompt has 600 tokens, at most 512 fit"),
    }
)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    tokens = tokens_in(tmp_path_factory.mktemp("tokens"), f"read {SECRET}")
    indexes = {"plays": served(FAKE, "plays"), "films/new": served(FakeRetriever(), "films/new")}
    with serving_in_a_thread(indexes=indexes, token_file=tokens) as found:
        yield found


@contextmanager
def connected_to(address: str, key: str = SECRET) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key=key, base_url=f"{address}/v1", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def client(address: str) -> Iterator[openai.OpenAI]:
    FAKE.asked.clear()
    with connected_to(address) as found:
        yield found


def test_a_document_is_written_under_the_schema(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="plays", messages=ASKED, response_format=FORMAT, temperature=0, max_tokens=50, user="ann"
    )
    (choice,) = reply.choices
    assert (choice.message.role, choice.message.content) == ("assistant", '{"title": "Hamlet"}')
    assert (choice.message.refusal, choice.finish_reason, choice.logprobs) == (None, "stop", None)
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (3, 9, 12)
    assert (reply.object, reply.model, reply.system_fingerprint) == ("chat.completion", "plays", "fp_v1")
    assert reply.id == f"chatcmpl-{reply._request_id}"
    assert reply.created > 1_700_000_000
    found = reply.model_extra["genret"]["entities"]
    assert [one["entities"][0]["entity_id"] for one in found] == ["Q1"]
    (asked,) = FAKE.asked
    assert (asked.query, json.loads(asked.schema), asked.method) == ("who wrote hamlet", SCHEMA, "greedy")
    assert asked.max_tokens == 50


def test_a_document_is_parsed_into_a_model_of_pydantic(client: openai.OpenAI) -> None:
    for parse in (client.chat.completions.parse, client.beta.chat.completions.parse):
        reply = parse(model="plays", messages=ASKED, response_format=Play)
        assert reply.choices[0].message.parsed == Play(title="Hamlet")
    assert [json.loads(asked.schema)["required"] for asked in FAKE.asked] == [["title"], ["title"]]


def test_options_reach_the_answer(client: openai.OpenAI) -> None:
    client.chat.completions.create(
        model="plays",
        messages=ASKED,
        response_format={"type": "json_object"},
        temperature=0.5,
        seed=7,
        max_completion_tokens=99,
        extra_body={"genret": {"shortlist": 3, "prompt_template": "brief"}},
    )
    (asked,) = FAKE.asked
    assert (asked.method, asked.temperature, asked.seed, asked.max_tokens) == ("sample", 0.5, 7, 99)
    assert (asked.shortlist, asked.prompt, json.loads(asked.schema)) == (3, "brief", {"type": "object"})


def test_without_a_format_the_answer_is_the_best_title(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="plays", messages=ASKED, n=2)
    assert [choice.message.content for choice in reply.choices] == ["title of who wrote hamlet"] * 2
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (3, 11)
    assert reply.model_extra["genret"]["candidates"][0]["entity_id"] == "Q0"
    client.chat.completions.create(model="plays", messages=ASKED, temperature=0.5, seed=7)
    plain, sampled = FAKE.asked
    assert (plain.method, plain.k) == ("auto", 2)
    assert (sampled.method, sampled.num_samples, sampled.temperature, sampled.seed) == ("disc", 1, 0.5, 7)


def test_where_nothing_answers_the_model_refuses(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="plays", messages=[{"role": "user", "content": "nothing"}])
    message = reply.choices[0].message
    assert (message.content, message.refusal) == (None, "no title of the index answers")
    assert client.completions.create(model="plays", prompt="nothing").choices[0].text == ""


def test_messages_become_one_query_and_evidence_is_asked_with_the_last(client: openai.OpenAI) -> None:
    parts: Any = [{"type": "text", "text": "who "}, {"type": "text", "text": "wrote it?"}]
    first: Any = [{"role": "system", "content": "Plays alone."}, {"role": "user", "content": parts}]
    reply = client.chat.completions.create(model="plays", messages=first)
    spoken = [*first, reply.choices[0].message, {"role": "user", "content": "and when?"}]
    client.chat.completions.create(model="plays", messages=spoken)
    client.chat.completions.create(model="plays", messages=first, response_format=FORMAT)
    told, spoken_of, document = FAKE.asked
    assert (told.query, told.shortlist_query) == ("who wrote it?", None)
    said = "assistant: title of who wrote it?"
    assert spoken_of.query == f"user: who wrote it?\n{said}\nuser: and when?"
    assert spoken_of.shortlist_query == "and when?"
    assert document.query == "Plays alone.\nwho wrote it?"


def test_events_hold_the_answer_in_one_piece(client: openai.OpenAI) -> None:
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    pieces = list(
        client.chat.completions.create(model="plays", messages=ASKED, response_format=FORMAT, **options)
    )
    said, ended, counted = pieces
    assert (said.choices[0].delta.role, said.choices[0].delta.content) == ("assistant", '{"title": "Hamlet"}')
    assert (said.choices[0].finish_reason, ended.choices[0].finish_reason) == (None, "stop")
    assert ended.model_extra["genret"]["logprob"] == -2.5
    assert (counted.choices, counted.usage.total_tokens, said.usage) == ([], 12, None)
    assert {piece.object for piece in pieces} == {"chat.completion.chunk"}
    assert len({piece.id for piece in pieces}) == 1
    texts = list(client.completions.create(model="plays", prompt="hamlet", stream=True))
    assert [piece.choices[0].text for piece in texts] == ["title of hamlet"]
    titles = client.chat.completions.create(model="plays", messages=ASKED, stream=True)
    assert [piece.choices[0].delta.content for piece in titles] == ["title of who wrote hamlet", None]


def test_the_helper_for_events_parses_the_document(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="plays", messages=ASKED, response_format=Play) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.done" in kinds
    assert final.choices[0].message.parsed == Play(title="Hamlet")


def test_texts_are_completed(client: openai.OpenAI) -> None:
    reply = client.completions.create(model="plays", prompt=["hamlet"], n=2)
    assert (reply.object, [choice.text for choice in reply.choices]) == (
        "text_completion",
        ["title of hamlet"] * 2,
    )
    assert reply.id.startswith("cmpl-")
    document = client.completions.create(
        model="plays", prompt="hamlet", extra_body={"response_format": FORMAT}, max_tokens=40
    )
    assert document.choices[0].text == '{"title": "Hamlet"}'
    assert [asked.max_tokens for asked in FAKE.asked[1:]] == [40]


def test_indexes_are_models(client: openai.OpenAI) -> None:
    assert [(one.id, one.owned_by) for one in client.models.list()] == [
        ("plays", "genret"),
        ("films/new", "genret"),
    ]
    assert client.models.retrieve("films/new").id == "films/new"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.models.retrieve("gpt-4o")
    assert unknown.value.code == "model_not_found"


def asked_with(client: openai.OpenAI, **fields: Any) -> openai.APIStatusError:
    """The refusal of a chat completion."""
    with pytest.raises(openai.APIStatusError) as refused:
        client.chat.completions.create(**({"model": "plays", "messages": ASKED} | fields))
    return refused.value


def test_failures_are_those_that_the_client_knows(address: str, client: openai.OpenAI) -> None:
    unknown = asked_with(client, model="gpt-4o")
    assert isinstance(unknown, openai.NotFoundError)
    assert (unknown.code, unknown.param, unknown.type) == (
        "model_not_found",
        "model",
        "invalid_request_error",
    )
    assert "no index named 'gpt-4o' is served here; served: films/new, plays" in unknown.message
    with connected_to(address, "wrong" * 10) as stranger:
        wrong = asked_with(stranger)
    assert isinstance(wrong, openai.AuthenticationError)
    assert (wrong.code, wrong.type) == ("invalid_api_key", "authentication_error")
    full = asked_with(client, messages=[{"role": "user", "content": "full"}])
    assert isinstance(full, openai.RateLimitError)
    assert (full.response.headers["retry-after"], full.code) == ("2", "rate_limit_exceeded")
    # Of the fake, a schema that is text alone; the real ones are tested with a real index.
    too_long = asked_with(client, messages=[{"role": "user", "content": "long"}])
    assert isinstance(too_long, openai.BadRequestError)
    assert (too_long.param, too_long.code) == ("messages", "invalid_argument")
    blank = asked_with(client, messages=[{"role": "user", "content": " "}])
    assert "messages: must not be empty" in blank.message


async def test_a_server_that_is_not_ready_says_so() -> None:
    async with connected(FakeRetriever(), load=False) as (_, server, _):
        url = f"http://{server.address}/v1"
        async with openai.AsyncOpenAI(api_key="none", base_url=url, max_retries=0) as client:
            with pytest.raises(openai.InternalServerError) as caught:
                await client.chat.completions.create(model="fake", messages=ASKED)
    assert (caught.value.status_code, caught.value.type) == (503, "server_error")
    assert caught.value.response.headers["retry-after"] == "1"


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"top_p": 0.5}, "top_p", "cannot be 0.5: Only 1"),
    ({"stop": ["\n"]}, "stop", 'cannot be ["\\n"]: Only none'),
    ({"stop": "x"}, "stop", 'cannot be "x": Only none'),
    ({"frequency_penalty": 1}, "frequency_penalty", "cannot be 1: Only 0"),
    ({"presence_penalty": -1}, "presence_penalty", "cannot be -1: Only 0"),
    ({"logit_bias": {"5": 1}}, "logit_bias", 'cannot be {"5": 1}: Only an empty one'),
    ({"logprobs": True}, "logprobs", "cannot be true: Only false"),
    ({"tools": [{"type": "function"}]}, "tools", 'cannot be [{"type": "function"}]: Only none'),
    ({"store": True}, "store", "cannot be true: Only false"),
    (
        {"reasoning_effort": "low"},
        "reasoning_effort",
        "is no field here; did you mean",
    ),
    ({"temperature": 3}, "temperature", "cannot be 3: 0 or unset"),
    ({"temperature": 0.001, "response_format": FORMAT}, "temperature", "must be in [0.01, 100]"),
    ({"seed": 2**70, "temperature": 1}, "seed", "must be in [-9223372036854775808"),
    ({"n": 0}, "n", "cannot be 0: Without a response_format: how many titles"),
    ({"n": 2, "response_format": FORMAT}, "n", "must be 1 with a response_format, got 2"),
    ({"n": 2, "temperature": 1}, "n", "must be 1 with a temperature above 0, got 2"),
    ({"max_tokens": 10**6, "response_format": FORMAT}, "max_tokens", "must be in [1, 65536]"),
    (
        {"max_tokens": 9, "max_completion_tokens": 8, "response_format": FORMAT},
        "max_tokens",
        "must not differ from max_completion_tokens",
    ),
    ({"response_format": {"type": "xml"}}, "response_format.type", 'cannot be "xml": text: the best title'),
    (
        {"response_format": {"type": "json_schema"}},
        "response_format.json_schema",
        "must be given with the type",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        "response_format.json_schema.name",
        "must be given",
    ),
    ({"response_format": "json_object"}, "response_format", 'cannot be "json_object": As {"type": "json_s'),
    ({"messages": []}, "messages", "cannot be []: The conversation"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", 'cannot be "tool": One of system'),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "must be given"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content",
        "cannot be [{",
    ),
    ({"extra_body": {"genret": {"shortlist": 5}}}, "genret.shortlist", "is no field of RetrieveRequest"),
    ({"response_format": FORMAT, "extra_body": {"genret": {"k": 5}}}, "genret.k", "is no field of AnswerReq"),
    ({"extra_body": {"genret": {"method": "bem"}}}, "genret.method", "must be one of beam, disc, "),
    ({"extra_body": {"genret": {"query": "x"}}}, "genret.query", "is said by another field of the request"),
    ({"extra_body": {"genret": {"beam_size": 0}}}, "genret.beam_size", "must be in [1, 1000], got 0"),
]


@pytest.mark.parametrize(("fields", "param", "text"), REFUSED)
def test_what_is_not_honoured_is_refused_by_its_name(
    client: openai.OpenAI, fields: dict[str, Any], param: str, text: str
) -> None:
    refused = asked_with(client, **fields)
    assert isinstance(refused, openai.BadRequestError)
    assert (refused.param, refused.type) == (param, "invalid_request_error")
    assert refused.body["message"].startswith(f"{param}: {text}")
    assert not FAKE.asked


PROMPTS = [("prompt", [1, 2]), ("prompt", ["a", "b"]), ("prompt", " ")]


@pytest.mark.parametrize(
    ("name", "value"), [*PROMPTS, ("echo", True), ("best_of", 2), ("logprobs", 1), ("suffix", "x")]
)
def test_what_completions_of_texts_do_not_honour_is_refused_too(
    client: openai.OpenAI, name: str, value: Any
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(**({"model": "plays", "prompt": "x"} | {name: value}))
    assert refused.value.param == name


def test_options_without_effect_and_nulls_are_taken(client: openai.OpenAI) -> None:
    body = {
        "user": "ann", "metadata": {"a": "b"}, "store": False, "service_tier": "auto",
        "safety_identifier": "x", "prompt_cache_key": "y", "parallel_tool_calls": True, "tool_choice": "none",
        "tools": [], "logprobs": False, "top_p": 1.0, "n": 1, "stop": [], "logit_bias": {},
        "presence_penalty": 0.0, "seed": 5, "temperature": 0.0, "max_tokens": None, "response_format": None,
        "stream": False, "reasoning_effort": None,
    }  # fmt: skip
    client.chat.completions.create(model="plays", messages=ASKED, extra_body=body)
    assert FAKE.asked[0].method == "auto"


async def test_answers_count_as_the_methods_that_gave_them() -> None:
    fake = FakeRetriever(held=True)
    async with connected(fake) as (_, _, client):
        body = {"messages": ASKED, "response_format": FORMAT}
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/chat/completions", json=body, timeout=0.3)
        while not fake.stopped_by:
            await client.get("/livez")
        fake.hold.set()
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        assert (await client.post("/v1/chat/completions", json={"messages": ASKED})).status_code == 200
        counts = (await client.get("/metrics")).text
    for code, method in (("OK", "Answer"), ("CANCELLED", "Answer"), ("OK", "Retrieve")):
        assert f'genret_requests_total{{code="{code}",method="{method}"}} 1.0' in counts


def test_bodies_that_are_no_requests_are_refused_in_the_same_form() -> None:
    with client_in_a_thread(FakeRetriever(), max_request_bytes=5000) as client:
        for body, status in ((b"nonsense", 400), (b"[1]", 400), (b" " * 9000, 413)):
            reply = client.post(
                "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
            )
            assert (reply.status_code, reply.json()["error"]["param"]) == (status, None)
        untyped = client.post("/v1/completions", content=b"{}", headers={"content-type": "text/plain"})
        assert (untyped.status_code, untyped.json()["error"]["code"]) == (415, "invalid_argument")


def test_every_form_belongs_to_a_method_of_the_same_scope() -> None:
    methods = {"Score", "Answer", "ListIndexes", "GetIndex"}
    assert {endpoint.method for endpoint in FORM_ENDPOINTS} == methods
    assert len({endpoint.scope for endpoint in FORM_ENDPOINTS}) == 1
