"""Death, Ctrl-C and a full disk while evidence is made: the old or the new version is live, and sound."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from retrieval.index.layout import NAMES_FILE, QUERIES_FILE, RANKING_FILE, TEXTS_FILE, VECTORS_FILE
from retrieval.index.reader import Index
from retrieval.interruption import INTERRUPTED
from tests.faults.command import Circumstances
from tests.faults.stage import (
    EVIDENCE,
    EVIDENCE_ADDED,
    EVIDENCE_UPDATED,
    VECTORS,
    VECTORS_UPDATED,
    Scenario,
    Stage,
    check_no_traceback,
    check_old_or_new,
    check_success_after,
)

pytestmark = pytest.mark.fault

SCENARIOS = (EVIDENCE, EVIDENCE_ADDED, EVIDENCE_UPDATED, VECTORS, VECTORS_UPDATED)
# Queries are read or taken over, three fields are made, and a ranking is fitted, unless it is taken over.
# Vectors come after two fields; there are too few entities beside them for a ranking.
PASSAGES = {
    EVIDENCE: {"evidence-making": (1, 2, 3, 4, 5), "evidence-written": (1, 2)},
    EVIDENCE_ADDED: {"evidence-making": (1, 5), "evidence-written": (1, 2)},
    EVIDENCE_UPDATED: {"evidence-making": (1, 4), "evidence-written": (1, 2)},
    VECTORS: {"evidence-making": (3,), "evidence-written": (2,)},
    VECTORS_UPDATED: {"evidence-making": (3,), "evidence-written": (2,)},
}
EVERYWHERE = [
    pytest.param(scenario, point, passage, id=f"{scenario.name}-{point}-{passage}")
    for scenario, points in PASSAGES.items()
    for point, passages in points.items()
    for passage in passages
]


@pytest.fixture(autouse=True)
def skips_vectors_without_faiss(scenario: Scenario) -> None:
    if scenario in (VECTORS, VECTORS_UPDATED):
        pytest.importorskip("faiss", reason="needs the extra vectors")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_these_commands_publish_all_kinds(stage: Stage, scenario: Scenario) -> None:
    prepared = stage.prepared(scenario)
    manifest = json.loads(prepared.tree[f"versions/{prepared.after}/manifest.json"])
    assert manifest["evidence"]["columns"] == ["note"]
    if scenario in (VECTORS, VECTORS_UPDATED):
        assert {NAMES_FILE, TEXTS_FILE, VECTORS_FILE} <= set(prepared.data_files)
        assert manifest["vectors"]["columns"] == ["note"]
    else:
        assert {NAMES_FILE, TEXTS_FILE, QUERIES_FILE, RANKING_FILE} <= set(prepared.data_files)
        assert manifest["evidence"]["queries"] >= 35


@pytest.mark.parametrize(("scenario", "point", "passage"), EVERYWHERE)
def test_killed(stage: Stage, tmp_path: Path, scenario: Scenario, point: str, passage: int) -> None:
    prepared = stage.prepared(scenario)
    index = stage.fresh_copy(prepared, tmp_path / "it.index")
    outcome = stage.run(scenario.command, index, Circumstances(fault=f"{point}:kill:{passage}"))
    assert outcome.status == -signal.SIGKILL, f"the point is not passed: {outcome}"
    assert check_old_or_new(prepared, index) == prepared.before
    check_success_after(stage, prepared, index)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
@pytest.mark.parametrize(
    "point", ["evidence-making:{}:3", "evidence-written:{}:2"], ids=["making", "written"]
)
def test_interrupted_or_out_of_space(stage: Stage, tmp_path: Path, scenario: Scenario, point: str) -> None:
    prepared = stage.prepared(scenario)
    index = stage.fresh_copy(prepared, tmp_path / "it.index")
    for action, status, said in (
        ("interrupt", INTERRUPTED, "interrupted"),
        ("enospc", 1, "No space left on device"),
    ):
        outcome = stage.run(scenario.command, index, Circumstances(fault=point.format(action)))
        assert outcome.status == status, outcome
        check_no_traceback(outcome)
        assert said in outcome.stderr
        assert str(index) in outcome.stderr
        assert check_old_or_new(prepared, index) == prepared.before
        assert not (index / "staging").exists()
    check_success_after(stage, prepared, index)


@pytest.mark.parametrize("scenario", [EVIDENCE, VECTORS], ids=lambda scenario: scenario.name)
def test_everybody_may_read_them(stage: Stage, tmp_path: Path, scenario: Scenario) -> None:
    prepared = stage.prepared(scenario)
    index = stage.fresh_copy(prepared, tmp_path / "it.index")
    assert stage.run(scenario.command, index).status == 0
    with Index.open(index) as opened:
        modes = {(opened.path / file.name).stat().st_mode for file in opened.manifest.files}
    assert len(modes) == 1
