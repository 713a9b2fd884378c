"""Death, Ctrl-C and a full disk at every named point: the old or the new version is live, and sound."""

from __future__ import annotations

import ast
import signal
from pathlib import Path

import pytest

from index_builder.faults import FAULT_POINTS, fault_point
from retrieval.interruption import INTERRUPTED
from tests.faults.command import Circumstances
from tests.faults.stage import (
    FRESH,
    OVER,
    ROLLBACK,
    SCENARIOS,
    UPDATE,
    Scenario,
    Stage,
    check_no_traceback,
    check_old_or_new,
    check_success_after,
)

pytestmark = pytest.mark.fault

REPOSITORY = Path(__file__).parents[2]

# What a rollback has to do: it moves the pointer, and nothing else.
ROLLBACK_POINTS = ("locked", "pointer-written", "pointer-replaced")


def passed_by(scenario: Scenario) -> tuple[str, ...]:
    return ROLLBACK_POINTS if scenario is ROLLBACK else FAULT_POINTS


EVERYWHERE = [
    pytest.param(scenario, point, id=f"{scenario.name}-{point}")
    for scenario in SCENARIOS
    for point in passed_by(scenario)
]
_ONE_BUILD = [case for case in EVERYWHERE if case.values[0] is OVER]
_OTHERS = [
    pytest.param(*case.values, id=case.id, marks=pytest.mark.slow)
    for case in EVERYWHERE
    if case.values[0] is not OVER
]
LATER_PASSAGES = [
    pytest.param(scenario, f"{point}:kill:{passage}", id=f"{scenario.name}-{point}-{passage}")
    for scenario in (FRESH, OVER, UPDATE)
    for point in ("shard-writing", "shard-written", "shard-journalled", "block-merged")
    for passage in (2, 3)
]


def called_points() -> dict[str, list[str]]:
    """Return the places of every call of `fault_point`, by the name given."""
    found: dict[str, list[str]] = {}
    for file in sorted([*REPOSITORY.glob("index_builder/**/*.py"), *REPOSITORY.glob("retrieval/**/*.py")]):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "fault_point":
                assert isinstance(node.args[0], ast.Constant), f"{file}: a point is named by a literal"
                found.setdefault(str(node.args[0].value), []).append(f"{file.name}:{node.lineno}")
    return found


def test_the_code_names_every_point_and_no_other() -> None:
    assert set(called_points()) == set(FAULT_POINTS)


def test_every_point_is_of_some_scenario_of_a_build_and_of_an_update() -> None:
    for scenario in (FRESH, OVER, UPDATE):
        assert {case.values[1] for case in EVERYWHERE if case.values[0] is scenario} == set(FAULT_POINTS)


def test_a_misspelled_point_is_not_taken_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENRET_FAULT", "loked:kill")
    with pytest.raises(ValueError, match="'loked'"):
        fault_point("locked")
    monkeypatch.setenv("GENRET_FAULT", "locked:explode")
    with pytest.raises(ValueError, match="'explode'"):
        fault_point("locked")


@pytest.mark.parametrize(("scenario", "point"), EVERYWHERE)
def test_killed(stage: Stage, tmp_path: Path, scenario: Scenario, point: str) -> None:
    prepared = stage.prepared(scenario)
    index = stage.fresh_copy(prepared, tmp_path / "it.index")
    outcome = stage.run(scenario.command, index, Circumstances(fault=f"{point}:kill"))
    assert outcome.status == -signal.SIGKILL, f"the point is not passed: {outcome}"
    check_old_or_new(prepared, index)
    check_success_after(stage, prepared, index)


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "fault"), LATER_PASSAGES)
def test_killed_at_a_later_passage(stage: Stage, tmp_path: Path, scenario: Scenario, fault: str) -> None:
    prepared = stage.prepared(scenario)
    index = stage.fresh_copy(prepared, tmp_path / "it.index")
    outcome = stage.run(scenario.command, index, Circumstances(fault=fault))
    assert outcome.status == -signal.SIGKILL, f"the point is not passed: {outcome}"
    check_old_or_new(prepared, index)
    check_success_after(stage, prepared, index)


@pytest.mark.parametrize(("scenario", "point"), [*_ONE_BUILD, *_OTHERS])
def test_interrupted(stage: Stage, tmp_path: Path, scenario: Scenario, point: str) -> None:
    prepared = stage.prepared(scenario)
    index = stage.fresh_copy(prepared, tmp_path / "it.index")
    outcome = stage.run(scenario.command, index, Circumstances(fault=f"{point}:interrupt"))
    assert outcome.status == INTERRUPTED, outcome
    check_no_traceback(outcome)
    assert "interrupted" in outcome.stderr
    assert str(index) in outcome.stderr
    live = check_old_or_new(prepared, index)
    said = "after publication" if live == prepared.after else "unchanged" if live else "nothing was built"
    assert said in outcome.stderr
    assert not (index / "staging").exists()
    check_success_after(stage, prepared, index)


@pytest.mark.parametrize(("scenario", "point"), [*_ONE_BUILD, *_OTHERS])
def test_a_full_disk(stage: Stage, tmp_path: Path, scenario: Scenario, point: str) -> None:
    prepared = stage.prepared(scenario)
    index = stage.fresh_copy(prepared, tmp_path / "it.index")
    outcome = stage.run(scenario.command, index, Circumstances(fault=f"{point}:enospc"))
    assert outcome.status == 1, outcome
    check_no_traceback(outcome)
    assert "No space left on device" in outcome.stderr
    assert str(index) in outcome.stderr
    check_old_or_new(prepared, index)
    assert not (index / "staging").exists()
    check_success_after(stage, prepared, index)
