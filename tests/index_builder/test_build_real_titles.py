"""Nine hundred thousand real titles with a real tokenizer: built, read back, updated."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from index_builder.build import BuildSummary, build_index
from index_builder.build_options import BuildOptions
from index_builder.update import UpdateRequest, update_index
from retrieval.index.layout import MANIFEST_FILE
from retrieval.index.reader import Index
from retrieval.index.verification import verify
from retrieval.index.versions import version_dir
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
@pytest.mark.timeout(1800)
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


def fates(titles: Sequence[str]) -> dict[str, list[str]]:
    """Spread one per cent of changes over a catalogue: lines of each file, without headers."""
    files: dict[str, list[str]] = {name: [] for name in ("before", "add", "remove", "after")}
    for n, title in enumerate(titles):
        fate, line, retitled = n % 300, f"E{n}\t{title}\t{n % 7}", f"E{n}\t{title} (again)\t{n % 7}"
        if fate != 0:
            files["before"].append(line)
        if fate in (0, 2):
            files["add"].append(line if fate == 0 else retitled)
        if fate == 1:
            files["remove"].append(f"E{n}")
        else:
            files["after"].append(retitled if fate == 2 else line)
    return files


def content(summary: BuildSummary) -> tuple[dict[str, bytes], dict[str, object]]:
    """The data files of the live version, and its manifest without the history."""
    folder = version_dir(summary.index)
    files = {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}
    manifest = json.loads(files.pop(MANIFEST_FILE))
    del manifest["history"]
    return files, manifest


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_update_of_one_per_cent_equals_a_fresh_build(tmp_path: Path) -> None:
    titles = wikipedia_titles()
    tokenizer = load_tokenizer("gpt2")
    lines = fates(titles)
    header = ["entity_id\ttitle\tgroup"]
    before, add, after = (
        write_titles(tmp_path / f"{name}.tsv", header + lines[name]) for name in ("before", "add", "after")
    )
    remove = write_titles(tmp_path / "remove.txt", lines["remove"])
    base = build_index(before, tokenizer, BuildOptions(out=tmp_path / "updated.index"))
    request = UpdateRequest(add=(add,), remove=(remove,))
    update = update_index(request, tokenizer, BuildOptions(out=base.index))
    assert (update.parent, update.rejected) == (base.version, {})
    fresh = build_index(after, tokenizer, BuildOptions(out=tmp_path / "fresh.index"))
    assert content(base) == content(fresh)

    report = verify(base.index)
    assert report.ok, report.problems
    with Index.open(base.index) as index:
        step = index.manifest.history[-1]
        assert (step.operation, step.parent) == ("update", base.version)
        changed = len(titles) // 300
        assert {step.added, step.changed, step.removed} <= {changed, changed + 1}
        assert step.added + step.changed + step.removed == len(lines["add"]) + len(lines["remove"])
        ids = [f"E{300 * n + fate}" for n in range(SAMPLE) for fate in (0, 1, 2)]
        for n, number in zip(range(len(ids)), index.entities.numbers(ids).tolist(), strict=True):
            fate, title = n % 3, titles[300 * (n // 3) + n % 3]
            if fate == 1:
                assert number < 0
            else:
                assert index.entity(number).title == (title if fate == 0 else f"{title} (again)")


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
