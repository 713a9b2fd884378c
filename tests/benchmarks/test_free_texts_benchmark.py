"""`free_texts.py`: its measures by hand, and a run too small to measure anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from free_texts import SCHEMA, is_valid, rouge_l, texts
from harness.sample_data import SMALL_MODEL
from jsonschema import Draft202012Validator

from genret.decoding.model.hf_model import HFLanguageModel
from genret.retrieval.text import TextTokenizer


def test_rouge_l_is_the_longest_common_subsequence_of_words() -> None:
    assert rouge_l("The cat sat on the mat", "the cat on a mat") == pytest.approx(2 * 4 / (6 + 5))
    assert rouge_l("a b", "b a") == pytest.approx(0.5)
    assert rouge_l("", "a") == 0.0
    assert rouge_l("Same words.", "same words") == 1.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"name": "Nile", "kind": "place", "year": -3000}', True),
        ('```json\n{"name": "Nile", "kind": "place", "year": 1}\n```', True),
        ('{"name": "Nile", "kind": "river", "year": 1}', False),
        ('{"name": "Nile"', False),
        ('Sure! {"name": "Nile", "kind": "place", "year": 1}', False),
    ],
)
def test_documents_are_valid_or_not(text: str, expected: bool) -> None:
    assert is_valid(Draft202012Validator(SCHEMA), text) == expected


def test_both_ways_write_the_same_texts() -> None:
    model = HFLanguageModel.load(SMALL_MODEL, device="cpu", dtype="float32")
    asked = [("large striped cat", "Tiger"), ("a river in egypt", "Nile")]
    found = texts(model, TextTokenizer.load(SMALL_MODEL), asked, beams=3, most=6)
    assert found["same_texts"] == found["texts"] == 2
    assert found["token tree"]["rouge_l"] == found["generate"]["rouge_l"]
    assert found["token tree"]["kv_mb_per_token"] < found["generate"]["kv_mb_per_token"]


def test_answers(figures_of: Callable[..., Any], tmp_path: Path) -> None:
    short = ["--queries", "2", "--tries", "2", "--max-tokens", "40", "--data", tmp_path]
    figures = figures_of("free_texts.py", "--model", SMALL_MODEL, "--only", "answers", *short)["answers"]
    assert figures["grammar"]["valid"] == 2
    assert figures["tries: 2"]["tokens"] > figures["tries: 1"]["tokens"] > 0
