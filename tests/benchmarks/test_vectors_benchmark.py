"""`benchmarks/vectors.py`: its queries, its figures, and a run of all of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from genret.index_builder.build import build_index
from genret.index_builder.build_options import BuildOptions, VectorBuildOptions
from genret.retrieval.index.reader import Index
from genret.retrieval.vectors.embedder import VectorMethod
from genret.retrieval.vectors.vector_maker import VectorOptions
from tests.checkpoints import make_checkpoint
from tests.index_fixtures import character_tokenizer, write_titles

pytest.importorskip("faiss", reason="needs the extra vectors")

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    folder = tmp_path_factory.mktemp("vectors")
    draw = random.Random(0)
    words = ["".join(draw.choices(LETTERS, k=draw.randint(3, 8))) for _ in range(300)]
    titles = sorted({" ".join(draw.choices(words, k=draw.randint(1, 4))) for _ in range(600)})
    source = write_titles(folder / "titles.txt", titles)
    method = VectorMethod("encoder", str(make_checkpoint(folder / "encoder")))
    wish = VectorBuildOptions(method, VectorOptions("ivfpq"))
    options = BuildOptions(out=folder / "it.index", format="lines", vectors=wish, evidence=None, threads=1)
    with Index.open(build_index(source, character_tokenizer(LETTERS + " "), options).index) as opened:
        yield opened


def test_queries_are_damaged_titles_and_the_same_every_time(index: Index) -> None:
    import click
    from vectors import title_queries

    queries = title_queries(index, 60, 3)
    assert queries == title_queries(index, 60, 3) != title_queries(index, 60, 4)
    assert len({query.entity for query in queries}) == 60
    assert all(query.text != index.entity(query.entity).title for query in queries)
    with pytest.raises(click.ClickException, match="expected titles for 5000 queries, got"):
        title_queries(index, 5000, 0)


def test_quality_is_counted_beside_full_effort() -> None:
    from vectors import quality

    found = [np.array(places) for places in ([7, 1], [1, 7], [*range(10, 30), 7], [1, 2])]
    full = [np.array(places) for places in ([7, 1], [7, 1], [7, 10], [1, 7])]
    recall, first, hits = quality([7] * 4, found, full)
    assert recall == pytest.approx((1 + 1 + 1 + 0.5) / 4)
    assert first == pytest.approx(1 / 3)
    assert hits == {1: 0.25, 10: 0.5, 100: 0.75}


def test_the_script_reports(
    index: Index, figures_of: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--index", index.path.parent.parent, "--queries", "6", "--rounds", "1"]
    full, *others = figures_of("vectors.py", *options)["settings"]
    assert (full["effort"], full["recall"], full["first"]) == (0, 1, 1)
    assert [one["selectivity"] for one in others[-2:]] == [0.01, 0.1]
    assert all(0 <= one["recall"] <= 1 for one in others)
    assert "hits" in capsys.readouterr().out
