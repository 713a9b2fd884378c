"""Nine hundred thousand real titles with a real tokenizer: built and read back."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from index_builder.build import build_index
from index_builder.config import BuildOptions
from retrieval.index.reader import Index
from retrieval.index.verification import verify
from retrieval.text import Rendering, TextTokenizer
from tests.index_fixtures import version_files, write_titles
from tests.shared_titles import load_tokenizer, wikipedia_titles

pytestmark = pytest.mark.shared_data

SAMPLE = 1000


def check_titles(index: Index, tokenizer: TextTokenizer, titles: Sequence[str]) -> None:
    rows = tokenizer.encode_titles(titles, Rendering())
    for title, row in zip(titles, rows, strict=True):
        assert row is not None
        rank = index.row_of(row)
        assert index.row_token_ids(rank) == tuple(row)
        assert index.surface(rank) == title
        assert [index.entity(number).title for number in index.entities_of(rank)] == [title]
        assert tokenizer.decode(row) == title


@pytest.mark.slow
def test_all_titles_come_back_token_for_token(tmp_path: Path) -> None:
    titles = wikipedia_titles()
    assert len(titles) > 900_000
    source = write_titles(tmp_path / "wikipedia_titles.tsv", ["title", *titles])
    tokenizer = load_tokenizer("gpt2")
    first = build_index(source, tokenizer, BuildOptions(out=tmp_path / "first.index"))
    report = verify(first.index)
    assert report.ok, report.problems
    with Index.open(first.index) as index:
        assert index.num_entities == len(titles)
        check_titles(index, tokenizer, random.Random(0).sample(titles, SAMPLE))
    second = build_index(source, tokenizer, BuildOptions(out=tmp_path / "second.index"))
    assert first.version == second.version
    assert version_files(first) == version_files(second)


def test_wordpiece_titles_it_cannot_spell_are_bad_rows_with_their_lines(tmp_path: Path) -> None:
    tokenizer = load_tokenizer("titles_wordpiece16k_uncased")
    unknown = tokenizer.token_id("[UNK]")
    assert tokenizer.unknown_id == unknown is not None
    # One row for both before they were refused: whoever asked for one got the other.
    rows = tokenizer.encode_titles(["鰭", "땀"], Rendering())
    assert rows[0] == rows[1] == [unknown, tokenizer.end_token_id(Rendering())]
    lines = ["title\taliases", "Nile\tan-Nil", "鰭\t", "Sweat\tperspiration|땀", "Zürich\tZuerich"]
    source = write_titles(tmp_path / "titles.tsv", lines)
    options = BuildOptions(
        out=tmp_path / "it.index", max_bad_rows=2, rejects=tmp_path / "bad.tsv", keep_versions=0
    )
    summary = build_index(source, tokenizer, options)
    assert summary.rejected == {"unknown token": 2}
    assert (tmp_path / "bad.tsv").read_text(encoding="utf-8").splitlines()[1:] == [
        "3\tunknown token\tcannot spell '鰭'\t'鰭'",
        "4\tunknown token\tcannot spell '땀'\t'땀'",
    ]
    with Index.open(summary.index) as index:
        assert {index.entity(n).title for n in range(index.num_entities)} == {"Nile", "Zürich"}
