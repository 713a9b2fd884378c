"""The contest of title holes runs, writes every title, and refuses every near miss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.shared_titles import SHARED, shared_file, wikipedia_titles


@pytest.mark.shared_data
@pytest.mark.usefixtures("benchmark_path")
def test_a_small_contest(tmp_path: Path) -> None:
    import title_holes

    shared_file("tokenizers", "gpt2.tokenizer.json")
    titles = tmp_path / "titles.txt"
    titles.write_text("\n".join(wikipedia_titles()[:400]) + "\n", encoding="utf-8")
    out = tmp_path / "figures.json"
    options = ["--titles", titles, "--data", SHARED, "--work", tmp_path, "--json", out, "--sizes", 300]
    options += ["--repeats", 2, "--peer-titles", 0, "--walks", 20]
    result = CliRunner().invoke(title_holes.main, list(map(str, options)))
    assert result.exit_code == 0, result.output
    figures: dict[str, Any] = json.loads(out.read_text())["figures"]["300"]["genret"]
    assert figures["written"] == [20, 20]
    assert figures["misses_refused"] == [10, 10]
    assert len(figures["attach_ms"]["values"]) == 2
    assert "20 of 20" in result.output


@pytest.mark.usefixtures("benchmark_path")
def test_a_sample_has_as_many_titles_as_were_asked_for(tmp_path: Path) -> None:
    import click
    from harness.hole_titles import sample_titles

    source, out = tmp_path / "all.txt", tmp_path / "some.tsv"
    source.write_text("\n".join(map(str, range(1000))) + "\n")
    sample_titles(source, None, 100, out)
    header, *titles = out.read_text().splitlines()
    assert header == "title"
    assert len(set(titles)) == 100
    with pytest.raises(click.ClickException, match="expected 2000 titles, got 1000"):
        sample_titles(source, None, 2000, out)
