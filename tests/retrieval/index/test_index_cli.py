"""The commands inspect and verify, lines of lengths, and the plots of an index."""

from __future__ import annotations

import json
import re
import statistics
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genret.decoding.trie.trie_arrays import derive_trie
from genret.retrieval.errors import InputError
from genret.retrieval.index.inspect_command import inspect_command, verify_command
from genret.retrieval.index.plots import IndexShape, TrieDepth, draw, human, trie_levels
from genret.retrieval.index.reader import Index
from genret.retrieval.index.summary import MAX_LINES, length_lines
from tests.commands import json_of, refusal, run, succeed
from tests.index_fixtures import build, character_tokenizer, flip
from tests.trie_oracles import flatten


def test_inspect_for_people_and_for_machines(tmp_path: Path) -> None:
    build(tmp_path, ["a", "b"], TOKENIZER)
    summary = build(tmp_path, ["title\taliases\tkind", "abc\tcab\tx", "b\t\t"], TOKENIZER)
    said = succeed(inspect_command, summary.index).stdout
    for text in ("2 kept", "abc", "kind", TOKENIZER.fingerprint, "trie.arrow", "per row"):
        assert text in said
    facts = json_of(inspect_command, summary.index, "--json")
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
    result = succeed(verify_command, summary.index)
    assert result.stderr == ""
    assert "sound" in result.stdout
    assert json_of(verify_command, summary.index, "--json")["ok"]


def test_verify_names_every_damaged_file_and_fails(tmp_path: Path) -> None:
    summary = build(tmp_path, ["a", "b"], TOKENIZER)
    folder = summary.index / "versions" / summary.version
    for name in ("trie.arrow", "entities.arrow"):
        flip(folder / name)
    said = refusal(verify_command, summary.index, code=1)
    assert f"{folder / 'trie.arrow'}: the manifest says digest" in said
    assert "entities.arrow" in said
    result = run(verify_command, summary.index, "--json")
    assert result.exit_code == 1
    assert [p["file"] for p in json.loads(result.stdout)["problems"]] == ["entities.arrow", "trie.arrow"]


def test_what_is_no_index_is_one_line(tmp_path: Path) -> None:
    absent, file, begun = tmp_path / "absent", tmp_path / "titles.tsv", tmp_path / "begun"
    file.write_text("title\na\n")
    (begun / "work").mkdir(parents=True)
    expected = "expected a directory that genret build made"
    for command in (inspect_command, verify_command):
        for place, said in (
            (absent, "no such directory"),
            (file, f"not an index: it is a file; {expected}"),
            (tmp_path, f"not an index: it has no file CURRENT; {expected}"),
            (begun, "not an index yet: its build is not done; if it was cut short, run it again, it goes on"),
        ):
            assert refusal(command, place, code=1) == f"Error: {place}: {said}"


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


TOKENIZER = character_tokenizer("abcdefgh ")
TITLES = ["a", "ab", "abc", "abd", "bad", "bead", "head", "headed", "beheaded"]
END = 0
ROWS = st.sets(st.lists(st.integers(1, 3), max_size=6).map(lambda row: (*row, END)), min_size=1, max_size=40)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return build(tmp_path, TITLES, TOKENIZER).index


def levels_by_hand(rows: set[tuple[int, ...]]) -> list[TrieDepth]:
    """A prefix is stored when several rows share it without its last token, or when it is that short."""
    levels = []
    for depth in range(max(map(len, rows)) + 1):
        below: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        for row in rows:
            parents = sum(other[: depth - 1] == row[: depth - 1] for other in rows)
            if len(row) >= depth and (depth < 2 or parents > 1):
                below.setdefault(row[:depth], []).append(row)
        if not below:
            break
        children = [len({r[depth] for r in group}) for group in below.values() if len(group) > 1 or not depth]
        median = float(statistics.median(children)) if children else 0.0
        levels.append(TrieDepth(depth, len(below), len(children), median, max(children, default=0)))
    return levels


@given(ROWS)
def test_levels_are_those_counted_by_hand(rows: set[tuple[int, ...]]) -> None:
    trie = derive_trie(*flatten(sorted(rows)))
    levels = list(trie_levels(trie.child_begin))
    assert levels == levels_by_hand(rows)
    assert max(level.max_children for level in levels) == trie.max_children


def test_shape_of_an_index(index: Path) -> None:
    with Index.open(index) as opened:
        shape = IndexShape.of(opened)
        rows = {opened.row_token_ids(rank) for rank in range(opened.num_rows)}
    assert (shape.num_rows, shape.num_entities) == (len(TITLES), len(TITLES))
    assert list(shape.levels) == levels_by_hand(rows)
    lengths = sorted({len(title) + 1 for title in TITLES})
    assert [p.length for p in shape.paddings] == lengths
    assert shape.bucket_bytes == sum(len(title) + 1 for title in TITLES)  # ids fit into a byte
    assert shape.padded_bytes == len(TITLES) * lengths[-1]


def test_draws_a_file_of_the_kind_that_its_name_says(index: Path, tmp_path: Path) -> None:
    magic = {".png": b"\x89PNG\r\n\x1a\n", ".svg": b"<?xml"}
    with Index.open(index) as opened:
        for target in ("one.svg", "new/folder/one.PNG"):
            (file,) = draw(opened, tmp_path / target)
            assert file.read_bytes().startswith(magic[file.suffix.lower()])


@pytest.mark.parametrize("titles", [["a"], ["a" * 250], ["a", "b" * 200]], ids=["one", "long", "two"])
def test_draws_the_smallest_indexes(tmp_path: Path, titles: list[str]) -> None:
    with Index.open(build(tmp_path, titles, TOKENIZER).index) as opened:
        (file,) = draw(opened, tmp_path / "shape.png")
        assert sum(level.nodes for level in IndexShape.of(opened).levels) == 1 + len(titles)
    assert file.stat().st_size > 10_000


def test_the_same_index_gives_the_same_bytes(index: Path, tmp_path: Path) -> None:
    import matplotlib

    (tmp_path / "first.d").mkdir()  # the suffix of a folder does not count
    with Index.open(index) as opened:
        files = draw(opened, tmp_path / "first.d")
        first = [file.read_bytes() for file in files]
        assert [file.suffix for file in files] == [".png", ".svg"], "one of each kind"
        with matplotlib.rc_context({"axes.facecolor": "red", "svg.hashsalt": "another"}):
            second = [file.read_bytes() for file in draw(opened, tmp_path / "second")]
            assert matplotlib.rcParams["axes.facecolor"] == "red"
    assert first == second


def test_a_file_that_cannot_be_written_is_an_input_error(index: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with Index.open(index) as opened, pytest.raises(InputError, match="cannot be written"):
        draw(opened, tmp_path / "taken" / "figure.png")


def test_inspect_draws_and_names_the_files(index: Path, tmp_path: Path) -> None:
    file = tmp_path / "shape.svg"
    assert f"drawn       {file}" in succeed(inspect_command, index, "--plots", file).stdout
    assert file.stat().st_size > 10_000
    assert json_of(inspect_command, index, "--json", "--plots", tmp_path / "plots")["plots"] == [
        str(tmp_path / "plots" / f"index-shape.{suffix}") for suffix in ("png", "svg")
    ]


def test_inspect_refuses_in_one_line(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = refusal(inspect_command, index, "--plots", tmp_path / "figure.pdf")
    assert "Error: --plots: expected a directory or a file ending in .png or .svg" in said
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert refusal(inspect_command, index, "--plots", tmp_path / "figure.png", code=1) == (
        "Error: this needs the package 'matplotlib', which is not installed; "
        "install it with: pip install 'generative-retrieval[plots]'"
    )


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.7, "1 kB"),
        (1000, "1 kB"),
        (1_234_000, "1.23 MB"),
        (4e9, "4 GB"),
        (2e16, "2e+04 TB"),
    ],
)
def test_sizes_are_short(num_bytes: float, text: str) -> None:
    assert human(num_bytes) == text
