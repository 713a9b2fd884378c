"""The benchmark of valid answers runs with a tiny model, and all of its answers are valid."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner


@pytest.mark.usefixtures("benchmark_path")
def test_a_tiny_run(tmp_path: Path) -> None:
    import answer_validity

    out = tmp_path / "figures.json"
    options = ["--tiny", "--answers", "50", "--batch-size", "50", "--json", str(out)]
    result = CliRunner().invoke(answer_validity.main, options)
    assert result.exit_code == 0, result.output
    figures = json.loads(out.read_text(encoding="utf-8"))["figures"]["random"]
    assert figures["answers"] == figures["valid"] == 50
    assert figures["smallest_budget"] >= 10
    assert not figures["invalid"]
    assert not figures["refused"]
    assert figures["forced_share"] > 0.05
    assert all(line["answers"] == line["valid"] > 0 for line in figures["methods"].values())
