"""Draws proposed by small beams: share of right answers with one result per query (the paper's Table 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from harness.report import Spread

from disc_figures.sample_retriever import Query, answers
from genret import Retriever
from genret.retrieval.types import RetrieveRequest

BEAM_SIZES = (1, 2, 4)
DRAWS = (1, 2, 3, 4)


def beams(retriever: Retriever, queries: Sequence[Query], seeds: int) -> dict[str, Any]:
    """Count right first answers for every beam size and K, and those of trie beam search."""
    best = [result.candidates for result in retriever.retrieve([q.text for q in queries], k=1, method="beam")]
    likeliest = _percent(queries, [c[0].entity_id if c else "" for c in best])
    click.echo(
        f"hits@1 of {len(queries)} queries, one result each, {seeds} seeds; "
        f"trie beam search {likeliest:.1f} %"
    )
    table = []
    for beam_size in BEAM_SIZES:
        for num_draws in DRAWS:
            hits = Spread.of([_hits(retriever, queries, num_draws, beam_size, seed) for seed in range(seeds)])
            table.append({"beam_size": beam_size, "num_draws": num_draws, "hits_at_1": hits})
            click.echo(f"  beam size {beam_size}, K={num_draws}: {hits.text(1)} %")
    return {"queries": len(queries), "seeds": seeds, "beam_search": likeliest, "disc": table}


def _hits(retriever: Retriever, queries: Sequence[Query], num_draws: int, beam_size: int, seed: int) -> float:
    requests = [
        RetrieveRequest(
            query.text,
            k=1,
            method="disc",
            num_samples=1,
            num_draws=num_draws,
            beam_size=beam_size,
            seed=seed * len(queries) + number,
        )
        for number, query in enumerate(queries)
    ]
    results = answers(retriever, requests)
    return _percent(queries, [r.candidates[0].entity_id if r.candidates else "" for r in results])


def _percent(queries: Sequence[Query], answers: Sequence[str]) -> float:
    right = sum(query.entity_id == answer for query, answer in zip(queries, answers, strict=True))
    return 100.0 * right / len(queries)
