"""Death, Ctrl-C and a full disk at every named point: the old or the new version is live, and sound."""

from __future__ import annotations

import ast
import json
import signal
from pathlib import Path

import pytest

from genret.index_builder.faults import fault_point
from genret.retrieval.index.layout import NAMES_FILE, QUERIES_FILE, RANKING_FILE, TEXTS_FILE, VECTORS_FILE
from genret.retrieval.index.reader import Index
from genret.retrieval.interruption import INTERRUPTED
from tests.faults.command import Circumstances, Outcome
from tests.faults.stage import (
    EVIDENCE,
    EVIDENCE_ADDED,
    EVIDENCE_UPDATED,
    FRESH,
    OVER,
    ROLLBACK,
    SCENARIOS,
    UPDATE,
    VECTORS,
    VECTORS_UPDATED,
    Prepared,
    Scenario,
    Stage,
    check_no_traceback,
    check_old_or_new,
    check_success_after,
)

pytestmark = pytest.mark.fault

REPOSITORY = Path(__file__).parents[2]


def called_points() -> dict[str, None]:
    """Return the names that `fault_point` is called with."""
    found: dict[str, None] = {}
    for file in sorted([*REPOSITORY.glob("index_builder/**/*.py"), *REPOSITORY.glob("retrieval/**/*.py")]):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "fault_point":
                assert isinstance(node.args[0], ast.Constant), f"{file}: a point is named by a literal"
                found[str(node.args[0].value)] = None
    return found


FAULT_POINTS = called_points()
# A rollback moves the pointer, and does nothing else.
ROLLBACK_POINTS = ("locked", "pointer-written", "pointer-replaced")
EVERYWHERE = [
    pytest.param(scenario, point, id=f"{scenario.name}-{point}", marks=marks)
    for scenario in SCENARIOS
    for point in (ROLLBACK_POINTS if scenario is ROLLBACK else FAULT_POINTS)
    for marks in [() if scenario is OVER else pytest.mark.slow]
]
# Queries are read or taken over, three fields are made, and a ranking is fitted, unless it is taken over.
# Vectors come after two fields; there are too few entities beside them for a ranking.
EVIDENCE_PASSAGES = {
    EVIDENCE: {"evidence-making": (1, 2, 3, 4, 5), "evidence-written": (1, 2)},
    EVIDENCE_ADDED: {"evidence-making": (1, 5), "evidence-written": (1, 2)},
    EVIDENCE_UPDATED: {"evidence-making": (1, 4), "evidence-written": (1, 2)},
    VECTORS: {"evidence-making": (3,), "evidence-written": (2,)},
    VECTORS_UPDATED: {"evidence-making": (3,), "evidence-written": (2,)},
}
OF_EVIDENCE = [
    pytest.param(scenario, f"{point}:kill:{passage}", id=f"{scenario.name}-{point}-{passage}")
    for scenario, points in EVIDENCE_PASSAGES.items()
    for point, passages in points.items()
    for passage in passages
]


@pytest.fixture(autouse=True)
def skips_vectors_without_faiss(request: pytest.FixtureRequest) -> None:
    scenario = request.getfixturevalue("scenario") if "scenario" in request.fixturenames else None
    if scenario in (VECTORS, VECTORS_UPDATED):
        pytest.importorskip("faiss", reason="needs the extra vectors")


def test_every_point_is_of_some_scenario_of_a_build_and_of_an_update() -> None:
    for scenario in (FRESH, OVER, UPDATE):
        assert {case.values[1] for case in EVERYWHERE if case.values[0] is scenario} == set(FAULT_POINTS)


def test_a_misspelled_action_is_not_taken_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENRET_FAULT", "locked:explode")
    with pytest.raises(ValueError, match="'explode'"):
        fault_point("locked")


def struck(stage: Stage, scenario: Scenario, place: Path, fault: str) -> tuple[Prepared, Path, Outcome]:
    prepared, index = stage.set_for(scenario, place)
    return prepared, index, stage.run(scenario.command, index, Circumstances(fault=fault))


def check_killed(stage: Stage, scenario: Scenario, place: Path, fault: str) -> bool:
    """Kill a command and run it again; return whether the old version was live in between."""
    prepared, index, outcome = struck(stage, scenario, place, fault)
    assert outcome.status == -signal.SIGKILL, f"the point is not passed: {outcome}"
    live = check_old_or_new(prepared, index)
    check_success_after(stage, prepared, index)
    return live == prepared.before


def check_told(outcome: Outcome, index: Path, status: int, said: str) -> None:
    """A command that failed says why and where, and leaves nothing half made."""
    assert outcome.status == status, outcome
    check_no_traceback(outcome)
    assert said in outcome.stderr
    assert str(index) in outcome.stderr
    assert not (index / "staging").exists()


@pytest.mark.parametrize(
    ("scenario", "point"), [pytest.param(*case.values, id=case.id) for case in EVERYWHERE]
)
def test_killed(stage: Stage, tmp_path: Path, scenario: Scenario, point: str) -> None:
    check_killed(stage, scenario, tmp_path, f"{point}:kill")


@pytest.mark.parametrize(("scenario", "fault"), OF_EVIDENCE)
def test_killed_while_evidence_is_made(stage: Stage, tmp_path: Path, scenario: Scenario, fault: str) -> None:
    assert check_killed(stage, scenario, tmp_path, fault)


@pytest.mark.parametrize(("scenario", "point"), EVERYWHERE)
def test_interrupted(stage: Stage, tmp_path: Path, scenario: Scenario, point: str) -> None:
    prepared, index, outcome = struck(stage, scenario, tmp_path, f"{point}:interrupt")
    check_told(outcome, index, INTERRUPTED, "interrupted")
    live = check_old_or_new(prepared, index)
    said = "after publication" if live == prepared.after else "unchanged" if live else "nothing was built"
    assert said in outcome.stderr
    check_success_after(stage, prepared, index)


@pytest.mark.parametrize(("scenario", "point"), EVERYWHERE)
def test_a_full_disk(stage: Stage, tmp_path: Path, scenario: Scenario, point: str) -> None:
    prepared, index, outcome = struck(stage, scenario, tmp_path, f"{point}:enospc")
    check_told(outcome, index, 1, "No space left on device")
    check_old_or_new(prepared, index)
    check_success_after(stage, prepared, index)


@pytest.mark.parametrize("scenario", EVIDENCE_PASSAGES, ids=lambda scenario: scenario.name)
def test_these_commands_publish_all_kinds_of_evidence(stage: Stage, scenario: Scenario) -> None:
    prepared = stage.prepared(scenario)
    manifest = json.loads(prepared.tree[f"versions/{prepared.after}/manifest.json"])
    assert manifest["evidence"]["columns"] == ["note"]
    if scenario in (VECTORS, VECTORS_UPDATED):
        assert {NAMES_FILE, TEXTS_FILE, VECTORS_FILE} <= set(prepared.data_files)
        assert manifest["vectors"]["columns"] == ["note"]
    else:
        assert {NAMES_FILE, TEXTS_FILE, QUERIES_FILE, RANKING_FILE} <= set(prepared.data_files)
        assert manifest["evidence"]["queries"] >= 35


@pytest.mark.parametrize("scenario", [EVIDENCE, VECTORS], ids=lambda scenario: scenario.name)
def test_everybody_may_read_all_files(stage: Stage, tmp_path: Path, scenario: Scenario) -> None:
    _, index = stage.set_for(scenario, tmp_path)
    assert stage.run(scenario.command, index).status == 0
    with Index.open(index) as opened:
        modes = {(opened.path / file.name).stat().st_mode for file in opened.manifest.files}
    assert len(modes) == 1
