from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
import xxhash

from genret.retrieval.errors import SourceError
from genret.retrieval.index.manifest import FileEntry
from genret.retrieval.normalize import find_control, normalize
from genret.retrieval.sources import Record, TitleSource, open_source, source_files
from genret.retrieval.sources.rejects import Rejects


def read(
    folder: Path, data: bytes, source_format: str = "auto", limit: int = 100
) -> tuple[list[Record], Rejects, TitleSource]:
    file = folder / "titles.tsv"
    file.write_bytes(data)
    with open_source(file, source_format=source_format) as source:  # type: ignore[arg-type]
        rejects = Rejects(source.name, limit)
        records = [record for batch in source.batches(2, rejects) for record in batch.records]
    return records, rejects, source


def test_lines_with_bom_and_carriage_returns(tmp_path: Path) -> None:
    records, rejects, _ = read(tmp_path, "\ufeffÅbo\r\nNew  York \r\nthird".encode())
    assert [(r.line, r.title) for r in records] == [(1, "Åbo"), (2, "New York"), (3, "third")]
    assert not rejects.rows


def test_header_finds_columns_in_any_order_and_case(tmp_path: Path) -> None:
    data = b"kind\tAliases\tTitle\tEntity_ID\tYear\nfilm\tb| a |A||b\tA\tq1\t\n"
    records, _, source = read(tmp_path, data)
    assert source.columns.names == ("kind", "Year")
    assert records == [Record(0, 2, "q1", "A", ("b", "a"), ("film", None))]


def test_forced_lines_takes_the_word_title_for_a_title(tmp_path: Path) -> None:
    assert [r.title for r in read(tmp_path, b"title\nA\n", "lines")[0]] == ["title", "A"]
    assert [r.title for r in read(tmp_path, b"title\nA\n")[0]] == ["A"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"q1\t", "no title"),
        (b"q1\t \xc2\xa0 ", "no title"),
        (b"", "no title"),
        (b"\tA", "no entity_id"),
        (b"q1\t\xff", "not valid UTF-8"),
        (b"q1\tA\x07", "control character"),
        (b"q1\tA\x00", "control character"),
        (b"q1\tA\r", ""),
        (b"q1\tA\r\r", "control character"),
        ("q1\tA\x85B".encode(), "control character"),
        (b"q1\tA\tB", "too many tabs"),
        (b"q1", "too few fields"),
    ],
)
def test_bad_rows_are_named_with_their_line(tmp_path: Path, line: bytes, reason: str) -> None:
    records, rejects, _ = read(tmp_path, b"entity_id\ttitle\nq0\tfine\n" + line + b"\nq2\tfine too\n")
    assert [r.line for r in records] == ([2, 4] if reason else [2, 3, 4])
    assert [(r.line, r.reason) for r in rejects.rows] == ([(3, reason)] if reason else [])


def test_a_tab_in_a_file_of_lines_is_too_many(tmp_path: Path) -> None:
    _, rejects, _ = read(tmp_path, b"A\nB\tC\n")
    assert [(r.line, r.reason) for r in rejects.rows] == [(2, "too many tabs")]


@pytest.mark.parametrize("block", [1, 2, 3, 7, 64])
def test_blocks_of_any_size_give_the_same_lines(
    tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_files, "_BLOCK_BYTES", block)
    data = "title\tkind\nZürich\tcity\r\n\tx\n東京\tcity\nlast\t".encode()
    records, rejects, source = read(tmp_path, data)
    assert [(r.line, r.title, r.metadata) for r in records] == [
        (2, "Zürich", ("city",)),
        (4, "東京", ("city",)),
        (5, "last", (None,)),
    ]
    assert [r.line for r in rejects.rows] == [3]
    assert source.entries()[0].bytes == len(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"\xef\xbb\xbf", "the file is empty"),
        (b"\n \n", "the file is empty"),
        (b"title\tkind\n", "no title below it"),
        (b"a\tb\n", "none of its fields is 'title'"),
        (b"title\ttitle\nA\tB\n", "more than once"),
        (b"title\t\nA\tB\n", "has no name"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"PAR1xxxx", "Parquet"),
    ],
)
def test_unusable_files_are_refused_in_one_line(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        read(tmp_path, data)
    assert "\n" not in str(caught.value)
    assert "titles.tsv" in str(caught.value)


def test_forced_tsv_needs_a_title_column(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no column is called 'title'"):
        read(tmp_path, b"name\nA\n", "tsv")


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such file"):
        open_source(tmp_path / "absent.tsv")
    with pytest.raises(SourceError, match="is a directory"):
        open_source(tmp_path)


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_files, "MAX_LINE_BYTES", 10)
    with pytest.raises(SourceError, match="longer than 10 bytes"):
        read(tmp_path, b"A" * 100)


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"title\nA\n")))
    with open_source("-") as source:
        records = [r for batch in source.batches(10, Rejects("-", 0)) for r in batch.records]
    assert [r.title for r in records] == ["A"]
    assert source.entries()[0] == FileEntry("-", 8, xxhash.xxh3_128(b"title\nA\n").hexdigest())


def test_reading_stops_when_nearly_everything_is_bad(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="reading stopped here"):
        read(tmp_path, b"title\tkind\n" + b"x\n" * 10_102)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  a \u00a0\u2003 b\u2028c ", "a b c"),
        ("e\u0301", "é"),
        ("\ufb01", "\ufb01"),  # compatibility forms stay
        ("a\u200bb", "a\u200bb"),  # zero-width marks stay
        ("&amp;", "&amp;"),
    ],
)
def test_normalize(text: str, expected: str) -> None:
    assert normalize(text) == expected
    assert normalize(expected) == expected


def test_find_control() -> None:
    assert find_control("a\tb é \u00a0\u200b 東") is None
    assert find_control("a\x1bb") == "U+001B"
    assert find_control("a\x9fb") == "U+009F"
