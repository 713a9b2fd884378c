"""`benchmarks/shortlist_quality.py`: what is tried offline is what the library answers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retrieval.retriever import Retriever
from retrieval.types import RetrievalResult, RetrieveRequest
from tests.checkpoints import make_checkpoint, make_index
from tests.evaluation_fixtures import query_set, write_mentions, write_queries
from tests.fake_vectors import MadeUpVectors
from tests.fakes import likely_titles

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "shortlist_quality.py"
SIZE = 4


@pytest.fixture(scope="module")
def retriever(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retriever]:
    folder = tmp_path_factory.mktemp("quality")
    checkpoint = make_checkpoint(folder / "model", "llama")
    with Retriever.open(make_index(folder, checkpoint), checkpoint) as bare:
        model, vectors = likely_titles(bare.index), MadeUpVectors.of(bare.index)
        yield Retriever(bare.index, model, bare.tokenizer, bare.config, vectors=vectors.opened())


@pytest.mark.usefixtures("benchmark_path")
@pytest.mark.parametrize("weight", [0.0, 3.0])
def test_weights_tried_offline_give_the_librarys_answers(retriever: Retriever, weight: float) -> None:
    from shortlist_figures.candidates import BEAM_SIZE, collect
    from shortlist_figures.fusions import weighted

    queries = query_set().queries
    found = collect(retriever, queries, SIZE, 3)
    assert [candidates.query_id for candidates in found] == [query.query_id for query in queries]
    for method in ("auto", "shortlist"):
        request = RetrieveRequest(
            "-", k=1000, method=method, beam_size=BEAM_SIZE, shortlist_size=SIZE, vector_weight=weight
        )
        for query, candidates in zip(queries, found, strict=True):
            (answer,) = retriever.retrieve_batch([replace(request, query=query.text)])
            assert isinstance(answer, RetrievalResult)
            listed = candidates if method == "auto" else candidates.proposed()
            order = weighted(weight).ranked(listed)
            assert [listed.entity_ids[i] for i in order] == [c.entity_id for c in answer.candidates]
            scores = weighted(weight).scores(listed)[order]
            np.testing.assert_allclose(scores, [c.score for c in answer.candidates], rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("benchmark_path")
def test_candidates_are_kept_with_what_they_are_of(retriever: Retriever, tmp_path: Path) -> None:
    from shortlist_figures.candidates import collect, read, write

    found = collect(retriever, query_set().queries, SIZE, 8)
    file, header = tmp_path / "kept.jsonl", {"index": "a", "queries": 6}
    assert read(file, header) is None
    write(file, header, found)
    kept = read(file, header)
    assert kept is not None
    assert [one.to_json() for one in kept] == [one.to_json() for one in found]
    assert read(file, {**header, "index": "b"}) is None


@pytest.mark.usefixtures("benchmark_path")
def test_ways_to_order_candidates() -> None:
    from shortlist_figures.candidates import Candidates
    from shortlist_figures.fusions import families, mixture, reciprocal_ranks, standardised, weighted

    rows = [("a", "A", -1.0, 0.1, True), ("b", "B", -2.0, 0.9, True), ("c", "C", -9.0, 0.2, False)]
    candidates = Candidates.of("q", rows)
    assert weighted(0).ranked(candidates) == [0, 1, 2]
    assert weighted(2).ranked(candidates) == [1, 0, 2]
    assert weighted(1000).ranked(candidates) == [1, 2, 0]
    assert mixture(0.0, 0.1).ranked(candidates) == [0, 1, 2]
    assert mixture(1.0, 0.1).ranked(candidates) == [1, 2, 0]
    np.testing.assert_allclose(mixture(0.3, 0.1).scores(candidates).sum(), 1.0)
    assert reciprocal_ranks(1.0, 0.0).ranked(candidates) == [0, 1, 2]
    np.testing.assert_allclose(
        reciprocal_ranks(1.0, 2.0).scores(candidates), [1 / 2 + 2 / 4, 1 / 3 + 1, 1 / 4 + 2 / 3]
    )
    assert standardised(100.0).ranked(candidates) == [1, 2, 0]
    empty = Candidates.of("none", [])
    for fusions in families().values():
        assert all(fusion.ranked(empty) == [] for fusion in fusions)
        assert len({fusion.name for fusion in fusions}) == len(fusions)


@pytest.mark.slow
def test_the_script_tunes_and_reports(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "model", "bart")
    command = [sys.executable, "-c", "from index_builder.cli import build_command; build_command()"]
    make_index(tmp_path, checkpoint)
    command += [
        str(tmp_path / "titles.tsv"),
        "--tokenizer",
        str(checkpoint),
        "--vectors",
        "lexical",
        "--quiet",
    ]
    subprocess.run([*command, "--out", str(tmp_path / "vectors.index")], check=True, timeout=280)
    sets = ["--tune", f"queries:{write_queries(tmp_path / 'asked.jsonl')}"]
    sets += ["--set", f"mentions:{write_mentions(tmp_path / 'marked.jsonl')}"]
    options = ["--shortlist-size", "3", "--method", "beam", "--method", "vectors", "--resamples", "100"]
    places = ["--work", str(tmp_path / "work"), "--json", str(tmp_path / "figures.json")]
    script = [
        sys.executable,
        str(SCRIPT),
        "--index",
        str(tmp_path / "vectors.index"),
        "--model",
        str(checkpoint),
    ]
    printed = []
    for _ in range(2):
        done = subprocess.run(
            [*script, *sets, *options, *places], capture_output=True, text=True, check=False, timeout=280
        )
        assert done.returncode == 0, done.stdout + done.stderr
        printed.append(done.stdout.split("hits@1 / hits@10")[1])
    assert printed[0] == printed[1]  # the second time nothing but the methods beside it is asked
    assert "asked: " not in done.stderr
    figures: dict[str, Any] = json.loads((tmp_path / "figures.json").read_text())["figures"]
    assert {"beam", "vectors", "auto, weight 0", "shortlist, weight 0"} <= figures["methods"].keys()
    assert figures["sets"].keys() == {"asked", "marked"}
    assert figures["auto_against_the_best_single"]["marked"]["hits@10"]["best_single"] in ("beam", "vectors")
