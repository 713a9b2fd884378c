"""One catalogue in every format and compression is the same records, from wherever reading begins."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genret.retrieval.normalize import normalize
from genret.retrieval.sources import ColumnMapping, Position, Record
from genret.retrieval.sources import source_files as opening
from genret.retrieval.sources.rejects import Rejects
from genret.retrieval.sources.title_source import open_source
from tests.catalogue_files import (
    COMPRESSIONS,
    FORMATS,
    Entity,
    lenient,
    read_all,
    read_batches,
    write_catalogue,
)

NAMES = ("kind", "note")
# Letters of one, two, three and four bytes; combining and zero-width marks, what looks like markup.
text = st.text(alphabet="aB é\u0301東🦊\u200d\u00a0&;\"'{}[],#\\", min_size=1, max_size=12)
word = text.map(normalize).filter(bool)
cell = st.one_of(st.none(), word)
entity = st.tuples(
    st.text("qQ0123456789", min_size=1, max_size=6),
    word,
    st.lists(word, max_size=3).map(tuple),
    st.tuples(cell, cell),
)
catalogues = st.lists(entity, min_size=1, max_size=40)


def expected(entities: list[Entity], first_line: int) -> list[Record]:
    return [
        Record(0, line, i, t, tuple(dict.fromkeys(alias for alias in a if alias != t)), m)
        for line, (i, t, a, m) in enumerate(entities, first_line)
    ]


@lenient(max_examples=15)
@given(entities=catalogues, size=st.integers(1, 9))
def test_every_format_and_compression_gives_the_same_records(
    tmp_path: Path, entities: list[Entity], size: int
) -> None:
    for source_format in FORMATS:
        for compression in COMPRESSIONS:
            file = write_catalogue(tmp_path, f"c.{source_format}", entities, NAMES, compression)
            with open_source(file) as source:
                records, rejects = read_all(source, size)
                assert source.columns.names == NAMES
                assert source.has_ids
                assert source.bytes_read == source.num_bytes == file.stat().st_size
                assert source.entries()[0].name == file.name
            assert not rejects.rows
            assert records == expected(entities, 2 if source_format == "tsv" else 1)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("source_format", FORMATS)
def test_standard_input_is_like_a_file(
    tmp_path: Path, source_format: str, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entities: list[Entity] = [(f"q{i}", f"title {i}", (), ("a", None)) for i in range(50)]
    file = write_catalogue(tmp_path, f"c.{source_format}", entities, NAMES, compression)
    with open_source(file) as source:
        records, _ = read_all(source)
        entry = source.entries()[0]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    with open_source("-") as source:
        assert source.num_bytes is None
        assert read_all(source)[0] == records
        same = source.entries()[0]
    assert (same.name, same.bytes, same.xxh3_128) == ("-", entry.bytes, entry.xxh3_128)
    assert not sys.stdin.buffer.closed


def spoil(file: Path, source_format: str) -> None:
    """Put bad rows between the good ones of a text file."""
    bad = {"tsv": b"q\tA\x07\t\t\t\n\nq\n", "jsonl": b"[]\n\n{\n"}.get(source_format)
    if bad is not None:
        lines = file.read_bytes().split(b"\n")
        file.write_bytes(b"\n".join(lines[:2]) + b"\n" + bad + b"\n".join(lines[2:]) + bad)


@lenient(max_examples=15)
@given(
    entities=catalogues, size=st.integers(1, 9), block=st.sampled_from([1, 7, 64, 1 << 18]), data=st.data()
)
def test_reading_goes_on_at_every_position(
    tmp_path: Path, entities: list[Entity], size: int, block: int, data: st.DataObject
) -> None:
    files = []
    for number in range(2):
        source_format = data.draw(st.sampled_from(FORMATS))
        file = write_catalogue(tmp_path, f"{number}.{source_format}", entities, NAMES)
        spoil(file, source_format)
        files.append(file)
    with mock.patch.object(opening, "_BLOCK_BYTES", block):
        with open_source(files) as source:
            batches, rejects = read_batches(source, size)
            total = source.records_read
        assert all(len(batch.records) == size for batch in batches[:-1])
        assert batches[-1].position.records_read == total
        for number, batch in enumerate(batches):
            with open_source(files) as source:
                source.skip_to(Position.from_json(batch.position.to_json()))
                following, later = read_batches(source, size)
                assert source.records_read == total
                assert source.bytes_read == source.num_bytes
            assert following == batches[number + 1 :]
            at = (batch.position.file, batch.position.lines)
            assert later.rows == [row for row in rejects.rows if (row.file, row.line) > at]


def test_bad_rows_are_noted_up_to_the_position_of_a_batch(tmp_path: Path) -> None:
    file = tmp_path / "c.tsv"
    file.write_bytes(b"title\tk\na\t\nb\n\nc\t\nd\t\ne\n")
    with open_source(file) as source:
        rejects = Rejects(source.name, 100)
        seen = []
        for batch in source.batches(2, rejects):
            seen.append((batch.position.lines, [row.line for row in rejects.rows]))
    assert seen == [(5, [3, 4]), (7, [3, 4, 7])]


def test_a_batch_may_hold_bad_rows_only(tmp_path: Path) -> None:
    file = tmp_path / "c.tsv"
    file.write_bytes(b"title\tk\na\t\nb\n")
    with open_source(file) as source:
        batches, rejects = read_batches(source, 1)
    assert [(len(batch.records), batch.position.lines) for batch in batches] == [(1, 2), (0, 3)]
    assert len(rejects.rows) == 1


def test_several_files_are_read_as_one_with_the_union_of_their_columns(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("title\tkind\nA\tfilm\n")
    (tmp_path / "b.jsonl").write_text('{"Title": "B", "year": 1990, "kind": null}\n')
    (tmp_path / "c.txt").write_text("C\nbad\tline\n")
    with open_source([tmp_path / name for name in ("a.tsv", "b.jsonl", "c.txt")]) as source:
        assert source.columns.names == ("kind", "year")
        assert not source.has_ids
        assert source.name == f"{tmp_path / 'a.tsv'} and 2 more files"
        records, rejects = read_all(source, 2)
        assert [entry.name for entry in source.entries()] == ["a.tsv", "b.jsonl", "c.txt"]
    assert records == [
        Record(0, 2, None, "A", (), ("film", None)),
        Record(1, 1, None, "B", (), (None, "1990")),
        Record(2, 1, None, "C", (), (None, None)),
    ]
    assert f"{tmp_path / 'c.txt'}, line 2: too many tabs" in rejects.report()


def test_columns_of_one_name_in_another_case_are_another_column(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("title\tkind\tKind\nA\tx\ty\n")
    with open_source(tmp_path / "a.tsv", ColumnMapping(metadata=("Kind",))) as source:
        assert [record.metadata for record in read_all(source)[0]] == [("y",)]
