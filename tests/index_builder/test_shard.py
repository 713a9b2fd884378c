"""A shard is a run: sorted, readable in slices, and what was put in."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index_builder import shards as shard_module
from index_builder.runs import Run
from index_builder.shards import ShardRun, ShardShape, ShardWriter
from retrieval.index.manifest import MetadataColumn
from retrieval.sources import Record

END = 0
VOCAB = 300
COLUMNS = ("year", "label")
TOKENS = st.lists(st.sampled_from([1, 2, 299]), max_size=4).map(lambda tokens: [*tokens, END])
CELLS = st.tuples(st.sampled_from([None, "1", "-7"]), st.sampled_from([None, "x", "é"]))


@st.composite
def records(draw: st.DrawFn) -> list[tuple[Record, list[list[int]]]]:
    rows = st.lists(TOKENS, min_size=1, max_size=3)
    made = []
    for number, (forms, cells) in enumerate(draw(st.lists(st.tuples(rows, CELLS), min_size=1, max_size=20))):
        aliases = tuple(f"alias {n}" for n in range(1, len(forms)))
        made.append((Record(number % 2, number, f"q{number % 7}", f"t{number}", aliases, cells), forms))
    return made


def write(folder: Path, given: list[tuple[Record, list[list[int]]]]) -> ShardShape:
    writer = ShardWriter(True, COLUMNS, VOCAB)
    for begin in range(0, len(given), 4):
        part = given[begin : begin + 4]
        rows = [row for _, forms in part for row in forms]
        writer.add([record for record, _ in part], rows, [len(forms) for _, forms in part])
    return writer.write(folder)


@settings(deadline=None, max_examples=50)
@given(records(), st.data())
def test_a_shard_is_a_run(given: list[tuple[Record, list[list[int]]]], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_module, "TEXTS_BATCH", 3)  # several batches of texts
        path = Path(folder) / "shard"
        shape = write(path, given)
        assert shape == ShardShape.from_json(shape.to_json())
        with ShardRun(path, shape) as shard:
            run: Run = shard
            check_entities(run, given)
            check_forms(run, given, data)


def check_entities(run: Run, given: list[tuple[Record, list[list[int]]]]) -> None:
    assert isinstance(run, ShardRun)
    run.use_columns(
        [MetadataColumn("label", "string"), MetadataColumn("other", "bool"), MetadataColumn("year", "int")]
    )
    expected = sorted(given, key=lambda item: (item[1][0], item[0].entity_id))
    table = run.entities(0, run.num_entities)
    assert table.column_names == ["entity_id", "title", "aliases", "label", "other", "year"]
    order = [record.line for record, _ in expected]
    ties = {(tuple(forms[0]), record.entity_id) for record, forms in given}
    if len(ties) == len(given):
        assert run.numbers("line").tolist() == order
    by_title = {record.title: record for record, _ in given}
    assert run.numbers("line").tolist() == [by_title[t].line for t in table.column("title").to_pylist()]
    assert run.numbers("file").tolist() == [by_title[t].file for t in table.column("title").to_pylist()]
    sequence = {record.title: number for number, (record, _) in enumerate(given)}
    assert run.numbers("sequence").tolist() == [sequence[t] for t in table.column("title").to_pylist()]
    for row in table.to_pylist():
        record = by_title[row["title"]]
        year, label = record.metadata
        assert row == {
            "entity_id": record.entity_id,
            "title": record.title,
            "aliases": list(record.aliases),
            "label": label,
            "other": None,
            "year": None if year is None else int(year),
        }
    for begin in range(run.num_entities + 1):
        end = min(begin + 4, run.num_entities)
        assert run.entities(begin, end).to_pylist() == table.slice(begin, end - begin).to_pylist()


def check_forms(run: Run, given: list[tuple[Record, list[list[int]]]], data: st.DataObject) -> None:
    rows = sorted(row for _, forms in given for row in forms)
    titles = run.entities(0, run.num_entities).column("title").to_pylist()
    rows_of = {record.title: forms for record, forms in given}
    assert [list(run.row(n)) for n in range(run.num_forms)] == rows
    begin = data.draw(st.integers(0, run.num_forms))
    end = data.draw(st.integers(begin, run.num_forms))
    part = run.forms(begin, end)
    assert part.offsets[0] == 0
    found = [
        part.tokens[low:high].tolist() for low, high in zip(part.offsets, part.offsets[1:], strict=False)
    ]
    assert found == rows[begin:end]
    for row, entity, form in zip(found, part.entity.tolist(), part.form.tolist(), strict=True):
        assert rows_of[titles[entity]][form] == row
    wanted = data.draw(TOKENS)
    assert run.find(wanted) == sum(row < wanted for row in rows)
    assert np.count_nonzero(run.keep) == run.num_entities


def test_a_shard_that_has_become_shorter_is_an_error(tmp_path: Path) -> None:
    shape = write(tmp_path / "shard", [(Record(0, 1, "q", "t", (), (None, None)), [[1, END]])])
    path = tmp_path / "shard" / "numbers"
    path.write_bytes(path.read_bytes()[:-2])
    with ShardRun(tmp_path / "shard", shape) as shard, pytest.raises(OSError, match="ends early"):
        shard.numbers("sequence")


def test_the_memory_of_a_shard_grows_with_what_it_holds() -> None:
    writer = ShardWriter(False, (), VOCAB)
    assert writer.num_bytes == 0
    writer.add([Record(0, 1, None, "t" * 1000, (), ())], [[1, END]], [1])
    assert writer.num_bytes > 2000
