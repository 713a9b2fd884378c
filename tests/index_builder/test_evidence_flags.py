"""The options of evidence on the command lines of builds and updates."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from index_builder.build_options import EvidenceChange, EvidenceOptions, VectorBuildOptions, VectorChange
from index_builder.cli import build_command
from index_builder.evidence_flags import build_evidence_flags, update_evidence_flags
from index_builder.past_queries import QueryFile
from index_builder.update_cli import update_command
from retrieval.vectors.embedder import VectorMethod
from retrieval.vectors.vector_maker import VectorOptions
from tests.index_fixtures import write_titles

Wish = VectorBuildOptions | None
HUB = VectorMethod("encoder", "a/b")


def taken(flags: Any, arguments: list[str], **environment: str) -> Any:
    """Return what a command with the options gets."""
    got: list[Any] = []

    def command(evidence: Any) -> None:
        got.append(evidence)

    decorated = click.command()(flags("X_")(command))
    result = CliRunner().invoke(decorated, arguments, env=environment, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return got[0]


@pytest.mark.parametrize(
    ("arguments", "wish"),
    [
        ([], None),
        (["--vectors", "none"], None),
        (["--vectors", "encoder:a:b"], VectorBuildOptions(VectorMethod("encoder", "a:b"))),
        (
            ["--vectors", "sentence-transformers:hub/m", "--vector-device", "cuda:1"],
            VectorBuildOptions(
                VectorMethod("sentence-transformers", "hub/m"), VectorOptions(device="cuda:1")
            ),
        ),
        (
            ["--vectors=encoder:a/b", "--vector-index=IVF64,PQ8", "--vector-sample=9"],
            VectorBuildOptions(HUB, VectorOptions("IVF64,PQ8", None, 9)),
        ),
        (
            ["--vectors", "encoder:a/b", "--evidence-columns", "a, b c"],
            VectorBuildOptions(HUB, VectorOptions(columns=("a", "b c"))),
        ),
        (
            ["--vectors", "encoder:a/b", "--evidence-columns", ""],
            VectorBuildOptions(HUB, VectorOptions(columns=())),
        ),
    ],
)
def test_what_they_ask_for(arguments: list[str], wish: Wish) -> None:
    assert taken(build_evidence_flags, arguments).vectors == wish
    if wish is not None:
        assert taken(update_evidence_flags, arguments).vectors == VectorChange(wish)


@pytest.mark.parametrize(
    ("arguments", "wish"),
    [
        ([], EvidenceOptions()),
        (["--evidence", "all"], EvidenceOptions()),
        (["--evidence", "none"], None),
        (["--evidence-columns", "a, b c"], EvidenceOptions(("a", "b c"))),
        (["--evidence-columns", ""], EvidenceOptions(())),
        (
            ["--queries", "some.tsv#train", "--queries", "more.jsonl"],
            EvidenceOptions(None, (QueryFile(Path("some.tsv"), "train"), QueryFile(Path("more.jsonl")))),
        ),
    ],
)
def test_what_they_ask_of_a_build(arguments: list[str], wish: EvidenceOptions | None) -> None:
    assert taken(build_evidence_flags, arguments).evidence == wish


@pytest.mark.parametrize(
    ("arguments", "change"),
    [
        ([], EvidenceChange()),
        (["--evidence", "all"], EvidenceChange(EvidenceOptions())),
        (["--evidence", "none"], EvidenceChange(drop=True)),
        (["--evidence", "all", "--evidence-columns", "a"], EvidenceChange(EvidenceOptions(("a",)))),
        (["--queries", "a.tsv"], EvidenceChange(queries=(QueryFile(Path("a.tsv")),))),
        (["--queries", "none"], EvidenceChange(drop_queries=True)),
        (
            ["--queries", "none", "--queries", "a.tsv"],
            EvidenceChange(queries=(QueryFile(Path("a.tsv")),), drop_queries=True),
        ),
    ],
)
def test_what_they_ask_of_an_update(arguments: list[str], change: EvidenceChange) -> None:
    assert taken(update_evidence_flags, arguments).evidence == change


def test_a_file_of_queries_that_has_a_hash_in_its_name(tmp_path: Path) -> None:
    file = tmp_path / "a#b"
    file.write_text("x")
    assert QueryFile.parse(str(file)) == QueryFile(file)
    assert QueryFile.parse(f"{file}#dev") == QueryFile(file, "dev")


def test_what_an_update_may_be_told_beside() -> None:
    assert taken(update_evidence_flags, []).vectors == VectorChange()
    assert taken(update_evidence_flags, ["--vectors", "none"]).vectors == VectorChange(drop=True)
    told = taken(update_evidence_flags, ["--encoder", "x", "--vector-device", "cuda"])
    assert told.vectors == VectorChange(device="cuda", encoder="x")


def test_they_can_stand_in_the_environment() -> None:
    told = taken(
        build_evidence_flags, [], X_VECTORS="encoder:a/b", X_VECTOR_INDEX="flat", X_EVIDENCE_COLUMNS="a"
    )
    assert told.vectors == VectorBuildOptions(HUB, VectorOptions(kind="flat", columns=("a",)))
    assert told.evidence == EvidenceOptions(("a",))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--vectors", "magic"],
            "expected encoder:MODEL or sentence-transformers:MODEL, got 'magic'",
        ),
        (["--vectors", "encoder:"], "MODEL is a directory or a hub id"),
        (["--vectors", "lexical"], "expected encoder:MODEL or sentence-transformers:MODEL, got 'lexical'"),
        (["--evidence", "some"], "'some' is not one of 'all', 'none'"),
        (["--queries", "#train"], "queries: expected FILE or FILE#SPLIT, got '#train'"),
        (["--queries", "x.tsv#"], "queries: expected FILE or FILE#SPLIT, got 'x.tsv#'"),
        (["--evidence", "none", "--evidence-columns", "a"], "--evidence-columns goes with"),
        (["--evidence", "none", "--queries", "a"], "evidence"),
        (["--vector-index", "flat"], "--vector-index goes with --vectors METHOD"),
        (["--vectors", "encoder:a/b", "--evidence-columns", "a,a"], "expected different columns"),
        (["--vectors", "encoder:a/b", "--evidence-columns", "a,,b"], "expected different columns"),
        (["--vectors", "encoder:a/b", "--vector-sample", "0"], "not in the range"),
        (
            ["--vectors", "encoder:a/b", "--vector-device", "gpu9"],
            "vector_device: expected auto, cpu, cuda, ",
        ),
        (
            ["--vectors", "encoder:x", "--vector-device", "cuda:x"],
            "vector_device: expected auto, cpu, cuda, ",
        ),
        (["--vectors", "encoder:x", "--vector-device", ""], "xpu or xpu:N, got ''"),
        (["--vectors", "encoder:a/b", "--vector-index", ""], "vector_index: expected"),
    ],
)
@pytest.mark.parametrize("flags", [build_evidence_flags, update_evidence_flags], ids=["build", "update"])
def test_what_is_refused(flags: Any, arguments: list[str], message: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        taken(flags, arguments)
    assert message in caught.value.format_message()


def test_a_build_needs_a_method_for_a_device_and_an_update_keeps_what_it_is_told_to() -> None:
    with pytest.raises(click.UsageError, match="--vector-device goes with"):
        taken(build_evidence_flags, ["--vector-device", "cuda"])
    with pytest.raises(click.UsageError, match=r"vector_device: expected .*, got 'gpu'"):
        taken(update_evidence_flags, ["--vector-device", "gpu"])
    with pytest.raises(click.UsageError, match="encoder: says where"):
        taken(update_evidence_flags, ["--vectors", "none", "--encoder", "x"])


def test_a_missing_extra_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    titles = write_titles(tmp_path / "titles.txt", ["a"])
    result = CliRunner().invoke(build_command, [str(titles), "--vectors", "encoder:a/b"])
    assert result.exit_code == 1
    assert "generative-retrieval[vectors]" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_help_names_the_options() -> None:
    for command in (build_command, update_command):
        text = CliRunner().invoke(command, ["--help"]).output
        for name in ("--evidence", "--evidence-columns", "--queries", "--vectors", "--vector-index"):
            assert name in text
        for name in ("--vector-sample", "--vector-device"):
            assert name in text


def test_a_dry_run_says_what_vectors_a_build_would_make(tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="needs the extra vectors")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"hidden_size": 16}')
    lines = ["title\taliases\tdescription\tnote"]
    lines += [f"name {i}\tother {i}|third {i}\t{'said' if i % 2 else ''}\tn" for i in range(200)]
    titles = write_titles(tmp_path / "titles.tsv", lines)
    method = f"encoder:{tmp_path / 'model'}"
    common = [str(titles), "--vectors", method, "--json"]

    def planned(*further: str) -> dict[str, Any]:
        result = CliRunner().invoke(build_command, [*common, "--dry-run", *further])
        assert result.exit_code == 0, result.output
        plan: dict[str, Any] = json.loads(result.stdout)
        return plan

    plan = planned()
    vectors, evidence = plan["vectors"], plan["evidence"]
    assert (vectors["texts"], vectors["kind"], vectors["dimensions"]) == (700, "flat", 16)
    assert (evidence["names"], evidence["columns"], evidence["texts"]) == (600, ["description"], 100)
    plan = planned("--evidence-columns", "note,description")
    assert (plan["vectors"]["texts"], plan["evidence"]["texts"]) == (900, 300)
    assert planned("--evidence", "none")["evidence"] is None
    queries = write_titles(
        tmp_path / "queries.tsv", ["query\ttitle\tcount", "one\tname 1\t3", "two\tname 1\t"]
    )
    assert planned("--queries", str(queries))["evidence"]["queries"] == 2
    text = CliRunner().invoke(build_command, [*common[:-1], "--dry-run"]).stdout
    assert f"and vectors: {method}, up to 700 texts, flat, of 16 dimensions, about" in text
    assert "and evidence: 600 names, 100 texts of description, about " in text
    assert "vectors not counted" in text
    result = CliRunner().invoke(build_command, [*common, "--dry-run", "--vector-index", "Magic7"])
    assert result.exit_code == 2
    assert "Magic7" in result.stderr
