"""Every record of every format comes out once, in order, exactly as in the file, or says why it is bad."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.linking.documents.corpus import CorpusOptions, CorpusPlan
from genret.retrieval.linking.documents.corpus_reading import CorpusReader, plan_corpus
from genret.retrieval.linking.documents.document_records import MentionRow, mention_row
from genret.retrieval.linking.documents.text_document import BadDocument, Document, Span
from genret.retrieval.types import Mention
from tests.corpus_shards import as_jsonl, read_corpus, read_shard, write_records

HALF = "not valid Unicode: half a surrogate pair"
ODD = "Cafe\u0301 \U0001f469\u200d\U0001f680\r\nÄ\tß中\u2028x\u0000 \u0085y"
SPACES = "  spaces \r\n kept\n"
RECORDS: list[dict[str, Any]] = [
    {"id": "a", "text": "Paris is in France.", "mentions": [{"start": 0, "end": 5, "id": "m1"}]},
    {"id": "b", "text": ODD, "mentions": []},
    {"id": "c", "text": "", "mentions": None},
    {"id": "d", "text": SPACES, "mentions": [{"start": 9, "end": 11}, {"start": 0, "end": 9}]},
]
EXPECTED = [
    ("a", "Paris is in France.", (Span(0, 5, "m1"),)),
    ("b", ODD, ()),
    ("c", "", None),
    ("d", SPACES, (Span(9, 11), Span(0, 9))),
]


def read_all(options: CorpusOptions) -> tuple[CorpusPlan, list[Document | BadDocument]]:
    """Plan, read every shard alone, and see that one reader gives the same in order."""
    plan, documents = read_corpus(options)
    with closing(CorpusReader(options)) as reader:
        assert [d for shard in plan.shards for d in reader.read(shard)] == documents
        for shard in reversed(plan.shards):
            assert list(reader.read(shard)) == list(read_shard(options, shard))
    assert [shard.number for shard in plan.shards] == list(range(len(plan.shards)))
    assert sum(shard.num_documents for shard in plan.shards) == len(documents)
    return plan, documents


def facts(documents: list[Document | BadDocument]) -> list[tuple[str, str, tuple[Span, ...] | None]]:
    assert all(
        isinstance(d, Document) and (d.begin, d.end, d.offset) == (0, len(d.text), 0) for d in documents
    )
    return [(d.doc_id, d.text, d.spans) for d in documents if isinstance(d, Document)]


@pytest.mark.parametrize("shard_documents", [1, 3, 100])
@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("c.jsonl", bytes),
        ("c.ndjson", lambda content: content.rstrip(b"\n")),
        ("c.jsonl", lambda content: content.replace(b"\n", b"\r\n")),
        ("c.jsonl", lambda content: b"\xef\xbb\xbf" + content),
        ("c.jsonl.gz", gzip.compress),
        ("c.jsonl", lambda content: gzip.compress(content[:70]) + gzip.compress(content[70:])),
        ("c.jsonl.zst", lambda content: pa.compress(content, "zstd", asbytes=True)),
        ("c.jsonl", lambda content: b"\n \t\r\n" + content + b"\n\n"),
        ("c.json", bytes),
        ("c", bytes),
    ],
    ids=["plain", "no end", "crlf", "bom", "gzip", "members", "zstd", "blank lines", "json", "no ending"],
)
def test_json_lines(tmp_path: Path, name: str, pack: Callable[[bytes], bytes], shard_documents: int) -> None:
    (tmp_path / name).write_bytes(pack(as_jsonl(RECORDS)))
    options = CorpusOptions((str(tmp_path / name),), shard_documents=shard_documents)
    plan, documents = read_all(options)
    assert facts(documents) == EXPECTED
    assert plan.num_documents == len(RECORDS)
    assert plan.num_bytes == (tmp_path / name).stat().st_size
    assert len(plan.shards) == -(-len(RECORDS) // shard_documents)
    first = documents[0].row
    assert [d.row for d in documents] == list(range(first, first + len(RECORDS)))
    assert {d.source for d in documents} == {str(tmp_path / name)} == set(plan.digests)


MENTIONS = pa.list_(
    pa.struct(
        [("start", pa.int32()), ("end", pa.int64()), ("id", pa.string()), ("more", pa.list_(pa.int8()))]
    )
)


def as_table(records: list[dict[str, Any]], text: pa.DataType, mentions: pa.DataType = MENTIONS) -> pa.Table:
    columns = {
        "more": pa.array(range(len(records))),
        "mentions": pa.array([record["mentions"] for record in records], type=mentions),
        "text": pa.array([record["text"] for record in records], type=pa.string()).cast(text),
        "id": pa.array([record["id"] for record in records]),
    }
    return pa.table(columns)


@pytest.mark.parametrize("row_group_size", [1, 3, 1000])
@pytest.mark.parametrize("shard_documents", [1, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "mentions"),
    [
        (pa.string(), MENTIONS),
        (pa.large_string(), pa.large_list(MENTIONS.value_type)),
        (pa.dictionary(pa.int32(), pa.string()), MENTIONS),
    ],
    ids=["string", "large", "dictionary"],
)
def test_parquet(
    tmp_path: Path, text: pa.DataType, mentions: pa.DataType, shard_documents: int, row_group_size: int
) -> None:
    file = str(tmp_path / "c.parquet")
    pq.write_table(as_table(RECORDS * 3, text, mentions), file, row_group_size=row_group_size)
    plan, documents = read_all(CorpusOptions((file,), shard_documents=shard_documents))
    assert facts(documents) == EXPECTED * 3
    assert [d.row for d in documents] == list(range(1, 13))
    assert plan.num_documents == 12
    assert len(plan.shards) == -(-12 // shard_documents)


def test_integer_ids_and_no_ids(tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl"
    file.write_bytes(as_jsonl([{"id": 7, "text": "x"}, {"text": "y"}, {"id": None, "text": "z"}]))
    _, documents = read_all(CorpusOptions((str(file),)))
    assert [d.doc_id for d in documents if isinstance(d, Document)] == ["7", f"{file}:2", f"{file}:3"]
    table = str(tmp_path / "c.parquet")
    pq.write_table(pa.table({"id": pa.array([7, None], type=pa.uint16()), "text": ["x", "y"]}), table)
    _, documents = read_all(CorpusOptions((table,)))
    assert facts(documents) == [("7", "x", None), (f"{table}:2", "y", None)]


@pytest.mark.parametrize("name", ["c.jsonl", "c.parquet"])
def test_fields_of_other_names(tmp_path: Path, name: str) -> None:
    others = {"text": 5, "id": {"a": 1}, "mentions": 3}
    record = {"pageid": "p", "body": "Nile", "links": [{"start": 0, "end": 4}], **others}
    names = {"id_field": "pageid", "text_field": "body", "mentions_field": "links"}
    options = CorpusOptions((write_records(tmp_path / name, [record]),), **names)  # type: ignore[arg-type]
    assert facts(read_all(options)[1]) == [("p", "Nile", (Span(0, 4),))]


MENTION_LINES: list[dict[str, Any]] = [
    {"id": "m1", "left": "die ", "mention": "Straße", "right": " \U0001f600", "doc": "d1"},
    {"id": None, "left": None, "mention": "Nile", "right": None, "doc": None},
    {"id": "m3", "left": "", "mention": "x", "right": "y", "doc": None},
]


@pytest.mark.parametrize("name", ["m.jsonl", "m.parquet"])
def test_records_that_are_one_mention(tmp_path: Path, name: str) -> None:
    file = write_records(tmp_path / name, MENTION_LINES)
    assert facts(read_all(CorpusOptions((file,)))[1]) == [
        ("d1", "die Straße \U0001f600", (Span(4, 10, "m1"),)),
        (f"{file}:2", "Nile", (Span(0, 4),)),
        ("m3", "xy", (Span(0, 1, "m3"),)),
    ]


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("shard_documents", [1, 2, 9])
def test_lines(tmp_path: Path, pack: Callable[[bytes], bytes], end: str, shard_documents: int) -> None:
    lines = ["\u0301a\u2028b", "", " \U0001f600\x0b\x1c ", "a\rb", "last"]
    file = tmp_path / "l.txt"
    file.write_bytes(pack(b"\xef\xbb\xbf" + end.join(lines).encode()))
    options = CorpusOptions((str(file),), "lines", shard_documents=shard_documents)
    assert facts(read_all(options)[1]) == [(f"{file}:{row}", line, None) for row, line in enumerate(lines, 1)]


def test_progress_ends_at_the_size_of_the_input(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(as_jsonl([{"text": "x" * 5000}] * 1000))
    (tmp_path / "b.txt").write_text("b" * 3_000_000)
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"c" * 1000))
    pq.write_table(pa.table({"text": ["d" * 5000] * 1000}), tmp_path / "d.parquet")
    told: list[int] = []
    plan = plan_corpus(CorpusOptions((str(tmp_path),)), told.append)
    assert told == sorted(told)
    assert told[-1] == plan.num_bytes == sum(file.stat().st_size for file in tmp_path.iterdir())
    assert len(told) > 8


def test_the_plan_is_the_same_every_time_and_follows_what_matters(tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl"
    file.write_bytes(as_jsonl(RECORDS * 5))

    def digests(**options: Any) -> list[str]:
        plan = plan_corpus(CorpusOptions((str(file),), shard_documents=7, **options))
        return [shard.digest for shard in plan.shards]

    first = digests()
    assert digests() == first
    assert len(set(first)) == len(first) == 3
    assert digests(shard_chars=10**7) == first
    for changed in ({"id_field": "x"}, {"mentions_field": "x"}, {"text_field": "x"}, {"span_unit": "byte"}):
        assert not set(digests(**changed)) & set(first)
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    assert not set(digests()) & set(first)


FIRST = "mention 1 of 1: "
OUTSIDE = "lies outside of the text, which has"
IN_UTF16 = "not 'Zürich'; it would be in UTF-16 units: is utf16 the unit of the spans?"
TEXT = "a\U0001f600b Zürich"  # code points, bytes and UTF-16 units all differ


def read(file: Path, **options: Any) -> list[Document | BadDocument]:
    return read_corpus(CorpusOptions((str(file),), **options))[1]


def reason(file: Path, line: bytes | dict[str, Any], **options: Any) -> str:
    """Return why a line is bad; the lines around it are good."""
    raw = line if isinstance(line, bytes) else json.dumps(line).encode()
    good = b'{"text": "x"}\n'
    file.write_bytes(good + raw + b"\n" + good)
    before, bad, after = read(file, **options)
    assert [type(one) for one in (before, bad, after)] == [Document, BadDocument, Document]
    assert after.row == 3
    assert (bad.source, bad.row) == (str(file), 2)
    return bad.reason


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"text": ', "bad JSON: Expecting value at character 10"),
        (b'["text"]', "not a JSON object: got a list"),
        (b'{"text": "\xff"}', "not valid UTF-8: byte 11"),
        ({"Text": "a"}, "field 'text': is missing"),
        ({"text": None}, "field 'text': expected a string, got null"),
        ({"text": ["a"]}, "field 'text': expected a string, got a list"),
        ({"text": "a\ud800b"}, f"field 'text': {HALF} at character 2"),
        ({"text": "a", "id": True}, "field 'id': expected text or an integer, got a bool"),
        ({"text": "a", "id": 1.5}, "field 'id': expected text or an integer, got a number"),
        ({"text": "a", "id": "\udc00"}, f"field 'id': {HALF} at character 1"),
        ({"mention": "a", "left": 5}, "field 'left': must be text, got int"),
        ({"mention": " ", "left": "a"}, "field 'mention': must not be empty"),
        ({"mention": "a", "doc": []}, "field 'doc': expected text or an integer, got a list"),
        ({"mention": "a", "id": {}}, "field 'id': must be text or an integer, got {}"),
        ({"mention": "a", "id": True}, "field 'id': must be text or an integer, got True"),
        ({"mention": "a\ud800"}, f"field 'mention': {HALF} at character 2"),
        ({"mention": "a", "id": "\udfff"}, f"field 'id': {HALF} at character 1"),
    ],
    ids=lambda value: None if isinstance(value, str) else repr(value)[:30],
)
def test_bad_lines(tmp_path: Path, line: bytes | dict[str, Any], expected: str) -> None:
    assert reason(tmp_path / "c.jsonl", line) == expected


def at(start: object, end: object, **more: object) -> list[dict[str, object]]:
    return [{"start": start, "end": end, **more}]


@pytest.mark.parametrize(
    ("mentions", "unit", "expected"),
    [
        ("x", "codepoint", "expected a list of objects, got a string"),
        ({}, "codepoint", "expected a list of objects, got an object"),
        ([[0, 1]], "codepoint", f"{FIRST}expected an object with start and end, got a list"),
        (at(0, None), "codepoint", f"{FIRST}end: is missing"),
        (at("0", 1), "codepoint", f"{FIRST}start: expected an integer, got a string ('0')"),
        (at(0, 1.0), "codepoint", f"{FIRST}end: expected an integer, got a number (1.0)"),
        (at(True, 2), "codepoint", f"{FIRST}start: expected an integer, got a bool (True)"),
        (at(2, 2), "codepoint", f"{FIRST}[2, 2) is empty or begins below 0"),
        (at(-2, 2), "utf16", f"{FIRST}[-2, 2) is empty or begins below 0"),
        ([*at(0, 1), *at(1, 0), {}], "utf16", "mention 2 of 3: [1, 0) is empty or begins below 0"),
        (at(0, 11), "codepoint", f"{FIRST}[0, 11) in code points {OUTSIDE} 10"),
        (at(0, 15), "byte", f"{FIRST}[0, 15) in bytes {OUTSIDE} 14"),
        (at(12, 10**30), "utf16", f"{FIRST}[12, {10**30}) in UTF-16 units {OUTSIDE} 11"),
        (at(7, 14, text="Zürich"), "utf16", f"{FIRST}[7, 14) in UTF-16 units {OUTSIDE} 11"),
        (at(0, 3), "byte", f"{FIRST}[0, 3) in bytes cuts a code point at 3; is byte the unit?"),
        (at(2, 4), "utf16", f"{FIRST}[2, 4) in UTF-16 units cuts a code point at 2; is utf16 the unit?"),
        (at(4, 7, mention="b Z"), "codepoint", f"{FIRST}mention: [4, 7) in code points is 'Zür', not 'b Z'"),
        (at(5, 11, text="Zürich"), "byte", f"{FIRST}text: [5, 11) in bytes is 'b Zür', {IN_UTF16}"),
        (at(0, 1, mention=5), "byte", f"{FIRST}mention: expected a string, got a number"),
        (at(0, 1, id=1.5), "byte", f"{FIRST}id: expected text or an integer, got a number"),
    ],
    ids=lambda value: None if isinstance(value, str) else repr(value)[:40],
)
def test_bad_spans(tmp_path: Path, mentions: object, unit: str, expected: str) -> None:
    line = {"id": "d", "text": TEXT, "mentions": mentions}
    found = reason(tmp_path / "c.jsonl", line, span_unit=unit)
    assert found.replace(", mention", ": mention", 1) == f"field 'mentions': document 'd': {expected}"


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
        ({"text": ["a"], "mentions": [[{"start": 1}]]}, "a list of structs with the integers start and end"),
        ({"text": ["a"], "mentions": [[{"start": 1, "end": "2"}]]}, "expected a list of structs with the"),
        ({"body": ["a"], "id": [1]}, "there is no column 'text'; the columns are 'body', 'id'"),
        ({"mention": [5]}, "column 'mention' is of type int64; expected string"),
    ],
    ids=lambda value: None if isinstance(value, str) else repr(value),
)
def test_columns_of_a_table(tmp_path: Path, column: dict[str, Any], expected: str) -> None:
    file = str(tmp_path / "c.parquet")
    pq.write_table(pa.table(column), file)
    with pytest.raises(SourceError, match=f"^{re.escape(file)}.*{re.escape(expected)}"):
        plan_corpus(CorpusOptions((file,)))


def test_columns_of_other_names_need_be_there_where_asked_for_alone(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "mention": [5], "x": [{"y": 1}]}), tmp_path / "c.parquet")
    assert [d.text for d in read(tmp_path / "c.parquet") if isinstance(d, Document)] == ["a"]
    for name in ("id_field", "mentions_field"):
        with pytest.raises(SourceError, match="no column 'z'; the columns are 'text', 'mention', 'x'"):
            read(tmp_path / "c.parquet", **{name: "z"})


CUT_GZIP = gzip.compress(b'{"text": "a"}\n' * 99, mtime=0)[:-9]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("c.jsonl", b"PAR1....", "this is a Parquet file; expected lines of text"),
        ("c.jsonl", CUT_GZIP, "the gzip stream is damaged or cut off"),
        ("c.parquet", b'{"text": "a"}', "this is no Parquet file"),
        ("c.parquet", b"", "this is no Parquet file"),
        ("c.parquet", b"PAR1\0\0\0\0\1\0\0\0PAR1", "damaged or cut off Parquet file"),
        ("c.dat", b"some text", "expected a name that ends in .jsonl, .ndjson, .parquet, .pq, .txt or .text"),
        ("c.csv", b"", "neither the name nor the content says how this file is to be read"),
        ("c.jsonl", b"", "no document in 1 file"),
        ("c.jsonl", b"\n \n", "no document in 1 file"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=f"^{re.escape(str(tmp_path / name))}.*{re.escape(expected)}"):
        read(tmp_path / name)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"input_format": "csv"}, "must be one of auto, jsonl, parquet, text, lines; got 'csv'"),
        ({"span_unit": "char"}, "must be one of codepoint, byte, utf16; got 'char'"),
        ({"shard_documents": 0}, "must be an integer of at least 1, got 0"),
        ({"shard_chars": 1}, "must be an integer of at least 2, got 1"),
        ({"text_field": ""}, "must not be empty"),
        ({"id_field": "text"}, "'text' is named for two of id, text and mentions"),
    ],
    ids=lambda value: None if isinstance(value, str) else repr(value),
)
def test_options(options: dict[str, Any], expected: str) -> None:
    (field,) = options
    with pytest.raises(InputError, match=f"^{field}: .*{re.escape(expected)}"):
        CorpusOptions(("c.jsonl",), **options)


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


@pytest.mark.parametrize(
    ("record", "row"),
    [
        (
            {"id": "a", "left": "the ", "mention": "Nile", "right": " flows", "title": "Nile"},
            MentionRow("a", Mention("Nile", "the ", " flows"), "Nile"),
        ),
        ({"mention": "Amazon", "entity_id": "Q8"}, MentionRow("5", Mention("Amazon"), entity_id="Q8")),
        ({"id": 7, "mention": "Paris", "further": [1, {}]}, MentionRow("7", Mention("Paris"))),
        ({"id": None, "mention": "Hg", "left": None, "right": None}, MentionRow("5", Mention("Hg"))),
    ],
)
def test_null_is_a_field_that_is_not_there(record: dict[str, Any], row: MentionRow) -> None:
    assert mention_row(record, 5) == row
