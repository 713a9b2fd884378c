from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.index_builder import changes
from genret.index_builder.build import build_index
from genret.index_builder.build_options import BuildOptions, EvidenceChange, VectorChange
from genret.index_builder.publish import staging
from genret.index_builder.update import UpdateRequest, UpdateSummary, update_index
from genret.retrieval.errors import (
    GenretError,
    IndexDirectoryError,
    IndexMismatchError,
    IndexNotFoundError,
    InputError,
    SourceError,
)
from genret.retrieval.index.manifest import (
    MAX_HISTORY,
    MAX_HISTORY_BYTES,
    FileEntry,
    HistoryEntry,
    extend_history,
)
from genret.retrieval.index.reader import Index
from genret.retrieval.index.small_files import digest_bytes
from genret.retrieval.index.verification import verify
from genret.retrieval.index.versions import live_version
from genret.retrieval.sources.columns import ColumnMapping, ColumnType
from tests.index_fixtures import character_tokenizer, fault, flip, live_content, write_titles

TOKENIZER = character_tokenizer("abcd ", lower=True)
TYPES = ColumnMapping(types={"kind": ColumnType.STRING, "year": ColumnType.INT, "weight": ColumnType.FLOAT})
HEADER = "entity_id\ttitle\taliases\tkind\tyear\tweight"

Cells = tuple[str, str, str, str, str]
Catalogue = Mapping[str, Cells]

_title = st.text("abABcd", min_size=1, max_size=3)
_cells = st.tuples(
    _title,
    st.lists(_title, max_size=3, unique=True).map("|".join),
    st.sampled_from(["", "x", "y"]),
    st.sampled_from(["", "1990", "-3", "007"]),
    st.sampled_from(["", "0", "-0.0", "1.5", "2e300"]),
)
_ids = st.sampled_from([f"{letter}{number}" for letter in "Qab" for number in range(5)])


def _tsv(file: Path, catalogue: Catalogue) -> Path:
    return write_titles(file, [HEADER, *("\t".join((key, *cells)) for key, cells in catalogue.items())])


def _build(tmp: Path, catalogue: Catalogue, name: str) -> Path:
    options = BuildOptions(out=tmp / name, mapping=TYPES)
    build_index(_tsv(tmp / f"{name}.tsv", catalogue), TOKENIZER, options)
    return tmp / name


def _update(
    tmp: Path, index: Path, add: Catalogue | None = None, remove: tuple[str, ...] = (), **options: object
) -> UpdateSummary:
    request: dict[str, object] = {k: options.pop(k) for k in ("ignore_missing", "dry_run") if k in options}
    if add is not None:
        request["add"] = (_tsv(tmp / "add.tsv", add),)
    if remove:
        request["remove"] = (write_titles(tmp / "remove.txt", remove),)
    return update_index(
        UpdateRequest(**request),  # type: ignore[arg-type]
        TOKENIZER,
        BuildOptions(out=index, **options),  # type: ignore[arg-type]
    )


@st.composite
def _rounds(draw: st.DrawFn) -> tuple[Catalogue, list[tuple[Catalogue, list[str]]]]:
    first = draw(st.dictionaries(_ids, _cells, min_size=1, max_size=12))
    rounds = []
    present = dict(first)
    for _ in range(draw(st.integers(1, 3))):
        add = draw(st.dictionaries(_ids, _cells, max_size=8))
        repeated = draw(st.lists(st.sampled_from(sorted(present)), max_size=3))
        add.update({key: present[key] for key in repeated})
        others = sorted(set(present) - set(add))
        remove = draw(st.lists(st.sampled_from(others), max_size=6)) if others else []
        after = {key: cells for key, cells in {**present, **add}.items() if key not in remove}
        if not after or not (add or remove):
            continue
        rounds.append((add, remove))
        present = after
    return first, rounds


@settings(max_examples=10)
@given(_rounds(), st.randoms())
def test_updates_equal_a_fresh_build(
    case: tuple[Catalogue, list[tuple[Catalogue, list[str]]]], random: object
) -> None:
    present, rounds = case
    with tempfile.TemporaryDirectory() as name:
        tmp = Path(name)
        index = _build(tmp, present, "it")
        for number, (add, remove) in enumerate(rounds):
            before = dict(present)
            summary = _update(tmp, index, add or None, tuple(remove))
            present = {k: cells for k, cells in {**before, **add}.items() if k not in remove}
            shuffled = list(present.items())
            random.shuffle(shuffled)  # type: ignore[attr-defined]
            fresh = _build(tmp, dict(shuffled), f"fresh{number}")
            assert live_content(index) == live_content(fresh)
            assert verify(index).ok
            changes = summary.changes
            assert changes.added == len(set(add) - set(before))
            assert changes.removed == len(set(remove))
            assert changes.unchanged >= sum(add[key] == before[key] for key in set(add) & set(before))
            assert changes.changed + changes.unchanged == len(set(add) & set(before))
            assert (summary.version != summary.parent) == changes.any
            assert not (index / "work").exists()
            assert not (index / "staging").exists()


CATALOGUE = {
    "Q1": ("ab", "a|b", "x", "1990", "0.5"),
    "Q2": ("cd", "", "y", "", ""),
    "Q3": ("AB", "", "", "5", "1"),
}


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return _build(tmp_path, CATALOGUE, "it.index")


def _contents(index: Path) -> dict[str, tuple[object, ...]]:
    with Index.open(index) as opened:
        entities = [opened.entity(n) for n in range(opened.num_entities)]
    return {e.entity_id: (e.title, e.aliases, *e.metadata.values()) for e in entities}


def test_history_and_summary(tmp_path: Path, index: Path) -> None:
    parent = live_version(index)
    changed = {"Q1": ("dd", "", "x", "1990", "0.5"), "Q2": CATALOGUE["Q2"], "Q9": ("b", "", "", "", "")}
    summary = _update(tmp_path, index, changed, ("Q3",))
    document = summary.to_dict()
    assert [document[name] for name in ("added", "changed", "unchanged", "removed")] == [1, 1, 1, 1]
    assert document["published"] is True
    assert (summary.parent, summary.version) == (parent, live_version(index))
    with Index.open(index) as opened:
        first, last = opened.manifest.history
    assert (first.operation, first.parent, first.added) == ("build", "", 3)
    assert (last.operation, last.parent) == ("update", parent)
    assert (last.records, last.added, last.changed, last.removed) == (4, 1, 1, 1)
    assert [Path(source.name).name for source in last.sources] == ["add.tsv", "remove.txt"]
    assert last.options["max_title_tokens"] == first.options["max_title_tokens"]
    assert _contents(index) == {
        "Q1": ("dd", (), "x", 1990, 0.5),
        "Q2": ("cd", (), "y", None, None),
        "Q9": ("b", (), None, None, None),
    }


def test_columns_that_are_not_given_are_empty(tmp_path: Path, index: Path) -> None:
    file = write_titles(tmp_path / "more.tsv", ["entity_id\ttitle\tyear", "Q2\tcd\t12", "Q7\ta\t"])
    update_index(UpdateRequest(add=(file,)), TOKENIZER, BuildOptions(out=index))
    contents = _contents(index)
    assert contents["Q2"] == ("cd", (), None, 12, None)
    assert contents["Q7"] == ("a", (), None, None, None)


def test_titles_without_ids_are_their_ids(tmp_path: Path, index: Path) -> None:
    file = write_titles(tmp_path / "more.txt", ["Q1", "dada"])
    with pytest.raises(SourceError, match="unknown token"):  # the title Q1, which the tokenizer cannot spell
        update_index(UpdateRequest(add=(file,)), TOKENIZER, BuildOptions(out=index))
    file = write_titles(tmp_path / "more.txt", ["dada", "ab"])
    summary = update_index(UpdateRequest(add=(file,)), TOKENIZER, BuildOptions(out=index))
    assert summary.changes.added == 2
    assert {"dada", "ab"} < set(_contents(index))


def test_several_files_and_ids_from_the_command_line(tmp_path: Path, index: Path) -> None:
    files = tuple(_tsv(tmp_path / f"{n}.tsv", {f"N{n}": ("a" * n, "", "", "", "")}) for n in (1, 2))
    request = UpdateRequest(add=files, remove_ids=("Q1", " Q2 ", "Q1"))
    summary = update_index(request, TOKENIZER, BuildOptions(out=index))
    assert set(_contents(index)) == {"Q3", "N1", "N2"}
    assert summary.changes.removed == 2


def test_what_is_there_already_changes_nothing(tmp_path: Path, index: Path) -> None:
    before = live_version(index)
    summary = _update(tmp_path, index, CATALOGUE)
    assert (summary.version, summary.changes.unchanged) == (before, 3)
    assert not summary.changes.any
    assert summary.to_dict()["published"] is False
    summary = _update(tmp_path, index, None, ("nobody",), ignore_missing=True)
    assert (summary.version, summary.changes.missing) == (before, 1)
    assert len(list((index / "versions").iterdir())) == 1


def test_ids_to_remove_are_looked_up_in_pieces(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "_REMOVED_AT_ONCE", 2)
    ids = ("Q1", "none", "Q3", "Q1", "other")
    summary = _update(tmp_path, index, None, ids, max_bad_rows=2)
    assert (summary.changes.removed, summary.changes.missing) == (2, 2)
    assert set(_contents(index)) == {"Q2"}
    assert "line 2" in summary.report
    assert "line 5" in summary.report


def test_a_dry_run_counts_and_writes_nothing(tmp_path: Path, index: Path) -> None:
    before = live_version(index)
    with fault("identities-resolved:interrupt"), pytest.raises(KeyboardInterrupt):
        _build(tmp_path, {"Q1": CATALOGUE["Q1"]}, "it.index")  # whose work is to be taken up
    there = {path: path.stat().st_mtime_ns for path in index.rglob("*")}
    summary = _update(tmp_path, index, {"Q9": CATALOGUE["Q1"]}, ("Q1", "Q2"), dry_run=True)
    assert {path: path.stat().st_mtime_ns for path in index.rglob("*")} == there
    assert (summary.changes.added, summary.changes.removed) == (1, 2)
    assert live_version(index) == summary.version == before
    assert set(_contents(index)) == set(CATALOGUE)


def test_a_dry_run_may_run_beside_a_build(tmp_path: Path, index: Path) -> None:
    with staging(index):
        assert _update(tmp_path, index, None, ("Q1",), dry_run=True).changes.removed == 1


def test_a_dry_run_names_the_directory_it_cannot_write(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(IndexDirectoryError, match=r"none.*cannot write temporary files.*TMPDIR"):
        _update(tmp_path, index, None, ("Q1",), dry_run=True)


def test_removal_alone_needs_no_tokenizer(tmp_path: Path, index: Path) -> None:
    update_index(UpdateRequest(remove_ids=("Q1",)), None, BuildOptions(out=index))
    assert set(_contents(index)) == {"Q2", "Q3"}
    file = _tsv(tmp_path / "a.tsv", CATALOGUE)
    with pytest.raises(InputError, match="tokenizer"):
        update_index(UpdateRequest(add=(file,)), None, BuildOptions(out=index))


def test_unknown_ids_to_remove_are_bad_rows(tmp_path: Path, index: Path) -> None:
    before = live_version(index)
    with pytest.raises(SourceError, match=r"(?s)line 2: unknown entity_id: 'Q8'.*nothing was updated"):
        _update(tmp_path, index, None, ("Q1", "Q8"), rejects=tmp_path / "bad.tsv")
    assert "Q8" in (tmp_path / "bad.tsv").read_text()
    assert live_version(index) == before
    summary = _update(tmp_path, index, None, ("Q1", "Q8"), max_bad_rows=1)
    assert summary.rejected == {"unknown entity_id": 1}
    assert (summary.changes.removed, summary.changes.missing) == (1, 1)


def test_refusals(tmp_path: Path, index: Path) -> None:
    before = live_version(index)
    cells = ("a", "", "", "", "")
    with pytest.raises(SourceError, match=r"remove.txt, line 2: the entity 'Q2' is to be removed, but the"):
        _update(tmp_path, index, {"Q2": cells}, ("Q1", "Q2"))
    with pytest.raises(SourceError, match="no entity would be left"):
        _update(tmp_path, index, None, ("Q1", "Q2", "Q3"))
    with pytest.raises(SourceError, match=r"bad value"):
        _update(tmp_path, index, {"Q4": ("a", "", "", "soon", "")})
    file = write_titles(tmp_path / "more.tsv", ["entity_id\ttitle\tsort", "Q2\tcd\t12"])
    with pytest.raises(SourceError, match=r"no metadata column 'sort'; its columns are 'kind', 'year'"):
        update_index(UpdateRequest(add=(file,)), TOKENIZER, BuildOptions(out=index))
    other = ColumnMapping(types={"year": ColumnType.FLOAT})
    with pytest.raises(InputError, match="year: the column is int in the index, got float"):
        _update(tmp_path, index, {"Q4": cells}, mapping=other)
    for nothing in ({}, {"evidence": EvidenceChange()}, {"vectors": VectorChange(device="cuda")}):
        with pytest.raises(InputError, match=r"nothing to do: .*, evidence, vectors or a column of weights"):
            UpdateRequest(**nothing)
    with pytest.raises(InputError, match="can be read only once"):
        update_index(UpdateRequest(add=("-",)), TOKENIZER, BuildOptions(out=index))
    with pytest.raises(SourceError, match=r"none.txt: no such file"):
        update_index(UpdateRequest(remove=(tmp_path / "none.txt",)), None, BuildOptions(out=index))
    with pytest.raises(IndexNotFoundError):
        update_index(UpdateRequest(remove_ids=("Q1",)), None, BuildOptions(out=tmp_path / "none"))
    assert not (tmp_path / "none").exists()
    assert live_version(index) == before
    assert verify(index).ok
    assert not (index / "work").exists()


def test_another_tokenizer_is_refused(tmp_path: Path, index: Path) -> None:
    file = _tsv(tmp_path / "a.tsv", CATALOGUE)
    with pytest.raises(IndexMismatchError, match="an update needs the same one"):
        update_index(UpdateRequest(add=(file,)), character_tokenizer("abcd"), BuildOptions(out=index))


def test_a_damaged_live_version_is_not_carried_on(tmp_path: Path, index: Path) -> None:
    flip(index / "versions" / live_version(index) / "entities.arrow")
    with pytest.raises(GenretError, match=r"entities.arrow"):
        _update(tmp_path, index, None, ("Q1",))


def test_history_is_bounded() -> None:
    entry = HistoryEntry("update", "x", (), {}, 0, 0, 0, 0, 0, 0)
    history = extend_history((entry,) * MAX_HISTORY, HistoryEntry("update", "y", (), {}, 0, 0, 0, 0, 0, 0))
    assert len(history) == MAX_HISTORY
    assert history[-1].parent == "y"


def test_history_is_bounded_in_bytes() -> None:
    sources = tuple(FileEntry(f"part-{n:05}.tsv", 1, "0" * 32) for n in range(1000))
    entry = HistoryEntry("update", "x", sources, {}, 0, 0, 0, 0, 0, 0)
    history: tuple[HistoryEntry, ...] = ()
    for _ in range(30):
        history = extend_history(history, entry)
    assert 1 < len(history) < 30
    assert len(json.dumps([asdict(each) for each in history])) < 1.1 * MAX_HISTORY_BYTES
    large = HistoryEntry("update", "y", sources * 20, {}, 0, 0, 0, 0, 0, 0)
    assert extend_history(history, large) == (large,)


def test_ids_from_the_command_line_are_a_source_by_their_digest(tmp_path: Path, index: Path) -> None:
    update_index(UpdateRequest(remove_ids=("Q1", "Q2")), None, BuildOptions(out=index))
    with Index.open(index) as opened:
        last = opened.manifest.history[-1]
    assert last.sources == (FileEntry("--remove-id", 6, digest_bytes(b"Q1\nQ2\n")),)
    assert "remove_ids" not in last.options


def test_an_id_that_is_no_text_is_refused() -> None:
    with pytest.raises(InputError, match="remove_id: not valid Unicode: half a surrogate"):
        UpdateRequest(remove_ids=("Q1", "\udcff"))
