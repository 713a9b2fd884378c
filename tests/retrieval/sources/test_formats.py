"""Catalogues in every format and compression: the same records, from wherever reading begins."""

from __future__ import annotations

import datetime
import decimal
import io
import sys
import uuid
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genret.retrieval.errors import SourceError
from genret.retrieval.normalize import normalize
from genret.retrieval.sources import row_readers as json_lines
from genret.retrieval.sources import source_files as opening
from genret.retrieval.sources.columns import ColumnMapping, Kinds, resolve
from genret.retrieval.sources.records import Position, Record
from genret.retrieval.sources.title_source import TitleSource
from tests.catalogue_files import (
    COMPRESSIONS,
    DELIMITED,
    FORMATS,
    Entity,
    all_kinds,
    check_positions,
    lenient,
    read_all,
    read_batches,
    read_file,
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
            with TitleSource(file) as source:
                records, rejects = read_all(source, size)
                assert source.columns.names == NAMES
                assert source.has_ids
                assert source.bytes_read == source.num_bytes == file.stat().st_size
                assert source.entries()[0].name == file.name
            assert not rejects.rows
            assert records == expected(entities, 2 if source_format in DELIMITED else 1)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("source_format", FORMATS)
def test_standard_input_is_like_a_file(
    tmp_path: Path, source_format: str, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entities: list[Entity] = [(f"q{i}", f"title {i}", (), ("a", None)) for i in range(50)]
    file = write_catalogue(tmp_path, f"c.{source_format}", entities, NAMES, compression)
    with TitleSource(file) as source:
        records, _ = read_all(source)
        entry = source.entries()[0]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    with TitleSource("-") as source:
        assert source.num_bytes is None
        assert read_all(source)[0] == records
        same = source.entries()[0]
    assert (same.name, same.bytes, same.xxh3_128) == ("-", entry.bytes, entry.xxh3_128)
    assert not sys.stdin.buffer.closed


def spoil(file: Path, source_format: str) -> None:
    """Put bad rows between the good ones of a text file."""
    bad = {
        "csv": b'q,A\x07,,,\n\n"q\n",1,2\n"a"b\n"1","2\n\n3",,,,\n',
        "tsv": b"q\tA\x07\t\t\t\n\nq\n",
        "jsonl": b"[]\n\n{\n",
    }.get(source_format)
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
        check_positions(files, size)


def test_a_batch_may_hold_bad_rows_only(tmp_path: Path) -> None:
    file = tmp_path / "c.tsv"
    file.write_bytes(b"title\tk\na\t\nb\n")
    with TitleSource(file) as source:
        batches, rejects = read_batches(source, 1)
    assert [(len(batch.records), batch.position.lines) for batch in batches] == [(1, 2), (0, 3)]
    assert len(rejects.rows) == 1


def test_several_files_are_read_as_one_with_the_union_of_their_columns(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("title\tkind\nA\tfilm\n")
    (tmp_path / "b.jsonl").write_text('{"Title": "B", "year": 1990, "kind": null}\n')
    (tmp_path / "c.txt").write_text("C\nbad\tline\n")
    with TitleSource([tmp_path / name for name in ("a.tsv", "b.jsonl", "c.txt")]) as source:
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


GOOD = '{"title": "first", "entity_id": 1, "kind": "x", "aliases": null}'


def write_lines(folder: Path, *lines: str | bytes) -> Path:
    file = folder / "c.jsonl"
    file.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines) + b"\n")
    return file


@pytest.mark.parametrize(
    ("line", "reason", "detail"),
    [
        ("", "bad JSON", "an empty line"),
        ('{"title": "a"', "bad JSON", "Expecting ',' delimiter at character 14"),
        ('{"title": "a"} x', "bad JSON", "Extra data at character 16"),
        ("{'title': 1}", "bad JSON", "at character 2"),
        ('{"title": "a\tb"}', "bad JSON", "Invalid control character"),
        ("[1]", "not a JSON object", "got a list"),
        ('{"title": "a", "entity_id": "b", "kind": NaN}', "bad JSON", "NaN is not a JSON number"),
        ('{"title": "a", "entity_id": "b", "kind": 1e999}', "bad JSON", "1e999 is beyond"),
        ('{"title": "a", "title": "b"}', "bad JSON", "'title' is given more than once"),
        ('{"title": "a", "entity_id": "b", "kind": ' + "1" * 5000 + "}", "bad JSON", "too many digits"),
        ("[" * 200_000, "bad JSON", "nested too deeply"),
        (b'{"title": "\xff"}', "not valid UTF-8", "byte 12"),
        ('{"title": null, "entity_id": "b"}', "no title", ""),
        ('{"entity_id": "b"}', "no title", ""),
        ('{"title": "a"}', "no entity_id", ""),
        ('{"title": "a", "entity_id": " "}', "no entity_id", ""),
        ('{"title": ["a"], "entity_id": "b"}', "bad value", "title: expected a string, got a list"),
        ('{"title": "a", "entity_id": 1.5}', "bad value", "or a whole number below 2**53, got 1.5"),
        (
            '{"title": "a", "entity_id": "b", "kind": {"x": 1}}',
            "bad value",
            "kind: expected a string, number",
        ),
        ('{"title": "a", "entity_id": "b", "kind": []}', "bad value", "got a list; leave the column out"),
        ('{"title": "a", "entity_id": "b", "aliases": {"x": 1}}', "bad value", "expected a list of strings"),
        (
            '{"title": "a", "entity_id": "b", "aliases": ["x", 1.5]}',
            "bad value",
            "aliases: expected a string",
        ),
        (r'{"title": "a\u0007", "entity_id": "b"}', "control character", "U+0007"),
        (r'{"title": "a\ud800", "entity_id": "b"}', "bad value", "half of a surrogate pair, U+D800"),
    ],
)
def test_bad_lines_say_what_and_where(tmp_path: Path, line: str | bytes, reason: str, detail: str) -> None:
    records, rejects = read_file(write_lines(tmp_path, GOOD, line, GOOD))
    assert [record.line for record in records] == [1, 3]
    assert [(row.line, row.reason) for row in rejects.rows] == [(2, reason)]
    assert detail in rejects.rows[0].detail
    assert len(rejects.report().splitlines()[-1]) < 500


def test_values_keep_their_types(tmp_path: Path) -> None:
    file = write_lines(
        tmp_path,
        '{"title": "a\\nb", "year": 1990, "score": 0.1, "seen": true, "code": "007", "mixed": 1}',
        '{"title": 1984, "year": null, "score": 2, "seen": false, "code": "8", "mixed": "x"}',
        '{"title": "c", "aliases": ["c", " d ", "d|e", ""]}',
        '{"title": "d", "aliases": "x|y"}',
    )
    with TitleSource(file) as source:
        batches, rejects = read_batches(source, 2)
        names = source.columns.names
    assert not rejects.rows
    assert [record for batch in batches for record in batch.records] == [
        Record(0, 1, None, "a b", (), ("1990", "0.1", "true", "007", "1")),
        Record(0, 2, None, "1984", (), (None, "2", "false", "8", "x")),
        Record(0, 3, None, "c", ("d", "d|e"), (None,) * 5),
        Record(0, 4, None, "d", ("x", "y"), (None,) * 5),
    ]
    types = [str(resolve(kinds)) for kinds in all_kinds(batches)]
    assert names == ("year", "score", "seen", "code", "mixed")
    assert types == ["int", "float", "bool", "string", "string"]
    assert batches[0].kinds[0] == Kinds.INT | Kinds.EMPTY


def test_a_key_that_shows_up_late_is_a_bad_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "HEAD_LINES", 2)
    file = write_lines(tmp_path, '{"title": "a"}', '{"title": "b", "year": 1}', '{"title": "c", "knd": 1}')
    with TitleSource(file) as source:
        assert source.columns.names == ("year",)
        _, rejects = read_all(source)
    assert [(row.line, row.reason) for row in rejects.rows] == [(3, "unknown field")]
    assert "'knd' is in none of the first 2 lines" in rejects.rows[0].detail
    records, _ = read_file(file, ColumnMapping(metadata=("year",)))
    assert [record.metadata for record in records] == [(None,), ("1",), (None,)]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("c.tsv", "", "the file is empty"),
        ("c.tsv", "\ufeff", "the file is empty"),
        ("c.tsv", "\n \n", "the file is empty"),
        ("c.tsv", "title\tkind\n", "no title below it"),
        ("c.tsv", "a\tb\n", "none of its fields is 'title'"),
        ("c.tsv", "title\ttitle\nA\tB\n", "more than once"),
        ("c.tsv", "title\t\nA\tB\n", "has no name"),
        ("c.csv", "id,name\n1,a\n", "the columns are 'id', 'name' .build: --title-column"),
        ("c.csv", "Munich\nBerlin\n", "'Munich' .*another; --format lines reads titles without a header.$"),
        ("c.csv", "id;name\n1;a, b\n2;c\n", "no column is called 'title'; the columns are 'id', 'name'"),
        ("c.csv", "title,kind\n", "there is a header but no title below it"),
        ("c.csv", "title,title\na,b\n", "line 1: the header names these columns more than once"),
        ("c.csv", "title,\na,b\n", "line 1: column 2 of the header has no name"),
        ("c.csv", "title,ki\x07nd\na,b\n", "holds U\\+0007"),
        ("c.csv", '"title"x,kind\na,b\n', "line 1 begins no header of a CSV file"),
        ("c.jsonl", '[{"title": "a"}]\n', "begins with a JSON list; expected one JSON object per line"),
        ("c.jsonl", "{\n\n", "none of the first lines is a JSON object with fields.*Expecting property name"),
        ("c.jsonl", "{}\n\n", "none of the first lines is a JSON object with fields"),
        ("c.jsonl", '{"name": "a"}\n\n', "no column is called 'title'; the columns are 'name'"),
        ("c.jsonl", "\n\n\n", "the file is empty"),
    ],
)
def test_unusable_files_are_refused_in_one_line(tmp_path: Path, name: str, data: str, message: str) -> None:
    file = tmp_path / name
    file.write_text(data, encoding="utf-8")
    with pytest.raises(SourceError, match=message) as caught:
        read_file(file)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)


def test_the_content_tells_json_from_titles_that_begin_with_a_brace(tmp_path: Path) -> None:
    file = tmp_path / "c"
    file.write_text('{"title": "a"}\n')
    assert read_file(file)[0][0].title == "a"
    file.write_text("{x} is a set\n[sic]\n")
    assert [record.title for record in read_file(file)[0]] == ["{x} is a set", "[sic]"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"title": "a", "": 1}', "column 2 has no name"),
        ('{"title": "a", " ": 1}', "column 2 has no name"),
        ('{"title": "a", "\\ud800": 1}', "holds U\\+D800"),
        ('{"title": "a", "b\\u0001": 1}', "holds U\\+0001"),
        ('{"title": "a", "e\\u0301": 1, "\\u00e9": 2}', "2 columns are called 'é'"),
        ('{"title": "a", " title": "b"}', "2 columns are called 'title'"),
    ],
)
def test_keys_that_are_no_names_are_refused_unless_left_out(tmp_path: Path, line: str, message: str) -> None:
    file = write_lines(tmp_path, line)
    with pytest.raises(SourceError, match=message):
        TitleSource(file)
    if "called 'title'" in message:
        return
    records, rejects = read_file(file, ColumnMapping(metadata=()))
    assert [record.title for record in records] == ["a"]
    assert not rejects.rows


def write_parquet(folder: Path, columns: dict[str, pa.Array], **options: object) -> Path:
    file = folder / "c.parquet"
    pq.write_table(pa.table(columns), str(file), **options)
    return file


def test_values_become_canonical_text_of_their_own_kind(tmp_path: Path) -> None:
    moment = datetime.datetime(2020, 1, 2, 3, 4, 5, 600)
    columns = {
        "title": pa.array(["a", "b"]),
        "small": pa.array([1, None], pa.int8()),
        "huge": pa.array([1, (1 << 64) - 1], pa.uint64()),
        "score": pa.array([0.5, float("nan")]),
        "single": pa.array([0.1, 2], pa.float32()),
        "seen": pa.array([True, None]),
        "code": pa.array(["007", " "]).dictionary_encode(),
        "day": pa.array([datetime.date(2020, 1, 2), None]),
        "at": pa.array([moment, None], pa.timestamp("us")),
        "zoned": pa.array([moment, None], pa.timestamp("ns", "UTC")),
        "price": pa.array([decimal.Decimal("1.50"), None]),
        "nothing": pa.array([None, None], pa.null()),
        "raw": pa.array([b"x", b"y"], pa.binary()),
    }
    with TitleSource(write_parquet(tmp_path, columns)) as source:
        batches, rejects = read_batches(source)
        names = source.columns.names
    assert not rejects.rows
    first, second = batches[0].records
    types = dict(zip(names, (str(resolve(kinds)) for kinds in all_kinds(batches)), strict=True))
    cells = {name: (a, b) for name, a, b in zip(names, first.metadata, second.metadata, strict=True)}
    assert cells == {
        "small": ("1", None),
        "huge": ("1", "18446744073709551615"),
        "score": ("0.5", None),
        "single": ("0.10000000149011612", "2.0"),
        "seen": ("true", None),
        "code": ("007", None),
        "day": ("2020-01-02", None),
        "at": ("2020-01-02T03:04:05.000600", None),
        "zoned": ("2020-01-02T03:04:05.000600000Z", None),
        "price": ("1.50", None),
        "nothing": (None, None),
        "raw": ("x", "y"),
    }
    numbers = {"small": "int", "score": "float", "single": "float", "seen": "bool"}
    assert types == {name: numbers.get(name, "string") for name in names}
    assert batches[0].kinds[names.index("nothing")] == Kinds.EMPTY


def test_texts_that_are_no_utf8_are_bad_rows(tmp_path: Path) -> None:
    bad = pa.array([b"fine", b"b\xff", b"good"]).view(pa.string())
    lists = pa.array([[b"x"], [b"y"], [b"\xfe"]], pa.list_(pa.binary())).cast(pa.list_(pa.binary()))
    aliases = pa.ListArray.from_arrays(lists.offsets, lists.values.view(pa.string()))
    records, rejects = read_file(write_parquet(tmp_path, {"title": bad, "aliases": aliases}))
    assert records == [Record(0, 1, None, "fine", ("x",), ())]
    bad_rows = [(2, "not valid UTF-8"), (3, "not valid UTF-8")]
    assert [(row.line, row.reason) for row in rejects.rows] == bad_rows


def test_integer_ids_and_control_characters(tmp_path: Path) -> None:
    columns = {"entity_id": pa.array([1, 2, None]), "title": pa.array(["a\nb", "c\x07", "d"])}
    records, rejects = read_file(write_parquet(tmp_path, columns))
    assert records == [Record(0, 1, "1", "a b", (), ())]
    assert [(row.line, row.reason) for row in rejects.rows] == [(2, "control character"), (3, "no entity_id")]


def test_nested_columns_are_refused_by_name_or_left_out(tmp_path: Path) -> None:
    columns = {"title": pa.array(["a"]), "box": pa.array([{"x": 1}]), "kind": pa.array(["k"])}
    file = write_parquet(tmp_path, columns)
    with pytest.raises(SourceError, match="column 'box' is of type struct"):
        TitleSource(file)
    assert read_file(file, ColumnMapping(metadata=("kind",)))[0][0].metadata == ("k",)


def test_row_groups_before_a_position_are_not_read(tmp_path: Path) -> None:
    titles = [f"title {i}" for i in range(1000)]
    file = write_parquet(tmp_path, {"title": pa.array(titles)}, row_group_size=100, compression="none")
    data = bytearray(file.read_bytes())
    begin = data.index(b"title 0")
    data[begin - 20 : begin + 100] = bytes(120)  # the first group is destroyed
    file.write_bytes(bytes(data))
    with TitleSource(file) as source:
        source.skip_to(Position(0, 250, 250))
        records, _ = read_all(source, 64)
    assert [record.title for record in records] == titles[250:]
    assert records[0].line == 251
    with TitleSource(file) as source, pytest.raises(SourceError, match="damaged or cut off in row group 0"):
        read_all(source)


@pytest.mark.parametrize(
    ("name", "source_format", "message"),
    [
        ("c.parquet", "tsv", "this is a Parquet file; expected tsv"),
        ("c.tsv", "parquet", "does not begin with PAR1"),
        ("d.parquet", "auto", "does not begin with PAR1"),
    ],
)
def test_the_wrong_format(tmp_path: Path, name: str, source_format: str, message: str) -> None:
    write_parquet(tmp_path, {"title": pa.array(["a"])})
    for other in ("c.tsv", "d.parquet"):
        (tmp_path / other).write_text("title\na\n")
    with pytest.raises(SourceError, match=message):
        TitleSource(tmp_path / name, source_format=source_format)  # type: ignore[arg-type]


def test_columns_of_one_name_or_none_are_refused_unless_left_out(tmp_path: Path) -> None:
    file = tmp_path / "c.parquet"
    one = pa.array([1])
    for names, message in (
        (["title", "x", "x"], "2 columns are called 'x'"),
        (["title", "x", " x"], "2 columns are called 'x'"),
        (["title", "x", ""], "column 3 has no name"),
    ):
        pq.write_table(pa.Table.from_arrays([pa.array(["a"]), one, one], names=names), str(file))
        with pytest.raises(SourceError, match=message):
            TitleSource(file)
        records, _ = read_file(file, ColumnMapping(metadata=()))
        assert records == [Record(0, 1, None, "a", (), ())]


def test_a_list_that_is_no_column_of_aliases_is_refused_at_the_start(tmp_path: Path) -> None:
    columns = {"title": pa.array(["a"]), "short": pa.array([["b", "c"]], pa.list_(pa.string(), 2))}
    file = write_parquet(tmp_path, columns)
    with pytest.raises(SourceError, match=r"'short' is of type .*list.*--aliases-column"):
        TitleSource(file)
    records, _ = read_file(file, ColumnMapping(aliases="short"))
    assert records[0].aliases == ("b", "c")
    with pytest.raises(SourceError, match="'title' is of type"):
        TitleSource(write_parquet(tmp_path, {"title": pa.array([["a"]])}))


def test_ids_may_be_uuids(tmp_path: Path) -> None:
    key = uuid.UUID(int=7)
    ids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([key.bytes, None], pa.binary(16)))
    records, rejects = read_file(write_parquet(tmp_path, {"title": pa.array(["a", "b"]), "entity_id": ids}))
    assert [record.entity_id for record in records] == [str(key)]
    assert [(row.line, row.reason) for row in rejects.rows] == [(2, "no entity_id")]
