"""The benchmarks of JSON answers and grammars, with models and schemas too small to measure anything."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import answer_validity
import answers
import click
import pytest
import title_holes
from click.testing import CliRunner
from harness.grammar_engines import Ours, TokenizerFile
from json_grammars import measure_cold_masks

from tests.shared_titles import SHARED, shared_file, wikipedia_titles

ROWS: list[dict[str, Any]] = [
    {
        "name": "plain",
        "schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        "tests": [{"data": {"a": 12}}, {"data": {"a": 12}}, {"data": {"a": "no number"}}],
    },
    {"name": "refused", "schema": {"type": "string", "format": "regex"}, "tests": [{"data": "a+"}]},
]


def invoked(command: click.Command, folder: Path, *options: object) -> tuple[Any, str]:
    """Run a benchmark in this process, and return its figures and what it printed."""
    out = folder / "figures.json"
    result = CliRunner().invoke(command, [*map(str, options), "--json", str(out)])
    assert result.exit_code == 0, result.output
    return json.loads(out.read_text(encoding="utf-8"))["figures"], result.output


def test_every_answer_of_a_tiny_model_is_valid(tmp_path: Path) -> None:
    options = ["--tiny", "--answers", "50", "--batch-size", "50"]
    figures = invoked(answer_validity.main, tmp_path, *options)[0]["random"]
    assert figures["answers"] == figures["valid"] == 50
    assert figures["smallest_budget"] >= 10
    assert not figures["invalid"]
    assert not figures["refused"]
    assert figures["forced_share"] > 0.05
    assert all(line["answers"] == line["valid"] > 0 for line in figures["methods"].values())


def test_drafts_change_nothing_in_what_tiny_models_write(tmp_path: Path) -> None:
    options = ["--tiny", "--only", "boolnull", "--only", "enum5", "--whitespace", "spaced"]
    options += ["--queries", "2", "--rounds", "2", "--max-tokens", "8"]
    lines = invoked(answers.main, tmp_path, *options)[0]["tiny"]
    assert [line["schema"] for line in lines] == ["enum5", "boolnull"]
    for line in lines:
        ways = line["ways"]
        assert line["drafts_change_nothing"]
        assert ways["nothing"]["passes_per_token"] == 1.0
        assert ways["forced"]["passes"] < ways["nothing"]["passes"]
        assert ways["forced"]["forced_share"] > 0.2
        assert ways["both"]["passes"] <= ways["forced"]["passes"]
        assert ways["drafted"]["drafted"] > 0
        assert all(len(way["milliseconds"]["values"]) == 2 for way in ways.values())


@pytest.mark.shared_data
def test_first_masks_are_counted_once_per_state(tmp_path: Path) -> None:
    file = TokenizerFile(shared_file("tokenizers", "gpt2.tokenizer.json"))
    figures = measure_cold_masks(Ours(file).leaves, file, ROWS)
    # The second instance meets no state that the first has not met; the third leaves the first's way once.
    written = len(file.encode(json.dumps(ROWS[0]["tests"][0]["data"])))
    assert written <= figures["masks"] <= written + 1
    assert figures["mask_us"]["p50"] <= figures["mask_us"]["p99"] <= figures["mask_us"]["max"]
    assert figures["above_20_ms"] <= figures["above_1_ms"] <= figures["masks"]
    assert gc.isenabled()


@pytest.mark.shared_data
def test_every_title_is_written_and_every_near_miss_refused(tmp_path: Path) -> None:
    shared_file("tokenizers", "gpt2.tokenizer.json")
    titles = tmp_path / "titles.txt"
    titles.write_text("\n".join(wikipedia_titles()[:400]) + "\n", encoding="utf-8")
    options = ["--titles", titles, "--data", SHARED, "--work", tmp_path, "--sizes", 300]
    options += ["--repeats", 2, "--peer-titles", 0, "--walks", 20]
    found, output = invoked(title_holes.main, tmp_path, *options)
    figures = found["300"]["genret"]
    assert figures["written"] == [20, 20]
    assert figures["misses_refused"] == [10, 10]
    assert len(figures["attach_ms"]["values"]) == 2
    assert "written 20 / 20" in output


def test_a_sample_has_as_many_titles_as_were_asked_for(tmp_path: Path) -> None:
    source, out = tmp_path / "all.txt", tmp_path / "some.tsv"
    source.write_text("\n".join(map(str, range(1000))) + "\n")
    title_holes.sample_titles(source, None, 100, out)
    header, *titles = out.read_text().splitlines()
    assert header == "title"
    assert len(set(titles)) == 100
    with pytest.raises(click.ClickException, match="expected 2000 titles, got 1000"):
        title_holes.sample_titles(source, None, 2000, out)
