"""`genret link` as a user runs it, over a tiny random checkpoint."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import Result

from genret import Retriever
from genret.retrieval.linking import run
from genret.retrieval.linking.link_command import default_cache_dir, link_command
from tests import commands
from tests.checkpoints import make_index
from tests.linking_fakes import ROOT, rows_of, wait_for

TEXTS = ["The play Hamlet is long.", "Nile", "{left} Amazon</s> {mention}"]
MARKED = ["Hamlet", "Nile", "Amazon</s>"]


def document(text: str, mention: str, **fields: Any) -> dict[str, Any]:
    start = text.index(mention)
    return {"text": text, "mentions": [{"start": start, "end": start + len(mention)}], **fields}


IDS: list[dict[str, Any]] = [{"id": "x"}, {}, {}]
TEXT = "".join(
    json.dumps(document(text, mention, **fields)) + "\n"
    for text, mention, fields in zip(TEXTS, MARKED, IDS, strict=True)
)


@pytest.fixture(scope="module")
def index(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_index(tmp_path_factory.mktemp("index"), checkpoint)


Link = Callable[..., Result]


@pytest.fixture
def link(index: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Link:
    """Run the command in an empty folder that holds `d.jsonl`, and see how it ends."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("d.jsonl").write_text(TEXT)

    def run(*arguments: str, index: Path = index, model: Path = checkpoint, code: int = 0) -> Result:
        models = ["--index", index, "--model", model, "--device", "cpu", "--workers", "1"]
        result = commands.run(link_command, *arguments, *models)
        assert result.exit_code == code, result.output
        return result

    return run


def test_a_prompt_that_does_not_fit_is_told_before_any_document_is_linked(
    link: Link, tmp_path: Path, checkpoint: Path
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(checkpoint, bare)
    (bare / "genret.json").unlink()
    unknown = link("d.jsonl", "--out", "out.jsonl", "--prompt", "x", code=2)
    assert "unknown template 'x'; known: [" in unknown.stderr
    by_text = make_index(tmp_path / "text", bare)
    more = ("--prompt", "few-shot-mention")
    refused = link("d.jsonl", "--out", "out.jsonl", *more, index=by_text, model=bare, code=1)
    assert "but the prompt 'few-shot-mention' of" in refused.stderr
    link("d.jsonl", "--out", "out.jsonl", index=by_text, model=bare)


def files() -> set[str]:
    return set(os.listdir())


def test_every_marked_mention_has_a_row(link: Link) -> None:
    result = link("d.jsonl", "--out", "out.jsonl", "-k", "3")
    assert result.stdout == ""
    assert "3 documents, 3 mentions: 3 linked, 0 NIL in " in result.stderr
    assert result.stderr.endswith(" s -> out.jsonl\n")
    written = rows_of("out.jsonl")
    assert [row["doc_id"] for row in written] == ["x", "d.jsonl:2", "d.jsonl:3"]
    assert [row["mention"] for row in written] == MARKED
    assert [TEXTS[i][row["start"] : row["end"]] for i, row in enumerate(written)] == MARKED


def test_folders_files_and_formats_hold_the_same(link: Link) -> None:
    sampled = ("d.jsonl", "--method", "disc", "--seed", "7", "--shard-documents", "2")
    for out in ("out.parquet", "out.jsonl", "out"):
        link(*sampled, "--out", out)
    link(*sampled, "--out", "new/lines", "--format", "jsonl")
    assert rows_of("out.parquet") == rows_of("out.jsonl") == rows_of("out")
    assert rows_of("out") == rows_of("new/lines/part-000000.jsonl") + rows_of("new/lines/part-000001.jsonl")
    assert files() == {"d.jsonl", "out.parquet", "out.jsonl", "out", "new"}


def test_parquet_names_index_model_and_options(link: Link, index: Path, checkpoint: Path) -> None:
    link("d.jsonl", "--out", "out.parquet", "-k", "2")
    metadata = pq.read_schema("out.parquet").metadata
    assert metadata[b"genret.index_digest"].decode() == (index / "CURRENT").read_text().strip()
    assert metadata[b"genret.index_version"] == metadata[b"genret.index_digest"]
    assert metadata[b"genret.model"].decode() == str(checkpoint)
    assert metadata[b"genret.model_fingerprint"].startswith(b"xxh3:")
    options = json.loads(metadata[b"genret.options"])
    assert (options["k"], options["method"], options["min_logprob"]) == (2, "auto", None)


def test_summary_as_json_is_alone_on_stdout(link: Link, index: Path) -> None:
    result = link("d.jsonl", "--out", "out.jsonl", "--json", "--min-logprob", "0")
    summary = json.loads(result.stdout)
    assert summary.pop("seconds") >= 0
    assert summary.pop("model_fingerprint").startswith("xxh3:")
    assert len(summary.pop("key")) == 32
    texts = {
        "index_digest": (index / "CURRENT").read_text().strip(),
        "out": "out.jsonl",
        "was_complete": False,
    }
    threes = dict.fromkeys(("num_documents", "num_mentions", "num_nil", "num_rows"), 3)
    zeros = ("linked", "failed", "cached", "unproven", "bad_documents", "resumed")
    assert summary == {**texts, **threes, **{f"num_{name}": 0 for name in zeros}, "num_shards": 1}
    assert [row["entity_id"] for row in rows_of("out.jsonl")] == [None] * 3
    assert [row["nil_reason"] for row in rows_of("out.jsonl")] == ["min_logprob"] * 3
    assert link("d.jsonl", "--out", "out", "--quiet", "--min-logprob", "0", "--drop-nil").output == ""
    assert rows_of("out") == []


def test_names_of_the_index_are_found(link: Link, tmp_path: Path) -> None:
    Path("t.txt").write_text("We saw Paris, Texas and the Amazon River.", encoding="utf-8")
    link("t.txt", "--out", "out.jsonl")
    assert [row["mention"] for row in rows_of("out.jsonl")] == ["Paris, Texas", "Amazon River"]
    assert {row["mention_source"] for row in rows_of("out.jsonl")} == {"found"}
    assert list((tmp_path / "cache" / "genret").iterdir())
    link("t.txt", "--out", "some.jsonl", "--min-chars", "12", "--cache-dir", str(tmp_path / "other"))
    assert [row["mention"] for row in rows_of("some.jsonl")] == ["Paris, Texas", "Amazon River"]
    assert list((tmp_path / "other").iterdir())
    link("t.txt", "--out", "named.jsonl", "--candidates", "named", "--case", "sensitive")
    assert [row["entity_id"] for row in rows_of("named.jsonl")] == ["Q5", "Q8"]


def test_the_cache_is_in_the_users_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert default_cache_dir() == Path("/caches/genret")
    monkeypatch.setenv("HOME", "/home/me")
    for odd in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", odd)
        assert default_cache_dir() == Path("/home/me/.cache/genret")

    def nobody(self: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", nobody)
    assert default_cache_dir() is None


def test_a_filter_that_does_not_fit_the_index_writes_nothing(link: Link) -> None:
    result = link("d.jsonl", "--out", "out.jsonl", "--filter", "year > 3", code=2)
    assert "--filter: at character 1: unknown column 'year'; the index has: entity_id, kind, title" in (
        result.stderr
    )
    assert files() == {"d.jsonl"}


def test_existing_output_needs_overwrite(link: Link) -> None:
    Path("out.jsonl").write_text("mine")
    result = link("d.jsonl", "--out", "out.jsonl", code=2)
    assert "Error: --out: out.jsonl exists already; replace it with --overwrite" in result.stderr
    assert Path("out.jsonl").read_text() == "mine"
    for further, parts in (["--keep-parts"], {"out.jsonl.parts"}), ([], set[str]()):
        link("d.jsonl", "--out", "out.jsonl", "--overwrite", *further)
        assert [row["mention"] for row in rows_of("out.jsonl")] == MARKED
        assert files() == {"d.jsonl", "out.jsonl", *parts}


def test_a_complete_run_says_so_and_another_one_is_refused(link: Link) -> None:
    link("d.jsonl", "--out", "out")
    again = link("d.jsonl", "--out", "out")
    assert again.stderr == "out is complete already: 3 documents, 3 mentions: 3 linked, 0 NIL\n"
    assert json.loads(link("d.jsonl", "--out", "out", "--json").stdout)["was_complete"] is True
    assert link("d.jsonl", "--out", "out", "-k", "2", code=1).stderr == (
        "Error: out: holds another run: k was 5, is now 2. "
        "Choose another --out, or begin anew with --overwrite\n"
    )
    link("d.jsonl", "--out", "out", "-k", "2", "--overwrite")


def test_a_run_goes_on_where_it_was(link: Link) -> None:
    cut = ("d.jsonl", "--out", "out", "--shard-documents", "1")
    planned = link(*cut, "--dry-run")
    size = Path("d.jsonl").stat().st_size
    assert planned.stdout == f"3 documents of {size} bytes in 3 shards -> out\n"
    assert files() == {"d.jsonl"}
    link(*cut)
    Path("out/_shards/000001.json").unlink()
    planned = link(*cut, "--dry-run")
    assert planned.stdout.endswith("in 3 shards; 2 are done, 1 would be linked -> out\n")
    assert json.loads(link(*cut, "--dry-run", "--json").stdout)["num_done"] == 2
    assert " s (2 of 3 shards were done before) -> out" in link(*cut).stderr
    assert "out is complete already" in link(*cut, "--dry-run").stdout


def test_bad_rows(link: Link) -> None:
    Path("d.jsonl").write_text(TEXT + "nonsense\n" + '{"text": "Paris"}\n')
    result = link("d.jsonl", "--out", "out.jsonl", code=1)
    assert "Error: d.jsonl, line 4: " in result.stderr
    assert result.stderr.endswith(
        "(bad document 1, 0 allowed; allow more with --max-bad-rows, which leaves them out)\n"
    )
    assert files() == {"d.jsonl"}
    result = link("d.jsonl", "--out", "out.jsonl", "--max-bad-rows", "1")
    assert "warning: d.jsonl, line 4: " in result.stderr
    assert "4 documents, 4 mentions: 4 linked, 0 NIL; 1 bad document left out in " in result.stderr
    assert [row["row"] for row in rows_of("out.jsonl")] == [1, 2, 3, 5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "out.csv"], "--out: must be a folder, or end in .parquet or .jsonl, got 'out.csv'"),
        (["--out", "o", "-k", "0"], "--k: must be in [1, 1000], got 0"),
        (["--out", "o", "--filter", "kind ="], "--filter: at character 7: expected a value, got the end"),
        (["--out", "o", "--min-mass", "0.2"], "--min-mass: needs the method disc, got the method auto with"),
        (
            ["--out", "o", "-k", "1", "--min-probability", "0.5"],
            "--min-probability: needs a k of at least 2 with the method auto",
        ),
        (["--out", "o", "--min-chars", "0"], "--min-chars: must be an integer of at least 1, got 0"),
        (["--out", "o", "--shard-documents", "0"], "--shard-documents: must be an integer of"),
        (["--out", "o", "--ray-address", "auto"], "--ray-address: needs the runner ray"),
        (["--out", ""], "--out: must not be empty"),
        (["--out", "d.jsonl/o"], "--out: d.jsonl/o is inside the input folder d.jsonl, with which"),
        (["--out", "a\udcffb"], "--out: the name is not valid UTF-8, got 'a\\udcffb'"),
        (["--out", "d.jsonl", "--overwrite"], "--out: d.jsonl holds the input d.jsonl; choose another place"),
        (["d.jsonl", "--out", "o"], "INPUTS: d.jsonl is named more than once"),
        (
            ["--out", "o", "--min-logprob", "nan"],
            "--min-logprob: must be at most 0, as every log-probability",
        ),
        (["--out", "o.jsonl", "--format", "parquet"], "--format: must be jsonl for 'o.jsonl'"),
    ],
)
def test_wrong_usage_exits_with_2_before_a_model_is_loaded(
    link: Link, arguments: list[str], message: str, tmp_path: Path
) -> None:
    result = link("d.jsonl", *arguments, model=tmp_path / "absent" / "model", code=2)
    assert message in result.stderr
    assert files() == {"d.jsonl"}


def test_missing_files_index_and_model(link: Link, tmp_path: Path) -> None:
    result = link("absent.jsonl", "--out", "out.jsonl", model=tmp_path / "absent" / "model", code=1)
    assert result.stderr.startswith("Error: absent.jsonl")
    result = link("d.jsonl", "--out", "out.jsonl", index=tmp_path / "absent", code=1)
    assert "absent" in result.stderr
    result = link("d.jsonl", "--out", "out.jsonl", model=tmp_path / "absent" / "model", code=1)
    assert "neither an existing path nor a valid hub id" in result.stderr
    assert files() == {"d.jsonl"}


def interrupt() -> None:
    raise KeyboardInterrupt


def half_import(number: signal.Signals) -> None:
    """As when a compiled module is being imported: what it raises instead is no error of the program."""
    try:
        signal.raise_signal(number)
    except KeyboardInterrupt:
        raise AttributeError("partially initialized module") from None


INTERRUPTIONS: dict[str, Callable[[], None]] = {
    "Ctrl-C": interrupt,
    "Ctrl-C that became another error": partial(half_import, signal.SIGINT),
    "SIGTERM that became another error": partial(half_import, signal.SIGTERM),
}
interrupted_by = pytest.mark.parametrize("interruption", INTERRUPTIONS.values(), ids=INTERRUPTIONS)


@interrupted_by
def test_ctrl_c_keeps_whole_shards_and_says_so(
    interruption: Callable[[], None], link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = Retriever.retrieve_batch

    def interrupted(self: Retriever, requests: Any) -> Any:
        if any("[Nile]" in request.query for request in requests):
            interruption()
        return answered(self, requests)

    monkeypatch.setattr(Retriever, "retrieve_batch", interrupted)
    result = link("d.jsonl", "--shard-documents", "1", "--batch-size", "1", "--out", "out.jsonl", code=130)
    assert result.stderr.endswith(
        "\ninterrupted: 1 of 3 shards are done and kept in out.jsonl.parts: "
        "the same command goes on from there\n"
    )
    assert files() == {"d.jsonl", "out.jsonl.parts"}
    result = link("d.jsonl", "--out", "other.jsonl", code=130)
    is_plain = interruption is interrupt
    kept = ": no shard was finished, nothing is kept" if is_plain else " is as it was before"
    assert result.stderr.endswith(f"\ninterrupted: other.jsonl{kept}\n")
    assert files() == {"d.jsonl", "out.jsonl.parts"}


@interrupted_by
def test_ctrl_c_while_a_run_is_planned_is_no_word_about_shards(
    interruption: Callable[[], None], link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    link("d.jsonl", "--out", "done")
    done = rows_of("done")
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(run, "plan_run", lambda *_: interruption())
    for arguments in (["out.jsonl"], ["out.jsonl", "--dry-run"], ["done"]):
        result = link("d.jsonl", "--out", *arguments, code=130)
        assert result.stderr == f"\ninterrupted: {arguments[0]} is as it was before\n"
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert rows_of("done") == done
    assert files() == {"d.jsonl", "done"}


@pytest.mark.fault
@pytest.mark.timeout(1500)
def test_a_process_that_is_to_end_says_what_it_keeps(index: Path, checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    (tmp_path / "d.jsonl").write_text(TEXT * 2000)
    command = [sys.executable, "-m", "genret", "link", str(tmp_path / "d.jsonl"), "--out", str(out)]
    options = ["--batch-size", "1", "--cache-entries", "0", "--shard-documents", "10", "--workers", "2"]
    process = subprocess.Popen(
        [*command, *options, "--index", str(index), "--model", str(checkpoint), "--device", "cpu"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    with process:
        wait_for(lambda: list(tmp_path.glob("out.jsonl.parts/_shards/*.json")), process)
        process.terminate()
        message = process.stderr.read().decode()
    assert process.returncode == 130
    assert not out.exists()
    assert not list(tmp_path.rglob("*.tmp"))
    assert "shards are done and kept in " in message
    assert "Traceback" not in message


def test_help_groups_every_option() -> None:
    text = commands.run(link_command, "--help").output
    for heading in ("Output:", "Input:", "Index and model:", "Linking:", "Mentions that are found", "Run:"):
        assert f"\n{heading}" in text
    # "-h" is there as well once the whole command line has been imported.
    others = text.partition("\nOther options:\n")[2].partition("\n  Examples:\n")[0].split()
    assert " ".join(word for word in others if word != "-h,") == "--help Show this message and exit."
