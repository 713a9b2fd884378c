"""Catalogues written in every format that is read, for tests of the reading."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, settings

from genret.retrieval.sources.columns import ColumnMapping, Kinds
from genret.retrieval.sources.records import Record, Rejects, SourceBatch
from genret.retrieval.sources.title_source import TitleSource

lenient = partial(
    settings, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
COMPRESSIONS = ("", ".gz", ".zst")
FORMATS = ("csv", "tsv", "jsonl", "parquet")
DELIMITED = ("csv", "tsv")  # with a header in line 1

# entity_id, title, aliases, metadata cells
Entity = tuple[str, str, tuple[str, ...], tuple[str | None, ...]]


def compressed(data: bytes, compression: str) -> bytes:
    if compression == ".gz":
        return gzip.compress(data, mtime=0)
    if compression == ".zst":
        return bytes(pa.compress(data, codec="zstd", asbytes=True))
    return data


def tsv(entities: Sequence[Entity], metadata: Sequence[str]) -> bytes:
    lines = ["\t".join(("entity_id", "title", "aliases", *metadata))]
    lines += ["\t".join((i, t, "|".join(a), *(cell or "" for cell in m))) for i, t, a, m in entities]
    return ("\n".join(lines) + "\n").encode()


def comma_separated(entities: Sequence[Entity], metadata: Sequence[str]) -> bytes:
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(("entity_id", "title", "aliases", *metadata))
    rows.writerows((i, t, "|".join(a), *m) for i, t, a, m in entities)
    return text.getvalue().encode()


def jsonl(entities: Sequence[Entity], metadata: Sequence[str]) -> bytes:
    rows = [
        {"entity_id": i, "title": t, "aliases": list(a), **dict(zip(metadata, m, strict=True))}
        for i, t, a, m in entities
    ]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def parquet(entities: Sequence[Entity], metadata: Sequence[str]) -> bytes:
    columns = {
        "entity_id": pa.array([e[0] for e in entities], pa.string()),
        "title": pa.array([e[1] for e in entities], pa.string()),
        "aliases": pa.array([e[2] for e in entities], pa.list_(pa.string())),
        **{name: pa.array([e[3][n] for e in entities], pa.string()) for n, name in enumerate(metadata)},
    }
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, row_group_size=3 if len(entities) < 100 else 500)
    return sink.getvalue().to_pybytes()


def write_catalogue(
    folder: Path, name: str, entities: Sequence[Entity], metadata: Sequence[str], compression: str = ""
) -> Path:
    """Write entities in the format of the suffix of `name`."""
    writers = {".csv": comma_separated, ".tsv": tsv, ".jsonl": jsonl, ".parquet": parquet}
    writer = writers[Path(name).suffix]
    file = folder / (name + compression)
    file.write_bytes(compressed(writer(entities, metadata), compression))
    return file


def read_batches(source: TitleSource, size: int = 5, limit: int = 1000) -> tuple[list[SourceBatch], Rejects]:
    rejects = Rejects(source.name, limit, files=source.names)
    return list(source.batches(size, rejects)), rejects


def read_all(source: TitleSource, size: int = 5, limit: int = 1000) -> tuple[list[Record], Rejects]:
    batches, rejects = read_batches(source, size, limit)
    return [record for batch in batches for record in batch.records], rejects


def check_positions(files: Path | Sequence[Path], size: int) -> None:
    """Reading goes on behind every batch of good and bad rows, as if it had not stopped."""
    with TitleSource(files) as source:
        batches, rejects = read_batches(source, size)
        total = source.records_read
    assert all(len(batch.records) == size for batch in batches[:-1])
    assert batches[-1].position.records_read == total
    for number, batch in enumerate(batches):
        with TitleSource(files) as source:
            source.skip_to(batch.position)
            following, later = read_batches(source, size)
            assert source.records_read == total
            assert source.bytes_read == source.num_bytes
        assert following == batches[number + 1 :]
        at = (batch.position.file, batch.position.lines)
        assert later.rows == [row for row in rejects.rows if (row.file, row.line) > at]


def all_kinds(batches: Sequence[SourceBatch]) -> tuple[Kinds, ...]:
    kinds = batches[0].kinds
    for batch in batches[1:]:
        kinds = tuple(a | b for a, b in zip(kinds, batch.kinds, strict=True))
    return kinds


def read_file(
    file: Path | Sequence[Path], mapping: ColumnMapping | None = None, **options: Any
) -> tuple[list[Record], Rejects]:
    """Return all good rows and all bad rows of files."""
    with TitleSource(file, mapping, **options) as source:
        return read_all(source)
