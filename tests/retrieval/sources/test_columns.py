"""Columns: their names, types and weights, in every format."""

from __future__ import annotations

import json
import math
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.index.layout import METADATA_TYPES
from genret.retrieval.normalize import normalize
from genret.retrieval.sources.columns import (
    ColumnMapping,
    ColumnType,
    Kinds,
    cast,
    classify,
    fit,
    kind_of_text,
    resolve,
)
from genret.retrieval.sources.records import Record, Rejects
from genret.retrieval.sources.title_source import TitleSource
from tests.catalogue_files import lenient, read_all, read_file


def write(folder: Path, text: str, name: str = "c.tsv") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("text", "mapping", "names", "record"),
    [
        (
            "QID\tlabel\talso\tyear\tkind\nq1\tA\tb;c|d\t1990\tfilm\n",
            ColumnMapping("label", "qid", "also", ";", metadata=("kind",)),
            ("kind",),
            ("q1", "A", ("b", "c|d"), ("film",)),
        ),
        ("label\nA\n", ColumnMapping("Label"), (), (None, "A", (), ())),  # which makes it a header
        # The exact name goes before another case.
        (
            "title\tname\tName\nt\ta\tb\n",
            ColumnMapping("Name", metadata=("name",)),
            ("name",),
            (None, "b", (), ("a",)),
        ),
        ("title\tkind\na\tb\n", ColumnMapping(metadata=()), (), (None, "a", (), ())),
    ],
    ids=["other names", "a header", "another case", "no metadata"],
)
def test_columns_are_found_by_their_names(
    tmp_path: Path, text: str, mapping: ColumnMapping, names: tuple[str, ...], record: tuple[Any, ...]
) -> None:
    with TitleSource(write(tmp_path, text), mapping) as source:
        assert source.columns.names == names
        assert read_all(source)[0] == [Record(0, 2, *record)]


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        (
            ColumnMapping(title="tytle"),
            "no column is called 'tytle', did you mean 'title'\\? the",
        ),
        (
            ColumnMapping(entity_id="qid"),
            "no column is called 'qid'; the columns are 'title', 'KIND', 'year'",
        ),
        (ColumnMapping(aliases="also"), "no column is called 'also'"),
        (ColumnMapping(metadata=("kind", "size")), "no column is called 'size'"),
        (ColumnMapping(types={"size": ColumnType.INT}), "no column is called 'size'; the columns are"),
        (ColumnMapping(metadata=("title",)), "the column 'title' cannot be metadata"),
    ],
)
def test_unknown_columns_are_an_error_that_lists_those_there_are(
    tmp_path: Path, mapping: ColumnMapping, message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        TitleSource(write(tmp_path, "title\tKIND\tyear\na\tb\tc\n"), mapping)


def test_a_column_named_like_one_of_the_index_must_be_left_out(tmp_path: Path) -> None:
    file = write(tmp_path, "label\tTitle\na\tb\n")
    with pytest.raises(SourceError, match="'Title' cannot be metadata: an index uses that name"):
        TitleSource(file, ColumnMapping(title="label"))
    assert read_file(file, ColumnMapping(title="label", metadata=()))[0][0].title == "a"


def test_all_files_have_ids_or_none(tmp_path: Path) -> None:
    files = [write(tmp_path, "entity_id\ttitle\n1\ta\n"), write(tmp_path, "b\n", "b.txt")]
    with pytest.raises(SourceError, match=r"b\.txt: there is no column of ids, but .*c\.tsv has one"):
        TitleSource(files)


def test_a_named_column_may_be_missing_from_some_files(tmp_path: Path) -> None:
    files = [write(tmp_path, "title\tyear\na\t1\n"), write(tmp_path, "b\n", "b.txt")]
    mapping = ColumnMapping(metadata=("year",), types={"year": ColumnType.FLOAT})
    with TitleSource(files, mapping) as source:
        assert source.columns.declared == (ColumnType.FLOAT,)
        assert [record.metadata for record in read_all(source)[0]] == [("1.0",), (None,)]


def test_a_cell_that_does_not_fit_a_declared_type_is_a_bad_row(tmp_path: Path) -> None:
    file = write(tmp_path, "title\tYear\tok\na\t007\tTRUE\nb\t19x\t\nc\t\t0\n")
    types = {"year": ColumnType.INT, "ok": ColumnType.BOOL}
    with TitleSource(file, ColumnMapping(types=types)) as source:
        assert source.columns.declared == (ColumnType.INT, ColumnType.BOOL)
        records, rejects = read_all(source)
    assert [record.metadata for record in records] == [("7", "true"), (None, "false")]
    assert [row.told() for row in rejects.rows] == [
        "line 3: bad value (Year: expected an int of 64 bits, got '19x'): 'b\\t19x\\t'"
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"title": ""}, "title: must not be empty"),
        ({"alias_separator": ""}, "alias_separator: must not be empty"),
        ({"delimiter": ""}, "delimiter: expected one character"),
        ({"delimiter": ",,"}, "delimiter: expected one character"),
        ({"delimiter": "x"}, "delimiter: expected one character"),
        ({"delimiter": '"'}, "delimiter: expected one character"),
        ({"title": "x", "entity_id": "x"}, "must be three columns"),
        ({"metadata": ("a", "a")}, "'a' is named more than once"),
        ({"types": {"a": "date"}}, "expected string, int, float, bool, got 'date'"),
        ({"types": {"a": "int"}, "metadata": ("b",)}, "'a' is not among the metadata columns"),
    ],
)
def test_a_mapping_that_contradicts_itself(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ColumnMapping(**arguments)  # type: ignore[arg-type]


def test_files_that_there_cannot_be() -> None:
    with pytest.raises(InputError, match="at least one file"):
        TitleSource([])
    with pytest.raises(InputError, match="standard input is named more than once"):
        TitleSource(["-", "-"])


def test_comma_separated_files_may_be_taken_for_lines(tmp_path: Path) -> None:
    file = write(tmp_path, "id,title\n1,a\n", "c.csv")
    assert [record.title for record in read_file(file)[0]] == ["a"]
    records, _ = read_file(file, source_format="lines")
    assert [record.title for record in records] == ["id,title", "1,a"]


@lenient(max_examples=40)
@given(
    cells=st.lists(
        st.tuples(st.text("ab é\u0301", min_size=1, max_size=4), st.text("ab é\u0301|;\u00a0", max_size=9)),
        min_size=1,
        max_size=30,
    ),
    separator=st.sampled_from(["|", ";", "; ", "b"]),
)
def test_aliases_are_split_the_same_way_whether_a_block_needs_changes_or_not(
    tmp_path: Path, cells: list[tuple[str, str]], separator: str
) -> None:
    kept = [(title, cell) for title, cell in cells if normalize(title)]
    rows = "a\t\n" + "".join(f"{title}\t{cell}\n" for title, cell in kept)
    odd = "\u200b\t\n"  # sends its neighbours the slow way
    for data, last in ((rows, len(kept) + 1), (rows + odd, len(kept) + 1)):
        with TitleSource(
            write(tmp_path, f"title\taliases\n{data}"), ColumnMapping(alias_separator=separator)
        ) as source:
            records, rejects = read_all(source)
        assert not rejects.rows
        for record, (title, cell) in zip(records[1:last], kept, strict=True):
            parts = [normalize(part) for part in normalize(cell).split(separator)]
            wanted = dict.fromkeys(part for part in parts if part and part != normalize(title))
            assert (record.title, record.aliases) == (normalize(title), tuple(wanted))


texts = st.one_of(
    st.integers(-(1 << 70), 1 << 70).map(str),
    st.floats().map(repr),
    st.sampled_from(
        ["true", "false", "True", "007", "-0", "+1", "1.50", "-0.00", "07.0", "1e5", "nan", "1."]
    ),
    st.sampled_from([".5", "inf", "1_0", "٣", "a"]),
    st.text("0123456789.e+-", min_size=1, max_size=6),
)


def oracle(text: str) -> Kinds:
    """The rule, as slowly and plainly as possible."""
    try:
        if str(int(text)) == text and -(1 << 63) <= int(text) < 1 << 63:
            exact = int(float(text)) == int(text)
            return Kinds.INT if exact else Kinds.INT | Kinds.LONG_INT
    except ValueError:
        pass
    try:
        whole, _, rest = text.removeprefix("-").partition(".")
        if text.isascii() and whole.isdigit() and rest.isdigit() and str(int(whole)) == whole[:15]:
            return Kinds.FLOAT
        if repr(float(text)) == text and math.isfinite(float(text)):
            return Kinds.FLOAT
    except ValueError:
        pass
    return Kinds.BOOL if text in ("true", "false") else Kinds.STRING


@given(texts)
def test_kind_of_one_cell(text: str) -> None:
    assert kind_of_text(text) == oracle(text)


@given(st.lists(st.one_of(st.none(), texts), max_size=40))
def test_kinds_of_a_column_give_the_same_type_as_each_cell(cells: list[str | None]) -> None:
    each = reduce(lambda a, b: a | b, (Kinds.EMPTY if c is None else oracle(c) for c in cells), Kinds.NONE)
    found = classify(cells)
    assert resolve(found) == resolve(each)
    assert found == each or Kinds.STRING in found


numbers = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.floats(allow_nan=False, allow_infinity=False))


@given(st.lists(st.one_of(st.none(), numbers.map(lambda n: str(n) if isinstance(n, int) else repr(n)))))
def test_nothing_is_lost_by_a_type(cells: list[str | None]) -> None:
    column_type = resolve(classify(cells))
    values = cast(pa.array(cells, pa.string()), column_type)
    assert values.type == METADATA_TYPES[column_type]
    for text, value in zip(cells, values.to_pylist(), strict=True):
        if text is None:
            assert value is None
        elif column_type is ColumnType.FLOAT:
            # An integer among floats is the float of exactly that value.
            assert repr(value) == text or int(value) == int(text)
        else:
            assert str(value) == text


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([None, None], "string"),
        (["1", None], "int"),
        (["349.00", "39.90", "12"], "float"),
        (["9007199254740993.00", "1.50"], "string"),
        (["0.1234567890123456789", "1.5"], "string"),
        (["9007199254740993", "2.5"], "string"),
        (["9007199254740993"], "int"),
        (["true", "false", None], "bool"),
        (["true", "1"], "string"),
        (["1", "007"], "string"),
        (["9223372036854775808"], "string"),
    ],
)
def test_resolve(cells: list[str | None], expected: str) -> None:
    assert resolve(classify(cells)) == expected
    assert resolve(classify(cells * 10)) == expected
    assert resolve(classify(cells), ColumnType.STRING) == "string"


@pytest.mark.parametrize(
    ("text", "column_type", "expected"),
    [
        ("007", "int", "7"),
        ("+5", "int", "5"),
        ("5.0", "int", "5"),
        ("5.5", "int", None),
        ("9223372036854775808", "int", None),
        ("-9223372036854775808", "int", "-9223372036854775808"),
        ("1.50", "float", "1.5"),
        ("7", "float", "7.0"),
        (".5", "float", "0.5"),
        ("1e999", "float", None),
        ("nan", "float", None),
        ("1_0", "float", None),
        ("TRUE", "bool", "true"),
        ("0", "bool", "false"),
        ("1.0", "bool", "true"),
        ("yes", "bool", None),
        ("anything", "string", "anything"),
    ],
)
def test_declared_types(text: str, column_type: str, expected: str | None) -> None:
    assert fit(text, ColumnType(column_type)) == expected


def test_cast_refuses_what_resolve_has_not_seen() -> None:
    for column_type in (ColumnType.INT, ColumnType.FLOAT, ColumnType.BOOL):
        with pytest.raises(pa.ArrowInvalid):
            cast(pa.array(["x", None]), column_type)
    cells = pa.array(["true", None, "false"], pa.large_string())
    assert cast(cells, ColumnType.BOOL).to_pylist() == [True, None, False]


WEIGHTS = ColumnMapping(weight="population")
NUMBER = "population: expected a finite number, at least 0, got "


def read(file: Path, mapping: ColumnMapping = WEIGHTS) -> tuple[list[str | None], list[tuple[int, str]]]:
    """Return the cells of the weights, and line and detail of every bad row."""
    rejects = Rejects("x", 100)
    with TitleSource(file, mapping) as source:
        place = source.columns.weight
        cells = [record.metadata[place] for batch in source.batches(100, rejects) for record in batch.records]
    return cells, [(row.line, row.detail) for row in rejects.rows]


def tsv(tmp_path: Path, cells: list[str]) -> Path:
    rows = "".join(f"t{n}\t{cell}\n" for n, cell in enumerate(cells))
    return write(tmp_path, f"title\tpopulation\n{rows}", "titles.tsv")


def test_text_that_spells_a_number_is_a_weight(tmp_path: Path) -> None:
    file = tsv(tmp_path, ["12", "", "0", "007", "+5", "1.50", ".5", "1e3", "-0", str(2**70), " 3 "])
    expected = ["12", None, "0", "7", "5", "1.5", "0.5", "1000.0", "0", repr(float(2**70)), "3"]
    assert read(file) == (expected, [])


@pytest.mark.parametrize(
    "text", ["-1", "-0.5", "nan", "inf", "-inf", "1e999", "many", "true", "1,000", "1_0"]
)
def test_other_text_makes_a_bad_row_with_its_line(tmp_path: Path, text: str) -> None:
    cells, bad = read(tsv(tmp_path, ["1", text, "2"]))
    assert (cells, bad) == (["1", "2"], [(3, NUMBER + repr(text))])


def test_cells_of_json(tmp_path: Path) -> None:
    values = ["3", "1.5", "null", '""', '"12"', "0", "-3", "true", "false", '"few"', "1e999", str(10**400)]
    file = tmp_path / "titles.jsonl"
    file.write_text("".join(f'{{"title": "t{n}", "population": {v}}}\n' for n, v in enumerate(values)))
    cells, bad = read(file)
    assert cells == ["3", "1.5", None, None, "12", "0"]
    assert [line for line, _ in bad] == [7, 8, 9, 10, 11, 12]
    assert [detail for _, detail in bad[:4]] == [
        f"{NUMBER}'{text}'" for text in ("-3", "true", "false", "few")
    ]


def test_cells_of_parquet(tmp_path: Path) -> None:
    file = tmp_path / "titles.parquet"
    values = [0.5, None, math.nan, math.inf, -1.0, 2.0]
    pq.write_table(pa.table({"title": list("abcdef"), "population": values, "area": values}), file)
    cells, bad = read(file)
    assert cells == ["0.5", None, "2.0"]
    assert bad == [(3, NUMBER + "'nan'"), (4, NUMBER + "'inf'"), (5, NUMBER + "'-1.0'")]
    rejects = Rejects("x", 0)
    with TitleSource(file) as source:  # in other columns NaN is an empty cell
        (batch,) = source.batches(10, rejects)
    assert [record.metadata[1] for record in batch.records] == ["0.5", None, None, "inf", "-1.0", "2.0"]


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint64(), pa.float32(), pa.decimal128(5, 2), pa.string()])
def test_every_number_of_parquet_is_a_weight(tmp_path: Path, kind: pa.DataType) -> None:
    file = tmp_path / "titles.parquet"
    column = pa.array(["3", None, "4"]).cast(kind)
    pq.write_table(pa.table({"title": ["a", "b", "c"], "population": column}), file)
    cells, bad = read(file)
    assert ([cell and float(cell) for cell in cells], bad) == ([3, None, 4], [])


@pytest.mark.parametrize(
    ("kind", "text", "detail"),
    [
        (ColumnType.INT, "0.5", "population: expected an int of 64 bits, at least 0, got '0.5'"),
        (ColumnType.INT, "-1", "population: expected an int of 64 bits, at least 0, got '-1'"),
        (ColumnType.FLOAT, "-1", "population: expected a finite float or nothing, at least 0, got '-1'"),
    ],
)
def test_a_declared_type_goes_first(tmp_path: Path, kind: ColumnType, text: str, detail: str) -> None:
    mapping = ColumnMapping(weight="population", types={"population": kind})
    assert read(tsv(tmp_path, ["1", text]), mapping)[1] == [(3, detail)]


@pytest.mark.parametrize("kind", [ColumnType.STRING, ColumnType.BOOL])
def test_a_declared_type_that_is_no_number_is_refused(tmp_path: Path, kind: ColumnType) -> None:
    mapping = ColumnMapping(weight="Population", types={"POPULATION": kind})
    message = f"population: weights are int or float, the declared type is {kind}"
    with pytest.raises(InputError, match=message):
        TitleSource(tsv(tmp_path, ["1"]), mapping)


@pytest.mark.parametrize(
    ("metadata", "names"),
    [
        (None, ("kind", "population", "area")),
        ((), ("population",)),
        (("area",), ("area", "population")),
        (("population", "kind"), ("population", "kind")),
    ],
)
def test_the_column_is_metadata_in_any_case(
    tmp_path: Path, metadata: tuple[str, ...] | None, names: tuple[str, ...]
) -> None:
    for suffix, text in (
        ("tsv", "title\tkind\tpopulation\tarea\na\tx\t3\t1\n"),
        ("jsonl", json.dumps({"title": "a", "kind": "x", "population": 3, "area": 1}) + "\n"),
    ):
        file = tmp_path / f"titles.{suffix}"
        file.write_text(text)
        mapping = ColumnMapping(metadata=metadata, weight="population")
        with TitleSource(file, mapping) as source:
            assert source.columns.names == names
            assert names[source.columns.weight or 0] == "population"
        assert read(file, mapping) == (["3"], [])


def test_case_matters_only_where_several_differ_by_it(tmp_path: Path) -> None:
    file = tsv(tmp_path, ["3"])
    for metadata in (None, ("Population",)):
        assert read(file, ColumnMapping(metadata=metadata, weight="POPULATION")) == (["3"], [])
    file.write_text("title\tpopulation\tPopulation\na\t1\t2\n")
    assert read(file, ColumnMapping(weight="Population")) == (["2"], [])
    with pytest.raises(SourceError, match="several columns are called 'POPULATION'"):
        TitleSource(file, ColumnMapping(weight="POPULATION"))


def test_a_column_that_no_file_has_is_an_error_unless_it_may_miss(tmp_path: Path) -> None:
    file = tsv(tmp_path, ["3"])
    message = r"titles.tsv: no column is called 'size'; the columns are 'title', 'population'"
    for metadata in (None, (), ("population",)):
        with pytest.raises(SourceError, match=message):
            TitleSource(file, ColumnMapping(metadata=metadata, weight="size"))
        may_miss = ColumnMapping(metadata=metadata, weight="size", may_miss=("size",))
        with TitleSource(file, may_miss) as source:
            assert source.columns.weight is None
            assert "size" not in source.columns.names


@pytest.mark.parametrize("name", ["title", "Title", "entity_id", "aliases", "qid"])
def test_titles_ids_and_aliases_are_no_weights(name: str) -> None:
    entity_id = "qid" if name == "qid" else "entity_id"
    with pytest.raises(InputError, match=f"weight: titles, ids and aliases are no weights: .*'{name}'"):
        ColumnMapping(entity_id=entity_id, weight=name)
    with pytest.raises(InputError, match="weight: must not be empty"):
        ColumnMapping(weight="")
