"""Part files: whole or not there, the same rows in both formats, the same bytes for the same rows."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.retrieval.durable import appearing, replace_file
from genret.retrieval.errors import SourceError
from genret.retrieval.linking.output import part_files as part_file
from genret.retrieval.linking.output.part_files import SCHEMA, merge_parts, write_part
from tests.linking_fakes import rows_of

METADATA = {"index_digest": "abc", "options": '{"k": 5}'}
LINKED = {
    **dict.fromkeys(SCHEMA.names),
    "source": "a.jsonl",
    "row": 1,
    "doc_id": "a",
    "start": 3,
    "end": 9,
    "mention": "Nile ü 🐫",
    "entity_id": "Q7",
    "title": "Nile",
    "logprob": -1.5,
    "probability": 0.25,
    "candidates": [{"entity_id": "Q7", "title": "Nile", "logprob": -1.5, "score": -1.5, "probability": 0.25}],
    "certified": True,
}
NIL = {**dict.fromkeys(SCHEMA.names), "source": "a.jsonl", "row": 2, "mention": "x", "candidates": []}
Rows = list[dict[str, Any]]


def write(file: Path, *batches: Sequence[dict[str, Any]]) -> int:
    return write_part(file, file.suffix[1:], METADATA, batches)


@pytest.fixture(params=["out.parquet", "out.jsonl"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / str(request.param)


@pytest.mark.parametrize("batches", [[], [[]], [[LINKED]], [[LINKED, NIL], [NIL]]])
def test_rows_come_back(file: Path, batches: list[Rows]) -> None:
    rows = [row for rows in batches for row in rows]
    assert write(file, *batches) == len(rows)
    assert rows_of(file) == rows
    merge_parts(file.with_stem("merged"), file.suffix[1:], METADATA, [file])
    assert rows_of(file.with_stem("merged")) == rows


def test_parquet_has_schema_and_metadata(tmp_path: Path) -> None:
    write(tmp_path / "out.parquet", [LINKED])
    schema = pq.read_schema(tmp_path / "out.parquet")
    assert schema.equals(SCHEMA)
    assert schema.metadata[b"genret.index_digest"] == b"abc"
    assert schema.metadata[b"genret.options"] == b'{"k": 5}'


def test_json_lines_have_the_order_of_the_schema_and_are_utf_8(tmp_path: Path) -> None:
    write(tmp_path / "out.jsonl", [dict(reversed(LINKED.items()))])
    text = (tmp_path / "out.jsonl").read_bytes().decode("utf-8")
    assert list(json.loads(text)) == SCHEMA.names
    assert "Nile ü 🐫" in text


@settings(max_examples=15)
@given(cuts=st.lists(st.integers(0, 60), max_size=8), weight=st.sampled_from([1, 7, 1 << 16]))
def test_how_rows_come_does_not_show_in_the_bytes(
    cuts: list[int], weight: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("bytes")
    rows = [{**(LINKED if i % 3 else NIL), "row": i} for i in range(60)]
    bounds = [0, *sorted(cuts), 60]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_file, "_GROUP_WEIGHT", weight)
        for name in ("out.parquet", "out.jsonl"):
            write(folder / f"one-{name}", rows)
            write(folder / f"many-{name}", *(rows[a:b] for a, b in itertools.pairwise(bounds)))
            assert (folder / f"one-{name}").read_bytes() == (folder / f"many-{name}").read_bytes()


def test_row_groups_are_bounded_by_rows_and_candidates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_file, "_GROUP_WEIGHT", 10)
    many = {**LINKED, "candidates": LINKED["candidates"] * 9}  # type: ignore[operator]
    write(tmp_path / "out.parquet", [NIL] * 25, [many] * 2)
    with pq.ParquetFile(tmp_path / "out.parquet") as written:
        sizes = [written.metadata.row_group(i).num_rows for i in range(written.metadata.num_row_groups)]
    assert sizes == [10, 10, 6, 1]


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_old_file_stays_until_the_new_one_is_whole(tmp_path: Path, kind: type[BaseException]) -> None:
    file = tmp_path / "f"
    replace_file(file, b"old")
    with pytest.raises(kind), appearing(file) as staging:  # noqa: PT012
        staging.write_bytes(b"new")
        raise kind
    assert (file.read_bytes(), os.listdir(tmp_path)) == (b"old", ["f"])
    replace_file(file, b"new")
    assert (file.read_bytes(), os.listdir(tmp_path)) == (b"new", ["f"])


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("output_format", ["parquet", "jsonl"])
@pytest.mark.parametrize("num_rows", [1, 2000])  # one row is written as the file is closed
def test_a_full_disk_is_an_error_that_names_the_output(output_format: str, num_rows: int) -> None:
    with pytest.raises(SourceError, match=r"^/dev/full: cannot be written: .*No space left on device"):
        write_part(Path("/dev/full"), output_format, METADATA, [[LINKED] * num_rows])


def test_the_error_of_the_rows_comes_through(file: Path) -> None:
    def failing() -> Any:
        yield [LINKED]
        raise ValueError("no more rows")

    with pytest.raises(ValueError, match="no more rows"):
        write_part(file, file.suffix[1:], METADATA, failing())


def test_parts_are_merged_in_order(file: Path) -> None:
    parts = []
    for i in range(5):
        part = file.with_name(f"part-{i:06d}{file.suffix}")
        write(part, [{**LINKED, "row": 10 * i + j} for j in range(i)])
        parts.append(part)
    merge_parts(file, file.suffix[1:], METADATA, parts)
    assert [row["row"] for row in rows_of(file)] == [10, 20, 21, 30, 31, 32, 40, 41, 42, 43]
    if file.suffix == ".parquet":
        assert pq.read_schema(file).metadata[b"genret.index_digest"] == b"abc"
        assert pq.read_metadata(file).num_row_groups == 1


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    part = tmp_path / "part-000000.parquet"
    write(part, [LINKED] * 1000)
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(SourceError, match=r"part-000000\.parquet: cannot be read: .*delete it"):
        merge_parts(tmp_path / "out.parquet", "parquet", METADATA, [part])
