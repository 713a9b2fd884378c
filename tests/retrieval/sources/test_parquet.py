from __future__ import annotations

import datetime
import decimal
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from genret.retrieval.errors import SourceError
from genret.retrieval.sources import ColumnMapping, Kinds, Position, Record, open_source, resolve
from tests.catalogue_files import all_kinds, read_all, read_batches, read_file


def write(folder: Path, columns: dict[str, pa.Array], **options: object) -> Path:
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
    with open_source(write(tmp_path, columns)) as source:
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
    records, rejects = read_file(write(tmp_path, {"title": bad, "aliases": aliases}))
    assert records == [Record(0, 1, None, "fine", ("x",), ())]
    bad_rows = [(2, "not valid UTF-8"), (3, "not valid UTF-8")]
    assert [(row.line, row.reason) for row in rejects.rows] == bad_rows


def test_integer_ids_and_control_characters(tmp_path: Path) -> None:
    columns = {"entity_id": pa.array([1, 2, None]), "title": pa.array(["a\nb", "c\x07", "d"])}
    records, rejects = read_file(write(tmp_path, columns))
    assert records == [Record(0, 1, "1", "a b", (), ())]
    assert [(row.line, row.reason) for row in rejects.rows] == [(2, "control character"), (3, "no entity_id")]


def test_nested_columns_are_refused_by_name_or_left_out(tmp_path: Path) -> None:
    columns = {"title": pa.array(["a"]), "box": pa.array([{"x": 1}]), "kind": pa.array(["k"])}
    file = write(tmp_path, columns)
    with pytest.raises(SourceError, match="column 'box' is of type struct"):
        open_source(file)
    with open_source(file, ColumnMapping(metadata=("kind",))) as source:
        assert [record.metadata for record in read_all(source)[0]] == [("k",)]


def test_row_groups_before_a_position_are_not_read(tmp_path: Path) -> None:
    titles = [f"title {i}" for i in range(1000)]
    file = write(tmp_path, {"title": pa.array(titles)}, row_group_size=100, compression="none")
    data = bytearray(file.read_bytes())
    begin = data.index(b"title 0")
    data[begin - 20 : begin + 100] = bytes(120)  # the first group is destroyed
    file.write_bytes(bytes(data))
    with open_source(file) as source:
        source.skip_to(Position(0, 250, 250))
        records, _ = read_all(source, 64)
    assert [record.title for record in records] == titles[250:]
    assert records[0].line == 251
    with open_source(file) as source, pytest.raises(SourceError, match="damaged or cut off in row group 0"):
        read_all(source)


def test_a_parquet_file_without_rows(tmp_path: Path) -> None:
    with (
        open_source(write(tmp_path, {"title": pa.array([], pa.string())})) as source,
        pytest.raises(SourceError, match="no title below it"),
    ):
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
    write(tmp_path, {"title": pa.array(["a"])})
    for other in ("c.tsv", "d.parquet"):
        (tmp_path / other).write_text("title\na\n")
    with pytest.raises(SourceError, match=message):
        open_source(tmp_path / name, source_format=source_format)  # type: ignore[arg-type]


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
            open_source(file)
        records, _ = read_file(file, ColumnMapping(metadata=()))
        assert records == [Record(0, 1, None, "a", (), ())]


def test_a_list_that_is_no_column_of_aliases_is_refused_at_the_start(tmp_path: Path) -> None:
    columns = {"title": pa.array(["a"]), "short": pa.array([["b", "c"]], pa.list_(pa.string(), 2))}
    file = write(tmp_path, columns)
    with pytest.raises(SourceError, match=r"'short' is of type .*list.*--aliases-column"):
        open_source(file)
    records, _ = read_file(file, ColumnMapping(aliases="short"))
    assert records[0].aliases == ("b", "c")
    with pytest.raises(SourceError, match="'title' is of type"):
        open_source(write(tmp_path, {"title": pa.array([["a"]])}))


def test_ids_may_be_uuids(tmp_path: Path) -> None:
    key = uuid.UUID(int=7)
    ids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([key.bytes, None], pa.binary(16)))
    records, rejects = read_file(write(tmp_path, {"title": pa.array(["a", "b"]), "entity_id": ids}))
    assert [record.entity_id for record in records] == [str(key)]
    assert [(row.line, row.reason) for row in rejects.rows] == [(2, "no entity_id")]
