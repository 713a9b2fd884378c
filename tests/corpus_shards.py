"""Corpora that are written for a test, and the documents of one of their shards, read at once."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from genret.retrieval.linking.documents.corpus import CorpusOptions, CorpusPlan, Shard
from genret.retrieval.linking.documents.corpus_reading import CorpusReader, plan_corpus
from genret.retrieval.linking.documents.text_document import BadDocument, Document


def read_shard(options: CorpusOptions, shard: Shard) -> Iterator[Document | BadDocument]:
    with closing(CorpusReader(options)) as reader:
        yield from reader.read(shard)


def read_corpus(options: CorpusOptions) -> tuple[CorpusPlan, list[Document | BadDocument]]:
    """Return the shards of a corpus, and the documents of all, each shard read alone."""
    plan = plan_corpus(options)
    return plan, [document for shard in plan.shards for document in read_shard(options, shard)]


def as_jsonl(records: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def write_records(file: Path, records: Sequence[Mapping[str, Any]], **settings: Any) -> str:
    """Write records to a file, in the format that its name says, and return its name."""
    if file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(records)), file, **settings)
    elif file.suffix == ".csv":
        with file.open("w", encoding="utf-8", newline="") as text:
            csv.writer(text).writerows([records[0], *(record.values() for record in records)])
    elif file.suffix == ".tsv":
        rows = [records[0], *(record.values() for record in records)]
        file.write_bytes("".join("\t".join(map(str, row)) + "\n" for row in rows).encode())
    else:
        lines = as_jsonl(records)
        file.write_bytes(gzip.compress(lines) if file.suffix == ".gz" else lines)
    return str(file)


def store(folder: Path, form: str, texts: Sequence[str]) -> Path:
    """Write documents d0, d1, ... as one file, or as a folder whose files hold some of them each."""
    records = [{"id": f"d{i}", "text": text} for i, text in enumerate(texts)]
    lines = [(json.dumps(one, ensure_ascii=bool(i % 2)) + "\n").encode() for i, one in enumerate(records)]
    whole = b"".join(lines)
    files = {"d.jsonl": gzip.compress(whole) if form == "gzip" else whole}
    if form == "parquet":
        return Path(write_records(folder / "d.parquet", records, row_group_size=3))
    if form == "texts":
        files = {f"d/{i:03}.txt": text.encode() for i, text in enumerate(texts)}
    elif form == "folder":
        middle = len(lines) // 2
        files = {"d/a.jsonl": b"".join(lines[:middle])}
        files["d/b.jsonl.gz"] = gzip.compress(b"".join(lines[middle:]))
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    return folder / ("d.jsonl" if "d.jsonl" in files else "d")
