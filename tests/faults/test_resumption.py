"""A killed command: what was tokenised is not tokenised again, and half a removal leaves no half version."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from genret.index_builder import publish
from genret.retrieval.index.verification import verify
from genret.retrieval.index.versions import list_versions, live_version
from tests.faults.command import SHARD_RECORDS, Circumstances, Outcome
from tests.faults.stage import FRESH, OVER, UPDATE, Scenario, Stage, check_success_after
from tests.fuzz.rich_index import TOKENIZER
from tests.index_fixtures import build

pytestmark = pytest.mark.fault


def resumed_shards(outcome: Outcome) -> int:
    """Return how many shards a command said it took up."""
    found = re.search(
        r"resuming: (\d+) records in (\d+) shards? (?:is|are) already tokenised", outcome.stderr
    )
    if found is None:
        assert "resuming" not in outcome.stderr
        return 0
    shards = int(found[2])
    assert (shards - 1) * SHARD_RECORDS < int(found[1]) <= shards * SHARD_RECORDS
    return shards


@pytest.mark.parametrize("scenario", [FRESH, OVER, UPDATE], ids=lambda scenario: scenario.name)
@pytest.mark.parametrize(
    ("fault", "resumed"),
    [
        ("shard-writing:kill:1", 0),
        ("shard-writing:kill:3", 2),
        ("shard-written:kill:2", 1),
        ("shard-journalled:kill:1", 1),
        ("shard-journalled:kill:2", 2),
        ("shard-journalled:interrupt:2", 2),
        ("shard-written:enospc:2", 1),
    ],
)
def test_journalled_shards_are_taken_up(
    stage: Stage, tmp_path: Path, scenario: Scenario, fault: str, resumed: int
) -> None:
    prepared, index = stage.set_for(scenario, tmp_path)
    stage.run(scenario.command, index, Circumstances(fault=fault))
    outcome = check_success_after(stage, prepared, index)
    assert outcome is not None
    assert resumed_shards(outcome) == resumed


def test_half_a_removal_leaves_no_half_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build(tmp_path, ["a"], TOKENIZER)
    real = shutil.rmtree

    def dies_half_way(place: Path, ignore_errors: bool = False) -> None:
        if (place / "manifest.json").exists() and place.name != "staging":
            (place / "trie.arrow").unlink()
            raise KeyboardInterrupt
        real(place, ignore_errors=ignore_errors)

    monkeypatch.setattr(publish.shutil, "rmtree", dies_half_way)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, ["b"], TOKENIZER, keep_versions=0)
    monkeypatch.undo()
    live = live_version(first.index)
    assert list_versions(first.index) == [live]
    assert live != first.version
    assert verify(first.index).ok
    build(tmp_path, ["c"], TOKENIZER)
    assert sorted(path.name for path in first.index.iterdir()) == [".lock", "CURRENT", "versions"]
    assert len(list_versions(first.index)) == 2
