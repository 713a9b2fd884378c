"""Real titles with real tokenizers; the full 0.9 M run is benchmarks/index_build.py."""

from __future__ import annotations

import csv
import json
import os
import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from index_builder.build import build_index
from index_builder.config import BuildOptions
from retrieval.index.reader import Index
from retrieval.index.verification import verify
from retrieval.normalize import find_control, normalize
from retrieval.text import Rendering, TextTokenizer
from tests.index_fixtures import version_files, write_titles

pytestmark = pytest.mark.shared_data

SHARED = Path(os.environ.get("GENRET_SHARED_DATA", Path(__file__).parents[2] / "../shared/data"))
TOKENIZERS = {  # and an end token where the file names none
    "gpt2": None,
    "cl100k_base": "Ċ",
    "o200k_base": "Ċ",
    "mistral_v1_sp32k": None,
    "titles_bytebpe8k": None,
    "titles_unigram32k": None,
    "titles_wordpiece16k_uncased": None,
}
LOSSY = ("titles_unigram32k", "titles_wordpiece16k_uncased")  # the others have all 256 bytes


def shared(*parts: str) -> Path:
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{'/'.join(parts)} is not in GENRET_SHARED_DATA ({SHARED})")
    return path


def load(name: str) -> TextTokenizer:
    return TextTokenizer.load(shared("tokenizers", f"{name}.tokenizer.json"))


@pytest.mark.slow
def test_fifty_thousand_titles_come_back_token_for_token(tmp_path: Path) -> None:
    table = pq.read_table(shared("titles", "wikipedia_en.parquet"), columns=["title"])
    titles = table.column("title").to_pylist()[::18]
    assert len(titles) > 50_000
    source = write_titles(tmp_path / "wikipedia_titles.tsv", ["title", *titles])
    tokenizer = load("gpt2")
    first = build_index(source, tokenizer, BuildOptions(out=tmp_path / "first.index"))
    report = verify(first.index)
    assert report.ok, report.problems
    with Index.open(first.index) as index:
        assert index.num_entities == len(titles)
        chosen = random.Random(0).sample(titles, 1000)
        rows = tokenizer.encode_titles(chosen, Rendering())
        for title, row in zip(chosen, rows, strict=True):
            assert row is not None
            rank = index.row_of(row)
            assert index.row_token_ids(rank) == tuple(row)
            assert index.surface(rank) == title
            assert [index.entity(n).title for n in index.entities_of(rank)] == [title]
            assert tokenizer.decode(row) == title
    second = build_index(source, tokenizer, BuildOptions(out=tmp_path / "second.index"))
    assert first.version == second.version
    assert version_files(first) == version_files(second)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_odd_titles_come_back_or_are_refused_by_name(tmp_path: Path, name: str) -> None:
    with shared("titles", "edge_titles.tsv").open(encoding="utf-8", newline="") as file:
        edge = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    titles = [json.loads(row["title_json"]) for row in edge]
    titles += json.loads(shared("titles", "adversarial_synthetic.json").read_text(encoding="utf-8"))
    lines = [title.replace("\n", " ") for title in dict.fromkeys(titles)]
    source = write_titles(tmp_path / "odd.txt", lines)
    tokenizer = load(name)
    rendering = Rendering(end_token=TOKENIZERS[name])
    summary = build_index(
        source,
        tokenizer,
        BuildOptions(
            out=tmp_path / "odd.index",
            format="lines",
            rendering=rendering,
            max_bad_rows=200,
            rejects=tmp_path / "rejects.tsv",
        ),
    )
    assert ("unknown token" in summary.rejected) == (name in LOSSY)
    report = verify(summary.index)
    assert report.ok, report.problems
    refused = {int(row.split("\t")[0]) for row in (tmp_path / "rejects.tsv").read_text().splitlines()[1:]}
    with Index.open(summary.index) as index:
        assert index.vocab_size == tokenizer.vocab_size
        for number, line in enumerate(lines, start=1):
            title = normalize(line)
            if number in refused:
                ids = tokenizer.encode_text(title)
                unspellable = tokenizer.unknown_id in ids
                assert not ids or len(ids) > 255 or find_control(line) or "\t" in line or unspellable
                continue
            row = tokenizer.encode_titles([title], rendering)[0]
            assert row is not None
            assert tokenizer.unknown_id not in row
            rank = index.row_of(row)
            assert title in {index.surface(rank, n) for n in index.entities_of(rank)}


def test_wordpiece_titles_it_cannot_spell_are_bad_rows_with_their_lines(tmp_path: Path) -> None:
    tokenizer = load("titles_wordpiece16k_uncased")
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
