"""Real refusals of the file system: no growth, no space, no permission, no lock."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.command import Circumstances, Outcome
from tests.faults.stage import (
    FRESH,
    OVER,
    SCENARIOS,
    UPDATE,
    Prepared,
    Scenario,
    Stage,
    check_no_traceback,
    check_old_or_new,
    check_success_after,
    tree,
)

pytestmark = pytest.mark.fault

NOBODY = 65534
_NOT_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser may become another user")


def file_sizes(prepared: Prepared) -> list[int]:
    """Return the sizes of the files a command writes, ascending, without repetition."""
    return sorted({len(data) for data in prepared.tree.values()})


def check_refused(prepared: Prepared, index: Path, outcome: Outcome, reason: str) -> None:
    """One clear message, the old version untouched, and the space given back."""
    assert outcome.status == 1, outcome
    check_no_traceback(outcome)
    assert reason in outcome.stderr, outcome.stderr
    assert str(index) in outcome.stderr
    assert check_old_or_new(prepared, index) == prepared.before
    assert not (index / "staging").exists()


def sweep(stage: Stage, scenario: Scenario, index: Path, limits: list[int]) -> int:
    """Run a command under every bound on the size of files; return how many bounds stopped it."""
    prepared = stage.prepared(scenario)
    stopped = 0
    for limit in limits:
        stage.fresh_copy(prepared, index)
        outcome = stage.run(scenario.command, index, Circumstances(max_file_bytes=limit))
        if outcome.status == 0:
            assert tree(index) == prepared.tree
            continue
        check_refused(prepared, index, outcome, "File too large")
        stopped += 1
    check_success_after(stage, prepared, index)
    return stopped


def test_no_file_can_grow(stage: Stage, tmp_path: Path) -> None:
    """With the bound just below the size of each file in turn, every file's last write fails once."""
    sizes = file_sizes(stage.prepared(OVER))
    limits = [0, 1, *(size - 1 for size in sizes[:: max(len(sizes) // 8, 1)] if size > 1), sizes[-1] - 1]
    assert sweep(stage, OVER, tmp_path / "it.index", limits) == len(limits)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_no_file_can_grow_beyond_any_size(stage: Stage, tmp_path: Path, scenario: Scenario) -> None:
    sizes = file_sizes(stage.prepared(scenario))
    limits = sorted({0, 1, 16, 32, *range(64, sizes[-1], 128), *(size - 1 for size in sizes if size)})
    assert sweep(stage, scenario, tmp_path / "it.index", limits) > 3


@contextmanager
def small_disk(place: Path, size: int) -> Iterator[Path]:
    """Mount a file system of `size` bytes in memory; skip the test where that is not allowed."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def free_bytes(place: Path) -> int:
    found = os.statvfs(place)
    return found.f_bavail * found.f_bsize


def fill(place: Path, leave: int) -> Path:
    """Fill a disk with one file until `leave` bytes are free."""
    filler = place / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free_bytes(place) - leave)
    return filler


def disk_sweep(stage: Stage, scenario: Scenario, disk: Path, step: int) -> tuple[int, int]:
    """Run a command on a disk with ever more space; return how often it failed, and how much was enough."""
    prepared = stage.prepared(scenario)
    index = disk / "it.index"
    for failed, leave in enumerate(range(0, 1 << 30, step)):
        stage.fresh_copy(prepared, index)
        before = free_bytes(disk)
        filler = fill(disk, leave)
        outcome = stage.run(scenario.command, index)
        if outcome.status == 0:
            assert tree(index) == prepared.tree
            return failed, leave
        check_refused(prepared, index, outcome, "No space left on device")
        filler.unlink()
        kept = sum(len(data) for name, data in tree(index).items() if name.startswith("work/"))
        assert free_bytes(disk) >= before - 4 * kept - (1 << 16), "only finished shards may be kept"
        check_success_after(stage, prepared, index)
        shutil.rmtree(index)
    raise AssertionError("no space is enough")


def test_a_disk_without_space(stage: Stage, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 16 << 20) as disk:
        failed, enough = disk_sweep(stage, OVER, disk, 96 << 10)
    assert failed >= 1
    assert enough > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", [FRESH, OVER, UPDATE], ids=str)
def test_a_disk_with_ever_more_space(stage: Stage, tmp_path: Path, scenario: Scenario) -> None:
    with small_disk(tmp_path / "disk", 16 << 20) as disk:
        failed, _ = disk_sweep(stage, scenario, disk, 4096)
    assert failed > 10


def opened_to_all(stage: Stage, place: Path) -> None:
    """Let another user come to the test's directories, which pytest closes to all but its own."""
    for folder in (*place.parents, *stage.folder.parents):
        if "pytest-of" in str(folder):
            folder.chmod(0o755)
    for path in (stage.folder, *stage.folder.iterdir(), place):
        path.chmod(0o755)


def run_as_nobody(
    stage: Stage, place: Path, scenario: Scenario, closed: str | None = None
) -> tuple[Prepared, Path, Outcome]:
    """Run a command as a user who owns all of the index but one part, or none of it."""
    prepared, index = stage.set_for(scenario, place)
    if closed is not None:
        for path in (index, *index.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        os.chown(index / closed, 0, 0)
        (index / closed).chmod(0o755 if (index / closed).is_dir() else 0o600)
    opened_to_all(stage, place)
    outcome = stage.run(scenario.command, index, Circumstances(user=NOBODY))
    check_refused(prepared, index, outcome, "Permission denied")
    return prepared, index, outcome


@_NOT_ROOT
@pytest.mark.parametrize("scenario", SCENARIOS[1:], ids=str)
def test_a_directory_of_somebody_else(stage: Stage, tmp_path: Path, scenario: Scenario) -> None:
    prepared, index, _ = run_as_nobody(stage, tmp_path, scenario)
    assert tree(index) == tree(prepared.template)
    check_success_after(stage, prepared, index)


@_NOT_ROOT
def test_a_place_where_no_directory_may_be_made(stage: Stage, tmp_path: Path) -> None:
    _, index, _ = run_as_nobody(stage, tmp_path, FRESH)
    assert not index.exists()


@_NOT_ROOT
@pytest.mark.parametrize(("scenario", "part"), [(OVER, "versions"), (OVER, ".lock"), (UPDATE, "CURRENT")])
def test_a_part_of_the_index_of_somebody_else(
    stage: Stage, tmp_path: Path, scenario: Scenario, part: str
) -> None:
    """A pointer that cannot be read is an error too, and not an empty index."""
    prepared, index, outcome = run_as_nobody(stage, tmp_path, scenario, part)
    assert f"{index}/{part}" in outcome.stderr
    check_success_after(stage, prepared, index)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_a_lock_held_by_another_process(stage: Stage, tmp_path: Path, scenario: Scenario) -> None:
    prepared, index = stage.set_for(scenario, tmp_path)
    index.mkdir(exist_ok=True)
    with (index / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = tree(index)
        outcome = stage.run(scenario.command, index)
        check_refused(prepared, index, outcome, "is running")
        assert tree(index) == before
    check_success_after(stage, prepared, index)


@pytest.mark.parametrize("scenario", SCENARIOS[1:], ids=str)
def test_a_disk_that_is_read_only(stage: Stage, tmp_path: Path, scenario: Scenario) -> None:
    prepared = stage.prepared(scenario)
    with small_disk(tmp_path / "disk", 16 << 20) as disk:
        index = stage.fresh_copy(prepared, disk / "it.index")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        outcome = stage.run(scenario.command, index)
        check_refused(prepared, index, outcome, "Read-only file system")
        assert tree(index) == tree(prepared.template)
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        check_success_after(stage, prepared, index)
