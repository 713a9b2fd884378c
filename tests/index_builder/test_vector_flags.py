"""The options of vectors on the command lines of builds and updates."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from index_builder.cli import build_command
from index_builder.evidence_flags import build_vector_flags, update_vector_flags
from index_builder.evidence_wish import VectorChange, VectorWish
from index_builder.update_cli import update_command
from retrieval.vectors.embedder import VectorMethod
from retrieval.vectors.making import VectorOptions
from tests.index_fixtures import write_titles

Wish = VectorWish | None


def taken(flags: Any, arguments: list[str], **environment: str) -> Any:
    """Return what a command with the options gets."""
    got: list[Any] = []

    def command(vectors: Any) -> None:
        got.append(vectors)

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
        (["--vectors", "lexical"], VectorWish(VectorMethod("lexical"))),
        (["--vectors", "encoder:a:b"], VectorWish(VectorMethod("encoder", "a:b"))),
        (
            ["--vectors", "sentence-transformers:hub/m", "--vector-device", "cuda:1"],
            VectorWish(VectorMethod("sentence-transformers", "hub/m"), VectorOptions(device="cuda:1")),
        ),
        (
            ["--vectors=lexical", "--vector-index=IVF64,PQ8", "--vector-dimensions=64", "--vector-sample=9"],
            VectorWish(VectorMethod("lexical"), VectorOptions("IVF64,PQ8", 64, None, 9)),
        ),
        (
            ["--vectors", "lexical", "--vector-columns", "a, b c"],
            VectorWish(VectorMethod("lexical"), VectorOptions(columns=("a", "b c"))),
        ),
        (
            ["--vectors", "lexical", "--vector-columns", ""],
            VectorWish(VectorMethod("lexical"), VectorOptions(columns=())),
        ),
    ],
)
def test_what_they_ask_for(arguments: list[str], wish: Wish) -> None:
    assert taken(build_vector_flags, arguments) == wish
    if wish is not None:
        assert taken(update_vector_flags, arguments) == VectorChange(wish)


def test_what_an_update_may_be_told_beside() -> None:
    assert taken(update_vector_flags, []) == VectorChange()
    assert taken(update_vector_flags, ["--vectors", "none"]) == VectorChange(drop=True)
    assert taken(update_vector_flags, ["--encoder", "x", "--vector-device", "cuda"]) == VectorChange(
        device="cuda", encoder="x"
    )


def test_they_can_stand_in_the_environment() -> None:
    wish = taken(build_vector_flags, [], X_VECTORS="lexical", X_VECTOR_INDEX="flat", X_VECTOR_COLUMNS="a")
    assert wish == VectorWish(VectorMethod("lexical"), VectorOptions(kind="flat", columns=("a",)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--vectors", "magic"],
            "expected lexical, encoder:MODEL or sentence-transformers:MODEL, got 'magic'",
        ),
        (["--vectors", "encoder:"], "MODEL is a directory or a hub id"),
        (["--vectors", "lexical:x"], "lexical takes no model"),
        (["--vector-index", "flat"], "--vector-index goes with --vectors METHOD"),
        (["--vector-columns", "a"], "--vector-columns goes with --vectors METHOD"),
        (["--vectors", "lexical", "--vector-columns", "a,a"], "expected different columns"),
        (["--vectors", "lexical", "--vector-columns", "a,,b"], "expected different columns"),
        (["--vectors", "lexical", "--vector-dimensions", "4"], "not in the range"),
        (["--vectors", "lexical", "--vector-sample", "0"], "not in the range"),
        (["--vectors", "lexical", "--vector-device", "gpu9"], "vector_device: expected auto, cpu, cuda, "),
        (
            ["--vectors", "encoder:x", "--vector-device", "cuda:x"],
            "vector_device: expected auto, cpu, cuda, ",
        ),
        (["--vectors", "encoder:x", "--vector-device", ""], "xpu or xpu:N, got ''"),
        (["--vectors", "lexical", "--vector-index", ""], "vector_index: expected"),
    ],
)
@pytest.mark.parametrize("flags", [build_vector_flags, update_vector_flags], ids=["build", "update"])
def test_what_is_refused(flags: Any, arguments: list[str], message: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        taken(flags, arguments)
    assert message in caught.value.format_message()


def test_a_build_needs_a_method_for_a_device_and_an_update_keeps_what_it_is_told_to() -> None:
    with pytest.raises(click.UsageError, match="--vector-device goes with"):
        taken(build_vector_flags, ["--vector-device", "cuda"])
    with pytest.raises(click.UsageError, match=r"vector_device: expected .*, got 'gpu'"):
        taken(update_vector_flags, ["--vector-device", "gpu"])
    with pytest.raises(click.UsageError, match="encoder: says where"):
        taken(update_vector_flags, ["--vectors", "none", "--encoder", "x"])


def test_a_missing_extra_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    titles = write_titles(tmp_path / "titles.txt", ["a"])
    result = CliRunner().invoke(build_command, [str(titles), "--vectors", "lexical"])
    assert result.exit_code == 1
    assert "generative-retrieval[vectors]" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_help_names_the_options() -> None:
    for command in (build_command, update_command):
        text = CliRunner().invoke(command, ["--help"]).output
        for name in ("--vectors", "--vector-index", "--vector-columns", "--vector-sample", "--vector-device"):
            assert name in text


def test_a_dry_run_says_what_vectors_a_build_would_make(tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="needs the extra vectors")
    lines = ["title\taliases\tdescription\tnote"]
    lines += [f"name {i}\tother {i}|third {i}\t{'said' if i % 2 else ''}\tn" for i in range(200)]
    titles = write_titles(tmp_path / "titles.tsv", lines)
    common = [str(titles), "--vectors", "lexical", "--vector-dimensions", "16", "--json"]

    def planned(*further: str) -> dict[str, Any]:
        result = CliRunner().invoke(build_command, [*common, "--dry-run", *further])
        assert result.exit_code == 0, result.output
        plan: dict[str, Any] = json.loads(result.stdout)["vectors"]
        return plan

    plan = planned()
    assert (plan["texts"], plan["kind"], plan["dimensions"]) == (700, "flat", 16)
    assert planned("--vector-columns", "note,description")["texts"] == 900
    text = CliRunner().invoke(build_command, [*common[:-1], "--dry-run"]).stdout
    assert "and vectors: lexical, up to 700 texts, flat, of 16 dimensions, about" in text
    assert "vectors not counted" in text
    result = CliRunner().invoke(build_command, [*common, "--dry-run", "--vector-index", "Magic7"])
    assert result.exit_code == 2
    assert "Magic7" in result.stderr
