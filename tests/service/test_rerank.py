"""Clients of other vendors' rerankers are answered: Cohere's own client, and requests as Jina has them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import cohere
import httpx
import pytest

from genret.retrieval.score_types import MAX_SCORED_TITLES
from genret.service.errors import OverloadedError
from tests.service.fake_retriever import FakeRetriever
from tests.service.http_gateway import serving_in_a_thread
from tests.service.secured_server import tokens_in

SECRET = "s3cret-" + "x" * 40
# The fake scores a text by its length, and knows what begins with a capital.
NAMES = ["Nuremberg", "Bonn", "nobody's town", "a " * 21 + "title"]


def full() -> OverloadedError:
    return OverloadedError("QUEUE_FULL", "the queue is full", 1.5)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    tokens = tokens_in(tmp_path_factory.mktemp("tokens"), f"read {SECRET}")
    fakes = FakeRetriever(errors={"full": full()}), FakeRetriever()
    with serving_in_a_thread(*fakes, token_file=tokens) as found:
        yield found


def test_the_client_of_cohere_gets_the_likeliest_documents_first(address: str) -> None:
    documents = [NAMES[0], {"text": NAMES[1], "kind": "city"}, *NAMES[2:]]
    with httpx.Client(timeout=60) as over:
        client = cohere.Client(SECRET, base_url=address, httpx_client=over)
        reply = client.rerank(query="capital", documents=documents, model="fake", return_documents=True)
    assert [found.index for found in reply.results] == [1, 0, 2, 3]
    scores = [math.exp(-4), math.exp(-9), math.exp(-13), 0]
    assert [found.relevance_score for found in reply.results] == pytest.approx(scores)
    assert [found.document.text for found in reply.results] == [NAMES[i] for i in (1, 0, 2, 3)]
    assert [found.entity_ids for found in reply.results] == [["Q1", "Q2"], ["Q1", "Q2"], [], []]
    assert (reply.results[0].logprob, reply.results[3].logprob) == (-4, None)
    assert (reply.results[0].probability, reply.results[3].probability) == (0.25, None)
    assert reply.meta.api_version.version == "1"
    assert (reply.meta.tokens.input_tokens, reply.meta.tokens.output_tokens) == (1, 17)


def test_the_second_client_of_cohere_gets_as_many_as_it_asks_for(address: str) -> None:
    with httpx.Client(timeout=60) as over:
        client = cohere.ClientV2(SECRET, base_url=address, httpx_client=over)
        reply = client.rerank(query="capital", documents=NAMES, model="fake1", top_n=2)
        whole = client.rerank(query="capital", documents=NAMES, model="", top_n=100)
    assert [found.index for found in reply.results] == [1, 0]
    assert not hasattr(reply.results[0], "document")
    assert reply.meta.api_version.version == "2"
    assert len(whole.results) == len(NAMES)


def test_failures_are_those_that_the_client_of_cohere_knows(address: str) -> None:
    once = {"max_retries": 0}

    def ask(key: str = SECRET, **fields: Any) -> None:
        options = {"query": "x", "documents": NAMES, "model": "fake", "request_options": once} | fields
        with httpx.Client(timeout=60) as over:
            cohere.ClientV2(key, base_url=address, httpx_client=over).rerank(**options)

    with pytest.raises(cohere.UnauthorizedError):
        ask("wrong" * 10)
    with pytest.raises(cohere.NotFoundError) as unknown:
        ask(model="rerank-v3.5")
    known = "no index named 'rerank-v3.5' is served here; served: fake, fake1"
    assert unknown.value.body["message"] == known
    with pytest.raises(cohere.TooManyRequestsError) as full_up:
        ask(query="full")
    assert full_up.value.headers["retry-after"] == "2"
    with pytest.raises(cohere.BadRequestError) as blank:
        ask(documents=["a", " "])
    assert blank.value.body["message"] == "documents[1]: must not be empty"
    with pytest.raises(cohere.BadRequestError) as refused:
        ask(max_tokens_per_doc=5, priority=3)
    assert refused.value.body["message"] == (
        "priority: is no field here; there are: model, query, documents, top_n, return_documents, "
        "max_tokens_per_doc"
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"documents": ["a"]}, "query: must be given"),
        ({"query": "x"}, "documents: must be given"),
        ({"query": " ", "documents": ["a"]}, "query: must not be empty"),
        ({"query": "\ud800", "documents": ["a"]}, "query: half of a surrogate pair at character 0"),
        ({"query": "x", "documents": []}, "documents: cannot be []: Names, from 1 to 10,000"),
        (
            {"query": "x", "documents": ["a", 5]},
            "documents[1]: cannot be 5: A name as a text, or as an object",
        ),
        ({"query": "x", "documents": [{"title": "a"}]}, 'documents[0]: cannot be {"title": "a"}: A name'),
        ({"query": "x", "documents": ["a"], "top_n": 0}, "top_n: cannot be 0: Most results, 1 or more"),
        ({"query": "x", "documents": ["a"], "top_n": True}, "top_n: cannot be true: Most results, 1 or more"),
        ({"query": "x", "documents": ["a"] * (MAX_SCORED_TITLES + 1)}, "documents: cannot be "),
    ],
)
def test_what_is_wrong_with_a_request_is_said_in_its_own_words(
    address: str, body: dict[str, Any], message: str
) -> None:
    headers = {"authorization": f"Bearer {SECRET}", "content-type": "application/json"}
    reply = httpx.post(f"{address}/v1/rerank", content=json.dumps(body), headers=headers)
    assert reply.status_code == 400
    assert reply.json()["message"].startswith(message)
    assert reply.json()["error"]["status"] == "INVALID_ARGUMENT"


def test_requests_of_jina_are_answered(address: str) -> None:
    body = {"model": "fake", "query": "capital", "documents": NAMES, "top_n": 1, "return_documents": True}
    reply = httpx.post(f"{address}/v1/rerank", json=body, headers={"authorization": f"Bearer {SECRET}"})
    (found,) = reply.json()["results"]
    assert (found["index"], found["document"]["text"]) == (1, "Bonn")
    assert found["relevance_score"] == pytest.approx(math.exp(-4))
    assert reply.json()["usage"] == {"total_tokens": 18}
    assert reply.json()["model"] == "fake"
