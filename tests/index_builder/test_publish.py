from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from index_builder import faults
from index_builder import publish as publish_module
from index_builder.faults import FAULT_POINTS
from index_builder.publish import staging
from retrieval.errors import IndexDirectoryError, SourceError
from retrieval.index.reader import Index
from retrieval.index.verification import verify
from retrieval.index.versions import list_versions, live_version
from tests.index_fixtures import build, character_tokenizer, write_titles

TOKENIZER = character_tokenizer("abcdefgh ")


def surfaces(index: Path) -> list[str]:
    with Index.open(index) as opened:
        return [opened.surface(rank) for rank in range(opened.num_rows)]


def test_a_build_into_an_index_publishes_beside_the_old_version(tmp_path: Path) -> None:
    first = build(tmp_path, ["a"], TOKENIZER)
    second = build(tmp_path, ["b"], TOKENIZER)
    assert list_versions(first.index) == [second.version, first.version]
    assert surfaces(first.index) == ["b"]
    assert surfaces(first.index / "versions" / first.version) == ["a"]


def test_the_last_versions_are_kept(tmp_path: Path) -> None:
    made = [build(tmp_path, [title], TOKENIZER).version for title in "abcde"]
    assert list_versions(tmp_path / "it.index") == [made[4], made[3], made[2]]
    build(tmp_path, ["a"], TOKENIZER, keep_versions=0)
    assert list_versions(tmp_path / "it.index") == [made[0]]


def test_going_back_to_an_old_version_uses_it_again(tmp_path: Path) -> None:
    first = build(tmp_path, ["a"], TOKENIZER)
    inode = first.index.joinpath("versions", first.version).stat().st_ino
    second = build(tmp_path, ["b"], TOKENIZER)
    assert build(tmp_path, ["a"], TOKENIZER).version == first.version == live_version(first.index)
    assert first.index.joinpath("versions", first.version).stat().st_ino == inode
    assert list_versions(first.index) == [first.version, second.version]


def test_a_rebuild_repairs_a_damaged_version(tmp_path: Path) -> None:
    summary = build(tmp_path, ["a", "b"], TOKENIZER)
    file = summary.index / "versions" / summary.version / "trie.arrow"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert not verify(summary.index).ok
    assert build(tmp_path, ["a", "b"], TOKENIZER).version == summary.version
    assert verify(summary.index).ok
    assert sorted(p.name for p in summary.index.iterdir()) == [".lock", "CURRENT", "versions"]


def test_a_damaged_pointer_is_replaced(tmp_path: Path) -> None:
    summary = build(tmp_path, ["a"], TOKENIZER)
    (summary.index / "CURRENT").write_text("nonsense")
    build(tmp_path, ["b"], TOKENIZER)
    assert surfaces(summary.index) == ["b"]


@pytest.mark.fault
def test_a_failing_build_leaves_the_live_version(tmp_path: Path) -> None:
    summary = build(tmp_path, ["a"], TOKENIZER)
    with pytest.raises(SourceError):
        build(tmp_path, ["b", "c\td"], TOKENIZER)
    assert surfaces(summary.index) == ["a"]
    assert not (summary.index / "staging").exists()
    with pytest.raises(SourceError):
        build(tmp_path, ["b", "c\td"], TOKENIZER, name="fresh.index")
    assert not (tmp_path / "fresh.index").exists()


@pytest.mark.fault
@pytest.mark.parametrize(
    "point",
    FAULT_POINTS[: FAULT_POINTS.index("version-renamed")],
)
def test_a_full_disk_at_any_step_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    summary = build(tmp_path, ["a"], TOKENIZER)
    monkeypatch.setenv("GENRET_FAULT", f"{point}:enospc")
    monkeypatch.setattr(faults, "_passages", {})
    with pytest.raises(IndexDirectoryError, match=r"it\.index.*: cannot write the index: No space left"):
        build(tmp_path, ["b"], TOKENIZER)
    assert surfaces(summary.index) == ["a"]
    assert not (summary.index / "staging").exists()
    monkeypatch.delenv("GENRET_FAULT")
    build(tmp_path, ["b"], TOKENIZER)
    assert surfaces(summary.index) == ["b"]
    assert sorted(p.name for p in summary.index.iterdir()) == [".lock", "CURRENT", "versions"]


@pytest.mark.fault
@pytest.mark.parametrize(
    ("point", "nth"),
    [*(("write_synced", n) for n in (1, 2)), *(("sync", n) for n in (1, 2, 3, 4))],
)
def test_a_failure_at_any_step_of_publication_leaves_old_or_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, nth: int
) -> None:
    summary = build(tmp_path, ["a"], TOKENIZER)
    calls = 0
    real = getattr(publish_module, point)

    def fails(*arguments: object) -> None:
        nonlocal calls
        calls += 1
        if calls == nth:
            raise OSError(errno.EIO, "Input/output error")
        real(*arguments)

    monkeypatch.setattr(publish_module, point, fails)
    with pytest.raises(IndexDirectoryError, match="cannot write the index: Input/output error"):
        build(tmp_path, ["b"], TOKENIZER)
    assert calls == nth
    assert verify(summary.index).ok
    assert surfaces(summary.index) in (["a"], ["b"])
    monkeypatch.undo()
    build(tmp_path, ["c"], TOKENIZER)
    assert surfaces(summary.index) == ["c"]


def test_two_builds_at_once_are_refused(tmp_path: Path) -> None:
    index = build(tmp_path, ["a"], TOKENIZER).index
    with (
        staging(index),
        pytest.raises(IndexDirectoryError, match="another build of this index is running"),
    ):
        build(tmp_path, ["b"], TOKENIZER)
    build(tmp_path, ["b"], TOKENIZER)


def test_what_a_killed_build_left_is_removed(tmp_path: Path) -> None:
    index = build(tmp_path, ["a"], TOKENIZER).index
    (index / "staging" / "rows").mkdir(parents=True)
    (index / "staging" / "rows" / "half").write_text("x")
    (index / "CURRENT.new").write_text("half")
    build(tmp_path, ["b"], TOKENIZER)
    assert sorted(p.name for p in index.iterdir()) == [".lock", "CURRENT", "versions"]


def test_other_peoples_directories_and_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    with pytest.raises(IndexDirectoryError, match=r"other files in it \(thesis.tex\)"):
        build(tmp_path, ["a"], TOKENIZER, name="home")
    assert (tmp_path / "home" / "thesis.tex").read_text() == "years of work"
    (tmp_path / "file").write_text("x")
    with pytest.raises(IndexDirectoryError, match="is a file"):
        build(tmp_path, ["a"], TOKENIZER, name="file")
    (tmp_path / "empty").mkdir()
    build(tmp_path, ["a"], TOKENIZER, name="empty")


@pytest.mark.fault
@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_an_unwritable_place_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(IndexDirectoryError, match="cannot write the index: Permission denied"):
        build(tmp_path, ["a"], TOKENIZER, name="closed/it.index")


_SLOW_BUILD = """
import sys
from pathlib import Path
from click.testing import CliRunner
from index_builder import build as build_module, cli
from tests.index_fixtures import character_tokenizer

def wait(*arguments):
    import time
    print("in the middle", flush=True)
    time.sleep(60)

build_module.write_version = wait
cli.TextTokenizer.load = staticmethod(lambda place: character_tokenizer("abcdefgh "))
cli.build_command([sys.argv[1], "--out", sys.argv[2], "--tokenizer", "x"])
"""


@pytest.mark.fault
@pytest.mark.parametrize(
    ("signal_number", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_an_interrupted_build_leaves_the_live_version(
    tmp_path: Path, signal_number: signal.Signals, status: int
) -> None:
    index = build(tmp_path, ["a"], TOKENIZER).index
    titles = write_titles(tmp_path / "more.tsv", ["b"])
    process = subprocess.Popen(
        [sys.executable, "-c", _SLOW_BUILD, str(titles), str(index)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "in the middle\n"
    time.sleep(0.1)
    process.send_signal(signal_number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == status
    if signal_number == signal.SIGINT:
        assert "is unchanged, version" in stderr
        assert "1 record is tokenised already" in stderr
        assert "Traceback" not in stderr
        assert not (index / "staging").exists()
    assert surfaces(index) == ["a"]
    assert verify(index).ok
    build(tmp_path, ["b"], TOKENIZER)
    assert surfaces(index) == ["b"]
