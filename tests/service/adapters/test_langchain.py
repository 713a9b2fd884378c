"""The adapter to LangChain: the library's own tests of retrievers, callbacks, batches, both places."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain_core")
standard = pytest.importorskip("langchain_tests.integration_tests")

from langchain_core.callbacks import BaseCallbackHandler  # noqa: E402
from langchain_core.documents import Document  # noqa: E402
from langchain_core.runnables import RunnableLambda  # noqa: E402
from pydantic import ValidationError  # noqa: E402

from genret.retrieval.retriever import Retriever  # noqa: E402
from genret.retrieval.types import Beam  # noqa: E402
from genret.service.adapters.langchain import LangChainRetriever  # noqa: E402


class _Standard(standard.RetrieversIntegrationTests):  # type: ignore[misc, name-defined]
    place: dict[str, Any]

    @pytest.fixture(autouse=True)
    def _place(self, place: dict[str, Any]) -> None:
        self.place = place

    @property
    def retriever_constructor(self) -> type[LangChainRetriever]:
        return LangChainRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return self.place

    @property
    def retriever_query_example(self) -> str:
        return "who wrote hamlet"


class TestStandard(_Standard):
    """LangChain's standard tests, of an index opened here and of a server."""


class Heard(BaseCallbackHandler):
    def __init__(self) -> None:
        self.started: list[tuple[str, list[str]]] = []
        self.found: list[list[str]] = []
        self.errors: list[str] = []

    def on_retriever_start(self, serialized: Any, query: str, *, tags: Any = None, **more: Any) -> None:
        self.started.append((query, sorted(tags)))

    def on_retriever_end(self, documents: Any, **more: Any) -> None:
        self.found.append([document.id for document in documents])

    def on_retriever_error(self, error: BaseException, **more: Any) -> None:
        self.errors.append(str(error))


def ids(documents: list[Document]) -> list[str | None]:
    return [document.id for document in documents]


def test_documents_are_the_candidates(place: dict[str, Any], retriever: Retriever) -> None:
    adapter = LangChainRetriever(**place, k=4, method="beam", text_column="kind")
    (found,) = retriever.retrieve("a river", k=4, method="beam")
    documents = adapter.invoke("a river")
    assert [document.id for document in documents] == [one.entity_id for one in found.candidates]
    for document, one in zip(documents, found.candidates, strict=True):
        assert document.page_content == f"{one.title}: {one.metadata['kind']}"
        assert document.metadata["kind"] == one.metadata["kind"]
        assert document.metadata["logprob"] == pytest.approx(one.logprob, abs=1e-6)
        assert document.metadata["score"] == pytest.approx(one.score, abs=1e-6)
        assert {"entity_id", "title", "surface", "probability"} < document.metadata.keys()
    (plain,) = LangChainRetriever(**place, k=1, method="beam").invoke("a river")
    assert plain.page_content == found.candidates[0].title


async def test_batches_callbacks_and_tags(place: dict[str, Any]) -> None:
    heard = Heard()
    adapter = LangChainRetriever(**place, k=2, method="beam", tags=["titles"])
    queries = ["a river", "who wrote hamlet", "a city"]
    config: Any = {"callbacks": [heard], "tags": ["here"]}
    found = [ids(one) for one in adapter.batch(queries, config=config)]
    assert [ids(one) for one in await adapter.abatch(queries, config=config)] == found
    assert sorted(heard.started) == sorted((query, ["here", "titles"]) for query in queries * 2)
    assert sorted(heard.found) == sorted(found * 2)
    with pytest.raises(Exception, match="unknown column 'year'"):
        adapter.invoke("a river", config, filter="year = 3")
    assert len(heard.errors) == 1
    assert "unknown column 'year'" in heard.errors[0]


async def test_a_call_has_options_of_its_own(place: dict[str, Any]) -> None:
    adapter = LangChainRetriever(**place, options={"filter": "kind = 'city'"}, method="beam")
    assert {document.metadata["kind"] for document in adapter.invoke("paris")} == {"city"}
    rivers = adapter.invoke("paris", filter="kind = 'river'", k=1)
    assert [document.metadata["kind"] for document in rivers] == ["river"]
    assert ids(await adapter.ainvoke("paris", filter="kind = 'river'", k=1)) == ids(rivers)
    assert adapter.invoke("paris", allow_ids=[]) == []


def test_it_is_a_link_of_a_chain(retriever: Retriever) -> None:
    adapter = LangChainRetriever(index=retriever, method=Beam(exact=True), k=2)

    def join(documents: list[Document]) -> str:
        return ", ".join(str(document.id) for document in documents)

    (found,) = retriever.retrieve("a river", k=2, method=Beam(exact=True))
    said = (adapter | RunnableLambda(join)).invoke("a river")
    assert said == ", ".join(one.entity_id for one in found.candidates)


def test_it_is_copied_and_checked_when_made(index: Path, checkpoint: Path) -> None:
    adapter = LangChainRetriever(index=str(index), model=str(checkpoint), k=2)
    copied = pickle.loads(pickle.dumps(adapter))
    assert copied.invoke("a river") == adapter.invoke("a river")
    for one in (copied, adapter):
        one.source.close()
    with pytest.raises(ValidationError, match=r"Value error, k: must be in \[1, 1000\], got 0"):
        LangChainRetriever(index="i", k=0)
    with pytest.raises(ValidationError, match=r"filter: is no field of a retriever; it goes into options="):
        LangChainRetriever(index="i", filter="kind = 'city'")
    with pytest.raises(ValidationError, match=r"adress: is no field of a retriever; did you mean address\?"):
        LangChainRetriever(adress="localhost:50051")
