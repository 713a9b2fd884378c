from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index_builder import entity_writer as entity_survey
from index_builder import runs as runs_module
from index_builder.changes import VersionRun
from index_builder.memory_budget import MemoryBudget, cut
from index_builder.merge import VersionSpec, write_version
from retrieval.errors import SourceError
from retrieval.index.manifest import MetadataColumn
from retrieval.index.reader import Index
from retrieval.index.verification import verify
from retrieval.progress import StepProgress
from tests.run_fixtures import END, Item, ListRun, expected_entities, expected_postings, write

COLUMNS = (
    MetadataColumn("kind", "string"),
    MetadataColumn("note", "string"),
    MetadataColumn("year", "int"),
    MetadataColumn("weight", "float"),
    MetadataColumn("living", "bool"),
)
VOCAB = 300


@st.composite
def items(draw: st.DrawFn, ids: Sequence[str]) -> list[Item]:
    """Entities of some ids; few tokens, so that titles, aliases and prefixes coincide."""
    row = st.lists(st.sampled_from([1, 2, 299]), max_size=4).map(lambda tokens: (*tokens, END))
    long_row = st.sampled_from([(*[1] * 70, END), (*[1] * 69, 2, END)])
    made = []
    ids_are_titles = draw(st.booleans())
    for entity_id in ids:
        rows = tuple(draw(st.lists(st.one_of(row, row, row, long_row), min_size=1, max_size=4)))
        title = entity_id if ids_are_titles else "title " + repr(rows[0])
        metadata = draw(
            st.fixed_dictionaries(
                {
                    "kind": st.sampled_from([None, "a", "b", "é"]),
                    "note": st.sampled_from([None, entity_id, ""]),
                    "year": st.none() | st.integers(-(2**63), 2**63 - 1),
                    "weight": st.none() | st.floats(allow_nan=False),
                    "living": st.none() | st.booleans(),
                }
            )
        )
        aliases = tuple(f"alias {n}" for n in range(1, len(rows)))
        made.append(Item(entity_id, title, rows, aliases, metadata))
    return made


@st.composite
def catalogues(draw: st.DrawFn) -> tuple[list[tuple[Item, int, bool]], int, int]:
    """Entities with their run and whether they are kept; number of runs; size of a range."""
    ids = draw(st.lists(st.text("ab#é2𐐀", min_size=1, max_size=4), min_size=1, max_size=25, unique=True))
    num_runs = draw(st.integers(1, 4))
    placed = [
        (item, draw(st.integers(0, num_runs - 1)), draw(st.integers(0, 3)) > 0) for item in draw(items(ids))
    ]
    item, run, _ = placed[0]
    placed[0] = (item, run, True)
    return placed, num_runs, draw(st.sampled_from([1, 500, 2000, 10**9]))


def _runs(placed: Sequence[tuple[Item, int, bool]], num_runs: int) -> list[ListRun]:
    parts = [[(item, kept) for item, run, kept in placed if run == number] for number in range(num_runs)]
    return [ListRun([i for i, _ in part], [k for _, k in part], COLUMNS, VOCAB) for part in parts]


def _files(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


@settings(max_examples=150, deadline=None)
@given(catalogues())
def test_merge_equals_a_build_in_plain_python(
    case: tuple[list[tuple[Item, int, bool]], int, int],
) -> None:
    placed, num_runs, block_bytes = case
    kept = [item for item, _, keep in placed if keep]
    with tempfile.TemporaryDirectory() as name:
        tmp = Path(name)
        folder, manifest = write(tmp / "runs", _runs(placed, num_runs), COLUMNS, VOCAB, block_bytes)
        report = verify(folder)
        assert report.ok, report.problems
        with Index.open(folder) as index:
            _check_content(index, kept)
            assert manifest.stored_ids == any(item.entity_id != item.title for item in kept)
            assert manifest.stored_aliases == any(item.aliases for item in kept)
            # One run of the kept entities alone, in one range, gives the same bytes; so does the version.
            once, _ = write(tmp / "once", [ListRun(kept, [True] * len(kept), COLUMNS, VOCAB)], COLUMNS, VOCAB)
            assert _files(once) == _files(folder)
            again, _ = write(tmp / "again", [VersionRun(index)], COLUMNS, VOCAB, block_bytes)
            assert _files(again) == _files(folder)


def _check_content(index: Index, kept: list[Item]) -> None:
    ordered = expected_entities(kept)
    found = [index.entity(number) for number in range(index.num_entities)]
    assert [(e.entity_id, e.title, e.aliases, dict(e.metadata)) for e in found] == [
        (item.entity_id, item.title, item.aliases, item.metadata) for item in ordered
    ]
    postings = expected_postings(kept)
    assert [index.row_token_ids(rank) for rank in range(index.num_rows)] == list(postings)
    assert [index.postings.of(rank) for rank in range(index.num_rows)] == list(postings.values())
    counts = index.manifest.counts
    assert (counts.entities, counts.rows) == (len(kept), len(postings))
    assert counts.postings == sum(map(len, postings.values()))
    assert counts.tokens == sum(map(len, postings))
    assert counts.depth == max(map(len, postings))
    assert index.manifest.tokenizer.max_token_id == max(map(max, postings))
    for name in ("kind", "note"):
        values = [item.metadata[name] for item in ordered]
        distinct = {value for value in values if value is not None}
        column = index.entities.stored_column(name)
        assert pa.types.is_dictionary(column.type) == (2 * len(distinct) <= len(kept))
        assert index.metadata_column(name).to_pylist() == values
        if pa.types.is_dictionary(column.type):
            assert column.chunk(0).dictionary.to_pylist() == sorted(distinct, key=str.encode)


@settings(max_examples=30, deadline=None)
@given(catalogues(), st.lists(st.sampled_from([1, 2, 299, 0, 70_000]), max_size=5))
def test_a_version_is_a_run(case: tuple[list[tuple[Item, int, bool]], int, int], row: list[int]) -> None:
    kept = [item for item, _, keep in case[0] if keep]
    forms = [r for r, named in expected_postings(kept).items() for _ in named]
    with tempfile.TemporaryDirectory() as name:
        source = ListRun(kept, [True] * len(kept), COLUMNS, VOCAB)
        folder, _ = write(Path(name) / "it", [source], COLUMNS, VOCAB)
        with Index.open(folder) as index:
            run = VersionRun(index)
            assert (run.num_entities, run.num_forms) == (len(kept), len(forms))
            assert run.find(row) == sum(form < tuple(row) for form in forms)
            assert [run.row(number) for number in range(run.num_forms)] == forms
            middle = len(forms) // 2
            for begin, end in ((0, len(forms)), (middle, middle), (middle, len(forms)), (0, middle)):
                part = run.forms(begin, end)
                bounds = zip(part.offsets[:-1].tolist(), part.offsets[1:].tolist(), strict=True)
                assert [tuple(part.tokens[b:e].tolist()) for b, e in bounds] == forms[begin:end]
            assert run.entities(0, len(kept)).equals(
                source.entities(0, len(kept)).cast(run.entities(0, len(kept)).schema)
            )


def test_ranges_divide_all_runs_and_respect_the_size() -> None:
    random = np.random.default_rng(0)
    runs = []
    for size in (3000, 10, 0, 5000):
        rows = random.integers(1, 50, (size, 5)).tolist()
        made = [Item(f"{i}", "t", ((*row, END),)) for i, row in enumerate(rows)]
        runs.append(ListRun(made, [True] * size, (), VOCAB))
    ranges = cut(runs, 200_000)
    assert len(ranges) > 5
    for number, run in enumerate(runs):
        spans = [spans[number] for spans in ranges]
        assert [begin for begin, _ in spans] == [0, *(end for _, end in spans[:-1])]
        assert spans[-1][1] == run.num_forms
    assert max(sum(end - begin for begin, end in spans) for spans in ranges) * 296 < 1.6 * 200_000
    highest = (0,)
    for spans in ranges:
        rows = [run.row(form) for run, (b, e) in zip(runs, spans, strict=True) for form in range(b, e)]
        assert min(rows) > highest
        highest = max(rows)


def test_one_row_shared_by_all_entities_is_one_range() -> None:
    made = [Item(f"{i}", "t", ((1, END),)) for i in range(5000)]
    runs = [ListRun(made[:2000], [True] * 2000, (), VOCAB), ListRun(made[2000:], [True] * 3000, (), VOCAB)]
    with tempfile.TemporaryDirectory() as name:
        folder, manifest = write(Path(name) / "it", runs, (), VOCAB, 1000)
        assert verify(folder).ok
        assert (manifest.counts.rows, manifest.counts.postings) == (1, 5000)


def test_several_batches_of_entities_share_one_dictionary(tmp_path: Path) -> None:
    columns = (MetadataColumn("kind", "string"), MetadataColumn("name", "string"))
    random = np.random.default_rng(1)
    made = [
        Item(
            f"{i}",
            f"{i}",
            ((*divmod(i, 256), END),),
            (),
            {"kind": f"k{random.integers(300)}", "name": f"{i}"},
        )
        for i in range(140_000)
    ]
    made = [
        Item(m.entity_id, m.title, (((m.rows[0][0] % 600) + 1, m.rows[0][1] + 1, END),), (), m.metadata)
        for m in made
    ]
    part = random.integers(0, 3, len(made))
    runs = [
        ListRun(
            [m for m, p in zip(made, part, strict=True) if p == n],
            [True] * int((part == n).sum()),
            columns,
            1000,
        )
        for n in range(3)
    ]
    folder, _ = write(tmp_path / "it", runs, columns, 1000, 3_000_000)
    assert verify(folder).ok
    with Index.open(folder) as index:
        stored = index.entities.stored_column("kind")
        assert stored.num_chunks == 3
        assert stored.type == pa.dictionary(pa.uint16(), pa.string())
        assert all(chunk.dictionary.equals(stored.chunk(0).dictionary) for chunk in stored.chunks)
        assert index.entities.stored_column("name").type == pa.string()
        kinds, titles = index.metadata_column("kind").to_pylist(), index.entities.column("title").to_pylist()
        assert dict(zip(titles, kinds, strict=True)) == {m.title: m.metadata["kind"] for m in made}


def test_nothing_kept_is_refused(tmp_path: Path) -> None:
    run = ListRun([Item("a", "a", ((1, END),))], [False], (), VOCAB)
    with pytest.raises(SourceError, match="no entity is left"):
        write_version([run], VersionSpec(VOCAB), tmp_path, tmp_path, MemoryBudget(), StepProgress())


class _WatchedRun(ListRun):
    """Notes the largest slice of entities that is asked for."""

    largest = 0

    def entities(self, begin: int, end: int) -> pa.Table:
        self.largest = max(self.largest, end - begin)
        return super().entities(begin, end)


def test_entities_far_apart_are_not_read_with_all_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_module, "ENTITY_BATCH_ROWS", 10)
    monkeypatch.setattr(entity_survey, "ENTITY_BATCH_ROWS", 10)
    made = [Item(f"{n:03}", f"title {n:03}", ((1 + n // 200, 1 + n % 200, END),)) for n in range(400)]
    kept = [n % 67 == 0 for n in range(400)]
    run = _WatchedRun(made, kept, (), VOCAB)
    _, manifest = write(tmp_path, [run], (), VOCAB)
    assert manifest.counts.entities == sum(kept)
    assert run.largest <= 10
