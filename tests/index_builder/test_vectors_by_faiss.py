"""Builds, updates and checks of vectors in indexes of faiss."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from genret.index_builder.build import BuildSummary
from genret.index_builder.build_options import BuildOptions, VectorBuildOptions, VectorChange
from genret.index_builder.build_plan import plan_vectors
from genret.index_builder.update import UpdateRequest, update_index
from genret.retrieval.index.inspect_command import inspect_command, verify_command
from genret.retrieval.index.layout import VECTORS_FILE
from genret.retrieval.index.reader import Index
from genret.retrieval.index.verification import verify
from genret.retrieval.vectors.embedder import VectorMethod
from genret.retrieval.vectors.vector_maker import VectorOptions
from genret.retrieval.vectors.vector_search import VectorProposer
from tests.commands import json_of, succeed
from tests.index_fixtures import build as build_lines
from tests.index_fixtures import character_tokenizer, version_files, write_titles
from tests.trigram_encoder import DIMENSIONS, TRIGRAMS
from tests.vector_fixtures import with_file

pytest.importorskip("faiss", reason="needs the extra vectors")

TOKENIZER = character_tokenizer("abcdefghijklmnopqrstuvwxyz 0123456789")
WORDS = ("river", "harbour", "mountain", "castle", "bridge", "garden", "museum", "station", "tower", "island")
TITLES = [f"{one} {other}" for one in WORDS for other in WORDS if one < other]
WISH = VectorBuildOptions(TRIGRAMS)
pytestmark = pytest.mark.usefixtures("trigrams")


def build(folder: Path, name: str = "it.index", wish: VectorBuildOptions = WISH) -> BuildSummary:
    return build_lines(folder, TITLES, TOKENIZER, name, format="lines", vectors=wish, threads=1)


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory, trigrams: VectorMethod) -> BuildSummary:
    return build(tmp_path_factory.mktemp("vectors"))


def proposed(index: Path, texts: list[str]) -> list[str]:
    """Return the title that the vectors find first for each text."""
    with Index.open(index) as opened:
        shortlister = VectorProposer.open(opened)
        found = [shortlister.search(vector, 1, None) for vector in shortlister.embed(texts)]
        return [opened.entity(int(one.entities[0])).title for one in found]


def test_what_is_built_is_sound_and_finds_titles(summary: BuildSummary) -> None:
    report = verify(summary.index)
    assert (report.problems, report.notes) == ((), ())
    assert proposed(summary.index, TITLES[::7]) == TITLES[::7]


def test_without_faiss_everything_else_goes_on(
    summary: BuildSummary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with Index.open(summary.index) as index:
        assert index.vectors is not None
        assert not index.evidence_problems
        assert index.num_entities == len(TITLES)
    report = verify(summary.index)
    assert report.ok
    (note,) = report.notes
    assert "vectors.faiss: its content was not looked at" in note
    assert "not looked at" in succeed(verify_command, summary.index).stderr
    facts = json_of(inspect_command, summary.index, "--json")["vectors"]
    assert (facts["kind"], facts["dimensions"], facts["count"]) == ("flat", DIMENSIONS, len(TITLES))


def altered(summary: BuildSummary, folder: Path, name: str, data: bytes) -> Path:
    """Return a copy of the version with another file under a manifest that fits it."""
    index = folder / "altered.index"
    shutil.copytree(summary.index, index)
    with_file(summary, index / "versions" / summary.version, name, data)
    return index


@pytest.mark.parametrize("damage", ["noise", "half", "foreign"])
def test_verify_finds_what_a_faulty_builder_wrote(summary: BuildSummary, tmp_path: Path, damage: str) -> None:
    name = VECTORS_FILE
    sound = version_files(summary)[name]
    if damage == "foreign":
        wish = VectorBuildOptions(TRIGRAMS, VectorOptions("hnsw"))
        data = version_files(build(tmp_path, "other.index", wish))[name]
    else:
        data = b"\x07" * 200 if damage == "noise" else sound[: len(sound) // 2]
    index = altered(summary, tmp_path, name, data)
    with Index.open(index) as opened:
        assert not opened.evidence_problems
        assert opened.num_entities == len(TITLES)
    assert [problem.file for problem in verify(index).problems] == [name]


@pytest.mark.parametrize("kind", ["flat", "ivfpq"])
def test_an_update_keeps_real_vectors_in_step(tmp_path: Path, kind: str) -> None:
    index = build(tmp_path, wish=replace(WISH, options=VectorOptions(kind))).index
    more = write_titles(tmp_path / "more.txt", ["lighthouse keeper", "windmill field"])
    request = UpdateRequest(add=(more,), remove_ids=("castle river", "bridge tower"))
    options = BuildOptions(out=index, format="lines", threads=1)
    updated = update_index(request, TOKENIZER, options)
    assert updated.fates.vectors == "carried over"
    assert verify(index).problems == ()
    assert updated.manifest.vectors.count == len(TITLES)
    wanted = ["lighthouse keeper", "windmill field", "castle garden", "bridge island"]
    if kind == "flat":
        assert proposed(index, wanted) == wanted
        assert "bridge tower" not in proposed(index, ["bridge tower"])
    made = update_index(UpdateRequest(vectors=VectorChange(WISH)), TOKENIZER, options).manifest.vectors
    assert made == replace(
        updated.manifest.vectors,
        kind="flat",
        factory="IDMap,Flat",
        effort=0,
        sample=0,
        recall=1.0,
        recall_queries=0,
        fingerprint=made.fingerprint,
    )
    assert proposed(index, wanted) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivfpq", "SQ8"])
def test_sizes_are_reckoned_up_about_right(tmp_path: Path, kind: str) -> None:
    wish = VectorBuildOptions(TRIGRAMS, VectorOptions(kind))
    made = build(tmp_path, wish=wish)
    vectors = made.manifest.file(VECTORS_FILE)
    assert vectors is not None
    plan = plan_vectors(wish, len(TITLES), DIMENSIONS, 0.5)
    assert (plan.texts, plan.dimensions) == (len(TITLES), DIMENSIONS)
    assert plan.seconds >= 0.5 * len(TITLES)
    assert plan.bytes == pytest.approx(vectors.bytes, rel=0.3, abs=15_000)
