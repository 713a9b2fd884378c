"""`genret link` as a user runs it, over a tiny random checkpoint."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from retrieval import Mention, Retriever
from retrieval.errors import ModelError
from retrieval.linking.cli import link_command
from tests.checkpoints import make_checkpoint, make_index

ROOT = Path(__file__).resolve().parents[3]
MENTIONS = [
    {"id": "x", "left": "The play ", "mention": "Hamlet", "right": " is long."},
    {"mention": "Nile"},
    {"id": 9, "left": "{left} ", "mention": "Amazon</s>", "right": " {mention}"},
]
TEXT = "".join(json.dumps(line) + "\n" for line in MENTIONS)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def index(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_index(tmp_path_factory.mktemp("index"), checkpoint)


Link = Callable[..., Result]


@pytest.fixture
def link(index: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Link:
    """Run the command in an empty folder that holds `m.jsonl`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.jsonl").write_text(TEXT)

    def run(*arguments: str, index: Path = index, model: Path = checkpoint, **options: Any) -> Result:
        models = ["--index", str(index), "--model", str(model), "--device", "cpu"]
        return CliRunner().invoke(link_command, [*arguments, *models], **options)

    return run


def rows(file: str) -> list[dict[str, Any]]:
    if file.endswith(".parquet"):
        return list(pq.read_table(file).to_pylist())
    return [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]


def files() -> set[str]:
    return set(os.listdir())


def test_links_are_the_retrievers(link: Link, index: Path, checkpoint: Path) -> None:
    result = link("m.jsonl", "--out", "out.jsonl", "-k", "3")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == ""
    assert "3 mentions: 3 linked, 0 NIL in " in result.stderr
    assert result.stderr.endswith(" s -> out.jsonl\n")
    written = rows("out.jsonl")
    assert [row["id"] for row in written] == ["x", "2", "9"]
    assert [row["mention"] for row in written] == ["Hamlet", "Nile", "Amazon</s>"]
    with Retriever.open(index, checkpoint) as retriever:
        mentions = [Mention(m["mention"], m.get("left", ""), m.get("right", "")) for m in MENTIONS]  # type: ignore[arg-type]
        for row, expected in zip(written, retriever.link(mentions, k=3), strict=True):
            best = expected.candidates[0]
            assert (row["entity_id"], row["title"], row["surface"]) == (
                best.entity_id,
                best.title,
                best.surface,
            )
            assert row["logprob"] == pytest.approx(best.logprob, abs=1e-4)
            assert [c["entity_id"] for c in row["candidates"]] == [c.entity_id for c in expected.candidates]


@pytest.mark.parametrize("method", ["beam", "disc"])
def test_parquet_and_json_lines_hold_the_same(link: Link, method: str) -> None:
    for out in ("out.parquet", "out.jsonl"):
        result = link("m.jsonl", "--out", out, "--method", method, "--seed", "7")
        assert result.exit_code == 0, result.stderr
    assert rows("out.parquet") == rows("out.jsonl")
    assert files() == {"m.jsonl", "out.parquet", "out.jsonl"}
    assert all((row["probability"] is None) == (method == "beam") for row in rows("out.jsonl"))


def test_parquet_names_index_model_and_options(link: Link, index: Path, checkpoint: Path) -> None:
    assert link("m.jsonl", "--out", "out.parquet", "-k", "2").exit_code == 0
    metadata = pq.read_schema("out.parquet").metadata
    assert metadata[b"genret.index_digest"].decode() == (index / "CURRENT").read_text().strip()
    assert metadata[b"genret.index_version"] == metadata[b"genret.index_digest"]
    assert metadata[b"genret.model"].decode() == str(checkpoint)
    options = json.loads(metadata[b"genret.options"])
    assert (options["k"], options["method"], options["min_logprob"]) == (2, "beam", None)


def test_summary_as_json_is_alone_on_stdout(link: Link) -> None:
    result = link("m.jsonl", "--out", "out.jsonl", "--json", "--min-logprob", "0")
    assert result.exit_code == 0
    summary = json.loads(result.stdout)
    assert summary.pop("seconds") >= 0
    assert summary == {
        "num_mentions": 3,
        "num_linked": 0,
        "num_nil": 3,
        "num_failed": 0,
        "num_bad_rows": 0,
        "num_unproven": 0,
        "out": "out.jsonl",
    }
    assert [row["entity_id"] for row in rows("out.jsonl")] == [None] * 3


def test_a_filter_applies_to_every_mention(link: Link) -> None:
    assert link("m.jsonl", "--out", "out.parquet", "--filter", "kind = 'river'").exit_code == 0
    found = pq.read_table("out.parquet").to_pylist()
    assert len(found) == 3
    assert {row["entity_id"] for row in found} <= {"Q7", "Q8"}
    options = json.loads(pq.read_schema("out.parquet").metadata[b"genret.options"])
    assert options["filter"] == "kind = 'river'"


def test_a_filter_that_does_not_fit_the_index_writes_nothing(link: Link) -> None:
    result = link("m.jsonl", "--out", "out.jsonl", "--filter", "year > 3")
    assert result.exit_code == 2
    assert "--filter: at character 1: unknown column 'year'; the index has: entity_id, kind, title" in (
        result.stderr
    )
    assert not Path("out.jsonl").exists()


def test_mentions_that_the_model_gives_too_little_are_nil(link: Link) -> None:
    sampled = ("m.jsonl", "--method", "disc", "--seed", "3")
    assert link(*sampled, "--out", "all.jsonl").exit_code == 0
    masses = [row["mass"] for row in rows("all.jsonl")]
    assert all(0.0 < mass < 1.0 for mass in masses)
    assert len(set(masses)) == 3
    least = sorted(masses)[1]
    result = link(*sampled, "--out", "some.parquet", "--min-mass", repr(least))
    assert result.exit_code == 0, result.stderr
    assert "3 mentions: 2 linked, 1 NIL" in result.stderr
    for row, before in zip(rows("some.parquet"), rows("all.jsonl"), strict=True):
        withheld = before["mass"] < least
        assert row["abstained"] == withheld
        assert row["mass"] == before["mass"]
        assert row["entity_id"] == (None if withheld else before["entity_id"])
        assert row["candidates"] == ([] if withheld else before["candidates"])
    options = json.loads(pq.read_schema("some.parquet").metadata[b"genret.options"])
    assert options["min_mass"] == least


def test_links_are_proven_where_that_is_asked_for(link: Link) -> None:
    narrow = ("m.jsonl", "--beam-size", "1", "--aggregate", "max")
    assert link(*narrow, "--out", "narrow.jsonl").exit_code == 0
    assert link(*narrow, "--exact", "--out", "exact.parquet").exit_code == 0
    assert not all(row["certified"] for row in rows("narrow.jsonl"))
    for row in rows("exact.parquet"):
        assert row["certified"]
        assert row["score"] == row["candidates"][0]["score"] <= row["logprob"]
    options = json.loads(pq.read_schema("exact.parquet").metadata[b"genret.options"])
    assert (options["exact"], options["exact_budget"], options["aggregate"]) == (True, None, "max")


def test_what_could_not_be_proven_is_told(link: Link) -> None:
    narrow = ("m.jsonl", "--beam-size", "1", "--exact", "--exact-budget", "0")
    unproven = link(*narrow, "--out", "out.jsonl")
    assert unproven.exit_code == 0
    count = sum(not row["certified"] for row in rows("out.jsonl"))
    assert count > 0
    assert f" ({count} list{'s' * (count > 1)} not proven exact) in " in unproven.stderr


def test_gzip_and_standard_input(link: Link) -> None:
    Path("m.jsonl.gz").write_bytes(gzip.compress(TEXT.encode()))
    assert link("m.jsonl", "--out", "a.jsonl").exit_code == 0
    assert link("m.jsonl.gz", "--out", "b.jsonl").exit_code == 0
    assert link("-", "--out", "c.jsonl", input=TEXT).exit_code == 0
    assert rows("a.jsonl") == rows("b.jsonl") == rows("c.jsonl")


def test_existing_output_needs_overwrite(link: Link) -> None:
    Path("out.jsonl").write_text("mine")
    result = link("m.jsonl", "--out", "out.jsonl")
    assert result.exit_code == 2
    assert "Error: out.jsonl exists already; replace it with --overwrite" in result.stderr
    assert Path("out.jsonl").read_text() == "mine"
    assert link("m.jsonl", "--out", "out.jsonl", "--overwrite").exit_code == 0
    assert len(rows("out.jsonl")) == 3


def test_bad_rows(link: Link) -> None:
    Path("m.jsonl").write_text(TEXT + "nonsense\n" + '{"mention": "Paris"}\n')
    result = link("m.jsonl", "--out", "out.jsonl")
    assert result.exit_code == 1
    assert result.stderr.endswith(
        "Error: m.jsonl, line 4: not a JSON value: Expecting value at column 1 "
        "(bad row 1, 0 allowed; allow more with --max-bad-rows)\n"
    )
    assert files() == {"m.jsonl"}
    result = link("m.jsonl", "--out", "out.jsonl", "--max-bad-rows", "1")
    assert result.exit_code == 0
    assert "warning: m.jsonl, line 4: not a JSON value" in result.stderr
    assert "4 mentions: 4 linked, 0 NIL; 1 bad row left out in " in result.stderr
    assert [row["id"] for row in rows("out.jsonl")] == ["x", "2", "9", "5"]


def test_mention_that_is_too_long_is_one_failed_row(link: Link) -> None:
    Path("m.jsonl").write_text(json.dumps({"mention": "$" * 400}) + "\n" + TEXT)
    result = link("m.jsonl", "--out", "out.jsonl")
    assert result.exit_code == 0
    assert "warning: m.jsonl, line 1: query: too long: the prompt has 404 tokens" in result.stderr
    assert "4 mentions: 3 linked, 0 NIL, 1 failed" in result.stderr
    assert rows("out.jsonl")[0]["error"].startswith("query: too long")
    assert [row["error"] for row in rows("out.jsonl")[1:]] == [None] * 3


def test_no_mentions_give_an_empty_output(link: Link) -> None:
    Path("m.jsonl").write_text("")
    for out in ("out.jsonl", "out.parquet"):
        assert link("m.jsonl", "--out", out).exit_code == 0
        assert rows(out) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["m.jsonl", "--out", "out.csv"], "--out: must end in .parquet or .jsonl, got 'out.csv'"),
        (["m.jsonl", "--out", "out.jsonl", "-k", "0"], "--k: must be in [1, 1000], got 0"),
        (["m.jsonl", "--out", "out.jsonl", "-k", "1000000"], "--k: must be in [1, 1000], got 1000000"),
        (["m.jsonl", "--out", "out.jsonl", "-k", "many"], "Invalid value for '-k'"),
        (["m.jsonl", "--out", "out.jsonl", "--batch-size", "0"], "--batch-size: must be at least 1, got 0"),
        (["m.jsonl", "--out", "out.jsonl", "--method", "x"], "Invalid value for '--method'"),
        (
            ["m.jsonl", "--out", "out.jsonl", "--filter", "kind ="],
            "--filter: at character 7: expected a value, got the end",
        ),
        (
            ["m.jsonl", "--out", "out.jsonl", "--min-mass", "0.2"],
            "--min-mass: needs the method disc, got the method beam",
        ),
        (
            ["m.jsonl", "--out", "out.jsonl", "--method", "disc", "--min-mass", "nan"],
            "--min-mass: must be in [0, 1], got nan",
        ),
        (
            ["m.jsonl", "--out", "out.jsonl", "--adaptive"],
            "--adaptive: needs the method disc, got the method",
        ),
        (["m.jsonl"], "Missing option '--out'"),
        (["--out", "out.jsonl"], "Missing argument 'MENTIONS'"),
    ],
)
def test_wrong_usage_exits_with_2_before_a_model_is_loaded(
    link: Link, arguments: list[str], message: str, tmp_path: Path
) -> None:
    result = link(*arguments, model=tmp_path / "absent" / "model")
    assert result.exit_code == 2
    assert message in result.stderr
    assert files() == {"m.jsonl"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.jsonl", "--out", "out.jsonl"], "Error: absent.jsonl: no such file\n"),
        ([".", "--out", "out.jsonl"], "Error: .: is a directory; expected a .jsonl or .jsonl.gz file\n"),
        (
            ["m.jsonl", "--out", "no/out.jsonl"],
            "Error: no/out.jsonl: cannot be written: there is no folder no\n",
        ),
    ],
)
def test_missing_files_exit_with_1_before_a_model_is_loaded(
    link: Link, arguments: list[str], message: str, tmp_path: Path
) -> None:
    result = link(*arguments, model=tmp_path / "absent" / "model")
    assert result.exit_code == 1
    assert result.stderr == message


def test_missing_index_and_model(link: Link, tmp_path: Path) -> None:
    result = link("m.jsonl", "--out", "out.jsonl", index=tmp_path / "absent")
    assert (result.exit_code, "absent" in result.stderr) == (1, True)
    result = link("m.jsonl", "--out", "out.jsonl", model=tmp_path / "absent" / "model")
    assert result.exit_code == 1
    assert "neither an existing path nor a valid hub id" in result.stderr
    assert files() == {"m.jsonl"}


def test_ctrl_c_leaves_nothing_and_says_so(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = Retriever.retrieve_batch

    def interrupted(self: Retriever, requests: Any) -> Any:
        if any(request.query == "[Nile]" for request in requests):
            raise KeyboardInterrupt
        return answered(self, requests)

    monkeypatch.setattr(Retriever, "retrieve_batch", interrupted)
    Path("m.jsonl").write_text('{"mention": "a"}\n{"mention": "Nile"}\n')
    result = link("m.jsonl", "--out", "out.jsonl", "--batch-size", "1")
    assert result.exit_code == 130
    assert result.stderr.endswith(
        "\ninterrupted after 1 mention: 1 linked, 0 NIL: out.jsonl was not written\n"
    )
    assert files() == {"m.jsonl"}
    Path("out.jsonl").write_text("mine")
    result = link("m.jsonl", "--out", "out.jsonl", "--overwrite", "--batch-size", "1")
    assert result.stderr.endswith("out.jsonl is as it was\n")
    assert Path("out.jsonl").read_text() == "mine"


def test_failure_in_the_middle_leaves_nothing(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Retriever, requests: Any) -> Any:
        raise ModelError("out of memory")

    monkeypatch.setattr(Retriever, "retrieve_batch", fail)
    result = link("m.jsonl", "--out", "out.parquet")
    assert (result.exit_code, result.stderr) == (1, "Error: out of memory\n")
    assert files() == {"m.jsonl"}


@pytest.mark.fault
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_killed_process_never_shows_a_partial_output(
    index: Path, checkpoint: Path, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "out.jsonl"
    code = "from retrieval.linking.cli import link_command; link_command()"
    models = ["--index", str(index), "--model", str(checkpoint)]
    process = subprocess.Popen(
        [sys.executable, "-c", code, "-", "--out", str(out), "--batch-size", "1", *models],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    with process:
        assert process.stdin is not None
        process.stdin.write(b'{"mention": "Nile"}\n' * 40)
        process.stdin.flush()  # and no end: the process waits for more
        deadline = time.monotonic() + 60.0
        while not list(tmp_path.glob(".out.jsonl.*.partial")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        process.wait(60)
        assert process.stderr is not None
        message = process.stderr.read().decode()
    assert not out.exists()
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert list(tmp_path.iterdir()) == []
        assert f"{out} was not written" in message
        assert "Traceback" not in message
