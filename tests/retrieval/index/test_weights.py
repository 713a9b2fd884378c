"""The weights of entities: a metadata column that the manifest names."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from genret.index_builder.build import BuildSummary
from genret.retrieval.errors import IndexDirectoryError, IndexFormatError
from genret.retrieval.index.layout import ENTITY_BATCH_ROWS
from genret.retrieval.index.manifest import Manifest
from genret.retrieval.index.reader import Index
from genret.retrieval.index.verification import verify
from tests.index_fixtures import build, character_tokenizer
from tests.vector_fixtures import rename

TOKENIZER = character_tokenizer("abcdefgh 0123456789")
LINES = ["title\tkind\tpopulation\tshare", "abc\tx\t12\t0.5", "bcd\ty\t\t0.0", "c\tz\t0\t"]


@pytest.fixture
def summary(tmp_path: Path) -> BuildSummary:
    return build(tmp_path, LINES, TOKENIZER, evidence=None)


def weighted(summary: BuildSummary, column: str | None, format_version: int = 5) -> Path:
    """Let the manifest name a column, as a builder does, and return the version directory."""
    folder = summary.index / "versions" / summary.version
    manifest = replace(summary.manifest, weight_column=column, format_version=format_version)
    return rename(summary.index, folder, manifest)


@pytest.mark.parametrize(("column", "weights"), [("population", [12, 1, 0]), ("share", [0.5, 0, 1])])
def test_weights_are_floats_by_number_and_1_where_missing(
    summary: BuildSummary, column: str, weights: list[float]
) -> None:
    weighted(summary, column)
    assert verify(summary.index).ok
    with Index.open(summary.index) as index:
        found = index.weights
        assert found is not None
        assert (found.tolist(), found.dtype.name, found.shape) == (weights, "float64", (3,))
        assert not found.flags.writeable
        assert index.weights is found
        assert index.metadata_types["population"] == "int"  # the column is one as any other


def test_an_index_without_weights_has_none(summary: BuildSummary) -> None:
    assert json.loads(summary.manifest.to_bytes())["weight_column"] is None
    with Index.open(summary.index) as index:
        assert index.weights is None


def test_weights_of_several_batches_and_integers_that_no_float_holds(tmp_path: Path) -> None:
    titles = range(ENTITY_BATCH_ROWS + 2)
    lines = ["title\tpopulation", f"0\t{2**63 - 1}", *(f"{n}\t{n % 7}" for n in titles[1:])]
    weighted(build(tmp_path, lines, TOKENIZER, evidence=None), "population")
    with Index.open(tmp_path / "it.index") as index:
        expected = [float(2**63) if title == "0" else int(title) % 7 for title in titles_of(index)]
        assert index.weights is not None
        assert index.weights.tolist() == expected


def titles_of(index: Index) -> list[str]:
    titles: list[str] = index.entities.column("title").to_pylist()
    return titles


def test_a_closed_index_makes_no_weights(summary: BuildSummary) -> None:
    weighted(summary, "population")
    index = Index.open(summary.index)
    index.close()
    with pytest.raises(IndexDirectoryError, match="was closed"):
        _ = index.weights


@pytest.mark.parametrize("version", [2, 3, 4])
def test_older_formats_know_no_weights(summary: BuildSummary, version: int) -> None:
    older = replace(summary.manifest, format_version=version)
    data = older.to_bytes()
    assert "weight_column" not in json.loads(data)
    assert Manifest.from_bytes(data) == older
    named = json.loads(data) | {"weight_column": "population"}
    assert Manifest.from_bytes(json.dumps(named).encode()).weight_column is None


def test_an_index_of_format_4_opens(summary: BuildSummary) -> None:
    assert verify(weighted(summary, None, format_version=4)).ok
    with Index.open(summary.index) as index:
        assert index.weights is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("weight_column"), "missing field 'weight_column'"),
        (lambda d: d.update(weight_column=1), "weight_column: expected str, got 1"),
        (lambda d: d.update(weight_column=["share"]), r"weight_column: expected str, got \['share'\]"),
        (lambda d: d.update(weight_column="size"), r"of \['population', 'share'\], got 'size'"),
        (lambda d: d.update(weight_column="kind"), "expected a metadata column of numbers, .* got 'kind'"),
        (lambda d: d.update(weight_column="title"), "expected a metadata column of numbers"),
        (lambda d: d.update(weight_column=""), "expected a metadata column of numbers"),
    ],
)
def test_a_manifest_that_names_no_column_of_numbers_is_a_format_error(
    summary: BuildSummary, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    document = json.loads(summary.manifest.to_bytes())
    change(document)
    with pytest.raises(IndexFormatError, match=message):
        Manifest.from_bytes(json.dumps(document).encode())


def test_an_index_whose_manifest_names_a_column_of_text_does_not_open(summary: BuildSummary) -> None:
    weighted(summary, "kind")
    with pytest.raises(IndexFormatError, match="weight_column: expected a metadata column of numbers"):
        Index.open(summary.index)


def test_verify_finds_what_can_be_no_weight(tmp_path: Path) -> None:
    lines = ["title\tdelta", "abc\t0.5", "bcd\t", "c\t-0.5"]
    folder = weighted(build(tmp_path, lines, TOKENIZER, evidence=None), "delta")
    (problem,) = verify(folder).problems
    assert (problem.file, problem.message) == (
        "entities.arrow",
        "column 'delta': the entity 'c' has the value -0.5; a weight is a finite number, at least 0",
    )
