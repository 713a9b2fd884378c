"""Death, Ctrl-C and a full disk while evidence is made: the old or the new version is live, and sound."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from retrieval.index.layout import NAMES_FILE, QUERIES_FILE, RANKING_FILE, TEXTS_FILE
from retrieval.index.reader import Index
from retrieval.interruption import INTERRUPTED
from tests.faults.command import Circumstances
from tests.faults.stage import (
    EVIDENCE,
    EVIDENCE_ADDED,
    EVIDENCE_UPDATED,
    Scenario,
    Stage,
    check_no_traceback,
    check_old_or_new,
    check_success_after,
)

pytestmark = pytest.mark.fault

SCENARIOS = (EVIDENCE, EVIDENCE_ADDED, EVIDENCE_UPDATED)
# Queries are read or taken over, three fields are made, and a ranking is fitted, unless it is taken over.
EVERYWHERE = [
    pytest.param(
        scenario,
        point,
        passage,
        id=f"{scenario.name}-{point}-{passage}",
        marks=() if scenario is EVIDENCE or passage == 1 else pytest.mark.slow,
    )
    for scenario in SCENARIOS
    for point, passages in (
        ("evidence-making", 4 if scenario is EVIDENCE_UPDATED else 5),
        ("evidence-written", 2),
    )
    for passage in range(1, passages + 1)
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_these_commands_publish_all_kinds(stage: Stage, scenario: Scenario) -> None:
    prepared = stage.prepared(scenario)
    assert {NAMES_FILE, TEXTS_FILE, QUERIES_FILE, RANKING_FILE} <= set(prepared.data_files)
    manifest = json.loads(prepared.tree[f"versions/{prepared.after}/manifest.json"])
    assert manifest["evidence"]["columns"] == ["note"]
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
@pytest.mark.parametrize("point", ["evidence-making:{}:3", "evidence-written:{}:2"])
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


def test_everybody_may_read_them(stage: Stage, tmp_path: Path) -> None:
    prepared = stage.prepared(EVIDENCE)
    index = stage.fresh_copy(prepared, tmp_path / "it.index")
    assert stage.run(EVIDENCE.command, index).status == 0
    with Index.open(index) as opened:
        modes = {(opened.path / file.name).stat().st_mode for file in opened.manifest.files}
    assert len(modes) == 1
