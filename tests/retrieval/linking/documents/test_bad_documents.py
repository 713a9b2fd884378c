"""What is no document is a bad row, with its line and the reason; a file without rows is an error."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.linking.documents.corpus import CorpusOptions, plan_corpus
from genret.retrieval.linking.documents.text_document import BadDocument, Document
from tests.corpus_shards import read_shard

TEXT = "a\U0001f600b Zürich"  # code points, bytes and UTF-16 units all differ


def read(file: Path, **options: Any) -> list[Document | BadDocument]:
    corpus = CorpusOptions((str(file),), **options)
    return [document for shard in plan_corpus(corpus).shards for document in read_shard(corpus, shard)]


def reason(file: Path, line: bytes | dict[str, Any], **options: Any) -> str:
    """Return why a line is bad; the lines around it are good."""
    raw = line if isinstance(line, bytes) else json.dumps(line).encode()
    good = b'{"text": "x"}\n'
    file.write_bytes(good + raw + b"\n" + good)
    before, bad, after = read(file, **options)
    assert isinstance(before, Document)
    assert isinstance(after, Document)
    assert after.row == 3
    assert isinstance(bad, BadDocument)
    assert (bad.source, bad.row) == (str(file), 2)
    return bad.reason


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"text": ', "bad JSON: Expecting value at character 10"),
        (b"plain text", "bad JSON: Expecting value at character 1"),
        (b'["text"]', "not a JSON object: got a list"),
        (b"null", "not a JSON object: got null"),
        (b'{"text": "\xff"}', "not valid UTF-8: byte 11"),
        (b'{"text": "a", "text": "b"}', "bad JSON: the field 'text' is given more than once"),
        (b'{"text": "a", "x": NaN}', "bad JSON: NaN is not a JSON number"),
        (b'{"text": "a", "x": ' + b"[" * 100_000 + b"}", "bad JSON: nested too deeply"),
        (b'{"text": "a", "id": ' + b"9" * 5000 + b"}", "bad JSON: a number of too many digits"),
        ({}, "field 'text': is missing"),
        ({"Text": "a"}, "field 'text': is missing"),
        ({"text": None}, "field 'text': expected a string, got null"),
        ({"text": 5}, "field 'text': expected a string, got a number"),
        ({"text": ["a"]}, "field 'text': expected a string, got a list"),
        ({"text": "a\ud800b"}, "field 'text': not valid Unicode: half a surrogate pair at character 2"),
        ({"text": "a", "id": True}, "field 'id': expected text or an integer, got a bool"),
        ({"text": "a", "id": 1.5}, "field 'id': expected text or an integer, got a number"),
        (
            {"text": "a", "id": "\udc00"},
            "field 'id': not valid Unicode: half a surrogate pair at character 1",
        ),
        ({"mention": "a", "left": 5}, "field 'left': must be text, got int"),
        ({"mention": " ", "left": "a"}, "field 'mention': must not be empty"),
        ({"mention": "a", "doc": []}, "field 'doc': expected text or an integer, got a list"),
        ({"mention": "a", "id": {}}, "field 'id': must be text or an integer, got {}"),
    ],
    ids=lambda value: None if isinstance(value, str) else repr(value)[:30],
)
def test_bad_lines(tmp_path: Path, line: bytes | dict[str, Any], expected: str) -> None:
    assert reason(tmp_path / "c.jsonl", line) == expected


WHERE = "field 'mentions': document 'd', mention 1 of 1: "


@pytest.mark.parametrize(
    ("mentions", "unit", "expected"),
    [
        ("x", "codepoint", "field 'mentions': document 'd': expected a list of objects, got a string"),
        ({}, "codepoint", "field 'mentions': document 'd': expected a list of objects, got an object"),
        (["x"], "codepoint", WHERE + "expected an object with start and end, got a string"),
        ([[0, 1]], "codepoint", WHERE + "expected an object with start and end, got a list"),
        ([{"start": 0}], "codepoint", WHERE + "end: is missing"),
        ([{"start": 0, "end": None}], "codepoint", WHERE + "end: is missing"),
        ([{"start": "0", "end": 1}], "codepoint", WHERE + "start: expected an integer, got a string ('0')"),
        ([{"start": 0, "end": 1.0}], "codepoint", WHERE + "end: expected an integer, got a number (1.0)"),
        ([{"start": True, "end": 2}], "codepoint", WHERE + "start: expected an integer, got a bool (True)"),
        ([{"start": 2, "end": 2}], "codepoint", WHERE + "[2, 2) is empty or begins below 0"),
        ([{"start": 3, "end": 2}], "byte", WHERE + "[3, 2) is empty or begins below 0"),
        ([{"start": -2, "end": 2}], "utf16", WHERE + "[-2, 2) is empty or begins below 0"),
        (
            [{"start": 0, "end": 11}],
            "codepoint",
            WHERE + "[0, 11) in code points lies outside of the text, which has 10",
        ),
        (
            [{"start": 0, "end": 15}],
            "byte",
            WHERE + "[0, 15) in bytes lies outside of the text, which has 14",
        ),
        (
            [{"start": 12, "end": 10**30}],
            "utf16",
            WHERE + f"[12, {10**30}) in UTF-16 units lies outside of the text, which has 11",
        ),
        (
            [{"start": 0, "end": 3}],
            "byte",
            WHERE + "[0, 3) in bytes cuts a code point at 3; is byte the unit?",
        ),
        (
            [{"start": 2, "end": 4}],
            "utf16",
            WHERE + "[2, 4) in UTF-16 units cuts a code point at 2; is utf16 the unit?",
        ),
        (
            [{"start": 4, "end": 7, "mention": "b Z"}],
            "codepoint",
            WHERE + "mention: [4, 7) in code points is 'Zür', not 'b Z'",
        ),
        (
            [{"start": 7, "end": 14, "text": "Zürich"}],
            "utf16",
            WHERE + "[7, 14) in UTF-16 units lies outside of the text, which has 11",
        ),
        (
            [{"start": 5, "end": 11, "text": "Zürich"}],
            "byte",
            WHERE
            + "text: [5, 11) in bytes is 'b Zür', not 'Zürich'; it would be in UTF-16 units: is utf16 the "
            "unit of the spans?",
        ),
        ([{"start": 0, "end": 1, "mention": 5}], "byte", WHERE + "mention: expected a string, got a number"),
        (
            [{"start": 0, "end": 1, "id": 1.5}],
            "byte",
            WHERE + "id: expected text or an integer, got a number",
        ),
    ],
    ids=lambda value: None if isinstance(value, str) else repr(value)[:40],
)
def test_bad_spans(tmp_path: Path, mentions: object, unit: str, expected: str) -> None:
    line = {"id": "d", "text": TEXT, "mentions": mentions}
    assert reason(tmp_path / "c.jsonl", line, span_unit=unit) == expected


def test_the_number_of_the_mention(tmp_path: Path) -> None:
    line = {"text": TEXT, "mentions": [{"start": 0, "end": 1}, {"start": 1, "end": 0}, {}]}
    file = tmp_path / "c.jsonl"
    assert reason(file, line) == (
        f"field 'mentions': document '{file}:2', mention 2 of 3: [1, 0) is empty or begins below 0"
    )


def test_lines_of_text_that_are_no_utf8(tmp_path: Path) -> None:
    file = tmp_path / "l.txt"
    file.write_bytes(b"good\r\nb\xc3(d\nf\xc3\xbcr\n\xed\xa0\x80")
    documents = read(file, input_format="lines")
    assert [str(d) if isinstance(d, BadDocument) else d.text for d in documents] == [
        "good",
        f"{file}, line 2: not valid UTF-8 at byte 2 of the line",
        "für",
        f"{file}, line 4: not valid UTF-8 at byte 1 of the line",
    ]


@pytest.mark.parametrize(
    ("content", "position"),
    [
        (b"\xff\xfea\x00", 1),
        (b"ab\xff", 3),
        (b"a" * (1 << 18) + b"\xe4\xb8", (1 << 18) + 1),
        (b"a" * ((1 << 18) - 1) + b"\xe4\xb8(" + b"b" * 10, 1 << 18),
        (b"\xef\xbb\xbf" + b"\xff", 4),
        (b"word " * 100_000 + b"\x80", 500_001),
    ],
    ids=["utf-16", "short", "cut off", "over two blocks", "behind a bom", "a long one"],
)
def test_a_text_file_that_is_no_utf8(tmp_path: Path, content: bytes, position: int) -> None:
    (tmp_path / "a.txt").write_text("good")
    (tmp_path / "b.txt").write_bytes(content)
    (tmp_path / "c.txt").write_text("too")
    for shard_chars in (100, 10**6):
        _, bad, _ = read(tmp_path, shard_chars=shard_chars)
        assert bad == BadDocument("b.txt", 1, f"not valid UTF-8 at byte {position}")


def test_bad_rows_of_a_table(tmp_path: Path) -> None:
    file = tmp_path / "c.parquet"
    texts = pa.array([b"good", b"b\xff", None, b"too"], type=pa.binary())
    text = pa.Array.from_buffers(pa.string(), 4, texts.buffers())
    mentions = [None, None, None, [{"start": 1, "end": 9}]]
    pq.write_table(pa.table({"text": text, "mentions": mentions}), file)
    for shard_documents in (1, 10):
        documents = read(file, shard_documents=shard_documents)
        assert [str(d) if isinstance(d, BadDocument) else d.text for d in documents] == [
            "good",
            f"{file}, line 2: text that is not valid UTF-8",
            f"{file}, line 3: field 'text': expected a string, got null",
            f"{file}, line 4: field 'mentions': document '{file}:4', mention 1 of 1: [1, 9) in code points "
            "lies outside of the text, which has 3",
        ]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ({"text": [1]}, "column 'text' is of type int64; expected string"),
        ({"text": [b"a"]}, "column 'text' is of type binary; expected string"),
        ({"text": ["a"], "id": [1.5]}, "column 'id' is of type double; expected string or an integer type"),
        (
            {"text": ["a"], "mentions": ["[]"]},
            "column 'mentions' is of type string; expected a list of structs with the integers start and end",
        ),
        ({"text": ["a"], "mentions": [[{"start": 1}]]}, "expected a list of structs with the integers start"),
        ({"text": ["a"], "mentions": [[{"start": 1, "end": "2"}]]}, "expected a list of structs with the"),
        ({"body": ["a"], "id": [1]}, "there is no column 'text'; the columns are 'body', 'id'"),
        ({"mention": [5]}, "column 'mention' is of type int64; expected string"),
    ],
    ids=lambda value: None if isinstance(value, str) else repr(value),
)
def test_columns_of_a_table(tmp_path: Path, column: dict[str, Any], expected: str) -> None:
    pq.write_table(pa.table(column), tmp_path / "c.parquet")
    with pytest.raises(SourceError) as error:
        plan_corpus(CorpusOptions((str(tmp_path / "c.parquet"),)))
    assert str(error.value).startswith(str(tmp_path / "c.parquet"))
    assert expected in str(error.value)


def test_a_column_that_is_asked_for_must_be_there(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "c.parquet")
    for name in ("id_field", "mentions_field"):
        with pytest.raises(SourceError, match="no column 'x'; the columns are 'text'"):
            read(tmp_path / "c.parquet", **{name: "x"})


def test_other_columns_may_be_of_any_type(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "mention": [5], "x": [{"y": 1}]}), tmp_path / "c.parquet")
    assert [d.text for d in read(tmp_path / "c.parquet") if isinstance(d, Document)] == ["a"]


@pytest.mark.parametrize(
    ("name", "content", "options", "expected"),
    [
        pytest.param(
            "c.jsonl", b"PAR1....", {}, "this is a Parquet file; expected lines of text", id="parquet"
        ),
        pytest.param("c.jsonl", "x".encode("utf-16"), {}, "this is UTF-16", id="utf-16"),
        pytest.param("c.jsonl", b"PK\x03\x04rest", {}, "this is a zip archive", id="zip"),
        pytest.param(
            "c.jsonl",
            gzip.compress(b'{"text": "a"}\n' * 99)[:-9],
            {},
            "the gzip stream is damaged or cut off",
            id="gzip",
        ),
        pytest.param(
            "c.txt",
            gzip.compress(b"text" * 99)[:-9],
            {},
            "the gzip stream is damaged or cut off",
            id="text gzip",
        ),
        pytest.param("c.parquet", b'{"text": "a"}', {}, "this is no Parquet file", id="json"),
        pytest.param("c.parquet", b"", {}, "this is no Parquet file", id="empty table"),
        pytest.param(
            "c.parquet", b"PAR1\0\0\0\0\1\0\0\0PAR1", {}, "damaged or cut off Parquet file", id="footer"
        ),
        pytest.param(
            "c.dat",
            b"some text",
            {},
            "expected a name that ends in .jsonl, .ndjson, .parquet, .pq, .txt or .text",
            id="unknown",
        ),
        pytest.param(
            "c.csv", b"", {}, "neither the name nor the content says how this file is to be read", id="csv"
        ),
        pytest.param("c.jsonl", b"", {}, "no document in 1 file", id="empty"),
    ],
)
def test_files_that_cannot_be_read(
    tmp_path: Path, name: str, content: bytes, options: dict[str, Any], expected: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError) as error:
        read(tmp_path / name, **options)
    assert str(error.value).startswith(str(tmp_path / name))
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("options", "field", "expected"),
    [
        (
            {"input_format": "csv"},
            "input_format",
            "must be one of ['auto', 'jsonl', 'parquet', 'text', 'lines']",
        ),
        ({"span_unit": "char"}, "span_unit", "must be one of ['codepoint', 'byte', 'utf16'], got 'char'"),
        ({"shard_documents": 0}, "shard_documents", "must be at least 1, got 0"),
        ({"shard_chars": 1}, "shard_chars", "must be at least 2, got 1"),
        ({"text_field": ""}, "text_field", "must not be empty"),
        ({"id_field": "text"}, "id_field", "'text' is named for two of id, text and mentions"),
    ],
    ids=lambda value: None if isinstance(value, str) else repr(value),
)
def test_options(options: dict[str, Any], field: str, expected: str) -> None:
    with pytest.raises(InputError) as error:
        CorpusOptions(("c.jsonl",), **options)
    assert error.value.field == field
    assert expected in error.value.message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(["id", "text", "mentions", "mention", "left", "right", "doc"])
SPANS = st.lists(st.fixed_dictionaries({"start": st.integers(-1, 9) | JSON, "end": st.integers(0, 9) | JSON}))


@pytest.mark.parametrize("unit", ["codepoint", "byte", "utf16"])
@given(
    lines=st.lists(
        st.dictionaries(FIELDS, JSON | st.text() | SPANS, max_size=5).map(lambda v: json.dumps(v).encode())
        | st.binary(max_size=20).map(lambda raw: raw.replace(b"\n", b"")),
        max_size=6,
    )
)
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_line_is_a_document_or_says_why_not(tmp_path: Path, unit: str, lines: list[bytes]) -> None:
    file = tmp_path / "c.jsonl"
    file.write_bytes(b'{"text": "first"}\n' + b"\n".join(lines))
    documents = read(file, span_unit=unit, shard_documents=2)
    rows = [1] + [row for row, line in enumerate(lines, 2) if line.strip()]
    assert [document.row for document in documents] == rows
    for document in documents:
        if isinstance(document, BadDocument):
            assert document.reason
        else:
            document.text.encode()
            assert all(0 <= span.start < span.end <= len(document.text) for span in document.spans or ())
