"""Publication of versions, and builds that are cut short and resumed: nobody can tell from the index."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.index_builder.build import BuildSummary, build_index
from genret.index_builder.build_options import MIB, BuildOptions
from genret.retrieval.errors import IndexDirectoryError, SourceError
from genret.retrieval.index.reader import Index
from genret.retrieval.index.verification import verify
from genret.retrieval.index.versions import list_versions, live_version
from genret.retrieval.sources.columns import ColumnMapping, ColumnType
from genret.retrieval.text import Rendering, TextTokenizer
from tests.index_fixtures import Notes, build, character_tokenizer, fault, flip, version_files, write_titles

TOKENIZER = character_tokenizer("abcdefgh ")


def surfaces(index: Path) -> list[str]:
    with Index.open(index) as opened:
        return [opened.surface(rank) for rank in range(opened.num_rows)]


def test_the_last_versions_are_kept(tmp_path: Path) -> None:
    made = [build(tmp_path, [title], TOKENIZER).version for title in "abcde"]
    assert list_versions(tmp_path / "it.index") == [made[4], made[3], made[2]]
    assert build(tmp_path, ["a"], TOKENIZER, keep_versions=0).before == f"{made[4]}, 1 entities"
    assert list_versions(tmp_path / "it.index") == [made[0]]


def test_going_back_to_an_old_version_uses_it_again(tmp_path: Path) -> None:
    first = build(tmp_path, ["a"], TOKENIZER)
    inode = first.index.joinpath("versions", first.version).stat().st_ino
    second = build(tmp_path, ["b"], TOKENIZER)
    assert f"before: {first.version}, 1 entities; genret rollback {first.index} --to" in str(second)
    assert build(tmp_path, ["a"], TOKENIZER).version == first.version == live_version(first.index)
    assert first.index.joinpath("versions", first.version).stat().st_ino == inode
    assert list_versions(first.index) == [first.version, second.version]


def test_a_rebuild_repairs_a_damaged_version(tmp_path: Path) -> None:
    summary = build(tmp_path, ["a", "b"], TOKENIZER)
    flip(summary.index / "versions" / summary.version / "trie.arrow", at=-1)
    assert not verify(summary.index).ok
    assert build(tmp_path, ["a", "b"], TOKENIZER).version == summary.version
    assert verify(summary.index).ok
    assert sorted(p.name for p in summary.index.iterdir()) == [".lock", "CURRENT", "versions"]


def test_a_damaged_pointer_is_replaced(tmp_path: Path) -> None:
    summary = build(tmp_path, ["a"], TOKENIZER)
    (summary.index / "CURRENT").write_text("nonsense")
    build(tmp_path, ["b"], TOKENIZER)
    assert surfaces(summary.index) == ["b"]


@pytest.mark.fault
def test_a_failing_build_leaves_the_live_version(tmp_path: Path) -> None:
    summary = build(tmp_path, ["a"], TOKENIZER)
    with pytest.raises(SourceError):
        build(tmp_path, ["b", "c\td"], TOKENIZER)
    assert surfaces(summary.index) == ["a"]
    assert not (summary.index / "staging").exists()
    with pytest.raises(SourceError):
        build(tmp_path, ["b", "c\td"], TOKENIZER, name="fresh.index")
    assert not (tmp_path / "fresh.index").exists()


def test_other_peoples_directories_and_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    with pytest.raises(IndexDirectoryError, match=r"other files in it \(thesis.tex\)"):
        build(tmp_path, ["a"], TOKENIZER, name="home")
    assert (tmp_path / "home" / "thesis.tex").read_text() == "years of work"
    (tmp_path / "file").write_text("x")
    with pytest.raises(IndexDirectoryError, match="is a file"):
        build(tmp_path, ["a"], TOKENIZER, name="file")
    (tmp_path / "empty").mkdir()
    build(tmp_path, ["a"], TOKENIZER, name="empty")


@pytest.mark.fault
@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_an_unwritable_place_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(IndexDirectoryError, match="cannot write the index: Permission denied"):
        build(tmp_path, ["a"], TOKENIZER, name="closed/it.index")


ABC = character_tokenizer("abcdefgh ABC#0123456789")
WORDS = st.text("abcA", min_size=1, max_size=4)
CELLS = st.sampled_from(["", "1", "2.5", "x", "true"])


def cut_short(source: Path, options: BuildOptions, shards: int, tokenizer: TextTokenizer = ABC) -> None:
    """Build until that many shards are finished."""
    with fault(f"shard-journalled:interrupt:{shards}"), pytest.raises(KeyboardInterrupt):
        build_index(source, tokenizer, options)


def begun(
    folder: Path, lines: Sequence[str], shards: int, shard_records: int = 1, **options: Any
) -> tuple[Path, BuildOptions]:
    """Write a source and build it until that many shards are finished."""
    source = write_titles(folder / "titles.tsv", lines)
    wanted = BuildOptions(out=folder / "it.index", shard_records=shard_records, **options)
    cut_short(source, wanted, shards)
    return source, wanted


def work(options: BuildOptions) -> Path:
    (folder,) = (options.out / "work").iterdir()
    return folder


def files(summary: BuildSummary) -> dict[str, bytes]:
    assert sorted(p.name for p in summary.index.iterdir()) == [".lock", "CURRENT", "versions"]
    return version_files(summary)


@settings(max_examples=25)
@given(st.lists(st.tuples(WORDS, WORDS, CELLS), min_size=1, max_size=12), st.booleans(), st.integers(1, 5))
def test_an_interruption_at_any_border_of_shards_leaves_no_trace(
    entries: list[tuple[str, str, str]], with_ids: bool, shard_records: int
) -> None:
    header = "entity_id\ttitle\taliases\tkind" if with_ids else "title\taliases\tkind"
    lines = [
        f"q{i % 9}\t{t}\t{a}\t{k}" if with_ids else f"{t}\t{a}\t{k}" for i, (t, a, k) in enumerate(entries)
    ]
    with tempfile.TemporaryDirectory() as folder:
        source = write_titles(Path(folder) / "titles.tsv", [header, *lines])
        allowed = {"max_bad_rows": len(lines)}
        whole = build_index(source, ABC, BuildOptions(out=Path(folder) / "whole.index", **allowed))
        options = BuildOptions(out=Path(folder) / "it.index", shard_records=shard_records, **allowed)
        shards = -(-len(lines) // shard_records)
        for finished in range(1, shards + 1):
            cut_short(source, options, finished)
            resumed = build_index(source, ABC, options)
            assert resumed.resumed_shards == finished
            assert resumed.rejected == whole.rejected
            assert files(resumed) == files(whole)
            shutil.rmtree(options.out)


def test_shards_of_one_run_may_have_another_size_than_those_of_the_next(tmp_path: Path) -> None:
    source = write_titles(tmp_path / "titles.tsv", [f"{a}{b}" for a in "abcdefgh" for b in "abcdefgh"])
    whole = build_index(source, ABC, BuildOptions(out=tmp_path / "whole.index"))
    out = tmp_path / "it.index"
    cut_short(source, BuildOptions(out=out, shard_records=5), 3)
    cut_short(source, BuildOptions(out=out, shard_records=7), 2)
    notes = Notes()
    resumed = build_index(source, ABC, BuildOptions(out=out, memory_limit=512 * MIB), notes)
    assert notes.notes == ["resuming: 29 records in 5 shards are already tokenised"]
    assert (resumed.resumed_shards, resumed.resumed_records) == (5, 29)
    assert files(resumed) == files(whole)


def test_a_torn_line_of_the_journal_is_no_line(tmp_path: Path) -> None:
    source, options = begun(tmp_path, "abcdefgh", 3, shard_records=2)
    whole = build_index(source, ABC, BuildOptions(out=tmp_path / "whole.index"))
    data = (work(options) / "journal.jsonl").read_bytes()
    lines = data.splitlines(keepends=True)
    torn = [(data[:cut], left) for cut, left in ((-1, 2), (-20, 2), (len(lines[0]) + 1, 1), (3, 0), (0, 0))]
    for journal, left in (*torn, (lines[0] + b"nonsense\n" + lines[2], 1)):
        cut_short(source, options, 3) if not options.out.exists() else None
        (work(options) / "journal.jsonl").write_bytes(journal)
        resumed = build_index(source, ABC, options)
        assert resumed.resumed_shards == left
        assert files(resumed) == files(whole)
        shutil.rmtree(options.out)


@pytest.mark.parametrize("file", ["numbers", "texts.arrow"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_shard_and_those_behind_it_are_made_again(tmp_path: Path, file: str, damage: str) -> None:
    source, options = begun(tmp_path, "abcdefgh", 3, shard_records=2)
    whole = build_index(source, ABC, BuildOptions(out=tmp_path / "whole.index"))
    path = work(options) / "shard-00001" / file
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
    path.write_bytes(data[:-1] if damage == "cut" else data)
    if damage == "remove":
        path.unlink()
    resumed = build_index(source, ABC, options)
    assert resumed.resumed_shards == 1
    assert files(resumed) == files(whole)


@pytest.mark.parametrize(
    "change",
    [
        {"max_title_tokens": 9},
        {"rendering": Rendering(prefix="a")},
        {"format": "tsv"},
        {"unescape_html": True},
        {"mapping": ColumnMapping(types={"kind": ColumnType.STRING})},
        {"mapping": ColumnMapping(metadata=("kind",))},
        {"mapping": ColumnMapping(weight="kind")},
    ],
)
def test_other_options_do_not_go_on_with_the_work(tmp_path: Path, change: dict[str, object]) -> None:
    source = write_titles(tmp_path / "titles.tsv", ["title\tkind", "a\t1", "b\t2", "c\t3"])
    options = {"out": tmp_path / "it.index", "shard_records": 1}
    cut_short(source, BuildOptions(**options), 2)  # type: ignore[arg-type]
    before = work(BuildOptions(**options)).name  # type: ignore[arg-type]
    changed = BuildOptions(**{**options, **change})  # type: ignore[arg-type]
    cut_short(source, changed, 1)
    assert work(changed).name != before  # and the old work is gone
    assert build_index(source, ABC, changed).resumed_shards == 1


def test_another_input_or_tokenizer_does_not_go_on_with_the_work(tmp_path: Path) -> None:
    source, options = begun(tmp_path, "abc", 2)
    write_titles(source, list("abd"))
    assert build_index(source, ABC, options).resumed_shards == 0
    cut_short(source, options, 2)
    assert build_index(source, character_tokenizer("abcd"), options).resumed_shards == 0


def test_what_does_not_shape_the_shards_may_change(tmp_path: Path) -> None:
    source, _ = begun(tmp_path, ["a", "b", "", "c"], 2)
    other = {"max_bad_rows": 1, "keep_versions": 0, "memory_limit": 700 * MIB, "rejects": tmp_path / "bad"}
    options = BuildOptions(out=tmp_path / "it.index", **other)  # type: ignore[arg-type]
    summary = build_index(source, ABC, options)
    assert (summary.resumed_shards, summary.rejected) == (2, {"no title": 1})


def test_rejects_of_finished_shards_come_from_the_journal(tmp_path: Path) -> None:
    lines = ["title\tkind", "a\tx", "\tx", "b\ty", "c", "d\ty", "", "e\tz"]
    rejects = tmp_path / "bad.tsv"
    source, options = begun(tmp_path, lines, 3, max_bad_rows=3, rejects=rejects)
    summary = build_index(source, ABC, options)
    assert summary.rejected == {"no title": 2, "too few fields": 1}
    numbers = [line.split("\t")[0] for line in rejects.read_text().splitlines()]
    assert numbers == ["line", "3", "5", "7"]
    assert summary.manifest.history[-1].records == 7


def test_bad_rows_remove_the_work_and_a_mistyped_name_does_not(tmp_path: Path) -> None:
    source, options = begun(tmp_path, ["a", "b", "", "c"], 2)
    with pytest.raises(SourceError, match="no such file"):
        build_index(tmp_path / "title.tsv", ABC, options)
    assert work(options).is_dir()
    with pytest.raises(SourceError, match="line 3: no title"):
        build_index(source, ABC, options)
    assert not options.out.exists()


def test_progress_counts_on_over_the_borders_of_shards(tmp_path: Path) -> None:
    source = write_titles(tmp_path / "titles.tsv", list("abcdef"))
    notes = Notes()
    build_index(source, ABC, BuildOptions(out=tmp_path / "it.index", shard_records=2), notes)
    assert [note for note in notes.advances if note.endswith(" rows")] == ["2 rows", "4 rows", "6 rows"]


def test_bad_rows_behind_the_last_shard_count_for_the_types_of_columns(tmp_path: Path) -> None:
    source = write_titles(tmp_path / "titles.tsv", ["title\tkind", "a\t1", "b\t2", "abcdefgh\tx"])
    limits = {"max_bad_rows": 1, "max_title_tokens": 4}
    whole = build_index(source, ABC, BuildOptions(out=tmp_path / "whole.index", **limits))
    parts = build_index(source, ABC, BuildOptions(out=tmp_path / "it.index", shard_records=1, **limits))
    assert whole.manifest.metadata == parts.manifest.metadata
    assert files(parts) == files(whole)
