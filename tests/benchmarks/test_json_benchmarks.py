"""The benchmarks of answers, grammars and completion, on inputs too small to measure."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import answer_validity
import click
import complete
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import title_holes
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


def test_every_answer_of_a_tiny_model_is_valid(figures_of: Callable[..., Any]) -> None:
    options = ["--tiny", "--answers", "50", "--batch-size", "50"]
    figures = figures_of(answer_validity.main, *options)["random"]
    assert figures["answers"] == figures["valid"] == 50
    assert figures["smallest_budget"] >= 10
    assert not figures["invalid"]
    assert not figures["refused"]
    assert figures["forced_share"] > 0.05
    assert all(line["answers"] == line["valid"] > 0 for line in figures["methods"].values())


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
def test_every_title_is_written_and_every_near_miss_refused(
    tmp_path: Path, figures_of: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    shared_file("tokenizers", "gpt2.tokenizer.json")
    titles = tmp_path / "titles.txt"
    titles.write_text("\n".join(wikipedia_titles()[:400]) + "\n", encoding="utf-8")
    options = ["--titles", titles, "--data", SHARED, "--work", tmp_path, "--sizes", 300]
    options += ["--repeats", 2, "--peer-titles", 0, "--walks", 20]
    figures = figures_of(title_holes.main, *options)["300"]["genret"]
    assert figures["written"] == [20, 20]
    assert figures["misses_refused"] == [10, 10]
    assert len(figures["attach_ms"]["values"]) == 2
    assert "written 20 / 20" in capsys.readouterr().out


def test_a_sample_has_as_many_titles_as_were_asked_for(tmp_path: Path) -> None:
    source, out = tmp_path / "all.txt", tmp_path / "some.tsv"
    source.write_text("\n".join(map(str, range(1000))) + "\n")
    title_holes.sample_titles(source, None, 100, out)
    header, *titles = out.read_text().splitlines()
    assert header == "title"
    assert len(set(titles)) == 100
    with pytest.raises(click.ClickException, match="expected 2000 titles, got 1000"):
        title_holes.sample_titles(source, None, 2000, out)


def test_the_benchmark_of_completion_measures_a_few_titles(
    tmp_path: Path, figures_of: Callable[..., Any]
) -> None:
    titles = [f"{a} {b} of Hamletshire" for a in ("New", "Old", "Red") for b in ("York", "Paris", "東京")]
    pq.write_table(pa.table({"title": titles}), tmp_path / "titles.parquet")
    options = ["--titles", str(tmp_path / "*.parquet"), "--twins", "--queries", "5"]
    figures = figures_of(complete.main, *options)
    assert figures["table"]["names"] == 2 * len(titles)
    assert {"typed cold", "typed next", "mistyped cold", "mistyped next"} <= set(figures["ms"]["8"])
    assert "p99" in figures["ms"]["8"]["fts5 typed"]
