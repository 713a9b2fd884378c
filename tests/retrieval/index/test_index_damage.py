"""Every file damaged in every way, and manifests that say what cannot be: a typed error that names the file.

Damage to vectors keeps nothing else from being read.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from genret.index_builder.build import BuildSummary
from genret.index_builder.publish import publish
from genret.index_builder.rollback import roll_back
from genret.retrieval.errors import (
    EvidenceMissingError,
    IndexChecksumError,
    IndexDirectoryError,
    IndexFormatError,
    IndexMismatchError,
    IndexNotFoundError,
    IndexVersionError,
)
from genret.retrieval.index.inspect_command import inspect_command
from genret.retrieval.index.layout import EMBEDDER_FILE, VECTORS_FILE
from genret.retrieval.index.manifest import Manifest
from genret.retrieval.index.reader import Index
from genret.retrieval.index.small_files import digest_bytes
from genret.retrieval.index.verification import verify
from tests.commands import json_of, succeed
from tests.index_fixtures import build, character_tokenizer
from tests.vector_fixtures import ENTRY, rename, with_vectors
from tests.vector_fixtures import FILES as VECTOR_FILES

TOKENIZER = character_tokenizer("abcdefgh 0123456789")
LINES = [
    "entity_id\ttitle\taliases\tkind\tarea",
    "1\tabc\tcab|bad\tx\t1.5",
    "2\tabc\t\ty\t2.5",
    "3\tc\ta\t\t",
    "4\tbcd\t\tz\t-0.5",
]
FILES = (
    "CURRENT",
    "manifest.json",
    "trie.arrow",
    "entities.arrow",
    "postings.arrow",
    "title_order.arrow",
    "rows/len-00002.arrow",
    "rows/len-00004.arrow",
)


@pytest.fixture
def summary(tmp_path: Path) -> BuildSummary:
    return build(tmp_path, LINES, TOKENIZER, evidence=None)


def locate(summary: BuildSummary, name: str) -> Path:
    if name == "CURRENT":
        return summary.index / name
    return summary.index / "versions" / summary.version / name


def reported(index: Path, name: str) -> bool:
    """Whether `verify` raises a typed error about, or reports, this file."""
    try:
        return name in {problem.file for problem in verify(index).problems}
    except IndexDirectoryError as error:
        return name in str(error)


def test_these_are_all_files(summary: BuildSummary) -> None:
    assert {file.name for file in summary.manifest.files} == set(FILES[2:])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("digests", [True, False])
def test_a_truncated_or_grown_file_is_found_without_digests(
    summary: BuildSummary, name: str, digests: bool
) -> None:
    file = locate(summary, name)
    sound = file.read_bytes()
    for data in (b"", sound[:1], sound[: len(sound) // 2], sound[:-2], sound + b"\0"):
        file.write_bytes(data)
        with pytest.raises(IndexDirectoryError, match=name):
            Index.open(summary.index, verify_digests=digests)
        assert reported(summary.index, name)


def test_no_index(tmp_path: Path) -> None:
    with pytest.raises(IndexNotFoundError, match="not an index"):
        Index.open(tmp_path)


def test_current_names_an_absent_version(summary: BuildSummary) -> None:
    (summary.index / "CURRENT").write_text("0" * 32 + "\n")
    with pytest.raises(IndexFormatError, match="not there"):
        Index.open(summary.index)


def test_another_format_version_is_refused_by_number(summary: BuildSummary) -> None:
    file = locate(summary, "manifest.json")
    document = json.loads(file.read_bytes())
    document["format_version"] = 1
    file.write_text(json.dumps(document))
    with pytest.raises(IndexVersionError, match="format version 1; this library reads versions 2 to 6"):
        Index.open(summary.index)


def test_a_renamed_version_directory_is_refused(summary: BuildSummary) -> None:
    folder = summary.index / "versions" / summary.version
    shutil.copytree(folder, folder.with_name("0" * 32))
    with pytest.raises(IndexChecksumError, match=r"manifest.json: its digest is"):
        Index.open(folder.with_name("0" * 32))
    Index.open(folder).close()


def republish(summary: BuildSummary, manifest: Manifest) -> Path:
    """Give a version a manifest that fits its (altered) files, as a faulty builder would."""
    folder = summary.index / "versions" / summary.version
    files = tuple(
        replace(
            entry,
            bytes=(folder / entry.name).stat().st_size,
            xxh3_128=digest_bytes((folder / entry.name).read_bytes()),
        )
        for entry in manifest.files
    )
    return rename(summary.index, folder, replace(manifest, files=files))


def rewrite(file: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    table = change(pa.ipc.open_file(file.read_bytes()).read_all())
    with file.open("wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def with_columns(change: Callable[[dict[str, list[object]]], object], table: pa.Table) -> pa.Table:
    """A table whose values are changed as lists."""
    columns = table.to_pydict()
    change(columns)
    return pa.Table.from_pydict(columns, schema=table.schema)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("trie.arrow", lambda c: c["token"][0].__setitem__(1, 5), "'token' is not what the rows give"),
        ("trie.arrow", lambda c: c["row_begin"][0].__setitem__(2, 0), "'row_begin' is not"),
        ("trie.arrow", lambda c: c["child_begin"][0].__setitem__(0, 2), "'child_begin' is not"),
        ("trie.arrow", lambda c: c["tail_begin"][0].__setitem__(1, 7), "'tail_begin' is not"),
        ("rows/len-00004.arrow", lambda c: c["rank"].__setitem__(0, 99), "a rank is outside"),
        ("rows/len-00004.arrow", lambda c: c["rank"].__setitem__(0, c["rank"][1]), "no row has rank"),
        ("rows/len-00004.arrow", lambda c: c["t0"].reverse(), "sorts before|not what the rows give"),
        ("rows/len-00004.arrow", lambda c: c["t3"].__setitem__(0, 1), "does not close every row"),
        ("rows/len-00004.arrow", lambda c: c["t1"].__setitem__(0, 200), "max_token_id"),
        ("entities.arrow", lambda c: c["entity_id"].__setitem__(0, "2"), "stands there twice"),
        ("entities.arrow", lambda c: c["entity_id"].__setitem__(slice(0, 2), c["entity_id"][1::-1]), "order"),
        ("entities.arrow", lambda c: c["area"].__setitem__(0, float("nan")), "'area': a value is no number"),
        ("postings.arrow", lambda c: c["postings"][0].append({"entity": 1, "form": 0}), "postings, got"),
        ("postings.arrow", lambda c: c["postings"][0][0].update(entity=77), "outside 0"),
        ("postings.arrow", lambda c: c["postings"][0][0].update(form=7), "does not have"),
        ("postings.arrow", lambda c: max(c["postings"], key=len).reverse(), "not in ascending order"),
        ("postings.arrow", lambda c: max(c["postings"], key=len)[0].update(form=1), "row of its title"),
        ("title_order.arrow", lambda c: c["entity"].reverse(), "place 1 should not stand behind"),
        ("title_order.arrow", lambda c: c["entity"].__setitem__(1, 0), "place 1 should not stand behind"),
        ("title_order.arrow", lambda c: c["entity"].__setitem__(3, 4), "an entity number is outside 0"),
        ("title_order.arrow", lambda c: c["entity"].__setitem__(0, -1), "an entity number is outside 0"),
    ],
)
def test_verify_finds_what_a_faulty_builder_wrote(
    summary: BuildSummary, name: str, change: Callable[[dict[str, list[object]]], object], message: str
) -> None:
    rewrite(locate(summary, name), partial(with_columns, change))
    report = verify(republish(summary, summary.manifest))
    assert not report.ok
    assert any(re.search(message, p.message) for p in report.problems), report.problems


def longer_list(table: pa.Table, name: str) -> pa.Table:
    """Repeat the last value of the one list of a column."""
    (values,) = table[name].to_pylist()
    longer = pa.array([[*values, values[-1]]], type=table.schema.field(name).type)
    return table.set_column(table.schema.names.index(name), table.schema.field(name), longer)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("trie.arrow", lambda table: table.slice(0, 0)),
        ("trie.arrow", lambda table: table.rename_columns(["a", "b", "c", "d"])),
        ("trie.arrow", lambda table: longer_list(table, "child_begin")),
        ("trie.arrow", lambda table: longer_list(table, "row_begin")),
        ("trie.arrow", lambda table: longer_list(table, "tail_begin")),
        ("trie.arrow", lambda table: longer_list(table, "token")),
        ("entities.arrow", lambda table: table.drop_columns(["kind"])),
        ("rows/len-00004.arrow", lambda table: table.drop_columns(["t1"])),
        ("postings.arrow", lambda table: table.rename_columns(["x"])),
        ("postings.arrow", lambda table: pa.table({"postings": pa.array([[1]])})),
        ("title_order.arrow", lambda table: table.slice(0, 3)),
        ("title_order.arrow", lambda table: table.rename_columns(["x"])),
        ("title_order.arrow", lambda table: table.cast(pa.schema([("entity", pa.int64())]))),
    ],
)
def test_files_of_the_wrong_shape_are_format_errors(
    summary: BuildSummary, name: str, change: Callable[[pa.Table], pa.Table]
) -> None:
    rewrite(locate(summary, name), change)
    with pytest.raises(IndexFormatError, match=name):
        Index.open(republish(summary, summary.manifest))


def test_postings_may_be_left_out_only_when_one_to_one(summary: BuildSummary) -> None:
    files = tuple(f for f in summary.manifest.files if f.name != "postings.arrow")
    with pytest.raises(IndexFormatError, match=r"postings.arrow: missing"):
        Index.open(republish(summary, replace(summary.manifest, files=files)))


def test_only_indexes_of_the_older_format_have_no_title_order(summary: BuildSummary) -> None:
    files = tuple(f for f in summary.manifest.files if f.name != "title_order.arrow")
    manifest = replace(summary.manifest, files=files)
    folder = republish(summary, manifest)
    with pytest.raises(IndexFormatError, match=r"files listed and needed differ: \['title_order.arrow'\]"):
        Index.open(folder)
    older = replace(manifest, format_version=2)
    folder = rename(summary.index, folder, older)
    assert verify(folder).ok
    with Index.open(folder) as index:
        assert index.manifest.to_bytes() == older.to_bytes()
        assert index.title_order is None
        assert index.entity(0).title == "abc"


def test_the_wrong_tokenizer_is_refused_naming_both(summary: BuildSummary) -> None:
    other = character_tokenizer("xyz")
    with Index.open(summary.index) as index:
        index.check_tokenizer(TOKENIZER, TOKENIZER.vocab_size)
        index.check_tokenizer(TOKENIZER, None)
        with pytest.raises(IndexMismatchError) as caught:
            index.check_tokenizer(other, 1000)
        assert TOKENIZER.fingerprint in str(caught.value)
        assert other.fingerprint in str(caught.value)
        largest = index.manifest.tokenizer.max_token_id
        index.check_tokenizer(TOKENIZER, largest + 1)
        with pytest.raises(IndexMismatchError, match=f"only tokens below {largest}"):
            index.check_tokenizer(TOKENIZER, largest)


# How the field of format 4 is written.
GOLDEN = """ "vectors": {
  "method": "lexical",
  "source": "",
  "fingerprint": "lexical:0",
  "columns": [
   "kind"
  ],
  "dimensions": 8,
  "count": 5,
  "kind": "flat",
  "factory": "IDMap,Flat",
  "effort": 0,
  "sample": 0,
  "recall": 1.0,
  "recall_queries": 0,
  "seed": 0
 },
 "evidence": null
}
"""


@pytest.fixture
def folder(summary: BuildSummary) -> Path:
    return with_vectors(summary)


def test_the_manifest_says_what_the_vectors_are(summary: BuildSummary) -> None:
    without = summary.manifest.to_bytes()
    assert json.loads(without)["format_version"] == 6
    none = b' "vectors": null,\n "evidence": null\n}\n'
    assert without.endswith(none)
    manifest = replace(summary.manifest, vectors=replace(ENTRY, columns=("kind",)))
    data = manifest.to_bytes()
    assert data == without.removesuffix(none) + GOLDEN.encode()
    assert Manifest.from_bytes(data) == manifest
    assert Manifest.from_bytes(without).vectors is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("vectors"), "missing field 'vectors'"),
        (lambda d: d.update(vectors=[]), r"vectors: expected dict, got \[\]"),
        (lambda d: d["vectors"].pop("columns"), "missing field 'columns'"),
        (lambda d: d["vectors"].pop("recall"), "vectors: expected the fields"),
        (lambda d: d["vectors"].update(when="now"), "vectors: expected the fields"),
        (lambda d: d["vectors"].update(recall=1), "recall: expected float, got 1"),
        (lambda d: d["vectors"].update(recall=1.5), r"vectors\.recall: expected 0 <= it <= 1, got 1\.5"),
        (lambda d: d["vectors"].update(recall=1e999), "Infinity is no number|not valid JSON|recall"),
        (lambda d: d["vectors"].update(count=5.0), "count: expected int, got 5.0"),
        (lambda d: d["vectors"].update(count=0), r"vectors\.count: expected at least 1"),
        (lambda d: d["vectors"].update(dimensions=0), r"vectors\.dimensions: expected 1 <= it <= 65536"),
        (lambda d: d["vectors"].update(method="magic"), r"vectors\.method: expected one of .* got 'magic'"),
        (lambda d: d["vectors"].update(kind="tree"), r"vectors\.kind: expected one of .* got 'tree'"),
        (lambda d: d["vectors"].update(columns="kind"), "columns: expected list, got 'kind'"),
        (lambda d: d["vectors"].update(columns=["area"]), r"vectors\.columns: .*\['kind'\], got 'area'"),
        (lambda d: d["vectors"].update(columns=[["kind"]]), r"vectors\.columns"),
        (lambda d: d["vectors"].update(columns=["kind", "kind"]), "stands there twice"),
        (lambda d: d["vectors"].update(seed=1 << 63), r"vectors\.seed"),
        (lambda d: d["counts"].update(extra=1), "counts: expected the fields"),
        (lambda d: d["counts"].pop("nodes"), "counts: expected the fields"),
        (lambda d: d["rendering"].update(unknown="x"), "rendering: unknown keys"),
        (lambda d: d["history"][0].pop("sources"), "missing field 'sources'"),
        (lambda d: d["history"][0].update(when="now"), "history: expected the fields"),
        (lambda d: d.pop("weight_column"), "missing field 'weight_column'"),
        (lambda d: d.update(weight_column=1), "weight_column: expected str, got 1"),
        (lambda d: d.update(weight_column="size"), r"of \['area'\], got 'size'"),
        (lambda d: d.update(weight_column="kind"), "expected a metadata column of numbers, .* got 'kind'"),
    ],
)
def test_the_field_is_read_strictly(
    summary: BuildSummary, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    altered = json.loads(replace(summary.manifest, vectors=replace(ENTRY, columns=("kind",))).to_bytes())
    Manifest.from_bytes(json.dumps(altered).encode())
    change(altered)
    with pytest.raises(IndexFormatError, match=rf"manifest\.json: .*({message})"):
        Manifest.from_bytes(json.dumps(altered).encode())


def test_a_sound_version_with_vectors(folder: Path) -> None:
    for digests in (True, False):
        with Index.open(folder, verify_digests=digests) as index:
            assert index.vectors == ENTRY
            assert not index.evidence_problems
            for name, data in VECTOR_FILES.items():
                assert index.evidence_path(name) == folder / name
                assert (folder / name).read_bytes() == data
    with pytest.raises(IndexDirectoryError, match="was closed"):
        index.evidence_path(VECTORS_FILE)


def test_a_version_without_vectors_says_how_to_get_them(summary: BuildSummary) -> None:
    with (
        Index.open(summary.index) as index,
        pytest.raises(EvidenceMissingError, match=r"no vectors\.faiss; .*genret update INDEX --vectors"),
    ):
        index.evidence_path(VECTORS_FILE)


def replace_by_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda file: file.write_bytes(b""),
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"x"),
    "a directory": replace_by_directory,
    "flipped": lambda file: file.write_bytes(b"\xff" + file.read_bytes()[1:]),
}


@pytest.mark.parametrize("name", VECTOR_FILES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_remembered_and_the_index_opens(folder: Path, name: str, damage: str) -> None:
    DAMAGE[damage](folder / name)
    other = next(file for file in VECTOR_FILES if file != name)
    for digests in (True, False):
        with Index.open(folder, verify_digests=digests) as index:
            assert index.entity(0).title == "abc"
            if damage == "flipped" and not digests:  # sizes alone do not tell
                assert not index.evidence_problems
                continue
            (problem,) = index.evidence_problems.values()
            assert isinstance(problem, IndexChecksumError)
            assert problem.file == name
            with pytest.raises(IndexChecksumError, match=rf"^{re.escape(name)}: "):
                index.evidence_path(name)
            assert index.evidence_path(other) == folder / other
    report = verify(folder)
    assert [problem.file for problem in report.problems] == [name]


def test_damage_beside_damaged_vectors_is_found_too(folder: Path) -> None:
    for name in (VECTORS_FILE, "trie.arrow"):
        file = folder / name
        file.write_bytes(b"\xff" + file.read_bytes()[1:])
    assert {problem.file for problem in verify(folder).problems} == {VECTORS_FILE, "trie.arrow"}
    with pytest.raises(IndexChecksumError, match=r"trie\.arrow"):
        Index.open(folder)


def test_a_file_that_goes_away_after_opening_is_named(folder: Path) -> None:
    with Index.open(folder) as index:
        shutil.rmtree(folder)
        with pytest.raises(IndexChecksumError, match=r"vectors\.faiss: cannot be read"):
            index.evidence_path(VECTORS_FILE)


def test_files_and_the_field_must_fit(summary: BuildSummary) -> None:
    folder = with_vectors(summary)
    manifest = replace(summary.manifest, vectors=ENTRY)
    files = {file.name: file for file in Index.open(folder).manifest.files}
    encoder = replace(ENTRY, method="encoder", source="hub/model")
    for entry, left_out, odd in (
        (None, (), [EMBEDDER_FILE, VECTORS_FILE]),
        (ENTRY, (EMBEDDER_FILE,), [EMBEDDER_FILE]),
        (ENTRY, (VECTORS_FILE,), [VECTORS_FILE]),
        (encoder, (EMBEDDER_FILE,), []),
        (encoder, (), []),
        (encoder, (VECTORS_FILE,), [VECTORS_FILE]),
    ):
        listed = tuple(file for name, file in files.items() if name not in left_out)
        folder = rename(summary.index, folder, replace(manifest, vectors=entry, files=listed))
        if odd:
            with pytest.raises(IndexFormatError, match=re.escape(f"listed and needed differ: {odd}")):
                Index.open(folder)
        else:
            with Index.open(folder) as index:
                assert index.vectors == entry


def test_a_rollback_to_damaged_vectors_is_refused(tmp_path: Path, summary: BuildSummary) -> None:
    folder = with_vectors(summary)
    build(tmp_path, ["title", "abc"], TOKENIZER)
    roll_back(summary.index)
    assert Index.open(summary.index).path == folder
    build(tmp_path, ["title", "bc"], TOKENIZER)
    (folder / VECTORS_FILE).write_bytes(b"")
    with pytest.raises(IndexChecksumError, match=r"vectors\.faiss"):
        roll_back(summary.index, to=folder.name)


def test_a_version_whose_vectors_are_damaged_is_published_anew(folder: Path, tmp_path: Path) -> None:
    staged = tmp_path / "staged"
    shutil.copytree(folder, staged)
    (folder / VECTORS_FILE).write_bytes(b"")
    with Index.open(folder) as damaged:
        manifest = damaged.manifest
    assert publish(folder.parent.parent, staged, manifest) == folder.name
    with Index.open(folder) as index:
        assert not index.evidence_problems


def test_inspect_says_what_the_vectors_are(summary: BuildSummary) -> None:
    assert json_of(inspect_command, summary.index, "--json")["vectors"] is None
    assert "vectors" not in succeed(inspect_command, summary.index).stdout
    folder = with_vectors(summary)
    facts = json_of(inspect_command, folder, "--json")["vectors"]
    assert facts["method"] == "lexical"
    assert facts["kind"] == "flat"
    assert facts["factory"] == "IDMap,Flat"
    assert facts["texts_per_entity"] == 1.25
    assert facts["bytes"] == sum(map(len, VECTOR_FILES.values()))
    assert facts["bytes_per_title"] == len(VECTOR_FILES[VECTORS_FILE]) / 4
    assert (facts["recall"], facts["recall_queries"], facts["effort"]) == (1.0, 0, 0)
    text = succeed(inspect_command, folder).stdout
    assert "  vectors     lexical, 8 dimensions: 5 texts, 1.25 per entity\n" in text
    assert f" bytes, {len(VECTOR_FILES[VECTORS_FILE]) / 4:.1f} of vectors per title\n" in text
    assert "everything is looked at; recall was not measured" in text
    (folder / VECTORS_FILE).write_bytes(b"")
    damaged = succeed(inspect_command, folder).stdout
    assert "vectors.faiss: UNUSABLE: the manifest says 25 bytes, got 0" in damaged


WEIGHTED_LINES = ["title\tkind\tpopulation\tshare", "abc\tx\t12\t0.5", "bcd\ty\t\t0.0", "c\tz\t0\t"]


@pytest.fixture
def unweighted(tmp_path: Path) -> BuildSummary:
    return build(tmp_path, WEIGHTED_LINES, TOKENIZER, evidence=None)


def weighted(unweighted: BuildSummary, column: str) -> Path:
    """Let the manifest name a column, as a builder does, and return the version directory."""
    folder = unweighted.index / "versions" / unweighted.version
    manifest = replace(unweighted.manifest, weight_column=column, format_version=5)
    return rename(unweighted.index, folder, manifest)


def test_weights_of_several_batches_and_integers_that_no_float_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("genret.retrieval.index.entities", "genret.index_builder.entities"):
        monkeypatch.setattr(f"{module}.ENTITY_BATCH_ROWS", 64)
    lines = ["title\tpopulation", f"0\t{2**63 - 1}", *(f"{n}\t{n % 7}" for n in range(1, 130))]
    weighted(build(tmp_path, lines, TOKENIZER, evidence=None), "population")
    with Index.open(tmp_path / "it.index") as index:
        assert index.entities.stored_column("population").num_chunks == 3
        stored = index.entities.column("title").to_pylist()
        assert index.weights.tolist() == [
            float(2**63) if title == "0" else int(title) % 7 for title in stored
        ]
        assert (index.weights.dtype.name, index.weights.flags.writeable) == ("float64", False)


def test_a_closed_index_makes_no_weights(unweighted: BuildSummary) -> None:
    weighted(unweighted, "population")
    index = Index.open(unweighted.index)
    index.close()
    with pytest.raises(IndexDirectoryError, match="was closed"):
        _ = index.weights


@pytest.mark.parametrize("version", [2, 3, 4])
def test_older_formats_know_no_weights_and_those_before_4_no_vectors(
    unweighted: BuildSummary, version: int
) -> None:
    older = replace(unweighted.manifest, format_version=version)
    data = older.to_bytes()
    assert "weight_column" not in json.loads(data)
    assert ("vectors" in json.loads(data)) == (version == 4)
    assert Manifest.from_bytes(data) == older
    named = json.loads(data) | {"weight_column": "population"}
    assert Manifest.from_bytes(json.dumps(named).encode()).weight_column is None


def test_verify_finds_what_can_be_no_weight(tmp_path: Path) -> None:
    lines = ["title\tdelta", "abc\t0.5", "bcd\t", "c\t-0.5"]
    folder = weighted(build(tmp_path, lines, TOKENIZER, evidence=None), "delta")
    (problem,) = verify(folder).problems
    assert (problem.file, problem.message) == (
        "entities.arrow",
        "column 'delta': the entity 'c' has the value -0.5; a weight is a finite number, at least 0",
    )
