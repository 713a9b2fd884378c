from __future__ import annotations

from pathlib import Path

import pytest

from genret.retrieval.errors import SourceError
from genret.retrieval.sources import ColumnMapping, ColumnType, Kinds, Record, open_source, resolve
from genret.retrieval.sources import row_readers as json_lines
from tests.catalogue_files import all_kinds, read_all, read_batches, read_file

GOOD = '{"title": "first", "entity_id": 1, "kind": "x", "aliases": null}'


def write(folder: Path, *lines: str | bytes) -> Path:
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
        ("null", "not a JSON object", "got null"),
        ('"a"', "not a JSON object", "got a string"),
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
        ('{"title": true, "entity_id": "b"}', "bad value", "title: expected a string, got a bool"),
        ('{"title": "a", "entity_id": 1.5}', "bad value", "entity_id: expected a string, got a number"),
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
    records, rejects = read_file(write(tmp_path, GOOD, line, GOOD))
    assert [record.line for record in records] == [1, 3]
    assert [(row.line, row.reason) for row in rejects.rows] == [(2, reason)]
    assert detail in rejects.rows[0].detail
    assert len(rejects.report().splitlines()[-1]) < 500


def test_values_keep_their_types(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        '{"title": "a\\nb", "year": 1990, "score": 0.1, "seen": true, "code": "007", "mixed": 1}',
        '{"title": 1984, "year": null, "score": 2, "seen": false, "code": "8", "mixed": "x"}',
        '{"title": "c", "aliases": ["c", " d ", "d|e", ""]}',
        '{"title": "d", "aliases": "x|y"}',
    )
    with open_source(file) as source:
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


def test_integers_beyond_64_bits_are_strings(tmp_path: Path) -> None:
    with open_source(write(tmp_path, '{"title": "a", "n": 9223372036854775808}')) as source:
        batches, _ = read_batches(source)
    assert (batches[0].records[0].metadata, batches[0].kinds) == (("9223372036854775808",), (Kinds.STRING,))


def test_a_key_that_shows_up_late_is_a_bad_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "HEAD_LINES", 2)
    file = write(tmp_path, '{"title": "a"}', '{"title": "b", "year": 1}', '{"title": "c", "knd": 1}')
    with open_source(file) as source:
        assert source.columns.names == ("year",)
        _, rejects = read_all(source)
    assert [(row.line, row.reason) for row in rejects.rows] == [(3, "unknown field")]
    assert "'knd' is in none of the first 2 lines" in rejects.rows[0].detail
    with open_source(file, ColumnMapping(metadata=("year",))) as source:
        assert [record.metadata for record in read_all(source)[0]] == [(None,), ("1",), (None,)]


def test_nested_columns_can_be_left_out(tmp_path: Path) -> None:
    file = write(tmp_path, '{"title": "a", "nested": {"x": [1]}, "kind": "k"}')
    records, rejects = read_file(file, ColumnMapping(metadata=("kind",)))
    assert not rejects.rows
    assert records[0].metadata == ("k",)


def test_declared_types(tmp_path: Path) -> None:
    file = write(tmp_path, '{"title": "a", "year": "1990"}', '{"title": "b", "year": 1.5}')
    records, rejects = read_file(file, ColumnMapping(types={"year": ColumnType.INT}))
    assert [record.metadata for record in records] == [("1990",)]
    assert rejects.rows[0].detail == "year: expected an int of 64 bits, got '1.5'"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ('[{"title": "a"}]', "begins with a JSON list; expected one JSON object per line"),
        ("{\n", "none of the first lines is a JSON object with fields.*Expecting property name"),
        ("{}\n", "none of the first lines is a JSON object with fields"),
        ('{"name": "a"}\n', "no column is called 'title'; the columns are 'name'"),
        ("\n\n", "the file is empty"),
    ],
)
def test_unusable_files(tmp_path: Path, data: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        open_source(write(tmp_path, data))


def test_the_content_tells_json_from_titles_that_begin_with_a_brace(tmp_path: Path) -> None:
    file = tmp_path / "c"
    file.write_text('{"title": "a"}\n')
    with open_source(file) as source:
        assert read_all(source)[0][0].title == "a"
    file.write_text("{x} is a set\n[sic]\n")
    with open_source(file) as source:
        assert [record.title for record in read_all(source)[0]] == ["{x} is a set", "[sic]"]


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
    file = write(tmp_path, line)
    with pytest.raises(SourceError, match=message):
        open_source(file)
    if "called 'title'" in message:
        return
    records, rejects = read_file(file, ColumnMapping(metadata=()))
    assert [record.title for record in records] == ["a"]
    assert not rejects.rows


def test_names_of_keys_are_under_the_text_policy(tmp_path: Path) -> None:
    file = write(tmp_path, '{"title": "a", " e\\u0301  x": 1}')
    with open_source(file) as source:
        records, _ = read_all(source)
        assert source.columns.names == ("é x",)
    assert records[0].metadata == ("1",)
