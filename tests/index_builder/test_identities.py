"""Repeated records, contradicting ids and generated ids, against dictionaries."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.index_builder import entities as identities
from genret.index_builder.entities import resolve_identities
from genret.index_builder.runs import ShardRun, ShardWriter
from genret.retrieval.index.layout import ENTITY_ID
from genret.retrieval.index.manifest import MetadataColumn
from genret.retrieval.sources.records import Record, RejectReason, Rejects, numbered_id

TITLES = st.sampled_from(["a", "b", "a#", "a#2", "a#2#", "a##2", "a#3", "b#2", "ab"])
COLUMNS = ("kind",)


@dataclass
class Expected:
    """What the rules say, one record at a time."""

    ids: dict[int, str] = field(default_factory=dict)
    duplicates: int = 0
    conflicts: list[tuple[int, int]] = field(default_factory=list)


def by_the_rules(records: Sequence[Record]) -> Expected:
    expected = Expected()
    titles = {record.title for record in records}
    seen: dict[str, list[tuple[int, tuple[object, ...]]]] = {}
    for number, record in enumerate(records):
        with_id = record.entity_id is not None
        key = record.title if record.entity_id is None else record.entity_id
        content = (record.title, record.aliases, record.metadata)
        earlier = seen.setdefault(key, [])
        if any(content == other for _, other in earlier):
            expected.duplicates += 1
            continue
        if earlier and with_id:
            expected.conflicts.append((record.line, records[earlier[0][0]].line))
            continue
        number_of_key = len(earlier) + 1
        expected.ids[number] = (
            key if number_of_key == 1 else numbered_id(key, number_of_key, titles.__contains__)
        )
        earlier.append((number, content))
    return expected


def write_shards(folder: Path, records: Sequence[Record], sizes: Sequence[int]) -> list[ShardRun]:
    shards = []
    begin = 0
    for number, size in enumerate(sizes):
        part = records[begin : begin + size]
        if not part:
            break
        writer = ShardWriter(part[0].entity_id is not None, COLUMNS, 256)
        for record in part:  # one batch each
            forms = (record.title, *record.aliases)
            writer.add([record], [[*form.encode(), 0] for form in forms], [len(forms)])
        path = folder / f"shard-{number}"
        shard = ShardRun(path, writer.write(path))
        shard.use_columns([MetadataColumn("kind", "string")])
        shards.append(shard)
        begin += size
    return shards


@st.composite
def catalogues(draw: st.DrawFn) -> list[Record]:
    with_ids = draw(st.booleans())
    record = st.tuples(
        st.sampled_from(["q1", "q2", "q3", "a"]) if with_ids else st.none(),
        TITLES,
        st.sampled_from([(), ("x",), ("x", "y")]),
        st.sampled_from([(None,), ("1",), ("x",)]),
    )
    drawn = draw(st.lists(record, min_size=1, max_size=30))
    return [Record(0, line, *fields) for line, fields in enumerate(drawn, start=2)]


@settings(max_examples=80)
@given(
    catalogues(), st.lists(st.integers(1, 9), min_size=30, max_size=30), st.sampled_from([1, 700, 1 << 30])
)
def test_identities_equal_the_rules(records: list[Record], sizes: list[int], memory_bytes: int) -> None:
    expected = by_the_rules(records)
    rejects = Rejects("titles", 100, files=("titles",))
    with tempfile.TemporaryDirectory() as folder:
        shards = write_shards(Path(folder), records, sizes)
        duplicates = resolve_identities(shards, ("titles",), rejects, memory_bytes)
        ids: dict[int, str] = {}
        for shard in shards:
            lines = shard.numbers("line")
            table = shard.entities(0, shard.num_entities).column(ENTITY_ID).to_pylist()
            for entity in np.flatnonzero(shard.keep).tolist():
                ids[int(lines[entity]) - 2] = table[entity]
            # Any slice says the same as the whole.
            middle = shard.num_entities // 2
            assert shard.entities(middle, shard.num_entities).column(ENTITY_ID).to_pylist() == table[middle:]
            shard.close()
    assert ids == expected.ids
    assert duplicates == expected.duplicates
    assert len(set(ids.values())) == len(ids)
    assert sorted(row.line for row in rejects.rows) == [line for line, _ in expected.conflicts]
    for row in rejects.rows:
        assert row.reason is RejectReason.DUPLICATE_ID
        assert f"first on line {dict(expected.conflicts)[row.line]} with other fields" in row.detail


def test_a_contradiction_names_the_other_file(tmp_path: Path) -> None:
    records = [Record(0, 2, "q", "a", (), (None,)), Record(1, 7, "q", "b", (), (None,))]
    rejects = Rejects("titles", 1, files=("one.tsv", "two.tsv"))
    shards = write_shards(tmp_path, records, [1, 1])
    resolve_identities(shards, rejects.files, rejects, 1 << 20)
    (row,) = rejects.rows
    assert (row.file, row.line) == (1, 7)
    assert row.detail == "'q', first on line 2 of one.tsv with other fields"
    for shard in shards:
        shard.close()


def test_many_homonyms_are_named_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identities, "_NAMED_AT_ONCE", 3)
    records = [Record(0, n, None, "a", (), (str(n),)) for n in range(1, 21)]
    records += [Record(0, 21, None, "a#5", (), (None,)), Record(0, 22, None, "a#5#", (), (None,))]
    shards = write_shards(tmp_path, records, [9, 9, 9])
    assert resolve_identities(shards, ("titles",), Rejects("titles", 0), 1 << 20) == 0
    ids = {i for shard in shards for i in shard.entities(0, shard.num_entities).column(ENTITY_ID).to_pylist()}
    plain = {f"a#{n}" for n in range(2, 21) if n != 5}
    assert ids == {"a", "a#5##", "a#5", "a#5#", *plain}
    for shard in shards:
        shard.close()


def test_a_bare_record_is_found_again_among_others(tmp_path: Path) -> None:
    """Batches of bare titles are hashed another way than those with aliases."""
    records = [
        Record(0, 1, None, "a", (), ()),
        Record(0, 2, None, "b", ("x",), ()),
        Record(0, 3, None, "a", (), ()),
        Record(0, 4, None, "a", ("y",), ()),
    ]
    writer = ShardWriter(False, (), 256)
    writer.add(records[:1], [[97, 0]], [1])
    writer.add(records[1:], [[98, 0], [120, 0], [97, 0], [97, 0], [121, 0]], [2, 1, 2])
    with closing(ShardRun(tmp_path / "shard", writer.write(tmp_path / "shard"))) as shard:
        assert resolve_identities([shard], ("titles",), Rejects("titles", 0), 1 << 20) == 1
        assert sorted(shard.numbers("line")[shard.keep].tolist()) == [1, 2, 4]
        ids = shard.entities(0, 4).column(ENTITY_ID).to_pylist()
        assert sorted(np.array(ids)[shard.keep].tolist()) == ["a", "a#2", "b"]
