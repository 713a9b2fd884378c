"""The adapter to LlamaIndex: nodes, filters, a query engine, both places."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("llama_index.core")

from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import ResponseMode, get_response_synthesizer
from llama_index.core.schema import MetadataMode, QueryBundle
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters

from genret.retrieval.errors import InputError
from genret.retrieval.retriever import Retriever
from genret.service.adapters.llama_index import LlamaIndexRetriever


async def test_nodes_are_the_candidates(place: dict[str, Any], retriever: Retriever) -> None:
    adapter = LlamaIndexRetriever(**place, similarity_top_k=4, method="beam", text_column="kind")
    (found,) = retriever.retrieve("a river", k=4, method="beam")
    nodes = adapter.retrieve("a river")
    assert [one.node.node_id for one in nodes] == [one.entity_id for one in found.candidates]
    for node, one in zip(nodes, found.candidates, strict=True):
        assert node.score == pytest.approx(one.score, abs=1e-6)
        assert node.node.metadata["kind"] == one.metadata["kind"]
        assert node.node.metadata["logprob"] == pytest.approx(one.logprob, abs=1e-6)
        shown = node.node.get_content(MetadataMode.LLM)
        assert shown == f"{one.title}: {one.metadata['kind']}", "no numbers for a language model"
    again = await adapter.aretrieve(QueryBundle("a river"))
    assert [one.node.node_id for one in again] == [one.node.node_id for one in nodes]
    adapter.source.close()


async def test_a_query_engine_reads_the_nodes(place: dict[str, Any]) -> None:
    adapter = LlamaIndexRetriever(**place, similarity_top_k=2, method="beam")
    synthesizer = get_response_synthesizer(llm=MockLLM(), response_mode=ResponseMode.COMPACT)
    engine = RetrieverQueryEngine(adapter, synthesizer)
    answer = engine.query("a river")
    assert [one.node.node_id for one in answer.source_nodes] == [
        one.node.node_id for one in adapter.retrieve("a river")
    ]
    for one in answer.source_nodes:  # this model repeats its prompt
        assert one.node.get_content(MetadataMode.LLM) in str(answer)
    assert str(await engine.aquery("a river")) == str(answer)


def test_filters_and_the_options_filter_must_both_pass(place: dict[str, Any]) -> None:
    no_river = MetadataFilters(filters=[MetadataFilter(key="kind", value="river", operator="!=")])
    adapter = LlamaIndexRetriever(
        **place, filters=no_river, method="beam", options={"filter": "kind in ('river', 'city')"}
    )
    assert {one.node.metadata["kind"] for one in adapter.retrieve("a river")} == {"city"}


def test_what_cannot_be_used_is_refused_when_made(retriever: Retriever) -> None:
    contains = MetadataFilters(filters=[MetadataFilter(key="kind", value="r", operator="contains")])
    with pytest.raises(
        InputError, match=r"^filters.conditions\[0\]: operator must be one of .* got 'contains'"
    ):
        LlamaIndexRetriever(retriever, filters=contains)
    with pytest.raises(
        InputError, match=r"^similarity_topk: is no argument.*; did you mean similarity_top_k\?"
    ):
        LlamaIndexRetriever(retriever, similarity_topk=2)
    with pytest.raises(InputError, match=r"^similarity_top_k: must be in \[1, 1000\], got 0"):
        LlamaIndexRetriever(retriever, similarity_top_k=0)
