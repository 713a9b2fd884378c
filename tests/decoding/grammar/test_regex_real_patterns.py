"""The patterns of real schemas and of the JSON Schema test suite."""

from __future__ import annotations

import gzip
import json
import random
import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from decoding.grammar.regular.json_spelling import spell_texts
from decoding.grammar.regular.regex_classes import python_word
from decoding.grammar.regular.regex_compiler import compile_pattern
from tests.regex_texts import mutated, random_member
from tests.shared_titles import shared_file

pytestmark = pytest.mark.shared_data


def patterns_in(value: Any) -> Iterator[str]:
    """Values of `pattern` and keys of `patternProperties`, wherever they stand."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "pattern" and isinstance(inner, str):
                yield inner
            if key == "patternProperties" and isinstance(inner, dict):
                yield from inner
            yield from patterns_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from patterns_in(inner)


def patterns_of(name: str) -> list[str]:
    """All patterns of a file of schemas, once each."""
    with gzip.open(shared_file("schemas", name), "rt", encoding="utf-8") as lines:
        return sorted({pattern for line in lines for pattern in patterns_in(json.loads(line))})


def python_pattern(pattern: str) -> re.Pattern[str] | None:
    """The pattern as Python reads it; None if it cannot."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            return re.compile(pattern)
        except re.error:
            return None


def read_alike(pattern: str, text: str) -> bool:
    """Whether no character of the text is in classes that Python reads differently."""
    odd = set("\x1c\x1d\x1e\x1f\x85\ufeff\r\u2028\u2029")
    if text.endswith("\n") or odd & set(text):
        return False
    if re.search(r"\\[wWdDbB]", pattern):
        return not any(
            first <= ord(char) <= last for char in text if char > "\x7f" for first, last in python_word()
        )
    return True


@pytest.mark.parametrize("name", ["real_world.dev.jsonl.gz", "json_schema_test_suite.draft2020-12.jsonl.gz"])
def test_all_of_them_compile_and_agree_with_python(name: str) -> None:
    patterns = patterns_of(name)
    assert len(patterns) > 30
    compared = members = 0
    for pattern in patterns:
        dfa = compile_pattern(pattern)
        spelled = spell_texts(dfa)
        python = python_pattern(pattern)
        rng = random.Random(pattern)
        for _ in range(25):
            text = random_member(dfa, rng)
            for candidate in (text, *mutated(text, rng)):
                found = dfa.accepts(candidate)
                assert spelled.accepts(json.dumps(candidate, ensure_ascii=False).encode()) == found
                if python is not None and read_alike(pattern, candidate):
                    assert found == bool(python.search(candidate)), (pattern, candidate)
                    compared += 1
                    members += found
    assert compared > 1000
    assert members > compared // 10


def test_portable_ones_hold_under_both_readings() -> None:
    for pattern in patterns_of("real_world.dev.jsonl.gz"):
        python = python_pattern(pattern)
        assert python is not None
        dfa = compile_pattern(pattern, portable=True)
        rng = random.Random(pattern)
        for _ in range(20):
            text = random_member(dfa, rng)
            if dfa.accepts(text):
                assert python.search(text), (pattern, text)
