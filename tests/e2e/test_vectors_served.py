"""Shortlists, auto and scores over the wire, from real indexes with and without evidence that can be used."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from genret.index_builder.build_options import VectorBuildOptions
from genret.index_builder.update_evidence import publish_rankings
from genret.retrieval.index.layout import RANKING_FILE
from genret.retrieval.ranking.rankings import DEFAULT_RANKING, NO_MODEL, Provenance, Ranking, Rankings
from genret.retrieval.types import Mention, RetrieveRequest
from genret.retrieval.vectors.embedder import VectorMethod
from genret.service.client import AsyncRetrievalClient, CallError
from genret.service.serving.readiness import State
from genret.service.serving.server import Server
from tests.e2e.conftest import real_server
from tests.service.changing_index import ChangingIndex
from tests.service.either_client import error_of

pytest.importorskip("faiss")

TITLES = ("Hamlet", "Macbeth", "Othello", "Paris", "Paris, Texas", "Berlin", "Nile", "Amazon", "Mercury")
SHORT = {"shortlist_size": 3, "k": 3}


@pytest.fixture
def index(tmp_path: Path, checkpoint: Path) -> ChangingIndex:
    wish = VectorBuildOptions(VectorMethod("encoder", str(checkpoint)))
    return ChangingIndex(tmp_path / "a", checkpoint, TITLES, vectors=wish)


@pytest.fixture
def named(tmp_path: Path, checkpoint: Path) -> ChangingIndex:
    """With evidence of names alone."""
    return ChangingIndex(tmp_path / "named", checkpoint, TITLES)


@pytest.fixture
def plain(tmp_path: Path, checkpoint: Path) -> ChangingIndex:
    """Without evidence."""
    return ChangingIndex(tmp_path / "plain", checkpoint, TITLES, evidence=None)


@asynccontextmanager
async def served(index: ChangingIndex) -> AsyncIterator[tuple[Server, AsyncRetrievalClient]]:
    async with real_server(index) as api, AsyncRetrievalClient(api.server.address) as client:
        yield api.server, client


async def check_auto_only_decodes(client: AsyncRetrievalClient) -> None:
    result = (await client.retrieve(RetrieveRequest("hamlett", **SHORT))).result
    assert (result.method, result.num_scored, result.shortlist_size) == ("beam", 0, 0)
    assert len(result.candidates) == 3
    assert {c.similarity for c in result.candidates} == {None}
    assert result.nothing_fits is None


async def check_names_answer(client: AsyncRetrievalClient) -> None:
    """Both methods go on without the vectors and say so."""
    for method in ("auto", "shortlist"):
        result = (await client.retrieve(RetrieveRequest("hamlett", method=method, **SHORT))).result
        assert (result.method, result.missing_evidence) == (method, ("vectors",))
        assert "Hamlet" in {c.title for c in result.candidates}
        assert {c.similarity for c in result.candidates} == {None}


async def test_a_shortlist_is_proposed_scored_and_merged(index: ChangingIndex) -> None:
    async with served(index) as (_, client):
        found = (await client.retrieve(RetrieveRequest("hamlett", method="shortlist", **SHORT))).result
        assert (found.method, found.num_scored, found.shortlist_size) == ("shortlist", 3, 3)
        assert "Hamlet" in {c.title for c in found.candidates}
        assert all(c.similarity is not None and c.similarity <= 1 + 1e-3 for c in found.candidates)
        assert sum(c.probability or 0 for c in found.candidates) == pytest.approx(1)
        auto = (await client.retrieve(RetrieveRequest("hamlett", **SHORT, vector_weight=100.0))).result
        assert (auto.method, auto.shortlist_size) == ("auto", 3)
        weighed = [c.logprob + 100 * (c.similarity or 0.0) for c in auto.candidates]
        assert [c.score for c in auto.candidates] == pytest.approx(sorted(weighed, reverse=True), abs=1e-3)
        scores = (await client.score("hamlett", TITLES)).result.scores
        by_title = {score.title: score for score in scores}
        for candidate in (*found.candidates, *auto.candidates):
            assert by_title[candidate.title].logprob == pytest.approx(candidate.logprob, abs=1e-4)
        assert sum(score.probability for score in scores) == pytest.approx(1)
        assert [score.entity_ids for score in scores] == [(title,) for title in TITLES]
        info = await client.get_index()
        assert (info.vectors.method, info.vectors.usable, info.vectors.problem) == ("encoder", True, "")
        assert info.vectors.count == len(TITLES)
        assert info.vectors.bytes > 0


async def test_a_ranked_answer_says_what_its_scores_are_made_of(named: ChangingIndex) -> None:
    async with served(named) as (_, client):
        result = (await client.retrieve(RetrieveRequest("hamlett", **SHORT))).result
        assert (result.method, result.certified, result.missing_evidence) == ("auto", None, ())
        first, *others = result.candidates
        assert first.title == "Hamlet"
        assert next(iter(first.shares)) == "names"
        for candidate in (first, *others):
            assert sum(candidate.shares.values()) == pytest.approx(candidate.score)
        assert sum(c.probability or 0 for c in result.candidates) + result.nothing_fits <= 1 + 1e-9
        info = await client.get_index()
        assert [(one.kind, one.count, one.problem) for one in info.evidence] == [("names", len(TITLES), "")]
        assert info.evidence[0].bytes == (named.live / "names.arrow").stat().st_size
        ranking = info.ranking
        assert (ranking.fitted, ranking.fitted_with_model, ranking.problem) == (False, False, "")
        assert info.vectors is None


async def test_a_damaged_ranking_is_told_and_another_used(
    named: ChangingIndex, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    provenance = Provenance("asked.tsv", 90, ("names",))
    fitted = Ranking(DEFAULT_RANKING.weights, DEFAULT_RANKING.nothing, provenance)
    made = {RANKING_FILE: Rankings({NO_MODEL: fitted}).to_bytes()}
    publish_rankings(named.path, named.versions[-1], made, (), {}, num_queries=90, keep_versions=1)
    async with served(named) as (_, client):
        ranking = (await client.get_index()).ranking
        assert (ranking.fitted, ranking.queries, ranking.num_queries) == (True, "asked.tsv", 90)
        named.damage("ranking.json")
        ranking = (await client.reload_index(force=True)).index.ranking
        assert (ranking.fitted, ranking.fitted_with_model) == (False, False)
        assert "ranking.json" in ranking.problem
        assert str(named.path) not in ranking.problem
        result = (await client.retrieve(RetrieveRequest("hamlett", **SHORT))).result
        assert result.missing_evidence == ("ranking",)
        assert result.candidates[0].title == "Hamlet"


async def test_without_evidence_a_shortlist_is_refused_and_auto_decodes(plain: ChangingIndex) -> None:
    async with served(plain) as (_, client):
        request = RetrieveRequest("hamlett", method="shortlist", **SHORT)
        refused = await error_of(client.retrieve(request))
        assert refused.code == "FAILED_PRECONDITION"
        assert "no evidence" in str(refused)
        good, bad = await client.retrieve_batch([RetrieveRequest("x"), request])
        assert not isinstance(good, CallError)
        assert isinstance(bad, CallError)
        assert bad.code == "FAILED_PRECONDITION"
        (linked,) = await client.link([Mention("hamlett")], method="shortlist", shortlist_size=3)
        assert isinstance(linked, CallError)
        assert linked.code == "FAILED_PRECONDITION"
        await check_auto_only_decodes(client)
        info = await client.get_index()
        assert (info.vectors, info.evidence, info.ranking) == (None, (), None)


async def test_damaged_vectors_are_taken_into_service_and_told(
    index: ChangingIndex, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with served(index) as (server, client):
        sound = (index.live / "vectors.faiss").read_bytes()
        damaged = index.damage("vectors.faiss")
        reloaded = await client.reload_index(force=True)
        vectors = reloaded.index.vectors
        assert (vectors.usable, vectors.method) == (False, "encoder")
        assert "vectors.faiss" in vectors.problem
        assert str(index.path) not in vectors.problem
        assert server.readiness.state is State.READY
        names, described = reloaded.index.evidence
        assert (names.kind, names.problem) == ("names", "")
        assert (described.kind, described.problem) == ("vectors", vectors.problem)
        (warning,) = [record for record in caplog.records if "cannot be used" in record.getMessage()]
        assert (warning.name, warning.levelname) == ("genret.retrieval.evidence.evidence", "WARNING")
        assert str(index.path) in warning.getMessage()
        await check_names_answer(client)
        index.damage("names.arrow")
        await client.reload_index(force=True)
        refused = await error_of(client.retrieve(RetrieveRequest("hamlett", method="shortlist", **SHORT)))
        assert (refused.code, refused.reason) == ("DATA_LOSS", "INDEX_CORRUPT")
        await check_auto_only_decodes(client)
        damaged.write_bytes(sound)
        again = await client.reload_index(force=True)
        assert again.index.vectors.usable


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's list of mapped files")
async def test_a_reload_brings_vectors_of_new_titles_and_gives_those_before_up(index: ChangingIndex) -> None:
    async with served(index) as (server, client):
        for number in range(4):
            title = f"Title {number}"
            index.add(title)
            reply = await client.reload_index()
            assert reply.index.vectors.count == len(TITLES) + number + 1
            request = RetrieveRequest(title, method="shortlist", shortlist_size=1, k=1)
            (found,) = (await client.retrieve(request)).result.candidates
            assert found.title == title
        await server.engine.reloader.settle()
        mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
        held = {file for file in mapped if file.startswith(str(index.path)) and "vectors.faiss" in file}
        assert held == {str(index.live / "vectors.faiss")}


async def test_a_library_that_is_missing_is_named(
    index: ChangingIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    async with served(index) as (_, client):
        await check_names_answer(client)
        info = await client.get_index()
        assert "'faiss'" in info.vectors.problem
