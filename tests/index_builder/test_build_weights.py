"""Weights of entities from the catalogue to the index: builds, dry runs, updates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from genret.index_builder.build import BuildSummary, build_index
from genret.index_builder.build_options import BuildOptions, VectorBuildOptions, VectorChange
from genret.index_builder.build_plan import plan_build
from genret.index_builder.cli import build_command, update_command
from genret.index_builder.rollback import roll_back
from genret.index_builder.update import UpdateRequest, UpdateSummary, update_index
from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.index.inspect_command import inspect_command
from genret.retrieval.index.reader import Index
from genret.retrieval.index.verification import verify
from genret.retrieval.index.versions import live_version
from genret.retrieval.sources.columns import ColumnMapping, ColumnType
from genret.retrieval.vectors.embedder import VectorMethod
from tests.commands import json_of, refusal, succeed
from tests.index_fixtures import build, character_tokenizer, save_tokenizer, version_files, write_titles
from tests.vector_fixtures import as_format

TOKENIZER = character_tokenizer("abcdefgh ")
POPULATION = ColumnMapping(weight="population")
HEADER = "entity_id\ttitle\tkind\tpopulation\tdelta"
LINES = [HEADER, "1\ta\tx\t12\t-1", "2\tb\ty\t\t2", "3\tc\tx\t0\t0"]


def weights(index: Path) -> dict[str, float]:
    """The weights by id."""
    with Index.open(index) as opened:
        ids = opened.entities.column("entity_id").to_pylist()
        return dict(zip(ids, opened.weights.tolist(), strict=True))


@pytest.fixture
def summary(tmp_path: Path) -> BuildSummary:
    return build(tmp_path, LINES, TOKENIZER, mapping=POPULATION)


def update(index: Path, *add: Path, mapping: ColumnMapping | None = None, **request: object) -> UpdateSummary:
    options = BuildOptions(out=index, mapping=mapping or ColumnMapping())
    return update_index(UpdateRequest(add=add, **request), TOKENIZER, options)  # type: ignore[arg-type]


def test_a_column_of_metadata_holds_the_weights(summary: BuildSummary) -> None:
    manifest = summary.manifest
    assert manifest.weight_column == "population"
    assert [(c.name, c.type) for c in manifest.metadata] == [
        ("kind", "string"),
        ("population", "int"),
        ("delta", "int"),
    ]
    assert weights(summary.index) == {"1": 12, "2": 1, "3": 0}
    assert manifest.history[0].options["weight_column"] == "population"
    assert summary.to_dict()["weight_column"] == "population"
    assert verify(summary.index).ok


def test_the_data_files_are_those_of_a_build_without_weights(tmp_path: Path, summary: BuildSummary) -> None:
    ours = version_files(summary)
    again = build(tmp_path, LINES, TOKENIZER, "again.index", mapping=POPULATION)
    assert version_files(again) == ours
    plain = version_files(build(tmp_path, LINES, TOKENIZER, "plain.index"))
    assert ours.pop("manifest.json") != plain.pop("manifest.json")
    assert ours == plain


@pytest.mark.parametrize(
    ("cells", "kind", "expected"),
    [
        (["", "", ""], "float", [1, 1, 1]),
        (["9007199254740993", "0.5", "1"], "float", [9007199254740992, 0.5, 1]),
        (["007", "1", "2"], "int", [7, 1, 2]),
    ],
)
def test_the_column_is_always_one_of_numbers(
    tmp_path: Path, cells: list[str], kind: str, expected: list[float]
) -> None:
    lines = ["title\tpopulation", *(f"{t}\t{cell}" for t, cell in zip("abc", cells, strict=True))]
    made = build(tmp_path, lines, TOKENIZER, mapping=POPULATION)
    assert made.manifest.metadata[0].type == kind
    assert list(weights(made.index).values()) == expected


def test_weights_that_are_all_zero_are_refused_before_anything_is_published(tmp_path: Path) -> None:
    source = write_titles(tmp_path / "titles.tsv", ["title\tpopulation", "a\t0", "b\t0.0", "b\t0.0"])
    options = BuildOptions(out=tmp_path / "it.index", mapping=POPULATION)
    message = r"the column 'population' gives every entity the weight 0 \(2 in all\)"
    for make in (build_index, plan_build):
        with pytest.raises(SourceError, match=message):
            make(source, TOKENIZER, options)
        assert not (tmp_path / "it.index").exists()
    for line in ("c\t", "c\t0.1"):
        build(tmp_path, ["title\tpopulation", "a\t0", line], TOKENIZER, mapping=POPULATION)


def test_the_commands_tell_of_weights(tmp_path: Path) -> None:
    source = write_titles(tmp_path / "titles.tsv", LINES)
    index = tmp_path / "it.index"
    flags = ["--out", index, "--weight-column", "population", "--no-metadata"]
    for more in (["--dry-run"], []):
        said = succeed(build_command, source, *flags, *more).stdout
        assert "  metadata: population (int)\n  weights: population\n" in said
    said = succeed(inspect_command, index).stdout
    assert "  weights     population: 1 missing (weight 1), 1 zero, the largest 12\n" in said
    facts = json_of(inspect_command, index, "--json")
    assert facts["weights"] == {"column": "population", "missing": 1, "zeros": 1, "largest": 12}
    said = succeed(update_command, index, "--remove-id", "1", "--dry-run").stdout
    assert said.endswith("  evidence would be carried over\n  weights would be those of population\n")
    said = succeed(update_command, index, "--remove-id", "1").stdout
    assert "\n  weights: population\n" in said + "\n"
    said = refusal(update_command, index, "--remove-id", "2", "--json", code=1)
    assert "every entity the weight 0 (1 in all)" in said


def test_an_update_reads_weights_as_the_index_has_them(tmp_path: Path, summary: BuildSummary) -> None:
    more = write_titles(tmp_path / "more.tsv", [HEADER, "1\ta\tx\t7\t0", "4\td\tx\t0\t", "5\te\tx\t\t"])
    updated = update(summary.index, more)
    assert updated.manifest.weight_column == updated.weight_column == "population"
    assert weights(summary.index) == {"1": 7, "2": 1, "3": 0, "4": 0, "5": 1}
    roll_back(summary.index)
    assert weights(summary.index)["1"] == 12


def test_rows_without_the_column_of_weights_weigh_1(tmp_path: Path, summary: BuildSummary) -> None:
    more = write_titles(tmp_path / "more.tsv", ["entity_id\ttitle\tkind", "1\ta\tx", "4\td\tx"])
    tokenizer = save_tokenizer(TOKENIZER, tmp_path / "tokenizer")
    said = succeed(update_command, summary.index, "--add", more, "--tokenizer", tokenizer)
    assert f"{more}: no column 'population', so each entity there has the weight 1" in said.stderr
    assert weights(summary.index) == {"1": 1, "2": 1, "3": 0, "4": 1}
    both = write_titles(tmp_path / "both.tsv", [HEADER, "5\te\tx\t9\t3"])
    update(summary.index, both, mapping=ColumnMapping(metadata=()))  # weights are read all the same
    assert weights(summary.index)["5"] == 9
    update(summary.index, more, mapping=ColumnMapping(metadata=("kind",)))
    odd = write_titles(tmp_path / "odd.tsv", ["entity_id\ttitle\tpeople\tkind", "1\ta\t3\tx"])
    with pytest.raises(SourceError, match=r"'people'; .*leave it out with --metadata kind, or build"):
        update(summary.index, odd)


def test_an_update_that_leaves_zeros_alone_is_refused(tmp_path: Path, summary: BuildSummary) -> None:
    more = write_titles(tmp_path / "more.tsv", [HEADER, "1\ta\tx\t0\t0"])
    for dry_run in (True, False):
        with pytest.raises(SourceError, match=r"'population' gives every entity the weight 0 \(2 in all\)"):
            update(summary.index, more, remove_ids=("2",), dry_run=dry_run)
    assert live_version(summary.index) == summary.version


def test_an_index_without_weights_gets_them_and_others(tmp_path: Path) -> None:
    plain = build(tmp_path, LINES, TOKENIZER)
    dry = update(plain.index, weight_column="population", dry_run=True)
    assert (dry.version, dry.weight_column, dry.manifest.weight_column) == (plain.version, "population", None)
    updated = update(plain.index, weight_column="Population")
    assert updated.manifest == replace(
        plain.manifest, weight_column="population", history=updated.manifest.history
    )
    assert updated.manifest.history[-1].options["weight_column"] == "population"
    assert weights(plain.index) == {"1": 12, "2": 1, "3": 0}
    assert verify(plain.index).ok
    assert update(plain.index, weight_column="population").version == updated.version  # nothing is different
    update(plain.index, remove_ids=("1",), weight_column="delta")  # that entity's value was negative
    assert weights(plain.index) == {"2": 2, "3": 0}


@pytest.mark.parametrize("version", [2, 3, 4])
def test_an_index_of_an_older_format_gets_weights(tmp_path: Path, version: int) -> None:
    plain = build(tmp_path, LINES, TOKENIZER, evidence=None)
    as_format(plain, version)
    updated = update(plain.index, weight_column="population")
    assert (updated.manifest.format_version, updated.manifest.files) == (6, plain.manifest.files)
    assert weights(plain.index) == {"1": 12, "2": 1, "3": 0}


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("kind", "'kind': the column is string; the metadata columns of numbers are 'population', 'delta'"),
        (
            "size",
            "'size': there is no such column; the metadata columns of numbers are 'population', 'delta'",
        ),
        ("title", "'title': there is no such column"),
        ("populaton", "'populaton': there is no such column, did you mean 'population'"),
        ("delta", "column 'delta': the entity '1' has the value -1; a weight is a finite number, at least 0"),
    ],
)
def test_a_column_of_the_index_that_holds_no_weights_is_refused(
    tmp_path: Path, summary: BuildSummary, column: str, message: str
) -> None:
    more = write_titles(tmp_path / "more.tsv", [HEADER, "4\td\tx\t1\t1"])
    for add in ((), (more,)):
        with pytest.raises(InputError, match=f"weight_column: {message}"):
            update(summary.index, *add, weight_column=column)
    assert live_version(summary.index) == summary.version


def test_an_infinite_value_is_no_weight(tmp_path: Path) -> None:
    file = tmp_path / "titles.parquet"
    pq.write_table(pa.table({"title": ["a", "b"], "area": [1.0, float("inf")]}), file)
    build_index(file, TOKENIZER, BuildOptions(out=tmp_path / "it.index"))
    with pytest.raises(InputError, match="the entity 'b' has the value inf"):
        update(tmp_path / "it.index", weight_column="area")


def test_other_weights_of_the_rows_to_add(tmp_path: Path, summary: BuildSummary) -> None:
    """With another column, rows to add are checked by it, and what they replace is not looked at."""
    more = write_titles(tmp_path / "more.tsv", [HEADER, "1\ta\tx\t-5\t4"])
    updated = update(summary.index, more, weight_column="delta")
    assert updated.manifest.weight_column == "delta"
    assert weights(summary.index) == {"1": 4, "2": 2, "3": 0}


def test_vectors_stay_where_nothing_but_the_weights_changes(tmp_path: Path, trigrams: VectorMethod) -> None:
    pytest.importorskip("faiss")
    plain = build(tmp_path, LINES, TOKENIZER)
    index = plain.index
    made = update(index, vectors=VectorChange(VectorBuildOptions(trigrams)))
    changed = update(index, weight_column="population")
    assert (changed.fates.vectors, changed.manifest.files) == ("kept", made.manifest.files)
    assert changed.manifest.vectors == made.manifest.vectors
    assert verify(index).ok
    dropped = update(index, vectors=VectorChange(drop=True))
    assert (dropped.manifest.vectors, dropped.manifest.weight_column) == (None, "population")
    assert dropped.manifest.files == plain.manifest.files


def test_a_declared_type_of_weights_is_kept(tmp_path: Path) -> None:
    mapping = ColumnMapping(weight="population", metadata=(), types={"population": ColumnType.FLOAT})
    made = build(tmp_path, LINES, TOKENIZER, mapping=mapping)
    assert [(c.name, c.type) for c in made.manifest.metadata] == [("population", "float")]
