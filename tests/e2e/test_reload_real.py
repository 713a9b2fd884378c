"""Hot reload of real indexes under a real model: what is answered and refused, and that nothing is left."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from genret.decoding.cancellation import CancelToken
from genret.retrieval.answers.answer_types import AnswerRequest
from genret.retrieval.index.reader import read_manifest
from genret.retrieval.index.small_files import digest_bytes
from genret.retrieval.retriever import Retriever
from genret.service.configuration.server_config import IndexSpec, SchemaSpec
from genret.service.errors import UnservableIndexError
from genret.service.pb.genret.v1 import index_service_pb2 as index_pb
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from tests.e2e.conftest import model_of, real_server
from tests.service.changing_index import ChangingIndex
from tests.service.running_server import Running, failure, failure_code, opener_of, retriever_of
from tests.service.tiny_assets import make_checkpoint

StatusCode = grpc.StatusCode
NAMES_A = {"type": "string", "x-genret-index": "a"}
EVERYTHING = {"type": "array", "items": NAMES_A, "minItems": 4, "maxItems": 4, "uniqueItems": True}
NAMES_TITLES = {"type": "string", "x-genret-index": "titles"}


class Api(Running):
    def reload(self, name: str = "a", force: bool = False) -> Any:
        return self.indexes.ReloadIndex(index_pb.ReloadIndexRequest(name=name, force=force), timeout=60)

    async def titles(self, index: str = "a", query: str = "which") -> set[str]:
        request = pb.RetrieveRequest(query=query, index=index, k=100)
        return {c.title for c in (await self.stub.Retrieve(request, timeout=60)).candidates}

    async def answer(self, schema: dict[str, Any], index: str = "a", query: str = "which") -> Any:
        request = pb.AnswerRequest(query=query, index=index, schema_json=json.dumps(schema))
        return await self.stub.Answer(request, timeout=60)

    def retriever(self, name: str) -> Retriever:
        return retriever_of(self.server.engine.indexes.resolve(name))


@pytest.fixture
def a(tmp_path: Path, checkpoint: Path) -> ChangingIndex:
    return ChangingIndex(tmp_path / "a", checkpoint)


@pytest.fixture
def b(tmp_path: Path, checkpoint: Path) -> ChangingIndex:
    return ChangingIndex(tmp_path / "b", checkpoint, ("Iron", "Mercury"))


@asynccontextmanager
async def serving(*indexes: ChangingIndex, **options: Any) -> AsyncIterator[Api]:
    async with real_server(*indexes, **options) as running:
        yield Api(**vars(running))


def mapped(index: ChangingIndex) -> set[str]:
    """The versions of an index of which this process has files mapped."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        lines = [line for line in maps if f"{index.path}/versions/" in line]
    return {line.split("/versions/")[1].split("/")[0] for line in lines}


@pytest.mark.parametrize("is_asked", [False, True], ids=["at the first call", "at the start"])
async def test_a_reload_takes_nobody_the_table_of_completion(a: ChangingIndex, is_asked: bool) -> None:
    async with serving(a, warm_completion=is_asked) as api:
        assert api.retriever("a").index.completer.is_warm == is_asked
        a.add("Berlin")
        await api.reload()
        assert api.retriever("a").index.completer.is_warm == is_asked
        assert (await api.stub.Complete(pb.CompleteRequest(prefix="berl"))).completions
        a.add("Bern")
        await api.reload()
        assert api.retriever("a").index.completer.is_warm
        found = await api.stub.Complete(pb.CompleteRequest(prefix="ber"))
        assert [one.title for one in found.completions] == ["Bern", "Berlin"]


async def test_a_new_version_is_found_by_titles_and_by_answers(a: ChangingIndex) -> None:
    async with serving(a) as api:
        assert "Berlin" not in await api.titles()
        await api.answer(NAMES_TITLES)
        new = a.add("Berlin")
        reply = await api.reload()
        assert (reply.previous_version, reply.index.version) == tuple(a.versions)
        assert reply.index.num_entities == 5
        assert reply.index.loaded_at.seconds > 1_700_000_000
        assert reply.index.max_title_tokens > 0
        assert await api.titles() == {*a.titles, "Berlin"}
        answer = await api.answer({**EVERYTHING, "minItems": 5, "maxItems": 5})
        assert set(json.loads(answer.json)) == {*a.titles, "Berlin"}
        assert answer.index.version == new
        await api.server.engine.reloader.settle()
        assert mapped(a) == {new}


async def test_answers_finish_over_the_version_they_began_with(a: ChangingIndex, b: ChangingIndex) -> None:
    """Also those of another index whose schema names the one that was replaced."""
    async with serving(a, b) as api:
        await answer_over_the_old_version(api, a)
        await api.server.engine.reloader.settle()
        assert mapped(a) == {a.versions[1]}
        assert (await api.answer(NAMES_A, "b")).entities[0].index == "a"


async def answer_over_the_old_version(api: Api, a: ChangingIndex) -> None:
    table = api.server.engine.indexes
    device = api.server.engine.lanes.of("cpu").thread
    with table.use("a") as old_a, table.use("b") as old_b:
        a.add("Berlin")
        await api.reload()
        assert table.resolve("a").description.num_entities == 5
        assert table.resolve("b") is not old_b
        assert table.resolve("b").description is old_b.description
        assert mapped(a) == set(a.versions)
        for old in (old_a, old_b):
            for options in ({"method": "greedy"}, {"shortlist": 4}):
                request = AnswerRequest("which", json.dumps(EVERYTHING), max_tokens=128, **options)
                (result,) = await device.run(old.retriever.answer_batch, [request], [CancelToken()])
                assert set(json.loads(result.text)) == set(a.titles)
                entities = [e.title for found in result.entities for e in found.entities]
                assert entities == [found.title for found in result.entities]
        assert not (await api.reload()).reloaded
        assert mapped(a) == set(a.versions)


async def test_grammars_over_a_replaced_version_are_forgotten_and_others_are_kept(
    a: ChangingIndex, b: ChangingIndex
) -> None:
    plain = {"type": "object", "properties": {"year": {"type": "integer"}}}
    async with serving(a, b) as api:
        await api.answer(NAMES_A, "b")
        await api.answer(NAMES_TITLES, "b")
        await api.answer(plain, "b")
        a.add("Berlin")
        await api.reload()
        await api.server.engine.reloader.settle()
        stats = api.retriever("b").answerer.engine.schemas.stats
        for schema in (plain, NAMES_TITLES):
            await api.answer(schema, "b")
        assert api.retriever("b").answerer.engine.schemas.stats.misses == stats.misses
        await api.answer(NAMES_A, "b")
        assert api.retriever("b").answerer.engine.schemas.stats.misses == stats.misses + 1


async def test_twenty_reloads_leave_one_version(a: ChangingIndex, b: ChangingIndex) -> None:
    """Also the first one, which was frozen; without a collection of what is frozen."""
    async with serving(a, b) as api:
        await api.stub.Retrieve(pb.RetrieveRequest(query="x", filter="title = 'Nile'"), timeout=60)
        prefixes = api.retriever("b").prefixes
        num_prefixes = len(prefixes)
        assert num_prefixes > 0
        left: list[weakref.ref[Any]] = []
        for number in range(20):
            retriever = api.retriever("a")
            left += [weakref.ref(thing) for thing in (retriever, retriever.index, retriever.trie)]
            del retriever
            await api.answer(NAMES_A, "b")
            if number % 5 == 0:
                a.add(f"Title {number}")
            assert (await api.reload(force=True)).reloaded
        await api.server.engine.reloader.settle()
        assert [thing() for thing in left] == [None] * 60
        assert mapped(a) == {a.versions[-1]}
        assert mapped(b) == set(b.versions)
        assert len(prefixes) == num_prefixes, "other indexes share them"


@pytest.mark.fault
async def test_a_damaged_version_is_refused_and_the_old_one_answers(a: ChangingIndex) -> None:
    async with serving(a) as api:
        before = (await api.answer(NAMES_TITLES)).json
        a.add("Berlin")
        a.damage("entities.arrow")
        error, details = await failure(api.reload())
        assert error.code() is StatusCode.DATA_LOSS
        assert details["ErrorInfo"].metadata["file"] == "entities.arrow"
        assert (await api.answer(NAMES_TITLES)).json == before
        assert await api.titles() == set(a.titles)
        await api.server.engine.reloader.settle()
        assert mapped(a) == {a.versions[0]}
        listed = await api.indexes.GetIndex(index_pb.GetIndexRequest())
        assert listed.index.version == a.versions[0]


async def test_a_version_that_a_named_schema_does_not_fit_is_refused(
    a: ChangingIndex, checkpoint: Path, tmp_path: Path
) -> None:
    schema = tmp_path / "named.json"
    schema.write_text(json.dumps({**NAMES_TITLES, "x-genret-filter": "kind = 'city'"}), encoding="utf-8")
    typed = ChangingIndex(tmp_path / "typed", checkpoint, ("Paris",), "city")
    async with serving(typed, schemas=(SchemaSpec("city", schema),)) as api:
        shutil.rmtree(typed.path)
        shutil.copytree(a.path, typed.path)
        error, _ = await failure(api.reload("typed"))
        assert error.code() is StatusCode.FAILED_PRECONDITION
        assert "the schema 'city' cannot be used with the index 'typed'" in error.details()
        request = pb.AnswerRequest(query="x", schema_name="city")
        assert (await api.stub.Answer(request, timeout=60)).json == '"Paris"'


async def test_several_models_answer_for_their_own_indexes(a: ChangingIndex, tmp_path: Path) -> None:
    other = make_checkpoint(tmp_path / "other")
    second = ChangingIndex(tmp_path / "second", other, ("Iron", "Mercury"))
    schema = tmp_path / "named.json"
    schema.write_text(json.dumps(NAMES_A), encoding="utf-8")
    specs = (IndexSpec("a", a.path, "first"), IndexSpec("second", second.path, "other"))
    models = (model_of(a.checkpoint, "first"), model_of(other, "other"))
    async with serving(a, indexes=specs, models=models, schemas=(SchemaSpec("in-a", schema),)) as api:
        assert await api.titles("a") == set(a.titles)
        assert await api.titles("second") == {"Iron", "Mercury"}
        first, last = api.retriever("a"), api.retriever("second")
        assert first.model is not last.model
        assert first.answerer is not last.answerer
        named = pb.AnswerRequest(query="x", schema_name="in-a")
        assert json.loads((await api.stub.Answer(named, timeout=60)).json) in a.titles
        named.index = "second"
        assert await failure_code(api.stub.Answer(named, timeout=60)) is StatusCode.INVALID_ARGUMENT
        second.add("Berlin")
        assert (await api.reload("second")).reloaded
        assert "Berlin" in await api.titles("second")


def empty_the_manifest(index: ChangingIndex) -> None:
    """Make a version that says it has nothing; the builder makes none."""
    manifest, _ = read_manifest(index.live)
    data = replace(manifest, counts=replace(manifest.counts, entities=0, rows=0)).to_bytes()
    (index.live / "manifest.json").write_bytes(data)
    index.live.rename(index.live.with_name(digest_bytes(data)))
    (index.path / "CURRENT").write_text(digest_bytes(data) + "\n")


def test_an_empty_index_is_refused(a: ChangingIndex, checkpoint: Path) -> None:
    opener = opener_of(model_of(checkpoint))
    empty_the_manifest(a)
    with pytest.raises(UnservableIndexError, match="the index 'a' is empty"):
        opener.open(IndexSpec("a", a.path))
