"""No module of the packages runs what it reads; calls and imports that would are refused by ruff."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What ruff has no rule for: built-ins, and arguments that make a harmless call one that unpickles.
HARMFUL = re.compile(
    r"(?<![\w.])(?<!def )(?:compile|__import__)\("
    r"|\b(?:allow_pickle=True|weights_only=False|use_safetensors=False)\b"
)


@pytest.mark.parametrize("package", ["retrieval", "decoding", "index_builder", "service"])
def test_no_module_runs_what_it_reads(package: str) -> None:
    texts = {path: path.read_text("utf-8") for path in (ROOT / package).rglob("*.py")}
    assert len(texts) > 10
    assert {path: found for path, text in texts.items() if (found := HARMFUL.findall(text))} == {}
