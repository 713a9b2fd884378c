"""Specifications of labelled sets, as the command line has them."""

from __future__ import annotations

import pytest

from retrieval.errors import InputError
from retrieval.evaluation.datasets.labels import SetSpec


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("queries:data/queries.tsv", SetSpec("queries", "queries", "data/queries.tsv")),
        (
            "queries:data/queries.tsv#test",
            SetSpec("queries-test", "queries", "data/queries.tsv", split="test"),
        ),
        ("q=queries:a#b/c.jsonl.gz#dev", SetSpec("q", "queries", "a#b/c.jsonl.gz", split="dev")),
        ("mentions:el/lgl.dev.jsonl.gz", SetSpec("lgl.dev", "mentions", "el/lgl.dev.jsonl.gz")),
        ("mentions:/a=b/c.jsonl", SetSpec("c", "mentions", "/a=b/c.jsonl")),
        ("mentions:with:colon.jsonl", SetSpec("with-colon", "mentions", "with:colon.jsonl")),
        ("AY2=kilt:aida.jsonl", SetSpec("AY2", "kilt", "aida.jsonl")),
        ("beir:sets/scifact", SetSpec("scifact", "beir", "sets/scifact")),
        ("beir:sets/nfcorpus/:dev", SetSpec("nfcorpus-dev", "beir", "sets/nfcorpus/", qrels="dev")),
        ("beir:x:y/dev.tsv", SetSpec("x", "beir", "x", qrels="y/dev.tsv")),
        ("db=trec:topics.tsv:qrels.txt", SetSpec("db", "trec", "topics.tsv", qrels="qrels.txt")),
        ("trec:my topics.txt:q", SetSpec("my-topics-q", "trec", "my topics.txt", qrels="q")),
    ],
)
def test_a_set_is_named_and_found(text: str, expected: SetSpec) -> None:
    assert SetSpec.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "queries",
        "queries:",
        "csv:file",
        "name=",
        "name=queries.tsv",
        "a b=queries:x",
        "=queries:x",
        "trec:topics.tsv",
        "trec:topics.tsv:",
        "trec::qrels",
        "beir:",
        "queries:x#",
        "queries:#test",
    ],
)
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        SetSpec.parse(text)
    assert caught.value.field == "set"


def test_what_is_out_of_range_is_refused() -> None:
    with pytest.raises(InputError, match="format must be one of beir, kilt"):
        SetSpec("x", "csv", "x")
    with pytest.raises(InputError, match="limit: must be at least 1, got 0"):
        SetSpec("x", "kilt", "x", limit=0)
