"""Reading mentions: fields, bad lines with their numbers, gzip, standard input."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path

import pytest

from genret.retrieval.errors import SourceError
from genret.retrieval.linking.documents.document_records import (
    BadRecord,
    MentionRow,
    check_source,
    read_mentions,
)
from genret.retrieval.types import Mention

LINES = [
    {"id": "a", "left": "the ", "mention": "Nile", "right": " flows"},
    {"mention": "Amazon"},
    {"id": 7, "mention": "Paris", "further": [1, {}]},
    {"id": None, "mention": "Hg", "left": None, "right": None},
]
EXPECTED = [
    MentionRow(1, "a", Mention("Nile", "the ", " flows")),
    MentionRow(2, "2", Mention("Amazon")),
    MentionRow(3, "7", Mention("Paris")),
    MentionRow(4, "4", Mention("Hg")),
]
TEXT = "".join(json.dumps(line) + "\n" for line in LINES).encode()


def read(file: Path, content: bytes) -> list[MentionRow | BadRecord]:
    file.write_bytes(content)
    return list(read_mentions(str(file)))


def test_fields(tmp_path: Path) -> None:
    assert read(tmp_path / "m.jsonl", TEXT) == EXPECTED


@pytest.mark.parametrize(
    "content",
    [
        TEXT.rstrip(b"\n"),
        TEXT.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + TEXT,
        gzip.compress(TEXT),
        gzip.compress(TEXT[:60]) + gzip.compress(TEXT[60:]),
    ],
    ids=["no last newline", "windows", "byte order mark", "gzip", "gzip in parts"],
)
@pytest.mark.parametrize("name", ["m.jsonl", "m.jsonl.gz", "m"])
def test_forms_of_the_file(tmp_path: Path, content: bytes, name: str) -> None:
    assert read(tmp_path / name, content) == EXPECTED


def test_blank_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    rows = read(tmp_path / "m.jsonl", b'\n{"mention": "a"}\n  \n{"mention": "b"}\n\n')
    assert [(row.line, row.mention_id) for row in rows if isinstance(row, MentionRow)] == [(2, "2"), (4, "4")]
    assert read(tmp_path / "m.jsonl", b"") == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"nonsense", "not a JSON value: Expecting value at column 1"),
        (b'{"mention": "a"', "not a JSON value: Expecting ',' delimiter at column 16"),
        (b'{"mention": "\xff"}', "not valid UTF-8 at byte 14"),
        (b"[1]", "expected a JSON object, got list"),
        (b'"Nile"', "expected a JSON object, got str"),
        (b"[" * 100_000, "not a mention: nested too deeply"),
        (b"{}", "field 'mention': is missing"),
        (b'{"mention": null}', "field 'mention': is missing"),
        (b'{"mention": ""}', "field 'mention': must not be empty"),
        (b'{"mention": " \\t"}', "field 'mention': must not be empty"),
        (b'{"mention": 3}', "field 'mention': must be text, got int"),
        (b'{"mention": "a", "left": ["x"]}', "field 'left': must be text, got list"),
        (b'{"mention": "a", "right": false}', "field 'right': must be text, got bool"),
        (b'{"mention": "a", "id": 1.5}', "field 'id': must be text or an integer, got 1.5"),
        (b'{"mention": "a", "id": true}', "field 'id': must be text or an integer, got True"),
        (
            b'{"mention": "a\\ud800"}',
            "field 'mention': not valid Unicode: half a surrogate pair at character 2",
        ),
        (
            b'{"mention": "a", "id": "\\udfff"}',
            "field 'id': not valid Unicode: half a surrogate pair at character 1",
        ),
    ],
)
def test_bad_lines_have_numbers_and_reasons(tmp_path: Path, line: bytes, reason: str) -> None:
    rows = read(tmp_path / "m.jsonl", b'{"mention": "a"}\n' + line + b'\n{"mention": "b"}\n')
    assert rows[1] == BadRecord(2, reason)
    assert [row.line for row in rows] == [1, 2, 3]


def test_number_of_thousands_of_digits(tmp_path: Path) -> None:
    (row,) = read(tmp_path / "m.jsonl", b'{"mention": "a", "id": ' + b"9" * 5000 + b"}")
    assert isinstance(row, BadRecord)
    assert row.reason.startswith("not a JSON value: Exceeds the limit")


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT)))
    check_source("-")
    assert list(read_mentions("-")) == EXPECTED
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(SourceError, match="standard input is closed"):
        list(read_mentions("-"))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "absent.jsonl", "no such file"),
        (tmp_path, "is a directory; expected"),
    ):
        with pytest.raises(SourceError, match=message) as error:
            check_source(str(path))
        assert str(path) in str(error.value)
        with pytest.raises(SourceError, match=message):
            list(read_mentions(str(path)))


def damaged() -> bytes:
    data = bytearray(gzip.compress(TEXT * 5000))
    data[len(data) // 2] ^= 0xFF
    return bytes(data)


@pytest.mark.parametrize("content", [gzip.compress(TEXT)[:-9], b"\x1f\x8bno gzip at all", damaged()])
def test_broken_gzip_names_the_line(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(SourceError, match=r"m\.jsonl\.gz, line \d+: cannot be read: "):
        read(tmp_path / "m.jsonl.gz", content)


def test_reading_is_lazy(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    file.write_bytes(TEXT + b"nonsense\n" * 1000)
    rows = read_mentions(str(file))
    assert next(rows) == EXPECTED[0]
    rows.close()  # type: ignore[attr-defined]
