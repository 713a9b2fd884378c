"""Corpora that are written for a test, and the documents of one of their shards, read at once."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from genret.retrieval.linking.documents.corpus import CorpusOptions, Shard
from genret.retrieval.linking.documents.corpus_reading import CorpusReader
from genret.retrieval.linking.documents.text_document import BadDocument, Document


def read_shard(options: CorpusOptions, shard: Shard) -> Iterator[Document | BadDocument]:
    with closing(CorpusReader(options)) as reader:
        yield from reader.read(shard)


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "lines": bytes,
    "gzip": gzip.compress,
    "zstd": lambda content: bytes(pa.compress(content, codec="zstd", asbytes=True)),
}


def store(folder: Path, form: str, texts: Sequence[str]) -> Path:
    """Write documents d0, d1, ... as one file, or as a folder whose files hold some of them each."""
    records = [{"id": f"d{i}", "text": text} for i, text in enumerate(texts)]
    lines = [(json.dumps(one, ensure_ascii=bool(i % 2)) + "\n").encode() for i, one in enumerate(records)]
    files = {"d.jsonl": PACKED.get(form, bytes)(b"".join(lines))}
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(records), folder / "d.parquet", row_group_size=3)
        return folder / "d.parquet"
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
