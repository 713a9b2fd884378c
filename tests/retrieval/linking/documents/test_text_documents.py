"""Offsets of documents, and documents in parts that know where they are."""

from __future__ import annotations

import gzip
import json
import pickle
import unicodedata
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genret.retrieval.linking.documents import input_files as content
from genret.retrieval.linking.documents import text_document as part_documents
from genret.retrieval.linking.documents import text_files
from genret.retrieval.linking.documents.corpus import CorpusOptions
from genret.retrieval.linking.documents.corpus_reading import CorpusReader, plan_corpus
from genret.retrieval.linking.documents.text_document import (
    BadDocument,
    Document,
    DocumentPlace,
    OffsetIndex,
    Span,
    cut_stream,
    cut_text,
)
from tests.corpus_shards import read_corpus, read_shard, store, write_records
from tests.own_process import TracedMemory, alone

ENCODINGS: dict[str, tuple[str, int]] = {
    "codepoint": ("utf-32-le", 4),
    "byte": ("utf-8", 1),
    "utf16": ("utf-16-le", 2),
}
TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)


def count(text: str, unit: str) -> int:
    encoding, size = ENCODINGS[unit]
    return len(text.encode(encoding)) // size


@pytest.mark.parametrize("unit", list(ENCODINGS))
@given(text=TEXTS, repeats=st.sampled_from([1, 60, 400]))
def test_both_ways(unit: str, text: str, repeats: int) -> None:
    text *= repeats  # beyond the checkpoints
    index = OffsetIndex(text, unit)
    places = range(0, len(text) + 1, max(1, len(text) // 50))
    assert index.length == count(text, unit)
    for position in (*places, len(text)):
        units = count(text[:position], unit)
        assert index.units_before(position) == units
        assert index.position_of(units) == position
        for inside in range(units + 1, units + count(text[position : position + 1], unit)):
            assert index.position_of(inside) is None


@given(before=TEXTS, text=TEXTS, data=st.data())
def test_a_part_places_its_spans_in_the_whole_document(before: str, text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    part = Document("s", 1, "d", text, offset=len(before), byte_offset=len(before.encode()))
    whole = before + text
    place = part.place(Span(start, end))
    assert place[:2] == (len(before) + start, len(before) + end)
    assert whole[place.start : place.end] == text[start:end]
    assert whole.encode()[place.start_byte : place.end_byte] == text[start:end].encode()


def test_documents_are_equal_and_travel_whatever_was_placed() -> None:
    document = Document("s", 1, "d", "ñandú", (Span(0, 5),))
    assert document.place(Span(0, 5)) == DocumentPlace(0, 5, 0, 7)
    assert document == Document("s", 1, "d", "ñandú", (Span(0, 5),))
    assert pickle.loads(pickle.dumps(document)) == document


PIECES = ["a", "bc", *" \n\u0301\u200d中\U0001f469\U0001f3fd", "\r\n", "\n\n", "\r\n\r\n"]
CUT_TEXTS = st.one_of(st.text(st.characters(codec="utf-8")), st.lists(st.sampled_from(PIECES)).map("".join))
SIZES = st.integers(2, 30)


def pieces(text: str, size: int) -> list[str]:
    return [text[begin:end] for begin, end in cut_text(text, size)]


@given(CUT_TEXTS, SIZES)
def test_parts_cover_the_text_once(text: str, size: int) -> None:
    parts = list(cut_text(text, size))
    assert parts[0][0] == 0
    assert parts[-1][1] == len(text)
    assert all(before[1] == behind[0] for before, behind in pairwise(parts))
    assert all(begin < end <= begin + size for begin, end in parts) or (text == "" and parts == [(0, 0)])
    assert len(parts) <= 2 * len(text) // size + 2 or any(c.isspace() for c in text)


@given(CUT_TEXTS, SIZES, st.lists(st.integers(0, 40)))
def test_a_stream_is_cut_as_the_whole(text: str, size: int, cuts: list[int]) -> None:
    streamed = [text[a:b] for a, b in pairwise(sorted({0, len(text), *(c for c in cuts if c < len(text))}))]
    assert list(cut_stream(streamed, size)) == pieces(text, size)


@given(CUT_TEXTS, SIZES)
def test_nothing_inside_of_crlf_or_in_front_of_a_mark(text: str, size: int) -> None:
    for _, end in list(cut_text(text, size))[:-1]:
        assert text[end - 1 : end + 1] != "\r\n"
    for begin, end in list(cut_text(text, size))[:-1]:
        window = text[begin : begin + size + 1]
        marks = [i for i in range(1, size + 1) if unicodedata.combining(window[i])]
        spaces = [i for i in range(1, size + 1) if window[i - 1].isspace() and window[i].isalnum()]
        if spaces:
            assert end - begin not in marks


JOINED = "\U0001f469\u200d\U0001f680"
BLANK_LINES = ["aaa bbb\r\n \t\r\n\r\n", "ccc\nddd eee"]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (16, ["aaa bbb\n\n", "ccc\nddd eee"]),
        (20, BLANK_LINES),
        (16, ["aaa bbb ccc\n", "ddd eee fff"]),
        (16, ["aaa\n\nbbb ccc ", "ddd eee"]),  # the blank line is too far in front
        (8, ["aaa bbb ", "ccc ddd"]),
        (8, ["a ", "bbbbbbbb", "bbbb"]),  # white space far in front
        (4, ["abcd", "efgh", "ij"]),
        (4, ["abc", "e\u0301fg"]),
        (4, ["e\u0301\u0301\u0301", "\u0301\u0301\u0301"]),
        (3, ["ab", "\r\n", "cd"]),
        (4, ["ab", f"{JOINED}c"]),
        (4, ["abcd"]),
        (4, [""]),
    ],
    ids=lambda value: repr(value) if isinstance(value, list) else None,
)
def test_where_it_is_cut(size: int, expected: list[str]) -> None:
    assert pieces("".join(expected), size) == expected


PARAGRAPH = "Caf\u0301e \U0001f469\u200d\U0001f680 Zürich, \u4e2d\u6587.\r\nThe Nile flows.\r\n\r\n"


def parts_of(options: CorpusOptions) -> list[Document]:
    plan, documents = read_corpus(options)
    assert plan.num_documents == 1
    assert sum(shard.num_documents for shard in plan.shards) == len(documents)
    assert not any(isinstance(document, BadDocument) for document in documents)
    return [document for document in documents if isinstance(document, Document)]


def check_parts(parts: list[Document], text: str, size: int, context: int) -> None:
    """The parts are those of the pure function, and their surroundings are those of the text."""
    cuts = [(part.offset + part.begin, part.offset + part.end) for part in parts]
    assert cuts == list(cut_text(text, size))
    for part, (begin, end) in zip(parts, cuts, strict=True):
        assert part.text == text[part.offset : part.offset + len(part.text)]
        assert part.byte_offset == len(text[: part.offset].encode())
        assert part.offset == max(0, begin - context)
        assert part.offset + len(part.text) >= min(len(text), end + context)


@pytest.fixture
def short_context(monkeypatch: pytest.MonkeyPatch) -> int:
    for module in (part_documents, text_files):
        monkeypatch.setattr(module, "CONTEXT_CHARS", 25)
    monkeypatch.setattr(text_files, "_BLOCK_BYTES", 7)
    return 25


@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.gz", "c.parquet"])
@pytest.mark.parametrize("unit", ["codepoint", "byte", "utf16"])
@pytest.mark.parametrize("size", [40, 150, 10_000])
def test_marked_spans_stay_with_the_part_they_begin_in(
    tmp_path: Path, short_context: int, name: str, unit: str, size: int
) -> None:
    text = PARAGRAPH * 20
    spans = [Span(at, at + 4, str(at)) for at in range(len(text)) if text.startswith("Nile", at)]
    spans.append(Span(30, len(text) - 3, "long"))
    spans.insert(0, Span(len(text) - 1, len(text), "last"))
    record = {"id": "d", "text": text, "mentions": [marked(text, span, unit) for span in spans]}
    options = CorpusOptions((write_records(tmp_path / name, [record]),), span_unit=unit, shard_chars=size)
    parts = parts_of(options)
    check_parts(parts, text, size, short_context)
    assert (len(parts) == 1) == (size >= len(text))
    found = []
    for part in parts:
        assert part.doc_id == "d"
        assert part.row == 1
        for span in part.spans:
            assert part.begin <= span.start < part.end
            place = part.place(span)
            assert text.encode()[place.start_byte : place.end_byte] == text[place.start : place.end].encode()
            assert part.text[span.start : span.end] == text[place.start : place.end]
            found.append(Span(place.start, place.end, span.mention_id))
    assert sorted(found, key=str) == sorted(spans, key=str)


def marked(text: str, span: Span, unit: str) -> dict[str, Any]:
    start, end = (count(text[:at], unit) for at in (span.start, span.end))
    return {"start": start, "end": end, "id": span.mention_id, "mention": text[span.start : span.end]}


def test_parts_of_a_document_without_marks_have_none(tmp_path: Path) -> None:
    for mentions, expected in ((None, None), ([], ())):
        record = {"text": PARAGRAPH * 20, "mentions": mentions}
        options = CorpusOptions((write_records(tmp_path / "c.jsonl", [record]),), shard_chars=100)
        assert {part.spans for part in parts_of(options)} == {expected}


ODD_PIECES = [*"a \u0301中\U0001f469\r\0\x85\u2028", "\r\n", "\n\n", "word"]


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"], ids=["no bom", "bom"])
@given(
    text=st.lists(st.sampled_from(ODD_PIECES)).map("".join),
    size=st.integers(2, 60),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_parts_of_a_text_file(
    tmp_path: Path, short_context: int, pack: Callable[[bytes], bytes], bom: bytes, text: str, size: int
) -> None:
    file = tmp_path / "t.txt"
    file.write_bytes(pack(bom + text.encode()))
    parts = parts_of(CorpusOptions((str(file),), shard_chars=size))
    check_parts(parts, text, size, short_context)
    assert {(part.doc_id, part.row, part.spans) for part in parts} == {(f"{file}:1", 1, None)}


def test_long_lines_of_text(tmp_path: Path, short_context: int) -> None:
    text = PARAGRAPH.replace("\r\n", " ") * 20
    file = tmp_path / "t.txt"
    file.write_bytes(b"\xef\xbb\xbf" + text.encode() + b"\r\n")
    options = CorpusOptions((str(file),), "lines", shard_chars=90)
    check_parts(parts_of(options), text, 90, short_context)


def test_the_rest_of_a_long_document_shares_a_shard_with_what_follows(tmp_path: Path) -> None:
    texts = ["short", "word " * 25, "short too", "and one"]
    options = CorpusOptions((str(store(tmp_path, "lines", texts)),), shard_chars=100)
    plan, documents = read_corpus(options)
    assert plan.num_documents == 4
    lengths = [[f.part or f.num_rows for f in shard.files] for shard in plan.shards]
    assert lengths == [[1], [(0, 100)], [(100, 125), 2]]
    texts_read = [d.text[d.begin : d.end] for d in documents]  # type: ignore[union-attr]
    assert "".join(texts_read) == "".join(texts)


def test_a_bad_long_document_is_bad_once(tmp_path: Path) -> None:
    spans = [{"start": 0, "end": 4}, {"start": 490, "end": 501}]
    record = {"id": "d", "text": "word " * 100, "mentions": spans}
    options = CorpusOptions((write_records(tmp_path / "c.jsonl", [record]),), shard_chars=50)
    _, (bad,) = read_corpus(options)
    assert "mention 2 of 2: [490, 501) in code points lies outside of the text, which has 500" in bad.reason


def test_a_line_that_is_too_long_is_bad_and_the_next_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(content, "_BLOCK_BYTES", 16)
    file = tmp_path / "c.jsonl"
    fits = json.dumps({"text": "x" * (100 - len('{"text": ""}\n'))})
    assert len(fits) == 99
    file.write_text("\n".join([fits, json.dumps({"text": "y" * 1000}), fits, json.dumps({"text": "z"}), ""]))
    for shard_documents in (1, 10):
        _, documents = read_corpus(CorpusOptions((str(file),), shard_documents=shard_documents))
        assert [type(d) for d in documents] == [Document, BadDocument, Document, Document]
        assert str(documents[1]) == (
            f"{file}, line 2: the line has 1013 bytes; 100 are the most that are read"
        )


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_text_of_20_megabytes_is_read_by_the_part(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    line = "The Nile flows through Zürich.\r\n"
    text = line * (20_000_000 // len(line.encode()))
    file = tmp_path / "t.txt"
    file.write_bytes(pack(text.encode()))
    assert alone(peak_of_parts, CorpusOptions((str(file),)), text) < 12_000_000


def peak_of_parts(options: CorpusOptions, text: str) -> int:
    with TracedMemory() as memory:
        plan = plan_corpus(options)
        assert len(plan.shards) == -(-len(text) // options.shard_chars) == 20
        for shard in (plan.shards[0], plan.shards[10], plan.shards[-1]):
            (part,) = read_shard(options, shard)
            assert part.text == text[part.offset : part.offset + len(part.text)]
            assert part.offset * 33 // 32 - 40 < part.byte_offset <= part.offset * 33 // 32 + 1
    return memory.peak


MIB = 1 << 20


def lines(first: int, count: int) -> bytes:
    return b"".join(b'{"id": %d, "text": "The Nile, %d"}\n' % (at, at) for at in range(first, first + count))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.gz"])
def test_a_million_lines(tmp_path: Path, name: str) -> None:
    with (gzip.open if name.endswith("gz") else open)(tmp_path / name, "wb") as file:
        for first in range(0, 1_000_000, 10_000):
            file.write(lines(first, 10_000))
    assert alone(peak_of_a_million_lines, CorpusOptions((str(tmp_path / name),))) < 8 * MIB


def peak_of_a_million_lines(options: CorpusOptions) -> int:
    with TracedMemory() as memory, closing(CorpusReader(options)) as reader:
        plan = plan_corpus(options)
        assert plan.num_documents == 1_000_000
        assert len(plan.shards) == 1000
        for shard in (*plan.shards[:3], *plan.shards[-3:]):
            ids = [document.doc_id for document in reader.read(shard)]  # type: ignore[union-attr]
            assert ids == [str(shard.number * 1000 + at) for at in range(1000)]
    return memory.peak


def test_a_large_row_group_is_read_in_batches(tmp_path: Path) -> None:
    file = tmp_path / "c.parquet"
    texts = [f"{at:05} " * 1000 for at in range(12_000)]
    pq.write_table(pa.table({"text": texts}), file, row_group_size=12_000)  # 72 MB in one row group
    assert alone(peak_of_arrow_in_a_large_row_group, CorpusOptions((str(file),))) < 40 * MIB


def peak_of_arrow_in_a_large_row_group(options: CorpusOptions) -> int:
    before = pa.total_allocated_bytes()
    highest = []
    plan = plan_corpus(options, lambda num_bytes: highest.append(pa.total_allocated_bytes()))
    assert plan.num_documents == 12_000
    with closing(CorpusReader(options)) as reader:
        for shard in (plan.shards[0], plan.shards[-1], plan.shards[1]):
            documents = list(reader.read(shard))
            assert [document.row for document in documents] == list(
                range(shard.files[0].first_row, shard.files[0].first_row + shard.num_documents)
            )
            assert all(d.text == f"{d.row - 1:05} " * 1000 for d in documents)  # type: ignore[union-attr]
    return max(highest) - before


def test_many_small_files(tmp_path: Path) -> None:
    for at in range(3000):
        (tmp_path / f"{at:04}.txt").write_bytes(b"The Nile")
    # What a plan says about a file: path, name, digest and stretch; no more than two thousand bytes of it.
    assert alone(peak_of_many_small_files, CorpusOptions((str(tmp_path),))) < 3000 * 2000 + 2 * MIB


def peak_of_many_small_files(options: CorpusOptions) -> int:
    with TracedMemory() as memory:
        plan = plan_corpus(options)
    assert [shard.num_documents for shard in plan.shards] == [1000] * 3
    return memory.peak
