"""Adaptive draws against plain ones: how close results come to P_S, and what that takes.

Two catalogues. The tree of the *small* one is soon seen whole, so that more draws hardly compute more tokens;
that of the *broad* one is not, and tokens grow with the draws. Distances are over a partition: the heaviest
rows one by one, all others together. Plain results have a law that is known (`law_of_results`); adaptive ones
are measured, sampling error taken off by a bootstrap of whole queries. Beside both stands the share of
accepted draws: what it leaves to one bounds the total variation distance from P_S.

Adaptive draws need no fewer forwards at equal KL: both ways make one walk or two, and a plain K large enough
takes one wide walk. Where P_L(S) is small they need fewer draws, and fewer tokens where results or prefixes
are many to a query; with most first draws accepted there is nothing to gain. `report` counts the cases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import click
import numpy as np
from harness.divergence import Array, Counts, clustered, divergence, kl, law_of_results
from harness.enumerable import Law, TableModel, random_rows

from disc_figures.cheapest import COSTS, needed, report, rivals
from disc_figures.exactness import PROMPT, Tests
from genret.decoding.disc import DiscResult, disc
from genret.decoding.params import DiscParams
from genret.decoding.trie.title_trie import TitleTrie

MASSES = (0.5, 0.1, 0.02)
DRAWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SAMPLES = (1, 16)  # results per query: one, and the service's default
_ALONE, _LIGHTEST = 30, 0.005  # rows looked at one by one: so many at most, and no lighter in P_S
_MOST_QUERIES, _MOST_DRAWS = 1024, 16_384  # at a time
_FIRST_DRAWS = {False: 40_000, True: 200_000}  # of a setting, if they adapt; the law of plain ones is known
_FEWEST = 1600  # results of a setting, all the same


@dataclass(frozen=True, slots=True)
class _Catalogue:
    name: str
    rows: int
    vocab_size: int
    most_tokens: int
    skew: float
    scale: float
    draws: tuple[int, ...]


_CATALOGUES = (
    _Catalogue("small", 24, 12, 5, 1.4, 2.0, DRAWS[:7]),
    _Catalogue("broad", 3000, 60, 5, 1.2, 1.5, DRAWS),
)


def adaptive(results: int, runs: int) -> list[dict[str, Any]]:
    """Compare both ways at several P_L(S), with one result per query and with the default number.

    Args:
        results: Most results per setting, many to a batch; fewer where that would take too many draws.
        runs: For the forwards: queries answered alone.
    """
    tests = Tests()
    figures = [
        _compare(catalogue, mass, samples, results, runs, tests)
        for catalogue in _CATALOGUES
        for mass in MASSES
        for samples in SAMPLES
    ]
    tests.report()
    report(figures)
    return figures


def _compare(
    catalogue: _Catalogue, mass: float, samples: int, results: int, runs: int, tests: Tests
) -> dict[str, Any]:
    rows = random_rows(catalogue.rows, catalogue.vocab_size, catalogue.most_tokens, 4, catalogue.skew)
    model = TableModel.random(rows, catalogue.vocab_size, mass, 5, catalogue.scale)
    law = model.law()
    click.echo(
        f"{catalogue.name} catalogue: {len(rows):,} rows, P_L(S) {law.mass:.3f}, heaviest row "
        f"{law.target.max():.2f} of P_S, {samples} results per query"
    )
    table = []
    for k in catalogue.draws:
        for adapts in (False, True):
            params = DiscParams(num_samples=samples, num_draws=k, adaptive=adapts, reject_early=False)
            setting = _measure(model, law, params, results, runs)
            table.append(setting)
            if samples == 1:  # several of one query are not independent when they adapt
                place = f"{catalogue.name}, P_L(S) {mass}, {setting['way']}, K={k}"
                tests.add(f"accepted draws follow P_S: {place}", setting["accepted_p_value"])
    return {
        "catalogue": catalogue.name,
        "rows": len(rows),
        "mass": law.mass,
        "num_samples": samples,
        "settings": table,
        "needed": needed(table),
        "rivals": {cost: rivals(table, cost) for cost in COSTS},
    }


def _measure(model: TableModel, law: Law, params: DiscParams, results: int, runs: int) -> dict[str, Any]:
    affordable = max(_FEWEST, _FIRST_DRAWS[params.adaptive] // params.num_draws)
    queries = max(2, math.ceil(min(results, affordable) / params.num_samples))
    many = _answers(model, params, range(queries), min(_MOST_QUERIES, max(1, _MOST_DRAWS // params.width)))
    alone = _answers(model, params, range(min(runs, queries)), 1)
    cells = _cells(law)
    target = np.bincount(cells, law.target)
    found = clustered(target, _tally(cells, many, accepted=False))
    accepted = _tally(cells, many, accepted=True).sum(axis=0)
    own = divergence(target, accepted) if accepted.sum() else None
    if params.adaptive:
        distance, stderr = found.kl, found.stderr
    else:
        exact = law_of_results(law.mass, law.target, law.weights, params.num_draws)
        distance, stderr = kl(target, np.bincount(cells, exact)), 0.0
    figure = {
        "way": "adaptive" if params.adaptive else "plain",
        "num_draws": params.num_draws,
        "results": queries * params.num_samples,
        "kl": distance,
        "kl_stderr": stderr,
        "measured": asdict(found),
        "accepted_share": int(accepted.sum()) / (queries * params.num_samples),
        "accepted_p_value": own.p_value if own else 1.0,
        "steps": fmean(result.num_steps for result in alone),
        "nodes": fmean(result.num_nodes for result in many) / params.num_samples,
        "draws": fmean(result.num_draws for result in many) / params.num_samples,
    }
    click.echo(
        f"  {figure['way']:8} K={params.num_draws:<3} KL measured {found.kl:8.1e} ± {found.stderr:.0e}"
        + (f", law {distance:.1e}" if not params.adaptive else " " * 13)
        + f", {figure['accepted_share']:6.1%} accepted; {figure['steps']:4.1f} forwards, per result "
        f"{figure['nodes']:6.1f} tokens, {figure['draws']:6.1f} draws"
    )
    return figure


def _cells(law: Law) -> Array:
    """Return the part of the partition that every row is in. Shape: (N,), int64."""
    heaviest = np.argsort(-law.target, kind="stable")[:_ALONE]
    heaviest = heaviest[law.target[heaviest] >= _LIGHTEST]
    cells = np.full(len(law.target), len(heaviest))
    cells[heaviest] = np.arange(len(heaviest))
    return cells


def _tally(cells: Array, answers: Sequence[DiscResult], accepted: bool) -> Counts:
    """Count results of every query by part. Shape: (Q, parts)."""
    counts = np.zeros((len(answers), int(cells.max()) + 1), dtype=np.int64)
    for query, result in enumerate(answers):
        for sample in result.samples:
            if sample.accepted or not accepted:
                counts[query, cells[sample.hypothesis.row]] += 1
    return counts


def _answers(model: TableModel, params: DiscParams, seeds: range, together: int) -> list[DiscResult]:
    trie = TitleTrie.from_rows(model.rows, model.vocab_size)
    answers: list[DiscResult] = []
    for first in range(0, len(seeds), together):
        batch = [replace(params, seed=seed) for seed in seeds[first : first + together]]
        for result in disc(model.prefill([PROMPT] * len(batch)), trie, batch):
            assert isinstance(result, DiscResult)  # nothing is cancelled here
            answers.append(result)
    return answers
