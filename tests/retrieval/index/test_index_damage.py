"""Every file damaged in every way: a typed error that names the file, never a crash or a wrong answer."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from genret.index_builder.build import BuildSummary
from genret.retrieval.errors import (
    IndexChecksumError,
    IndexDirectoryError,
    IndexFormatError,
    IndexMismatchError,
    IndexNotFoundError,
    IndexVersionError,
)
from genret.retrieval.index.manifest import Manifest
from genret.retrieval.index.reader import Index
from genret.retrieval.index.small_files import digest_bytes
from genret.retrieval.index.verification import verify
from tests.index_fixtures import build, character_tokenizer
from tests.vector_fixtures import rename

TOKENIZER = character_tokenizer("abcdefgh ")
LINES = [
    "entity_id\ttitle\taliases\tkind\tarea",
    "1\tabc\tcab|bad\tx\t1.5",
    "2\tabc\t\ty\t2.5",
    "3\tc\ta\t\t",
    "4\tbcd\t\tz\t-0.5",
]
FILES = (
    "CURRENT",
    "manifest.json",
    "trie.arrow",
    "entities.arrow",
    "postings.arrow",
    "title_order.arrow",
    "rows/len-00002.arrow",
    "rows/len-00004.arrow",
)


@pytest.fixture
def summary(tmp_path: Path) -> BuildSummary:
    return build(tmp_path, LINES, TOKENIZER, evidence=None)


def locate(summary: BuildSummary, name: str) -> Path:
    if name == "CURRENT":
        return summary.index / name
    return summary.index / "versions" / summary.version / name


def reported(index: Path, name: str) -> bool:
    """Whether `verify` raises a typed error about, or reports, this file."""
    try:
        return name in {problem.file for problem in verify(index).problems}
    except IndexDirectoryError as error:
        return name in str(error)


def test_these_are_all_files(summary: BuildSummary) -> None:
    assert {file.name for file in summary.manifest.files} == set(FILES[2:])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("digests", [True, False])
def test_a_truncated_or_grown_file_is_found_without_digests(
    summary: BuildSummary, name: str, digests: bool
) -> None:
    file = locate(summary, name)
    sound = file.read_bytes()
    for data in (b"", sound[:1], sound[: len(sound) // 2], sound[:-2], sound + b"\0"):
        file.write_bytes(data)
        with pytest.raises(IndexDirectoryError, match=name):
            Index.open(summary.index, verify_digests=digests)
        assert reported(summary.index, name)


def test_no_index(tmp_path: Path) -> None:
    with pytest.raises(IndexNotFoundError, match="not an index"):
        Index.open(tmp_path)


def test_current_names_an_absent_version(summary: BuildSummary) -> None:
    (summary.index / "CURRENT").write_text("0" * 32 + "\n")
    with pytest.raises(IndexFormatError, match="not there"):
        Index.open(summary.index)


def test_another_format_version_is_refused_by_number(summary: BuildSummary) -> None:
    file = locate(summary, "manifest.json")
    document = json.loads(file.read_bytes())
    document["format_version"] = 1
    file.write_text(json.dumps(document))
    with pytest.raises(IndexVersionError, match="format version 1; this library reads versions 2 to 6"):
        Index.open(summary.index)


def test_a_renamed_version_directory_is_refused(summary: BuildSummary) -> None:
    folder = summary.index / "versions" / summary.version
    shutil.copytree(folder, folder.with_name("0" * 32))
    with pytest.raises(IndexChecksumError, match=r"manifest.json: its digest is"):
        Index.open(folder.with_name("0" * 32))
    Index.open(folder).close()


def republish(summary: BuildSummary, manifest: Manifest) -> Path:
    """Give a version a manifest that fits its (altered) files, as a faulty builder would."""
    folder = summary.index / "versions" / summary.version
    files = tuple(
        replace(
            entry,
            bytes=(folder / entry.name).stat().st_size,
            xxh3_128=digest_bytes((folder / entry.name).read_bytes()),
        )
        for entry in manifest.files
    )
    return rename(summary.index, folder, replace(manifest, files=files))


def rewrite(file: Path, change: Callable[[dict[str, list[object]]], object]) -> None:
    with pa.memory_map(str(file)) as mapped:
        table = pa.ipc.open_file(mapped).read_all()
        columns = table.to_pydict()
    change(columns)
    fresh = pa.record_batch(
        [pa.array(columns[field.name], type=field.type) for field in table.schema], schema=table.schema
    )
    with file.open("wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_batch(fresh)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("trie.arrow", lambda c: c["token"][0].__setitem__(1, 5), "'token' is not what the rows give"),
        ("trie.arrow", lambda c: c["row_begin"][0].__setitem__(2, 0), "'row_begin' is not"),
        ("trie.arrow", lambda c: c["child_begin"][0].__setitem__(0, 2), "'child_begin' is not"),
        ("trie.arrow", lambda c: c["tail_begin"][0].__setitem__(1, 7), "'tail_begin' is not"),
        ("rows/len-00004.arrow", lambda c: c["rank"].__setitem__(0, 99), "a rank is outside"),
        ("rows/len-00004.arrow", lambda c: c["rank"].__setitem__(0, c["rank"][1]), "no row has rank"),
        ("rows/len-00004.arrow", lambda c: c["t0"].reverse(), "sorts before|not what the rows give"),
        ("rows/len-00004.arrow", lambda c: c["t3"].__setitem__(0, 1), "does not close every row"),
        ("rows/len-00004.arrow", lambda c: c["t1"].__setitem__(0, 200), "max_token_id"),
        ("entities.arrow", lambda c: c["entity_id"].__setitem__(0, "2"), "stands there twice"),
        ("entities.arrow", lambda c: c["entity_id"].__setitem__(slice(0, 2), c["entity_id"][1::-1]), "order"),
        ("entities.arrow", lambda c: c["area"].__setitem__(0, float("nan")), "'area': a value is no number"),
        ("postings.arrow", lambda c: c["postings"][0].append({"entity": 1, "form": 0}), "postings, got"),
        ("postings.arrow", lambda c: c["postings"][0][0].update(entity=77), "outside 0"),
        ("postings.arrow", lambda c: c["postings"][0][0].update(form=7), "does not have"),
        ("postings.arrow", lambda c: max(c["postings"], key=len).reverse(), "not in ascending order"),
        ("postings.arrow", lambda c: max(c["postings"], key=len)[0].update(form=1), "row of its title"),
        ("title_order.arrow", lambda c: c["entity"].reverse(), "place 1 should not stand behind"),
        ("title_order.arrow", lambda c: c["entity"].__setitem__(1, 0), "place 1 should not stand behind"),
        ("title_order.arrow", lambda c: c["entity"].__setitem__(3, 4), "an entity number is outside 0"),
        ("title_order.arrow", lambda c: c["entity"].__setitem__(0, -1), "an entity number is outside 0"),
    ],
)
def test_verify_finds_what_a_faulty_builder_wrote(
    summary: BuildSummary, name: str, change: Callable[[dict[str, list[object]]], object], message: str
) -> None:
    rewrite(locate(summary, name), change)
    report = verify(republish(summary, summary.manifest))
    assert not report.ok
    assert any(re.search(message, p.message) for p in report.problems), report.problems


def longer_list(table: pa.Table, name: str) -> pa.Table:
    """Repeat the last value of the one list of a column."""
    (values,) = table[name].to_pylist()
    longer = pa.array([[*values, values[-1]]], type=table.schema.field(name).type)
    return table.set_column(table.schema.names.index(name), table.schema.field(name), longer)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("trie.arrow", lambda table: table.slice(0, 0)),
        ("trie.arrow", lambda table: table.rename_columns(["a", "b", "c", "d"])),
        ("trie.arrow", lambda table: longer_list(table, "child_begin")),
        ("trie.arrow", lambda table: longer_list(table, "row_begin")),
        ("trie.arrow", lambda table: longer_list(table, "tail_begin")),
        ("trie.arrow", lambda table: longer_list(table, "token")),
        ("entities.arrow", lambda table: table.drop_columns(["kind"])),
        ("rows/len-00004.arrow", lambda table: table.drop_columns(["t1"])),
        ("postings.arrow", lambda table: table.rename_columns(["x"])),
        ("postings.arrow", lambda table: pa.table({"postings": pa.array([[1]])})),
        ("title_order.arrow", lambda table: table.slice(0, 3)),
        ("title_order.arrow", lambda table: table.rename_columns(["x"])),
        ("title_order.arrow", lambda table: table.cast(pa.schema([("entity", pa.int64())]))),
    ],
)
def test_files_of_the_wrong_shape_are_format_errors(
    summary: BuildSummary, name: str, change: Callable[[pa.Table], pa.Table]
) -> None:
    file = locate(summary, name)
    table = change(pa.ipc.open_file(file.read_bytes()).read_all())
    with file.open("wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(IndexFormatError, match=name):
        Index.open(republish(summary, summary.manifest))


def test_postings_may_be_left_out_only_when_one_to_one(summary: BuildSummary) -> None:
    files = tuple(f for f in summary.manifest.files if f.name != "postings.arrow")
    with pytest.raises(IndexFormatError, match=r"postings.arrow: missing"):
        Index.open(republish(summary, replace(summary.manifest, files=files)))


def test_only_indexes_of_the_older_format_have_no_title_order(summary: BuildSummary) -> None:
    files = tuple(f for f in summary.manifest.files if f.name != "title_order.arrow")
    manifest = replace(summary.manifest, files=files)
    folder = republish(summary, manifest)
    with pytest.raises(IndexFormatError, match=r"files listed and needed differ: \['title_order.arrow'\]"):
        Index.open(folder)
    older = replace(manifest, format_version=2)
    folder = rename(summary.index, folder, older)
    assert verify(folder).ok
    with Index.open(folder) as index:
        assert index.manifest.to_bytes() == older.to_bytes()
        assert index.title_order is None
        assert index.entity(0).title == "abc"


def test_the_wrong_tokenizer_is_refused_naming_both(summary: BuildSummary) -> None:
    other = character_tokenizer("xyz")
    with Index.open(summary.index) as index:
        index.check_tokenizer(TOKENIZER, TOKENIZER.vocab_size)
        index.check_tokenizer(TOKENIZER, None)
        with pytest.raises(IndexMismatchError) as caught:
            index.check_tokenizer(other, 1000)
        assert TOKENIZER.fingerprint in str(caught.value)
        assert other.fingerprint in str(caught.value)
        largest = index.manifest.tokenizer.max_token_id
        index.check_tokenizer(TOKENIZER, largest + 1)
        with pytest.raises(IndexMismatchError, match=f"only tokens below {largest}"):
            index.check_tokenizer(TOKENIZER, largest)
