from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retrieval.errors import InputError, SourceError
from retrieval.normalize import normalize
from retrieval.sources import ColumnMapping, ColumnType, Record, open_source
from tests.catalogue_files import read_all


def write(folder: Path, text: str, name: str = "c.tsv") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def test_columns_by_other_names(tmp_path: Path) -> None:
    file = write(tmp_path, "QID\tlabel\talso\tyear\tkind\nq1\tA\tb;c|d\t1990\tfilm\n")
    mapping = ColumnMapping("label", "qid", "also", ";", metadata=("kind",))
    with open_source(file, mapping) as source:
        assert source.columns.names == ("kind",)
        assert read_all(source)[0] == [Record(0, 2, "q1", "A", ("b", "c|d"), ("film",))]


def test_a_header_is_known_by_the_title_column_that_is_named(tmp_path: Path) -> None:
    with open_source(write(tmp_path, "label\nA\n"), ColumnMapping("Label")) as source:
        assert [record.title for record in read_all(source)[0]] == ["A"]


def test_the_exact_name_goes_before_another_case(tmp_path: Path) -> None:
    file = write(tmp_path, "title\tname\tName\nt\ta\tb\n")
    with open_source(file, ColumnMapping("Name", metadata=("name",))) as source:
        assert read_all(source)[0] == [Record(0, 2, None, "b", (), ("a",))]


def test_metadata_may_be_none_of_the_columns(tmp_path: Path) -> None:
    with open_source(write(tmp_path, "title\tkind\na\tb\n"), ColumnMapping(metadata=())) as source:
        assert source.columns.names == ()
        assert read_all(source)[0] == [Record(0, 2, None, "a", (), ())]


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        (ColumnMapping(title="name"), "none of its fields is 'name'"),
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
        open_source(write(tmp_path, "title\tKIND\tyear\na\tb\tc\n"), mapping)


def test_a_column_named_like_one_of_the_index_must_be_left_out(tmp_path: Path) -> None:
    file = write(tmp_path, "label\tTitle\na\tb\n")
    with pytest.raises(SourceError, match="'Title' cannot be metadata: an index uses that name"):
        open_source(file, ColumnMapping(title="label"))
    with open_source(file, ColumnMapping(title="label", metadata=())) as source:
        assert read_all(source)[0][0].title == "a"


def test_names_that_differ_in_case_alone_are_ambiguous(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"several columns are called 'TITLE': \['title', 'Title'\]"):
        open_source(write(tmp_path, "title\tTitle\na\tb\n"), ColumnMapping(title="TITLE"))


def test_all_files_have_ids_or_none(tmp_path: Path) -> None:
    files = [write(tmp_path, "entity_id\ttitle\n1\ta\n"), write(tmp_path, "b\n", "b.txt")]
    with pytest.raises(SourceError, match=r"b\.txt: there is no column of ids, but .*c\.tsv has one"):
        open_source(files)


def test_a_named_column_may_be_missing_from_some_files(tmp_path: Path) -> None:
    files = [write(tmp_path, "title\tyear\na\t1\n"), write(tmp_path, "b\n", "b.txt")]
    mapping = ColumnMapping(metadata=("year",), types={"year": ColumnType.FLOAT})
    with open_source(files, mapping) as source:
        assert source.columns.declared == (ColumnType.FLOAT,)
        assert [record.metadata for record in read_all(source)[0]] == [("1.0",), (None,)]


def test_a_cell_that_does_not_fit_a_declared_type_is_a_bad_row(tmp_path: Path) -> None:
    file = write(tmp_path, "title\tYear\tok\na\t007\tTRUE\nb\t19x\t\nc\t\t0\n")
    types = {"year": ColumnType.INT, "ok": ColumnType.BOOL}
    with open_source(file, ColumnMapping(types=types)) as source:
        assert source.columns.declared == (ColumnType.INT, ColumnType.BOOL)
        records, rejects = read_all(source)
    assert [record.metadata for record in records] == [("7", "true"), (None, "false")]
    assert [str(row) for row in rejects.rows] == [
        "line 3: bad value (Year: expected an int of 64 bits, got '19x'): 'b\\t19x\\t'"
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"title": ""}, "title: must not be empty"),
        ({"alias_separator": ""}, "alias_separator: must not be empty"),
        ({"title": "x", "entity_id": "x"}, "must be three columns"),
        ({"metadata": ("a", "a")}, "'a' is named more than once"),
        ({"types": {"a": "date"}}, "expected string, int, float, bool, got 'date'"),
        ({"types": {"a": "int"}, "metadata": ("b",)}, "'a' is not among the metadata columns"),
    ],
)
def test_a_mapping_that_contradicts_itself(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ColumnMapping(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("files", "message"),
    [([], "at least one file"), (["-", "-"], "standard input is named more than once")],
)
def test_lists_of_files_that_cannot_be_read(files: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_source(files)


def test_an_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="format: expected one of auto, tsv, jsonl, parquet, lines, got 'csv'"
    ):
        open_source(write(tmp_path, "a\n"), source_format="csv")  # type: ignore[arg-type]


def test_comma_separated_files_are_not_taken_for_titles(tmp_path: Path) -> None:
    file = write(tmp_path, "id,title\n1,a\n", "c.csv")
    with pytest.raises(SourceError, match="comma-separated files are not read"):
        open_source(file)
    with open_source(file, source_format="lines") as source:
        assert [record.title for record in read_all(source)[0]] == ["id,title", "1,a"]


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
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
        with open_source(
            write(tmp_path, f"title\taliases\n{data}"), ColumnMapping(alias_separator=separator)
        ) as source:
            records, rejects = read_all(source)
        assert not rejects.rows
        for record, (title, cell) in zip(records[1:last], kept, strict=True):
            parts = [normalize(part) for part in normalize(cell).split(separator)]
            wanted = dict.fromkeys(part for part in parts if part and part != normalize(title))
            assert (record.title, record.aliases) == (normalize(title), tuple(wanted))
