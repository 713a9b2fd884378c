"""Every document of every format comes out once, in order, exactly as in the file, whatever the shards."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from genret.retrieval.errors import SourceError
from genret.retrieval.linking.documents.corpus import CorpusOptions, CorpusPlan, plan_corpus
from genret.retrieval.linking.documents.corpus_reading import CorpusReader
from genret.retrieval.linking.documents.text_document import BadDocument, Document, Span
from tests.corpus_shards import read_shard

ODD = "Cafe\u0301 \U0001f469\u200d\U0001f680\r\nÄ\tß中\u2028x\u0000 \u0085y"
RECORDS: list[dict[str, Any]] = [
    {"id": "a", "text": "Paris is in France.", "mentions": [{"start": 0, "end": 5, "id": "m1"}]},
    {"id": "b", "text": ODD, "mentions": []},
    {"id": "c", "text": "", "mentions": None},
    {
        "id": "d",
        "text": "  spaces \r\n kept\n",
        "mentions": [{"start": 9, "end": 11}, {"start": 0, "end": 9}],
    },
]
EXPECTED = [
    ("a", "Paris is in France.", (Span(0, 5, "m1"),)),
    ("b", ODD, ()),
    ("c", "", None),
    ("d", "  spaces \r\n kept\n", (Span(9, 11), Span(0, 9))),
]


def read_all(options: CorpusOptions) -> tuple[CorpusPlan, list[Document | BadDocument]]:
    """Plan, read every shard alone, and see that one reader gives the same in order."""
    plan = plan_corpus(options)
    documents = [document for shard in plan.shards for document in read_shard(options, shard)]
    with closing(CorpusReader(options)) as reader:
        assert [d for shard in plan.shards for d in reader.read(shard)] == documents
        for shard in reversed(plan.shards):
            assert list(reader.read(shard)) == list(read_shard(options, shard))
    assert [shard.number for shard in plan.shards] == list(range(len(plan.shards)))
    assert sum(shard.num_documents for shard in plan.shards) == len(documents)
    return plan, documents


def as_jsonl(records: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


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


def test_fields_of_other_names(tmp_path: Path) -> None:
    record = {
        "pageid": "p",
        "body": "Nile",
        "links": [{"start": 0, "end": 4}],
        "text": 5,
        "id": {"a": 1},
        "mentions": 3,
    }
    (tmp_path / "c.jsonl").write_bytes(as_jsonl([record]))
    options = CorpusOptions(
        (str(tmp_path / "c.jsonl"),), id_field="pageid", text_field="body", mentions_field="links"
    )
    assert facts(read_all(options)[1]) == [("p", "Nile", (Span(0, 4),))]
    table = tmp_path / "c.parquet"
    pq.write_table(pa.Table.from_pylist([record]), table)
    assert facts(read_all(replace(options, inputs=(str(table),)))[1]) == [("p", "Nile", (Span(0, 4),))]


MENTION_LINES: list[dict[str, Any]] = [
    {"id": "m1", "left": "die ", "mention": "Straße", "right": " \U0001f600", "doc": "d1"},
    {"id": None, "left": None, "mention": "Nile", "right": None, "doc": None},
    {"id": "m3", "left": "", "mention": "x", "right": "y", "doc": None},
]


@pytest.mark.parametrize("name", ["m.jsonl", "m.parquet"])
def test_records_that_are_one_mention(tmp_path: Path, name: str) -> None:
    file = str(tmp_path / name)
    if name.endswith("parquet"):
        pq.write_table(pa.Table.from_pylist(MENTION_LINES), file)
    else:
        Path(file).write_bytes(as_jsonl(MENTION_LINES))
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


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"], ids=["no bom", "bom"])
@pytest.mark.parametrize("text", [ODD, "", "a\r\n\r\nb\r"], ids=["odd", "empty", "crlf"])
def test_a_text_file_is_one_document(
    tmp_path: Path, pack: Callable[[bytes], bytes], bom: bytes, text: str
) -> None:
    file = tmp_path / "t.txt"
    file.write_bytes(pack(bom + text.encode()))
    plan, documents = read_all(CorpusOptions((str(file),)))
    assert facts(documents) == [(f"{file}:1", text, None)]
    assert plan.num_documents == 1


def test_shards_keep_to_their_length(tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl"
    records = [{"text": "x" * (1 + number * 7 % 60)} for number in range(300)]
    file.write_bytes(as_jsonl(records))
    plan, documents = read_all(CorpusOptions((str(file),), shard_chars=400))
    assert [d.text for d in documents if isinstance(d, Document)] == [r["text"] for r in records]
    lengths = [sum(len(d.text) for d in read_shard(CorpusOptions((str(file),)), s)) for s in plan.shards]  # type: ignore[union-attr]
    assert max(lengths) <= 400
    assert len(lengths) < 300 / 2


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
        return [
            s.digest for s in plan_corpus(CorpusOptions((str(file),), shard_documents=7, **options)).shards
        ]

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


def test_no_document_at_all(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"")
    (tmp_path / "b.jsonl").write_bytes(b"\n \n")
    with pytest.raises(SourceError, match="no document in 2 files"):
        plan_corpus(CorpusOptions((str(tmp_path),)))
