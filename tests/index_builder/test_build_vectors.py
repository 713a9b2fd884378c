"""Builds and updates with vectors: what is asked of those who make them, and what becomes of the index."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genret.index_builder import build_options
from genret.index_builder import evidence_maker as evidence_module
from genret.index_builder.build import BuildSummary, build_index
from genret.index_builder.build_options import (
    BuildOptions,
    EvidenceChange,
    EvidenceOptions,
    VectorBuildOptions,
    VectorChange,
)
from genret.index_builder.build_plan import plan_build
from genret.index_builder.cli import update_command
from genret.index_builder.past_queries import QueryFile
from genret.index_builder.rollback import roll_back
from genret.index_builder.update import UpdateRequest, UpdateSummary, update_index
from genret.retrieval.errors import IndexChecksumError, InputError, MissingExtraError
from genret.retrieval.index.layout import EMBEDDER_FILE, VECTORS_FILE
from genret.retrieval.index.reader import Index
from genret.retrieval.vectors.embedder import VectorMethod
from genret.retrieval.vectors.vector_maker import VectorOptions
from tests.commands import json_of, succeed
from tests.index_fixtures import build, character_tokenizer, data_files, version_files, write_titles
from tests.vector_fixtures import FakeVectors, listed

TOKENIZER = character_tokenizer("abcdefgh xyz")
HEADER = "entity_id\ttitle\taliases\tdescription\tkind\tyear"
LINES = [
    HEADER,
    "1\tabc\tcab|bad\tfirst one\tx\t1",
    "2\tabc\t\t\ty\t2",
    "3\tc\ta\tthird\t\t",
    "4\tbcd\t\t\tz\t4",
]
WISH = VectorBuildOptions(VectorMethod("encoder", "hub/model"))


def wish(source: object = "hub/model", **options: Any) -> VectorBuildOptions:
    return VectorBuildOptions(VectorMethod("encoder", str(source)), VectorOptions(**options))


def model_folder(folder: Path) -> Path:
    """Make a folder that looks like a model."""
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    return folder / "model"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeVectors:
    fake = FakeVectors()
    monkeypatch.setattr(evidence_module, "make_vectors", fake.make)
    monkeypatch.setattr(evidence_module, "carry_over_vectors", fake.carry_over)
    real = build_options.local_folder
    found = lambda place, names: place == "hub/model" or real(place, names)  # noqa: E731
    monkeypatch.setattr(build_options, "local_folder", found)
    return fake


def stored(index: Path) -> bytes:
    """Return the file of vectors of the live version, which must be what its entities give."""
    with Index.open(index) as opened:
        assert not opened.evidence_problems
        data = opened.evidence_path(VECTORS_FILE).read_bytes()
        assert data == listed(opened, opened.vectors)
    return data


def update(index: Path, lines: Sequence[str] = (), **request: Any) -> UpdateSummary:
    add = (write_titles(index.with_name("more.tsv"), [HEADER, *lines]),) if lines else ()
    return update_index(UpdateRequest(add=add, **request), TOKENIZER, BuildOptions(out=index))


def test_a_build_with_vectors(fake: FakeVectors, tmp_path: Path) -> None:
    plain = build(tmp_path, LINES, TOKENIZER, name="plain.index")
    summary = build(tmp_path, LINES, TOKENIZER, vectors=WISH, threads=3, memory_limit=1 << 30)
    assert stored(summary.index).decode().splitlines()[:2] == ["0\tabc", "0\tcab"]
    assert b"first one" in stored(summary.index)
    without = version_files(plain)
    files = version_files(summary)
    assert set(files) - set(without) == {VECTORS_FILE}
    assert all(files[name] == data for name, data in without.items() if name != "manifest.json")
    (call,) = fake.calls
    assert call["threads"] == 3
    assert 0 < call["memory_bytes"] < 1 << 30
    assert not call["work"].exists()
    manifest = summary.manifest
    assert manifest.vectors is not None
    assert manifest.vectors.columns == ("description",)
    assert "faiss-cpu" in manifest.built_with
    assert "faiss-cpu" not in plain.manifest.built_with
    assert manifest.history[-1].options["vectors"] == {"method": "encoder:hub/model"}
    assert "vectors" not in plain.manifest.history[-1].options
    assert [file.name for file in manifest.files] == sorted(file.name for file in manifest.files)
    assert summary.to_dict()["vectors"]["count"] == 9
    assert {"training vectors", "adding vectors"} <= set(summary.seconds)


def test_the_options_are_passed_on_and_noted(fake: FakeVectors, tmp_path: Path) -> None:
    asked = wish(kind="hnsw", columns=("kind",), sample=7, device="auto")
    summary = build(tmp_path, LINES, TOKENIZER, vectors=asked)
    assert fake.calls[0]["options"] == asked.options
    assert summary.manifest.history[-1].options["vectors"] == {
        "method": "encoder:hub/model",
        "index": "hnsw",
        "columns": ["kind"],
        "sample": 7,
    }
    assert summary.manifest.vectors is not None
    assert summary.manifest.vectors.columns == ("kind",)


def test_a_column_without_texts_is_refused_before_anything_is_tokenised(
    fake: FakeVectors, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"evidence_columns: 'colour': there is no such column; .*'kind'"):
        build(tmp_path, LINES, TOKENIZER, vectors=wish(columns=("colour",)))
    assert not (tmp_path / "it.index").exists()
    with pytest.raises(InputError, match="evidence_columns: 'year': the column is int"):
        build(tmp_path, LINES, TOKENIZER, vectors=wish(columns=("year",)))
    assert list((tmp_path / "it.index" / "work").glob("*/journal.jsonl")), "what was tokenised is kept"
    fixed = build(tmp_path, LINES, TOKENIZER, vectors=WISH)
    assert fixed.resumed_shards == 1
    assert not (tmp_path / "it.index" / "work").exists()


@pytest.mark.parametrize(
    ("method", "package", "extra"),
    [
        ("encoder:hub/model", "faiss", "vectors"),
        ("sentence-transformers:hub/model", "sentence_transformers", "sentence-transformers"),
    ],
)
def test_a_missing_extra_is_named_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    options = BuildOptions(out=tmp_path / "it.index", vectors=VectorBuildOptions(VectorMethod.parse(method)))
    with pytest.raises(MissingExtraError, match=rf"{package}.*generative-retrieval\[{extra}\]"):
        build_index(tmp_path / "absent.tsv", TOKENIZER, options)
    with pytest.raises(MissingExtraError, match=package):
        plan_build(tmp_path / "absent.tsv", TOKENIZER, options)
    assert not (tmp_path / "it.index").exists()


def test_a_model_that_is_not_there_is_named_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for place, message in (
        (tmp_path / "nowhere", ".* neither an existing path nor a valid hub id"),
        ("data/no-model", "no directory 'data/no-model' in .*, and it could not be fetched"),
        (tmp_path / "empty", "the directory has no config.json"),
        (tmp_path / "file", ".* is a file; expected the directory of a checkpoint"),
        ("./model", "'./model' is neither an existing path"),
    ):
        options = BuildOptions(out=tmp_path / "i", vectors=wish(place))
        with pytest.raises(InputError, match=f"vectors: 'encoder:{place}': {message}"):
            build_index(tmp_path / "absent.tsv", TOKENIZER, options)


def test_what_a_model_has_embedded_is_kept_until_the_publication(
    tmp_path: Path, fake: FakeVectors, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_folder(tmp_path)
    kept = wish(model)

    def embeds_and_dies(*arguments: Any, work: Path, **named: Any) -> None:
        (work / "block").write_text("vectors of some texts")
        raise InputError("x", "died")

    monkeypatch.setattr(evidence_module, "make_vectors", embeds_and_dies)
    with pytest.raises(InputError):
        build(tmp_path, LINES, TOKENIZER, vectors=kept)
    block = tmp_path / "it.index" / "work" / "vectors" / "block"
    assert block.exists()

    def goes_on(*arguments: Any, work: Path, **named: Any) -> Any:
        assert (work / "block") == block
        assert block.exists()
        return fake.make(*arguments, work=work, **named)

    monkeypatch.setattr(evidence_module, "make_vectors", goes_on)
    summary = build(tmp_path, LINES, TOKENIZER, vectors=kept)
    assert summary.resumed_shards == 1
    assert not (tmp_path / "it.index" / "work").exists()
    assert summary.manifest.vectors is not None
    assert summary.manifest.vectors.source == str(model)
    assert summary.manifest.file(EMBEDDER_FILE) is None


def built(tmp_path: Path) -> BuildSummary:
    return build(tmp_path, LINES, TOKENIZER, vectors=WISH)


def test_vectors_are_added_replaced_and_dropped_and_nothing_else_changes(
    fake: FakeVectors, tmp_path: Path
) -> None:
    summary = build(tmp_path, LINES, TOKENIZER)
    plain = data_files(summary.index, summary.version)
    added = update(summary.index, vectors=VectorChange(WISH))
    assert added.fates.vectors == "made"
    stored(summary.index)
    with_them = data_files(summary.index, added.version)
    assert {name: with_them[name] for name in plain} == plain
    assert set(with_them) - set(plain) == {VECTORS_FILE}
    replaced = update(summary.index, vectors=VectorChange(wish(columns=())))
    assert replaced.manifest.vectors is not None
    assert replaced.manifest.vectors.columns == ()
    assert b"first one" not in stored(summary.index)
    assert replaced.manifest.history[-1].options["vectors"]["columns"] == []
    kept = update(summary.index, remove_ids=("absent",), ignore_missing=True)
    assert (kept.fates.vectors, kept.version) == ("kept", replaced.version)
    dropped = update(summary.index, vectors=VectorChange(drop=True))
    assert dropped.fates.vectors == "dropped"
    assert data_files(summary.index, dropped.version) == plain
    assert dropped.manifest.vectors is None
    assert "faiss-cpu" not in dropped.manifest.built_with
    assert dropped.manifest.history[-1].options["vectors"] == "none"
    again = update(summary.index, vectors=VectorChange(drop=True))
    assert (again.fates.vectors, again.version) == ("absent", dropped.version)
    roll_back(summary.index)
    assert b"first one" not in stored(summary.index)
    roll_back(summary.index)
    assert b"first one" in stored(summary.index)
    assert len(fake.calls) == 2


def test_vectors_can_change_together_with_entities(fake: FakeVectors, tmp_path: Path) -> None:
    summary = built(tmp_path)
    made = update(summary.index, ["5\tcc\t\t\tx\t5"], vectors=VectorChange(WISH))
    assert made.fates.vectors == "made"
    assert b"\tcc\n" in stored(summary.index)
    dropped = update(summary.index, ["6\tdd\t\t\tx\t5"], vectors=VectorChange(drop=True))
    assert dropped.fates.vectors == "dropped"
    assert dropped.manifest.vectors is None
    assert dropped.manifest.counts.entities == 6


def test_a_dry_run_says_what_would_become_of_vectors_and_evidence(fake: FakeVectors, tmp_path: Path) -> None:
    summary = built(tmp_path)
    more = ["5\tcc\t\t\tx\t5"]
    cases: list[tuple[dict[str, Any], list[str], tuple[str, str]]] = [
        ({}, more, ("carried over", "carried over")),
        ({"vectors": VectorChange(WISH)}, [], ("made", "kept")),
        ({"vectors": VectorChange(drop=True)}, [], ("dropped", "kept")),
        ({"evidence": EvidenceChange(EvidenceOptions())}, [], ("kept", "made")),
        ({"evidence": EvidenceChange(drop=True)}, [], ("kept", "dropped")),
    ]
    for change, lines, fates in cases:
        planned = update(summary.index, lines, dry_run=True, **change)
        assert (planned.fates.vectors, planned.fates.evidence) == fates
        assert planned.version == summary.version
    assert len(fake.calls) == 1
    nothing = ["--vectors", "none", "--evidence", "none"]
    said = succeed(update_command, summary.index, *nothing, "--dry-run").stdout
    assert "vectors would be dropped" in said
    assert "evidence would be dropped" in said


def test_without_faiss_an_update_says_what_can_be_done(
    fake: FakeVectors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = built(tmp_path)
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(InputError, match=r"generative-retrieval\[vectors\].*--vectors none drops them"):
        update(summary.index, remove_ids=("2",))
    with pytest.raises(MissingExtraError, match="faiss"):
        update(summary.index, vectors=VectorChange(WISH))
    with Index.open(summary.index) as index:
        assert index.vectors is not None
        assert index.version == summary.version
    assert (
        update(summary.index, remove_ids=("2",), vectors=VectorChange(drop=True)).fates.vectors == "dropped"
    )


def test_damaged_vectors_are_not_carried_on(fake: FakeVectors, tmp_path: Path) -> None:
    summary = built(tmp_path)
    (summary.index / "versions" / summary.version / VECTORS_FILE).write_bytes(b"x")
    with pytest.raises(
        IndexChecksumError, match=r"vectors\.faiss: the manifest says .* --vectors METHOD makes new ones"
    ):
        update(summary.index, remove_ids=("2",))
    assert update(summary.index, remove_ids=("2",), vectors=VectorChange(WISH)).fates.vectors == "made"
    stored(summary.index)


def test_where_the_model_lies_now(fake: FakeVectors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = model_folder(tmp_path)
    plain = build(tmp_path, LINES, TOKENIZER, name="plain.index")
    with pytest.raises(InputError, match=r"encoder: .* the index has no vectors"):
        update(plain.index, remove_ids=("2",), vectors=VectorChange(encoder="x"))
    summary = build(tmp_path, LINES, TOKENIZER, name="model.index", vectors=wish("./model"))
    assert summary.manifest.vectors is not None
    assert summary.manifest.vectors.source == str(model)
    model.rename(tmp_path / "moved")
    with pytest.raises(InputError, match=r"encoder: .* is neither an existing path .*; --encoder says where"):
        update(summary.index, remove_ids=("2",))
    update(summary.index, remove_ids=("2",), vectors=VectorChange(encoder="moved", device="auto"))
    assert fake.calls[-1]["encoder"] == str(tmp_path / "moved")
    assert fake.calls[-1]["device"] == "auto"


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("gpu", "expected auto, cpu, cuda, cuda:N, mps, xpu or xpu:N, got 'gpu'"),
        ("cuda", "there is no device 'cuda' here: of cuda there are 0"),
        ("cuda:2", "there is no device 'cuda:2' here: of cuda there are 2"),
    ],
)
def test_a_device_that_is_not_there_is_refused_before_anything_is_read(
    fake: FakeVectors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, message: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: device != "cuda")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    model = model_folder(tmp_path)
    sound = wish(model, device="auto" if device == "cuda" else "cuda:1")  # the last one there is
    summary = build(tmp_path, LINES, TOKENIZER, vectors=sound)
    assert fake.calls[-1]["options"] == sound.options
    other = wish(model, device=device)
    options = BuildOptions(out=tmp_path / "other.index", vectors=other)
    for refused in (
        lambda: build_index(tmp_path / "absent", TOKENIZER, options),
        lambda: plan_build(tmp_path / "absent", TOKENIZER, options),
        lambda: update(summary.index, remove_ids=("2",), vectors=VectorChange(other)),
        lambda: update(summary.index, remove_ids=("2",), vectors=VectorChange(device=device)),
    ):
        with pytest.raises(InputError, match=f"^vector_device: {message}$"):
            refused()
    assert not (tmp_path / "other.index").exists()


def test_a_change_is_one_thing_or_the_other() -> None:
    with pytest.raises(InputError, match="expected a method or none, got both"):
        VectorChange(WISH, drop=True)
    with pytest.raises(InputError, match="encoder: says where the model of vectors lies that are kept"):
        VectorChange(WISH, encoder="x")


@given(data=st.data())
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_update_gives_the_vectors_and_the_evidence_of_a_fresh_build(
    fake: FakeVectors, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """The map of old numbers is checked inside the fake, the file against that of the entities."""
    folder = tmp_path_factory.mktemp("any")
    title = st.sampled_from(["a", "ab", "abc", "b", "ba", "c"])
    rows = st.dictionaries(st.sampled_from("123456789"), title, min_size=1, max_size=8)
    before, more = data.draw(rows), data.draw(rows)
    gone = data.draw(st.sets(st.sampled_from("123456789"))) - set(more)
    asked = data.draw(st.dictionaries(st.sampled_from(sorted(before)), st.integers(1, 9)))

    def asked_for(ids: Iterable[str]) -> EvidenceOptions:
        kept = [f"find {key}\t{key}\t{count}" for key, count in asked.items() if key in ids]
        file = write_titles(folder / "asked.tsv", ["query\tentity_id\tcount", *kept])
        return EvidenceOptions(queries=(QueryFile(file),))

    def lines(entities: dict[str, str]) -> list[str]:
        return [f"{entity_id}\t{name}\t\t{name} {entity_id}\tx\t1" for entity_id, name in entities.items()]

    summary = build(folder, [HEADER, *lines(before)], TOKENIZER, vectors=WISH, evidence=asked_for(before))
    updated = update(summary.index, lines(more), remove_ids=tuple(sorted(gone)), ignore_missing=True)
    stored(summary.index)
    if updated.fates.vectors == "carried over":
        with Index.open(summary.index) as index:
            ids = [index.entity(number).entity_id for number in range(index.num_entities)]
        assert [was < 0 for was in fake.taken_over] == [entity_id not in before for entity_id in ids]
    after = {key: name for key, name in {**before, **more}.items() if key not in gone}
    options: dict[str, Any] = {"vectors": WISH, "evidence": asked_for(after)}
    fresh = build(folder, [HEADER, *lines(after)], TOKENIZER, name="fresh.index", **options)
    assert data_files(fresh.index, fresh.version) == data_files(summary.index, updated.version)


def test_the_summary_of_an_update_tells_of_vectors(fake: FakeVectors, tmp_path: Path) -> None:
    summary = built(tmp_path)
    said = succeed(update_command, summary.index, "--remove-id", "2").stdout
    assert "vectors carried over" in said
    assert "encoder hub/model, 8 dimensions: 8 texts" in said
    told = json_of(update_command, summary.index, "--vectors", "none", "--json")
    assert (told["vectors"], told["vectors_are"]) == (None, "dropped")
