"""The column of weights: which cells it may hold in every format, and which columns it may be."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retrieval.errors import InputError, SourceError
from retrieval.sources import ColumnMapping, ColumnType, open_source
from retrieval.sources.rejects import Rejects

WEIGHTS = ColumnMapping(weight="population")
NUMBER = "population: expected a finite number, at least 0, got "


def read(file: Path, mapping: ColumnMapping = WEIGHTS) -> tuple[list[str | None], list[tuple[int, str]]]:
    """Return the cells of the weights, and line and detail of every bad row."""
    rejects = Rejects("x", 100)
    with open_source(file, mapping) as source:
        place = source.columns.weight
        assert place is not None
        cells = [record.metadata[place] for batch in source.batches(100, rejects) for record in batch.records]
    return cells, [(row.line, row.detail) for row in rejects.rows]


def tsv(tmp_path: Path, cells: list[str]) -> Path:
    file = tmp_path / "titles.tsv"
    file.write_text("title\tpopulation\n" + "".join(f"t{n}\t{cell}\n" for n, cell in enumerate(cells)))
    return file


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
        NUMBER + text for text in ("'-3'", "'true'", "'false'", "'few'")
    ]


def test_cells_of_parquet(tmp_path: Path) -> None:
    file = tmp_path / "titles.parquet"
    values = [0.5, None, math.nan, math.inf, -1.0, 2.0]
    pq.write_table(pa.table({"title": list("abcdef"), "population": values, "area": values}), file)
    cells, bad = read(file)
    assert cells == ["0.5", None, "2.0"]
    assert bad == [(3, NUMBER + "'nan'"), (4, NUMBER + "'inf'"), (5, NUMBER + "'-1.0'")]
    rejects = Rejects("x", 0)
    with open_source(file) as source:  # in other columns NaN is an empty cell
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
        (ColumnType.FLOAT, "-1", "population: expected a finite float, at least 0, got '-1'"),
    ],
)
def test_a_declared_type_goes_first(tmp_path: Path, kind: ColumnType, text: str, detail: str) -> None:
    mapping = ColumnMapping(weight="population", types={"population": kind})
    assert read(tsv(tmp_path, ["1", text]), mapping)[1] == [(3, detail)]


@pytest.mark.parametrize("kind", [ColumnType.STRING, ColumnType.BOOL])
def test_a_declared_type_that_is_no_number_is_refused(tmp_path: Path, kind: ColumnType) -> None:
    mapping = ColumnMapping(weight="Population", types={"POPULATION": kind})
    with pytest.raises(
        InputError, match=f"population: weights are int or float, the declared type is {kind}"
    ):
        open_source(tsv(tmp_path, ["1"]), mapping)


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
        with open_source(file, mapping) as source:
            assert source.columns.names == names
            assert names[source.columns.weight or 0] == "population"
        assert read(file, mapping) == (["3"], [])


def test_case_matters_only_where_several_differ_by_it(tmp_path: Path) -> None:
    file = tsv(tmp_path, ["3"])
    for mapping in (
        ColumnMapping(weight="POPULATION"),
        ColumnMapping(metadata=("Population",), weight="POPULATION"),
    ):
        assert read(file, mapping) == (["3"], [])
    file.write_text("title\tpopulation\tPopulation\na\t1\t2\n")
    assert read(file, ColumnMapping(weight="Population")) == (["2"], [])
    with pytest.raises(SourceError, match="several columns are called 'POPULATION'"):
        open_source(file, ColumnMapping(weight="POPULATION"))


def test_a_file_may_lack_the_column_that_another_has(tmp_path: Path) -> None:
    other = tmp_path / "other.tsv"
    other.write_text("title\nb\n")
    with open_source([tsv(tmp_path, ["3"]), other], WEIGHTS) as source:
        cells = [r.metadata for batch in source.batches(10, Rejects("x", 0)) for r in batch.records]
    assert cells == [("3",), (None,)]


def test_a_column_that_no_file_has_is_an_error_unless_it_may_miss(tmp_path: Path) -> None:
    file = tsv(tmp_path, ["3"])
    message = r"titles.tsv: no column is called 'size'; the columns are 'title', 'population'"
    for metadata in (None, (), ("population",)):
        with pytest.raises(SourceError, match=message):
            open_source(file, ColumnMapping(metadata=metadata, weight="size"))
        with open_source(
            file, ColumnMapping(metadata=metadata, weight="size", weight_may_miss=True)
        ) as source:
            assert source.columns.weight is None
            assert "size" not in source.columns.names


@pytest.mark.parametrize("name", ["title", "Title", "entity_id", "aliases", "qid"])
def test_titles_ids_and_aliases_are_no_weights(name: str) -> None:
    entity_id = "qid" if name == "qid" else "entity_id"
    with pytest.raises(InputError, match=f"weight: titles, ids and aliases are no weights: .*'{name}'"):
        ColumnMapping(entity_id=entity_id, weight=name)
    with pytest.raises(InputError, match="weight: must not be empty"):
        ColumnMapping(weight="")
