"""First masks are counted once per state, and schemas that cannot be compiled are passed over."""

from __future__ import annotations

import gc
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.shared_titles import shared_file

ROWS: list[dict[str, Any]] = [
    {
        "name": "plain",
        "schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        "tests": [{"data": {"a": 12}}, {"data": {"a": 12}}, {"data": {"a": "no number"}}],
    },
    {"name": "refused", "schema": {"type": "string", "format": "regex"}, "tests": [{"data": "a+"}]},
]


@pytest.mark.shared_data
@pytest.mark.usefixtures("benchmark_path")
def test_every_state_counts_once(tmp_path: Path) -> None:
    from harness.cold_masks import measure_cold_masks
    from harness.grammar_engines import Ours, TokenizerFile

    file = TokenizerFile(shared_file("tokenizers", "gpt2.tokenizer.json"))
    rows = tmp_path / "schemas.jsonl.gz"
    with gzip.open(rows, "wt", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in ROWS)
    figures = measure_cold_masks(Ours(file).leaves, file, rows)
    # The second instance meets no state that the first has not met; the third leaves the first's way once.
    written = len(file.encode(json.dumps(ROWS[0]["tests"][0]["data"])))
    assert written <= figures["masks"] <= written + 1
    assert figures["mask_us"]["p50"] <= figures["mask_us"]["p99"] <= figures["mask_us"]["max"]
    assert figures["above_20_ms"] <= figures["above_1_ms"] <= figures["masks"]
    assert gc.isenabled()
