"""The benchmark of answers runs with tiny models, and drafts change nothing in what it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner


@pytest.mark.usefixtures("benchmark_path")
def test_a_tiny_run(tmp_path: Path) -> None:
    import answers

    out = tmp_path / "figures.json"
    options = ["--tiny", "--only", "boolnull", "--only", "enum5", "--whitespace", "spaced"]
    options += ["--queries", "2", "--rounds", "2", "--max-tokens", "8", "--json", str(out)]
    result = CliRunner().invoke(answers.main, options)
    assert result.exit_code == 0, result.output
    lines = json.loads(out.read_text(encoding="utf-8"))["figures"]["tiny"]
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
