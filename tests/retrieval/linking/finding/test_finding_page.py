"""docs/finding-mentions.md: its example runs, and its table has the defaults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from retrieval.linking.finding.find_options import FindOptions
from retrieval.linking.finding.finder import LONGEST_NAME_CHARS, LOOK_BACK_CHARS
from tests.index_fixtures import build, character_tokenizer

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "finding-mentions.md").read_text(encoding="utf-8")


def test_the_example_prints_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, flags=re.M | re.S)
    (catalogue,) = [text for language, text in blocks if language == "json"]
    (code,) = [text for language, text in blocks if language == "python"]
    (output,) = [text for language, text in blocks if language == ""]
    build(tmp_path, catalogue.splitlines(), character_tokenizer(catalogue.replace("\n", "")), "cities.index")
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    exec(compile(code, "finding-mentions.md", "exec"), {})
    assert capsys.readouterr().out == output


def test_the_table_has_the_defaults() -> None:
    rows = re.findall(r"^\| `(--[\w-]+)` \| `(\w+)` \| `?(\w+)`? \|", PAGE, flags=re.M)
    fields = FindOptions.__dataclass_fields__
    assert [field for _, field, _ in rows] == list(fields)
    for flag, field, default in rows:
        assert flag == "--" + field.replace("_", "-")
        assert default == str(fields[field].default)


def test_the_page_has_the_limits() -> None:
    assert f"more than {LONGEST_NAME_CHARS:,} characters" in PAGE
    assert f"{LOOK_BACK_CHARS:,} characters back" in PAGE
