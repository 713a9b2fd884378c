"""What is shown of a run: counts, rates and the time left, in a new run and in one that goes on."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genret.retrieval.errors import (
    GenretError,
    IndexChecksumError,
    InputError,
    MissingExtraError,
    SourceError,
)
from genret.retrieval.linking import run
from genret.retrieval.linking.documents.corpus import CorpusOptions
from genret.retrieval.linking.link_options import WorkerOptions
from genret.retrieval.linking.output.folder import LinkingRunError, ShardRecord
from genret.retrieval.linking.run import OutputOptions, RunnerOptions, link_corpus
from genret.retrieval.linking.run_progress import (
    LinkCounts,
    LinkDisplay,
    Progress,
    _columns,
    describe,
    duration,
    sentence,
    shown_run,
)
from genret.retrieval.linking.runners.runner import WorkerError, linked
from genret.retrieval.progress import ProgressDisplay


def counts(documents: int, mentions: int = 0) -> LinkCounts:
    return LinkCounts(num_documents=documents, num_mentions=mentions, num_linked=mentions)


def progress(resumed: int = 0, reported: int = 0, recorded: int = 0, begun: float | None = 100.0) -> Progress:
    return Progress(
        num_documents=1000,
        num_shards=10,
        done_shards=(resumed + recorded) // 100,
        resumed=counts(resumed, 2 * resumed),
        recorded=counts(resumed + recorded, 2 * (resumed + recorded)),
        reported=counts(reported, 2 * reported),
        resumed_shards=resumed // 100,
        begun=begun,
    )


def test_a_line_says_where_a_new_run_is() -> None:
    assert describe(progress(reported=250, recorded=200), 110.0) == (
        "250/1,000 documents, 2/10 shards, 30 s left, 25.0 docs/s, 50.0 mentions/s: 500 linked, 0 NIL"
    )


def test_nothing_is_foreseen_before_anything_is_done() -> None:
    assert progress(resumed=500).seconds_left(150.0) is None
    assert progress(begun=None).rates(150.0) == (0.0, 0.0)
    assert describe(progress(resumed=500, begun=None), 150.0) == (
        "500/1,000 documents, 5/10 shards: 1,000 linked, 0 NIL"
    )


def test_split_documents_are_foreseen_by_shards() -> None:
    split = Progress(1, 50, 10, LinkCounts(), LinkCounts(), counts(1), is_split=True, begun=0.0)
    assert split.seconds_left(20.0) == pytest.approx(80.0)


@given(
    resumed=st.integers(0, 9).map(lambda n: 100 * n),
    parts=st.lists(st.integers(0, 100), max_size=9),
    seconds=st.floats(0.1, 1e5),
)
def test_what_was_done_before_counts_as_done_and_not_as_speed(
    resumed: int, parts: list[int], seconds: float
) -> None:
    done = min(sum(parts), 1000 - resumed)
    at = progress(resumed=resumed, reported=done)
    left = at.seconds_left(100.0 + seconds)
    assert at.counts.num_documents == resumed + done
    assert at.rates(100.0 + seconds) == pytest.approx((done / seconds, 2 * done / seconds))
    if done:
        assert left >= 0
        assert (left == 0) == (resumed + done == 1000)
        assert left == pytest.approx(seconds * (1000 - resumed - done) / done)


def test_shards_that_were_reported_twice_are_not_more_than_there_are() -> None:
    twice = progress(reported=1500, recorded=900)
    assert twice.counts.num_documents == 1000
    assert twice.seconds_left(110.0) == 0


def test_lines_come_every_few_seconds() -> None:
    now = [0.0]
    stream = io.StringIO()
    lines = LinkDisplay(ProgressDisplay(is_live=False, stream=stream, clock=lambda: now[0]))
    for second in range(21):
        now[0] = float(second)
        lines.show(progress(reported=second, begun=0.0))
    assert len(stream.getvalue().splitlines()) == 4
    lines.planning(5_000_000)
    now[0] = 30.0
    lines.planning(7_000_000)
    assert stream.getvalue().endswith("reading the inputs: 7 MB\n")
    lines.warn("line 3: no")
    assert stream.getvalue().endswith("warning: line 3: no\n")


def test_warnings_come_to_an_end() -> None:
    stream = io.StringIO()
    display = LinkDisplay(ProgressDisplay(is_live=False, stream=stream))
    for i in range(1000):
        display.warn(f"line {i}")
    written = stream.getvalue().splitlines()
    assert len(written) == 51
    assert written[-1].startswith("further warnings are not shown")


def test_a_live_display_shows_where_the_run_is(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressDisplay(_columns, is_live=True) as bars:
        display = LinkDisplay(bars)
        display.planning(7_000_000)
        display.warn("line [3]: no")
        display.show(progress(reported=250, recorded=200, begun=None))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "warning: line [3]: no" in captured.err
    assert "250/1,000 documents, 2/10 shards" in captured.err


def test_a_quiet_run_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_run(quiet=True) as display:
        display.planning(7_000_000)
        display.show(progress())
        display.warn("no")
    assert capsys.readouterr() == ("", "")


def test_totals_in_words() -> None:
    assert sentence(counts(1, 1)) == "1 document, 1 mention: 1 linked, 0 NIL"
    full = LinkCounts(2000, 5000, 3000, 2000, 10, 700, 3, 1, 5000)
    assert sentence(full) == (
        "2,000 documents, 5,000 mentions: 3,000 linked, 2,000 NIL, 10 failed, 700 cached "
        "(3 lists not proven exact); 1 bad document left out"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (61, "1 min 01 s"), (3599, "59 min 59 s"), (7380, "2 h 03 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    "error",
    [
        InputError("filter", "is none"),
        SourceError("x: gone"),
        MissingExtraError("ray", "ray"),
        IndexChecksumError("rows", "differs"),
        LinkingRunError("taken"),
    ],
)
def test_errors_survive_being_sent(error: GenretError) -> None:
    back = WorkerError.of(error).error()
    assert str(back) == str(error)
    assert type(back) is type(error)
    if isinstance(error, InputError):
        assert (back.field, back.message) == (error.field, error.message)


def test_defects_of_workers_come_with_their_traceback() -> None:
    try:
        raise ZeroDivisionError("nothing to divide")
    except ZeroDivisionError as error:
        back = WorkerError.of(error).error()
    assert type(back) is RuntimeError
    assert "test_link_progress.py" in str(back)
    assert "ZeroDivisionError: nothing to divide" in str(back)


def test_increments_add_up() -> None:
    sent: list[LinkCounts] = []
    told = [counts(documents, 3 * documents) for documents in (1, 1, 5, 9)]
    record = ShardRecord(0, "", "", "", 0, told[-1])
    worker: Any = SimpleNamespace(run=lambda shard, report: [report(one) for one in told] and record)
    shard: Any = None
    assert linked(worker, shard, sent.append) is record
    total = LinkCounts()
    for grown in sent:
        total.add(grown)
    assert (total, sent[0], len(sent)) == (counts(9, 27), LinkCounts(), 4)  # zeros start the clock


@pytest.mark.parametrize(
    ("workers", "shards", "device", "processes"),
    [
        (None, 1, "cpu", 1),
        (1, 9, "cpu", 1),
        (3, 9, "cpu", 3),
        (3, 2, "cpu", 2),
        (3, 1, "cpu", 1),
        (None, 9, "cuda", 1),
        (2, 9, "cuda", 2),
    ],
)
def test_there_are_no_more_workers_than_work(
    workers: int | None, shards: int, device: str, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "link_here", lambda *_: 1)
    monkeypatch.setattr(run, "link_in_processes", lambda *given: given[-1])
    job: Any = SimpleNamespace(worker=WorkerOptions("", device=device))
    options, work = RunnerOptions(num_workers=workers), [None] * shards
    assert run.run_shards(options, job, work, lambda counts: None) == processes  # type: ignore[arg-type, comparison-overlap]


@pytest.mark.parametrize(
    ("options", "field"),
    [({"name": "spark"}, "runner"), ({"num_workers": 0}, "workers"), ({"address": "auto"}, "ray_address")],
)
def test_runners_are_checked(options: dict[str, object], field: str) -> None:
    with pytest.raises(InputError, match=f"^{field}: "):
        RunnerOptions(**options)  # type: ignore[arg-type]


def test_without_ray_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"generative-retrieval\[ray\]"):
        link_corpus(
            CorpusOptions(inputs=(str(tmp_path / "not-there.jsonl"),)),
            OutputOptions(out=str(tmp_path / "links")),
            WorkerOptions(index=str(tmp_path / "not-there.index")),
            runner=RunnerOptions(name="ray"),
        )
    assert list(tmp_path.iterdir()) == []
