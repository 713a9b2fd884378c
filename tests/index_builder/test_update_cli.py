from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from retrieval.index.reader import Index
from retrieval.index.verification import verify
from retrieval.index.versions import list_versions, live_version
from service.main import cli
from tests.index_fixtures import write_titles

LINES = ["entity_id\ttitle\tkind", "Q1\tab\tx", "Q2\tcd\ty", "Q3\tda\tx"]


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


@pytest.fixture
def index(tmp_path: Path) -> Path:
    out = tmp_path / "it.index"
    source = write_titles(tmp_path / "titles.tsv", LINES)
    result = _run("build", source, "--out", out, "--quiet")
    assert result.exit_code == 0, result.stderr
    return out


def _ids(index: Path) -> set[str]:
    with Index.open(index) as opened:
        return set(opened.entities.column("entity_id").to_pylist())


def test_update_rollback_and_inspect(tmp_path: Path, index: Path) -> None:
    first = live_version(index)
    more = write_titles(tmp_path / "more.tsv", ["entity_id\ttitle\tkind", "Q1\tdd\tx", "Q9\tb\t"])
    gone = write_titles(tmp_path / "gone.txt", ["Q2", ""])
    arguments = ["update", index, "--add", more, "--remove", gone, "--remove-id", "Q3"]
    result = _run(*arguments, "--dry-run", "--quiet", "--json")
    assert json.loads(result.stdout)["published"] is False
    assert live_version(index) == first
    result = _run(*arguments)
    assert result.exit_code == 0, result.stderr
    assert "1 added, 1 changed, 2 removed" in result.stdout
    assert _ids(index) == {"Q1", "Q9"}
    second = live_version(index)
    result = _run("inspect", index)
    assert f"* {second}  2 entities, update of {first}" in result.stdout
    assert f"  {first}  3 entities, build" in result.stdout
    result = _run("rollback", index, "--json")
    assert json.loads(result.stdout) == {
        "index": str(index),
        "before": second,
        "version": first,
        "entities": 3,
    }
    assert _ids(index) == {"Q1", "Q2", "Q3"}
    assert _run("rollback", index, "--to", second[:8]).exit_code == 0
    assert live_version(index) == second
    assert "live already" in _run("rollback", index, "--to", second).stdout
    assert list_versions(index) == [second, first]


def test_updating_twice_with_the_same_files_says_no_change(tmp_path: Path, index: Path) -> None:
    same = write_titles(tmp_path / "same.tsv", LINES)
    result = _run("update", index, "--add", same, "--quiet", "--json")
    assert json.loads(result.stdout)["unchanged"] == 3
    result = _run("update", index, "--add", same)
    assert "no change" in result.stdout
    assert len(list_versions(index)) == 1


def test_errors_are_one_line(tmp_path: Path, index: Path) -> None:
    result = _run("update", index)
    assert (result.exit_code, "nothing to do" in result.stderr) == (2, True)
    result = _run("update", tmp_path / "none", "--remove-id", "x")
    assert result.exit_code == 1
    assert "no such directory" in result.stderr
    result = _run("update", index, "--remove-id", "Q7", "--quiet")
    assert result.exit_code == 1
    assert "unknown entity_id: 'Q7'" in result.stderr
    assert "Traceback" not in result.stderr


def test_rollback_lists_what_there_is_when_it_cannot(index: Path) -> None:
    live = live_version(index)
    for arguments in ([], ["--to", "0" * 32], ["--to", ""]):
        result = _run("rollback", index, *arguments)
        assert result.exit_code == 1
        assert f"{live} (live)" in result.stderr


def test_rollback_refuses_a_damaged_version(tmp_path: Path, index: Path) -> None:
    first = live_version(index)
    assert _run("update", index, "--remove-id", "Q1").exit_code == 0
    second = live_version(index)
    file = index / "versions" / first / "trie.arrow"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    result = _run("rollback", index)
    assert result.exit_code == 1
    assert "trie.arrow" in result.stderr
    assert live_version(index) == second
    assert not (index / "staging").exists()


@pytest.mark.parametrize("lost", ["manifest.json", "trie.arrow"])
def test_rollback_leaves_a_damaged_live_version(index: Path, lost: str) -> None:
    first = live_version(index)
    assert _run("update", index, "--remove-id", "Q1").exit_code == 0
    (index / "versions" / live_version(index) / lost).write_bytes(b"{}")
    result = _run("rollback", index)
    assert result.exit_code == 0, result.stderr
    assert live_version(index) == first


def test_versions_that_go_away_are_not_listed(index: Path) -> None:
    (index / "versions" / ("0" * 32)).symlink_to(index / "none")  # as one just removed: named, not there
    assert list_versions(index) == [live_version(index)]


POINTS = (
    "locked",
    "shard-written",
    "identities-resolved",
    "merge-started",
    "block-merged",
    "rows-written",
    "trie-written",
    "entities-written",
    "postings-written",
    "manifest-written",
    "staging-synced",
    "version-renamed",
    "pointer-written",
    "pointer-replaced",
    "pruning",
)


@pytest.mark.slow
@pytest.mark.parametrize("action", ["kill", "enospc"])
@pytest.mark.parametrize("point", POINTS)
def test_an_update_that_dies_leaves_the_old_or_the_new_version(
    tmp_path: Path, index: Path, point: str, action: str
) -> None:
    first = live_version(index)
    more = write_titles(tmp_path / "more.tsv", ["entity_id\ttitle\tkind", "Q1\tdd\tx", "Q9\tcd\t"])
    command = [sys.executable, "-m", "service.main", "update", str(index), "--add", str(more), "--quiet"]
    died = subprocess.run(
        command, env={**os.environ, "GENRET_FAULT": f"{point}:{action}"}, capture_output=True, text=True
    )
    assert died.returncode == (-9 if action == "kill" else 1), died.stderr
    if action == "enospc":
        assert "No space left on device" in died.stderr
        assert "Traceback" not in died.stderr
    assert verify(index).ok
    after = live_version(index)
    assert (after == first) == (point not in ("pointer-replaced", "pruning"))
    assert _ids(index) == ({"Q1", "Q2", "Q3"} if after == first else {"Q1", "Q2", "Q3", "Q9"})
    assert _run("update", index, "--add", more, "--quiet").exit_code == 0
    assert _ids(index) == {"Q1", "Q2", "Q3", "Q9"}
    assert verify(index).ok


def test_rollback_after_a_rollback_and_an_update_returns_to_where_the_update_started(
    tmp_path: Path, index: Path
) -> None:
    first = live_version(index)
    _run("update", index, "--remove-id", "Q2")  # a mistake
    mistake = live_version(index)
    _run("rollback", index)
    result = _run("update", index, "--remove-id", "Q3", "--keep-versions", "1")
    assert result.exit_code == 0, result.stderr
    assert live_version(index) != mistake
    assert set(list_versions(index)) == {live_version(index), first}  # the mistake went, although younger
    assert _run("rollback", index).exit_code == 0
    assert live_version(index) == first
