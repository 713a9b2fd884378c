"""The commands inspect and verify, and the lines in which lengths are shown."""

from __future__ import annotations

import json
import re
from pathlib import Path

from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from genret.retrieval.index.inspect_command import inspect_command, verify_command
from genret.retrieval.index.summary import MAX_LINES, length_lines
from tests.index_fixtures import build, character_tokenizer

TOKENIZER = character_tokenizer("abcdefgh ")


def test_inspect_for_people_and_for_machines(tmp_path: Path) -> None:
    build(tmp_path, ["a", "b"], TOKENIZER)
    summary = build(tmp_path, ["title\taliases\tkind", "abc\tcab\tx", "b\t\t"], TOKENIZER)
    result = CliRunner().invoke(inspect_command, [str(summary.index)])
    assert result.exit_code == 0
    for text in ("2 kept", "abc", "kind", TOKENIZER.fingerprint, "trie.arrow", "per row"):
        assert text in result.stdout
    result = CliRunner().invoke(inspect_command, [str(summary.index), "--json"])
    facts = json.loads(result.stdout)
    assert facts["counts"]["rows"] == 3
    assert facts["lengths"] == {"2": 1, "4": 2}
    assert facts["version"] == summary.version == facts["versions"][0]["version"]
    assert [(v["live"], v["operation"], v["entities"]) for v in facts["versions"]] == [
        (True, "build", 2),
        (False, "build", 2),
    ]
    assert sum(file["bytes"] for file in facts["files"].values()) == facts["bytes"]
    assert {sample["surface"] for sample in facts["samples"]} == {"abc", "cab", "b"}


def test_verify_says_sound(tmp_path: Path) -> None:
    summary = build(tmp_path, ["a", "b"], TOKENIZER)
    result = CliRunner().invoke(verify_command, [str(summary.index)])
    assert (result.exit_code, result.stderr) == (0, "")
    assert "sound" in result.stdout
    assert json.loads(CliRunner().invoke(verify_command, [str(summary.index), "--json"]).stdout)["ok"]


def test_verify_names_every_damaged_file_and_fails(tmp_path: Path) -> None:
    summary = build(tmp_path, ["a", "b"], TOKENIZER)
    folder = summary.index / "versions" / summary.version
    for name in ("trie.arrow", "entities.arrow"):
        data = bytearray((folder / name).read_bytes())
        data[len(data) // 2] ^= 1
        (folder / name).write_bytes(data)
    result = CliRunner().invoke(verify_command, [str(summary.index)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{folder / 'trie.arrow'}: the manifest says digest" in result.stderr
    assert "entities.arrow" in result.stderr
    result = CliRunner().invoke(verify_command, [str(summary.index), "--json"])
    assert result.exit_code == 1
    assert [p["file"] for p in json.loads(result.stdout)["problems"]] == ["entities.arrow", "trie.arrow"]


def test_no_index_is_one_line(tmp_path: Path) -> None:
    for command in (inspect_command, verify_command):
        result = CliRunner().invoke(command, [str(tmp_path / "absent")])
        assert result.exit_code == 1
        assert result.stderr == f"Error: {tmp_path / 'absent'}: no such directory\n"


def test_a_file_in_the_place_of_an_index_is_called_one(tmp_path: Path) -> None:
    file = tmp_path / "titles.tsv"
    file.write_text("title\na\n")
    for command in (inspect_command, verify_command):
        result = CliRunner().invoke(command, [str(file)])
        assert result.exit_code == 1
        assert (
            result.stderr
            == f"Error: {file}: not an index: it is a file; expected the directory of an index\n"
        )


@given(st.dictionaries(st.integers(1, 3000), st.integers(1, 10**9), min_size=1, max_size=300))
def test_every_row_is_in_one_of_few_lines(lengths: dict[int, int]) -> None:
    lines = length_lines(dict(sorted(lengths.items())), "#", 30)
    assert len(lines) <= MAX_LINES
    covered = dict.fromkeys(lengths, 0)
    for line in lines:
        found = re.fullmatch(r" *(\d+)(?:–(\d+))? +([\d,]+) (#{1,30})", line)
        assert found is not None, line
        begin, end = int(found[1]), int(found[2] or found[1])
        inside = [length for length in lengths if begin <= length <= end]
        assert int(found[3].replace(",", "")) == sum(lengths[length] for length in inside)
        for length in inside:
            covered[length] += 1
    assert set(covered.values()) == {1}


def test_few_lengths_have_a_line_each() -> None:
    assert length_lines({2: 4, 7: 2}, "#", 4) == ["        2            4 ####", "        7            2 ##"]
