"""The benchmark of completion runs on a few titles, with twins and with its peer."""

from __future__ import annotations

import json
from pathlib import Path

import complete
import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner


def test_the_benchmark_of_completion_measures_a_few_titles(tmp_path: Path) -> None:
    titles = [f"{a} {b} of Hamletshire" for a in ("New", "Old", "Red") for b in ("York", "Paris", "東京")]
    pq.write_table(pa.table({"title": titles}), tmp_path / "titles.parquet")
    options = ["--titles", str(tmp_path / "*.parquet"), "--twins", "--queries", "5"]
    result = CliRunner().invoke(complete.main, [*options, "--json", str(tmp_path / "figures.json")])
    assert result.exit_code == 0, result.output
    figures = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))["figures"]
    assert figures["table"]["names"] == 2 * len(titles)
    assert {"typed cold", "typed next", "mistyped cold", "mistyped next"} <= set(figures["ms"]["8"])
    assert "p99" in figures["ms"]["8"]["fts5 typed"]
