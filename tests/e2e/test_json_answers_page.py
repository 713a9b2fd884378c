"""docs/json-answers.md says of every keyword and format what the code does, and its examples run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from genret.decoding.grammar.compile_options import CompileLimits, GrammarOptions
from genret.decoding.grammar.regular.formats import FORMATS, Enforcement
from genret.decoding.grammar.schema import keywords
from genret.retrieval.answers.answer_types import ANSWER_METHODS
from genret.retrieval.answers.schema_explanation import explain

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "json-answers.md").read_text(encoding="utf-8")
DRAFTS = (
    keywords.UNDECLARED,
    keywords.DRAFT_2020_12,
    keywords.DRAFT_2019_09,
    keywords.DRAFT_7,
    keywords.DRAFT_6,
    keywords.DRAFT_4,
)


def rows(heading: str) -> list[list[str]]:
    """Cells of the table under a heading, without its first two lines."""
    section = re.split(r"^#+ ", PAGE, flags=re.M)
    (found,) = [part for part in section if part.startswith(f"{heading}\n")]
    table = [line for line in found.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_table_of_keywords_is_that_of_the_code() -> None:
    written = {name: role for cell, role, _ in rows("Keywords") for name in names(cell)}
    known = {name: keyword.role for draft in DRAFTS for name, keyword in draft.items()}
    assert written == known
    assert len(written) == sum(len(names(cell)) for cell, *_ in rows("Keywords")), "a keyword stands twice"


def test_the_table_of_formats_is_that_of_the_code() -> None:
    exactly, in_part = (names(cell) for cell, _ in rows("Formats"))
    assert set(exactly) == {name for name, how in FORMATS.items() if how is Enforcement.EXACT}
    assert set(in_part) == {name for name, how in FORMATS.items() if how is Enforcement.SUBSET}


def test_methods_and_limits_are_those_of_the_code() -> None:
    assert tuple(names(cell)[0] for cell, *_ in rows("Methods")) == ANSWER_METHODS
    limits = CompileLimits()
    assert (limits.schema_bytes, limits.depth) == (1 << 20, 128)
    assert (limits.nodes, limits.automaton_states, limits.seconds) == (50_000, 50_000, 2.0)
    flat = " ".join(PAGE.split())
    assert "at most 1 MiB and 128 levels" in flat
    assert "50,000 values and containers, an automaton to 50,000 states" in flat
    assert "take 2 seconds" in flat


def test_its_schemas_can_be_used_and_are_explained_as_it_says() -> None:
    schemas = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert len(schemas) == 2
    for schema in schemas:
        json.loads(schema)
        assert explain(schema, GrammarOptions.for_writing()).refusal == ""
    (said,) = re.findall(r"--explain-schema\n(.*?)```", PAGE, re.DOTALL)
    assert said.rstrip("\n") == explain(schemas[0], GrammarOptions.for_writing()).lines()


def run(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_grammar_by_hand_prints_what_the_page_says() -> None:
    (example,) = re.findall(r"```python\n([^`]*compile_schema.*?)```\n```\n(.*?)```", PAGE, re.DOTALL)
    code, printed = example
    assert run(code, ROOT) == printed


def test_the_grammar_engine_alone_does_what_its_readme_says_without_torch() -> None:
    readme = (ROOT / "decoding" / "grammar" / "README.md").read_text(encoding="utf-8")
    ((code, printed),) = re.findall(r"```python\n(.*?)```\n```\n(.*?)```", readme, re.DOTALL)
    assert run(f"{code}\nimport sys\nassert 'torch' not in sys.modules", ROOT) == printed


@pytest.mark.slow
def test_the_first_answer_is_written(tmp_path: Path) -> None:
    from genret.index_builder.build import build_index
    from genret.index_builder.build_options import BuildOptions
    from genret.retrieval.prompts import CheckpointConfig
    from genret.retrieval.text import TextTokenizer

    checkpoint = ROOT / "data" / "small-model"
    rendering = CheckpointConfig.load(checkpoint).title_rendering()
    assert rendering is not None
    options = BuildOptions(out=tmp_path / "sample.index", rendering=rendering)
    build_index(ROOT / "data" / "catalogue.tsv", TextTokenizer.load(checkpoint), options)
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    answer, entity, figures = run(code, tmp_path).splitlines()
    assert re.search(r" (person|city|chemical element|animal|book|film)$", answer)
    assert re.fullmatch(r"/title \['\w+\.[^']+'(, '[^']+')*\]", entity)
    assert re.fullmatch(r"\d+ tokens, \d+ of them forced", figures)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": ["string", "null"], "x-genret-index": "titles"}, ""),
        ({"type": "string", "x-genret-index": "titles", "minLength": 3}, "cannot be combined"),
        ({"propertyNames": {"type": "string", "x-genret-index": "titles"}}, "keys cannot be taken"),
        ({"type": "string", "x-genret-filter": "a = 1"}, "expected x-genret-index beside it"),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "minItems": 64}, ""),
        (
            {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "minItems": 65},
            "more than 64",
        ),
        ({"type": "array", "items": {"type": "object"}, "uniqueItems": True}, "cannot be compared"),
        ({"type": "string", "pattern": r"(a)\1"}, "back-reference"),
        ({"type": "string", "pattern": "{,3}"}, "not all read alike"),
        ({"type": "number", "multipleOf": 0.0001}, ""),
        ({"type": "number", "multipleOf": 0.0001234567}, "more than 50,000 states"),
        ({"type": "string", "format": "a-format-of-ours"}, ""),
    ],
)
def test_what_the_page_calls_refused_is_refused_and_nothing_else(schema: object, words: str) -> None:
    # With time enough for a machine that does other things as well.
    options = GrammarOptions.for_writing(CompileLimits(seconds=60.0))
    refusal = explain(json.dumps(schema), options).refusal
    assert words in refusal
    assert bool(refusal) == bool(words)
