"""What an evaluation keeps of what it has done, and what it refuses to go on with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from retrieval.errors import SourceError
from retrieval.evaluation.labelled_sets import MethodRun, RankedAnswers, RankedEntity
from retrieval.evaluation.run_files import Identity, RunStore
from tests.evaluation_fixtures import query_set

IDENTITY = Identity("i1", "m1", "float32", 10, 64, None, {"asked": "d1"})
ASKED = query_set()


def make_run(method: str = "disc:2", seed: int | None = 3) -> MethodRun:
    rankings = [
        RankedAnswers(
            query.query_id,
            (RankedEntity("Q1", "Hamlet", 0.75, -1.25), RankedEntity("Q2", "Macbeth", 0.25)),
            0.5,
        )
        for query in ASKED.queries
    ]
    rankings[1] = RankedAnswers("q2", (), 0.25, "query: must not be empty")
    rankings[2] = RankedAnswers("q3", (RankedEntity("invalid:a b\tü", "a b\tü", 1.0),))
    return MethodRun(method, ASKED.name, tuple(rankings), 12.5, seed, False)


def test_a_run_is_read_back_as_it_was(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "out", IDENTITY, resume=False)
    assert store.load(ASKED, "disc:2", 3) is None
    store.save(ASKED, make_run())
    again = RunStore(tmp_path / "out", IDENTITY, resume=True)
    assert again.load(ASKED, "disc:2", 3) == make_run()
    assert again.load(ASKED, "disc:2", 4) is None
    assert again.load(ASKED, "disc:3", 3) is None


def test_a_run_without_its_last_file_is_not_done(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "out", IDENTITY, resume=False)
    store.save(ASKED, make_run())
    (done,) = (tmp_path / "out" / "runs" / "asked").glob("*.json")
    done.unlink()
    assert store.load(ASKED, "disc:2", 3) is None


def test_methods_share_no_file(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "out", IDENTITY, resume=False)
    names = [
        "disc:1",
        "disc:1/2",
        "disc:1x2",
        "disc:12",
        "run:a/b.run",
        "run:a-b.run",
        "run:a b.run",
        "beam",
        "beam:1",
    ]
    names += ["run:" + "x" * 300, "run:" + "x" * 301]
    for number, name in enumerate(names):
        store.save(ASKED, replace(make_run(name, None), seconds=float(number + 1)))
    for number, name in enumerate(names):
        loaded = store.load(ASKED, name, None)
        assert loaded is not None
        assert (loaded.seconds, loaded.method) == (number + 1, name)


def test_an_evaluation_is_not_overwritten(tmp_path: Path) -> None:
    RunStore(tmp_path / "out", IDENTITY, resume=False)
    with pytest.raises(SourceError, match=r"holds an evaluation.*--resume"):
        RunStore(tmp_path / "out", IDENTITY, resume=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index": "i2"}, "index: was i1, is i2"),
        ({"model": "m2"}, "model: was m1, is m2"),
        ({"dtype": "bfloat16"}, "dtype: was float32, is bfloat16"),
        ({"k": 5}, "k: was 10, is 5"),
        ({"batch_size": 1}, "batch size: was 64, is 1"),
        ({"redirects": "r"}, "redirects: was None, is r"),
        ({"sets": {"asked": "d2"}}, "set asked: was d1, is d2"),
    ],
)
def test_something_else_is_not_gone_on_with(tmp_path: Path, change: dict[str, object], message: str) -> None:
    RunStore(tmp_path / "out", IDENTITY, resume=False)
    with pytest.raises(SourceError, match=message):
        RunStore(tmp_path / "out", replace(IDENTITY, **change), resume=True)  # type: ignore[arg-type]
    RunStore(tmp_path / "out", IDENTITY, resume=True)  # what was refused changed nothing


def test_sets_may_come_to_those_that_are_there(tmp_path: Path) -> None:
    RunStore(tmp_path / "out", IDENTITY, resume=False)
    RunStore(tmp_path / "out", replace(IDENTITY, sets={"other": "d9"}), resume=True)
    with pytest.raises(SourceError, match="set asked: was d1, is d2"):
        RunStore(tmp_path / "out", replace(IDENTITY, sets={"asked": "d2"}), resume=True)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"format": 9}', '{"format": 1, "odd": 2}'])
def test_a_foreign_identity_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "evaluation.json").write_text(content)
    with pytest.raises(SourceError, match=r"evaluation.json: not written by this command"):
        RunStore(tmp_path, IDENTITY, resume=True)


def test_a_broken_run_is_refused_by_name(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "out", IDENTITY, resume=False)
    store.save(ASKED, make_run())
    folder = tmp_path / "out" / "runs" / "asked"
    lines = (folder / "disc-2.seed3.jsonl").read_text().splitlines(keepends=True)
    (folder / "disc-2.seed3.jsonl").write_text("".join(lines[:-1]))
    with pytest.raises(SourceError, match=r"disc-2.seed3.*jsonl: not the queries of the set asked"):
        store.load(ASKED, "disc:2", 3)
    (folder / "disc-2.seed3.json").write_text("{}")
    with pytest.raises(SourceError, match=r"disc-2.seed3.json: not written by this command"):
        store.load(ASKED, "disc:2", 3)
