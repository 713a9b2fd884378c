"""`genret evaluate` from the command line to the report, on tiny models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from genret.retrieval.evaluation.labelled_sets import RankedAnswers
from genret.retrieval.evaluation.methods.model_free_methods import ModelFreeMethod
from genret.service.main import cli
from tests.checkpoints import make_checkpoint, make_index
from tests.commands import refusal, run, succeed
from tests.evaluation_sets import write_mentions, write_queries

QUICK = ("--method", "trie", "--method", "disc:2", "--method", "bm25", "--resamples", "100")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, an index and two labelled sets."""
    folder = tmp_path_factory.mktemp("evaluated")
    checkpoint = make_checkpoint(folder / "model", "bart")
    make_index(folder, checkpoint)
    write_queries(folder / "asked.jsonl")
    write_mentions(folder / "marked.jsonl")
    return folder


def asked(
    place: Path,
    out: Path,
    *arguments: str,
    sets: Sequence[str] = ("queries", "mentions"),
    index: Path | None = None,
) -> Sequence[object]:
    """Return the words of the command."""
    files = {
        "queries": f"asked=queries:{place / 'asked.jsonl'}",
        "mentions": f"mentions:{place / 'marked.jsonl'}",
    }
    named = [word for name in sets for word in ("--set", files.get(name, name))]
    of = ("--index", index or place / "index", "--model", place / "model")
    return ("evaluate", *of, *named, "--out", out, *arguments)


def test_default_methods_make_a_whole_report(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    done = succeed(cli, *asked(place, out, "--resamples", "100", "--seeds", "2", "--format", "json"))
    results = json.loads(done.stdout)
    assert results["out"] == str(out)
    assert [s["name"] for s in results["sets"]] == ["asked", "marked"]
    drawn = ["unconstrained", "trie", "disc:1", "disc:2", "disc:3", "disc:4"]
    methods = [*drawn, "beam:10", "bm25-shortlist", "bm25", "evidence", "shortlist", "auto"]
    for labelled in results["sets"]:
        assert [m["method"] for m in labelled["methods"]] == methods
        for method in labelled["methods"]:
            assert method["is_constrained"] == (method["method"] != "unconstrained")
            if method["is_constrained"]:
                assert method["rates"]["invalid"] == 0
            assert len(method["seeds"]) == (2 if method["method"] in drawn else 0)
    on_disk = json.loads((out / "results.json").read_text())
    assert {**on_disk, "out": str(out)} == results
    assert "genret evaluate" in (out / "report.md").read_text()
    assert (out / "report.html").read_text().count("<svg") == 3
    plots = sorted(file.name for file in (out / "plots").iterdir())
    assert plots == ["overview.svg", "set-asked.svg", "set-marked.svg"]
    assert len(list((out / "runs" / "asked").glob("*.run"))) == 6 * 2 + 6
    assert "36/36 marked auto: 4/4" in done.stderr


def test_what_was_done_is_gone_on_with(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    first = succeed(cli, *asked(place, out, *QUICK, "--no-plots", sets=["queries"]))
    assert not (out / "plots").exists()
    kept = (out / "runs" / "asked" / "disc-2.seed0.jsonl").read_bytes()
    assert "--resume" in refusal(cli, *asked(place, out, *QUICK, sets=["queries"]), code=1)
    again = succeed(cli, *asked(place, out, *QUICK, "--method", "beam", "--resume", "--no-plots"))
    assert (out / "runs" / "asked" / "disc-2.seed0.jsonl").read_bytes() == kept
    assert "disc:2" not in "".join(line for line in again.stderr.splitlines() if " asked " in line)
    assert first.stdout.splitlines()[1].split()[:2] == again.stdout.splitlines()[1].split()[:2]


def test_another_index_is_refused_by_its_digest_or_its_lack_of_labels(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    options = ("--method", "bm25", "--no-plots")
    succeed(cli, *asked(place, out, *options, sets=["queries"]))
    foreign = make_index(tmp_path / "foreign", place / "model", "title\nOne\nTwo\n")
    refused = refusal(cli, *asked(place, tmp_path / "new", *options, sets=["queries"], index=foreign))
    assert "--set: none of the 6 relevant answers of asked is in the index index: expected " in refused
    assert "entities such as 'One' (One), got 'Q1'; name the index that has the labels" in refused
    other = make_index(tmp_path / "other", place / "model", "title\tentity_id\nOne\tQ1\nTwo\tQ0\n")
    refused = refusal(cli, *asked(place, out, *options, "--resume", sets=["queries"], index=other), code=1)
    assert "holds an evaluation of something else: index: was" in refused
    partly = succeed(cli, *asked(place, tmp_path / "new", *options, sets=["queries"], index=other))
    assert "5 relevant answers are not in the index" in partly.stderr


def test_an_interruption_loses_the_running_method_alone(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> list[RankedAnswers]:
        raise KeyboardInterrupt

    out = tmp_path / "report"
    with monkeypatch.context() as patch:
        patch.setattr(ModelFreeMethod, "answer", stop)
        stopped = run(cli, *asked(place, out, *QUICK, "--no-plots", sets=["queries"]))
    assert stopped.exit_code == 130
    assert "interrupted" in stopped.stderr
    assert "--resume goes on" in stopped.stderr
    assert not (out / "report.html").exists()
    succeed(cli, *asked(place, out, *QUICK, "--no-plots", "--resume", sets=["queries"]))
    assert (out / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "sets", "message"),
    [
        (("--method", "disk:2"), ["queries"], "--method: expected one of"),
        (("--method", "run:none.run"), ["queries"], "--method: 'run:none.run': there is no file none.run"),
        (("--baseline", "beam"), ["queries"], "--baseline: must be one of the methods"),
        (("--metric", "nDGC@10"), ["queries"], "--metric:"),
        (("--metric", ""), ["queries"], "--metric:"),
        ((), ["beer:x"], "--set: must be [NAME=]FORMAT:PATH"),
        ((), ["queries", "asked=queries:other.jsonl"], "--set: two sets are called 'asked'"),
        ((), ["..=queries:x.jsonl"], "--set: a name must not begin with a dot"),
        (("--limit", "0"), ["queries"], "--limit"),
        (("--seeds", "0"), ["queries"], "--seeds"),
        (("--batch-size", "0"), ["queries"], "--batch-size"),
    ],
)
def test_mistakes_name_the_option(
    place: Path, tmp_path: Path, arguments: tuple[str, ...], sets: list[str], message: str
) -> None:
    refused = refusal(cli, *asked(place, tmp_path / "report", *arguments, sets=sets))
    assert message in refused.replace("'--", "--")
    assert not (tmp_path / "report").exists()


def test_a_missing_set_and_a_foreign_folder_are_refused_and_a_missing_library(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "to-mother.txt").write_text("dear")
    missing = f"queries:{tmp_path / 'none.jsonl'}"
    for out, one, message in (("report", missing, "none.jsonl"), ("letters", "queries", "holds other files")):
        assert message in refusal(cli, *asked(place, tmp_path / out, *QUICK, sets=[one]), code=1)
    monkeypatch.setattr("genret.retrieval.errors.find_spec", lambda package: None)
    refused = refusal(cli, *asked(place, tmp_path / "report"), code=1)
    assert refused.endswith("install 'generative-retrieval[eval,plots]', or draw nothing: --no-plots")
