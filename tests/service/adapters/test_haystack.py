"""The adapter to Haystack: pipelines, files of pipelines, filters, both places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("haystack")

from haystack import Pipeline
from haystack.components.joiners import DocumentJoiner

from genret.retrieval.errors import InputError
from genret.retrieval.retriever import Retriever
from genret.service.adapters.haystack import HaystackRetriever

MODULES = [
    "genret.service.adapters.haystack"
]  # Haystack makes only components of modules that it is told to trust


def ids(run: dict[str, Any]) -> list[str]:
    return [document.id for document in run["documents"]]


def pipeline_of(adapter: HaystackRetriever) -> Pipeline:
    pipeline = Pipeline()
    pipeline.add_component("titles", adapter)
    pipeline.add_component("joined", DocumentJoiner(sort_by_score=False))
    pipeline.connect("titles.documents", "joined.documents")
    return pipeline


async def test_documents_are_the_candidates(place: dict[str, Any], retriever: Retriever) -> None:
    adapter = HaystackRetriever(**place, top_k=4, method="beam", text_column="kind")
    (found,) = retriever.retrieve("a river", k=4, method="beam")
    documents = adapter.run("a river")["documents"]
    assert [document.id for document in documents] == [one.entity_id for one in found.candidates]
    for document, one in zip(documents, found.candidates, strict=True):
        assert document.content == f"{one.title}: {one.metadata['kind']}"
        assert document.score == pytest.approx(one.score, abs=1e-6)
        assert document.meta["kind"] == one.metadata["kind"]
    assert ids(await adapter.run_async("a river")) == [one.entity_id for one in found.candidates]
    assert len(adapter.run("a river", top_k=2)["documents"]) == 2
    adapter.source.close()


async def test_a_pipeline_is_written_read_and_run(place: dict[str, Any]) -> None:
    city = {"field": "meta.kind", "operator": "==", "value": "city"}
    adapter = HaystackRetriever(**place, top_k=2, filters=city, method="beam", options={"beam_size": 12})
    pipeline = pipeline_of(adapter)
    text = pipeline.dumps()
    again = Pipeline.loads(text, allowed_modules=MODULES)
    assert again.dumps() == text
    asked: Any = {"titles": {"query": "a river"}}
    cities = pipeline.run(asked)["joined"]
    assert {document.meta["kind"] for document in cities["documents"]} == {"city"}
    assert ids(again.run(asked)["joined"]) == ids(cities)
    river = {"operator": "NOT", "conditions": [{"field": "meta.kind", "operator": "!=", "value": "river"}]}
    rivers = again.run({"titles": {"query": "a river", "filters": river}})["joined"]
    assert {document.meta["kind"] for document in rivers["documents"]} == {"river"}
    assert ids((await again.run_async(asked))["joined"]) == ids(cities)


def test_warming_up_opens_the_index_and_making_does_not(index: Path, checkpoint: Path) -> None:
    adapter = HaystackRetriever(index=index, model=str(checkpoint))
    assert adapter.source._retriever is None
    adapter.warm_up()
    opened = adapter.source._retriever
    assert opened is not None
    adapter.warm_up()
    assert adapter.source._retriever is opened
    adapter.source.close()


def test_what_cannot_be_used_or_written_is_refused(retriever: Retriever) -> None:
    with pytest.raises(InputError, match=r"^index: must be a directory to be saved or copied"):
        pipeline_of(HaystackRetriever(retriever)).dumps()
    with pytest.raises(InputError, match=r"^filters: operator must be one of .*; got 'like'"):
        HaystackRetriever(retriever, filters={"field": "kind", "operator": "like", "value": "a"})
    with pytest.raises(
        InputError, match=r"^k: there is no such option; did you mean top_k\? there are: index, "
    ):
        HaystackRetriever(retriever, k=2)  # type: ignore[call-arg]
    with pytest.raises(InputError, match=r"^top_k: must be in \[1, 1000\], got 0"):
        HaystackRetriever(retriever, top_k=0)
