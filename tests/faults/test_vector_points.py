"""Death, Ctrl-C and a full disk while vectors are made: the old or the new version is live, and sound."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from index_builder.faults import VECTOR_POINTS
from retrieval.index.layout import EMBEDDER_FILE, VECTORS_FILE
from retrieval.index.reader import Index
from retrieval.interruption import INTERRUPTED
from tests.faults.command import Circumstances
from tests.faults.stage import (
    VECTORS,
    VECTORS_ADDED,
    VECTORS_UPDATED,
    Scenario,
    Stage,
    check_no_traceback,
    check_old_or_new,
    check_success_after,
)

pytest.importorskip("faiss", reason="needs the extra vectors")
pytestmark = pytest.mark.fault

SCENARIOS = (VECTORS, VECTORS_ADDED, VECTORS_UPDATED)
EVERYWHERE = [
    pytest.param(scenario, point, id=f"{scenario.name}-{point}")
    for scenario in SCENARIOS
    for point in VECTOR_POINTS
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_these_commands_publish_vectors(stage: Stage, scenario: Scenario) -> None:
    prepared = stage.prepared(scenario)
    assert {VECTORS_FILE, EMBEDDER_FILE} <= set(prepared.data_files)
    manifest = json.loads(prepared.tree[f"versions/{prepared.after}/manifest.json"])
    assert manifest["vectors"]["columns"] == ["note"]


@pytest.mark.parametrize(("scenario", "point"), EVERYWHERE)
@pytest.mark.parametrize("passage", [1, 2])
def test_killed(stage: Stage, tmp_path: Path, scenario: Scenario, point: str, passage: int) -> None:
    if passage == 2 and point == "vectors-written":
        pytest.skip("passed once")
    if passage == 2 and scenario is VECTORS_UPDATED:
        pytest.skip("taking over has one step")
    prepared = stage.prepared(scenario)
    index = stage.fresh_copy(prepared, tmp_path / "it.index")
    outcome = stage.run(scenario.command, index, Circumstances(fault=f"{point}:kill:{passage}"))
    assert outcome.status == -signal.SIGKILL, f"the point is not passed: {outcome}"
    assert check_old_or_new(prepared, index) == prepared.before
    check_success_after(stage, prepared, index)


@pytest.mark.parametrize(("scenario", "point"), EVERYWHERE)
def test_interrupted_or_out_of_space(stage: Stage, tmp_path: Path, scenario: Scenario, point: str) -> None:
    prepared = stage.prepared(scenario)
    index = stage.fresh_copy(prepared, tmp_path / "it.index")
    for action, status, said in (
        ("interrupt", INTERRUPTED, "interrupted"),
        ("enospc", 1, "No space left on device"),
    ):
        outcome = stage.run(scenario.command, index, Circumstances(fault=f"{point}:{action}"))
        assert outcome.status == status, outcome
        check_no_traceback(outcome)
        assert said in outcome.stderr
        assert str(index) in outcome.stderr
        assert check_old_or_new(prepared, index) == prepared.before
        assert not (index / "staging").exists()
    check_success_after(stage, prepared, index)


def test_a_file_that_cannot_grow_is_named(stage: Stage, tmp_path: Path) -> None:
    """The embedder is by far the largest file here; a disk that is full for it is full in earnest."""
    prepared = stage.prepared(VECTORS)
    index = stage.fresh_copy(prepared, tmp_path / "it.index")
    outcome = stage.run(VECTORS.command, index, Circumstances(max_file_bytes=1 << 20))
    assert outcome.status == 1, outcome
    check_no_traceback(outcome)
    assert EMBEDDER_FILE in outcome.stderr
    assert check_old_or_new(prepared, index) == prepared.before
    check_success_after(stage, prepared, index)


def test_everybody_may_read_them(stage: Stage, tmp_path: Path) -> None:
    prepared = stage.prepared(VECTORS)
    index = stage.fresh_copy(prepared, tmp_path / "it.index")
    assert stage.run(VECTORS.command, index).status == 0
    with Index.open(index) as opened:
        modes = {(opened.path / file.name).stat().st_mode for file in opened.manifest.files}
    assert len(modes) == 1
