"""`benchmarks/vectors.py`: its queries, its Flat search, its recall, and a run of all of it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index_builder.build import build_index
from index_builder.config import BuildOptions
from index_builder.evidence_wish import VectorWish
from retrieval.index.reader import Index
from retrieval.vectors.methods import VectorMethod
from retrieval.vectors.options import VectorOptions
from tests.index_fixtures import character_tokenizer, write_titles

pytest.importorskip("faiss", reason="needs the extra vectors")
pytest.importorskip("sklearn", reason="needs the extra vectors")

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "vectors.py"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SIZE = 100


@pytest.fixture(autouse=True)
def _import_path(benchmark_path: None) -> None:
    """All tests here import from the benchmarks."""


def made_titles(number: int) -> list[str]:
    draw = random.Random(0)
    words = ["".join(draw.choices(LETTERS, k=draw.randint(3, 8))) for _ in range(300)]
    return sorted({" ".join(draw.choices(words, k=draw.randint(1, 4))) for _ in range(number)})


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    folder = tmp_path_factory.mktemp("vectors")
    source = write_titles(folder / "titles.txt", made_titles(1200))
    wish = VectorWish(VectorMethod("lexical"), VectorOptions("ivfpq", 16))
    options = BuildOptions(out=folder / "it.index", format="lines", vectors=wish, threads=1)
    built = build_index(source, character_tokenizer(LETTERS + " "), options)
    with Index.open(built.index) as opened:
        yield opened


def test_queries_are_damaged_titles_and_the_same_every_time(index: Index) -> None:
    from vector_figures.queries import MISTYPED, SHORTENED, title_queries

    queries = title_queries(index, 60, 3)
    assert queries == title_queries(index, 60, 3) != title_queries(index, 60, 4)
    assert len({query.entity for query in queries}) == 60
    assert [query.kind for query in queries] == [MISTYPED, SHORTENED] * 30
    for query in queries:
        title = index.entity(query.entity).title
        assert query.text != title
        if query.kind == SHORTENED:
            left = title.split()
            for word in query.text.split():
                left.remove(word)
            assert len(left) == 1
        else:
            assert abs(len(query.text) - len(title)) <= 1 + (len(title) > 20)


def test_queries_need_titles(index: Index) -> None:
    import click
    from vector_figures.queries import title_queries

    with pytest.raises(click.ClickException, match="expected titles for 5000 queries, got"):
        title_queries(index, 5000, 0)


def test_flat_search_and_recall_are_what_a_build_measures(index: Index) -> None:
    from vector_figures.figures import ALL, hits, qualities
    from vector_figures.flat import search_flat
    from vector_figures.proposing import TimedVectors
    from vector_figures.queries import title_queries

    from retrieval.vectors.nearest import NearestTexts

    vectors = TimedVectors(index)
    queries = title_queries(index, 12, 0)
    texts = [query.text for query in queries]
    allowed = np.random.default_rng(0).random(index.num_entities) < 0.4
    seen: list[int] = []
    flat = search_flat(
        vectors.texts,
        vectors.embedder,
        vectors.searcher(),
        texts,
        SIZE,
        {"": None, "f": allowed},
        seen.append,
    )
    assert sum(seen) == vectors.entry.count

    every = next(iter(vectors.texts.batches(5000)))
    made = vectors.embedder.embed_texts(every.texts)
    asked = vectors.embedder.embed_queries(texts)
    nearest = NearestTexts(texts, asked)
    nearest.see(every.numbers, made)
    alike = asked @ made.T
    for i, answer in enumerate(flat[""]):
        # Equally near ones may stand in any order.
        wanted = np.sort(alike[i])[::-1][:SIZE]
        np.testing.assert_allclose(alike[i][answer.raw], wanted, atol=1e-5)
        candidates = alike[i] >= np.sort(alike[i])[-400] - 1e-6
        exact = vectors.embedder.similarities(texts[i], every.texts)
        best = np.sort(exact[candidates])[::-1][:SIZE]
        np.testing.assert_allclose(exact[answer.ordered], best, atol=1e-5)
    for i, answer in enumerate(flat["f"]):
        assert allowed[answer.raw].all()
        np.testing.assert_allclose(alike[i][answer.raw], np.sort(alike[i][allowed])[::-1][:SIZE], atol=1e-5)

    for effort in (1, vectors.efforts[-1]):
        answers = vectors.ask(texts, SIZE, effort)
        quality = qualities(queries, answers, flat[""])[ALL]
        assert quality.recall == pytest.approx(nearest.recall(vectors.searcher(), effort))
        assert quality.hits == hits(queries, [one.shortlist.entities for one in answers])
        assert quality.hits[1] <= quality.hits[10] <= quality.hits[100]
        assert all(set(one.shortlist.entities) <= set(one.candidates) for one in answers)


def test_what_is_timed_is_what_the_library_proposes(index: Index) -> None:
    from vector_figures.figures import part_times
    from vector_figures.proposing import PARTS, WHOLE, TimedVectors

    from retrieval.vectors.shortlister import Shortlister

    vectors = TimedVectors(index)
    texts = ["", *made_titles(5)]
    filters = [None, np.random.default_rng(1).random(index.num_entities) < 0.5]
    for allowed in filters:
        wanted = Shortlister.open(index).propose(texts, [SIZE] * len(texts), [allowed] * len(texts))
        answers = vectors.ask(texts, SIZE, None, allowed)
        for asked, shortlist in zip(answers, wanted, strict=True):
            assert asked.shortlist.entities.tolist() == shortlist.entities.tolist()
            assert asked.wall_s.keys() == asked.cpu_s.keys() == set(PARTS)
            assert sum(asked.wall_s.values()) == pytest.approx(2 * asked.wall_s[WHOLE])
    assert len(part_times([answers, answers])[WHOLE].p50_ms.values) == 2


def test_hits_are_counted_at_three_depths() -> None:
    from vector_figures.figures import hits
    from vector_figures.queries import TitleQuery

    queries = [TitleQuery("", "", 7)] * 4
    lists = [np.array(places) for places in ([7, 1], [1, 7], [*range(10, 30), 7], [1, 2])]
    assert hits(queries, lists) == {1: 0.25, 10: 0.5, 100: 0.75}


@pytest.mark.slow
def test_the_script_reports(index: Index, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    options = ["--index", str(index.path.parent.parent), "--queries", "6", "--rounds", "1", "--effort", "1"]
    command = [sys.executable, str(SCRIPT), *options, "--bm25", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    figures: dict[str, Any] = json.loads(file.read_text())["figures"]
    asked = [(one["setting"]["effort"], one["setting"]["selectivity"]) for one in figures["settings"]]
    own = index.vectors.effort if index.vectors else 0
    assert asked == [*((effort, 1) for effort in sorted({1, own})), (own, 0.01), (own, 0.1)]
    assert all(0 <= one["quality"]["all"]["recall"] <= 1 for one in figures["settings"])
    assert figures["bm25s"]["hits"].keys() == {"1", "10", "100"}
    assert "hits@1/10/100" in done.stdout
