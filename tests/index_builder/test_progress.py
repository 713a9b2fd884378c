from __future__ import annotations

import io

import pytest

from genret.index_builder.command_line import _columns, shown_progress
from genret.retrieval import progress as progress_module
from genret.retrieval.progress import PhaseClock, ProgressDisplay, StepProgress


def log_lines(stream: io.StringIO) -> StepProgress:
    return StepProgress(ProgressDisplay(is_live=False, stream=stream, prefix="build-index: "))


def test_log_lines_come_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now)
    stream = io.StringIO()
    lines = log_lines(stream)
    lines.phase("reading", 200)
    lines.advance(20, "2 rows")
    now = 106.0
    lines.advance(100, "10 rows")
    lines.advance(110, "11 rows")
    lines.phase("sorting")
    now = 112.0
    lines.advance(3, "three")
    assert stream.getvalue().splitlines() == [
        "build-index: reading …",
        "build-index: reading: 50 %, 10 rows, 6 s, about 8 s left in this step",
        "build-index: sorting …",
        "build-index: sorting: three, 6 s",
    ]


def test_the_time_left_is_told_once_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A phase that an earlier run has brought to 60 % goes on at 10 units a second."""
    told: list[str] = []
    now = 0.0

    class Display(ProgressDisplay):
        def show(self, text: str, done: float | None = None, *rest: object) -> None:
            told.append(text)

    steps = StepProgress(Display(is_live=False, stream=io.StringIO(), clock=lambda: now))
    steps.phase("reading", 1000)
    for at, done in ((50.0, 600), (50.5, 605), (52.0, 620), (60.0, 700), (90.0, 1000)):
        now = at
        steps.advance(done, "it")
    steps.advance(1000, "it, 3 s left", tells_left=True)
    steps.phase("sorting")
    steps.advance(1, "it")
    now = 200.0
    steps.advance(2, "it")
    assert [text.partition("it")[2] for text in told] == [
        ", 50 s",
        ", 50 s",  # half a second says nothing
        ", 52 s, about 38 s left in this step",
        ", 60 s, about 30 s left in this step",
        ", 90 s, about 0 s left in this step",
        ", 3 s left, 90 s",
        ", 0 s",
        ", 110 s",  # nobody knows how much there is
    ]


def test_the_time_left_stands_beside_the_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setenv("COLUMNS", "200")
    with ProgressDisplay(_columns, is_live=True, clock=lambda: now) as display:
        bar = StepProgress(display)
        bar.phase("reading", 1000)
        bar.advance(0, "0 rows")
        now = 10.0
        bar.advance(100, "100 rows")
    assert "100 rows, about 1 min 30 s left in this step" in capsys.readouterr().err


def test_log_lines_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_progress(quiet=False, command="build-index") as progress:
        progress.phase("reading")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "build-index: reading …\n")


def test_the_bar_keeps_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressDisplay(_columns, is_live=True) as display:
        bar = StepProgress(display)
        bar.advance(1, "before any phase")
        bar.phase("reading [50 %]", 10)
        bar.advance(5, "5 rows")
        bar.note("resuming [3 shards]")
        bar.phase("sorting")
    captured = capsys.readouterr()
    assert captured.out == ""
    for told in ("5 rows", "resuming [3 shards]", "sorting"):
        assert told in captured.err


def test_the_clock_passes_on_and_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now)
    stream = io.StringIO()
    clock = PhaseClock(log_lines(stream))
    clock.phase("reading", 200)
    now = 106.0
    clock.advance(100, "10 rows")
    clock.note("found")
    now = 110.0
    clock.phase("sorting")
    now = 111.5
    clock.phase("reading")
    now = 112.0
    assert clock.seconds() == {"reading": 10.5, "sorting": 1.5}
    now = 120.0
    assert clock.seconds() == {"reading": 10.5, "sorting": 1.5}
    assert stream.getvalue().splitlines() == [
        "build-index: reading …",
        "build-index: reading: 50 %, 10 rows, 6 s",
        "build-index: found",
        "build-index: sorting …",
        "build-index: reading …",
    ]


def test_silence(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_progress(quiet=True, command="build-index") as progress:
        progress.phase("reading", 10)
        progress.advance(1, "1 row")
        progress.note("found")
    assert capsys.readouterr() == ("", "")
