"""Adaptive draws against plain ones: what it takes to come as close to the target."""

from __future__ import annotations

from dataclasses import asdict, replace
from statistics import fmean
from typing import Any

import click
from harness.divergence import divergence, expected_draws, kl, law_of_results
from harness.enumerable import Law, TableModel, random_rows

from decoding.disc import DiscResult, disc
from decoding.params import DiscParams
from decoding.title_trie import TitleTrie
from disc_figures.exactness import PROMPT, tally

MASSES = (0.5, 0.1, 0.02)
DRAWS = (1, 2, 4, 8, 16, 32, 64)
TARGETS = (0.1, 0.03, 0.01)
WAYS = {"plain": False, "adaptive": True}
_ROWS, _VOCAB, _MOST_TOKENS = 24, 12, 5
SAMPLES = (1, 16)  # results per query: one, and the service's default
_MOST_QUERIES, _MOST_DRAWS = 1024, 16_384  # at a time


def adaptive(results: int, runs: int) -> list[dict[str, Any]]:
    """Compare both ways on one catalogue at several P_L(S), with one result per query.

    Args:
        results: For the divergences and nodes: queries of one result each, many to a batch.
        runs: For the forwards: queries answered alone.
    """
    rows = random_rows(_ROWS, _VOCAB, _MOST_TOKENS, seed=4)
    figures = []
    for mass in MASSES:
        model = TableModel.random(rows, _VOCAB, mass, seed=5)
        for samples in SAMPLES:
            figures.append(_compare(model, samples, results, runs))
    return figures


def _compare(model: TableModel, samples: int, results: int, runs: int) -> dict[str, Any]:
    law = model.law()
    click.echo(f"P_L(S) {law.mass:.3f}, {len(model.rows)} rows, {samples} results per query")
    table = [
        {
            "way": way,
            **_measure(
                model, law, DiscParams(num_samples=samples, num_draws=k, adaptive=adapts), results, runs
            ),
        }
        for k in DRAWS
        for way, adapts in WAYS.items()
    ]
    needed = [
        {
            "kl": target,
            "way": way,
            **{f"fewest_{cost}": _cheapest(table, way, target, cost) for cost in ("steps", "nodes")},
        }
        for target in TARGETS
        for way in WAYS
    ]
    for entry in needed:
        click.echo(f"  KL <= {entry['kl']}, {entry['way']}: {_describe(entry)}")
    return {
        "mass": law.mass,
        "rows": len(model.rows),
        "num_samples": samples,
        "settings": table,
        "needed": needed,
    }


def _measure(model: TableModel, law: Law, params: DiscParams, results: int, runs: int) -> dict[str, Any]:
    together = min(_MOST_QUERIES, _MOST_DRAWS // params.width)
    many = _answers(model, params, range(-(-results // params.num_samples)), together)
    alone = _answers(model, params, range(runs), 1)
    samples = [sample for result in many for sample in result.samples]
    everything = divergence(law.target, tally(model.rows, samples))
    accepted = [sample for sample in samples if sample.accepted]
    exact = divergence(law.target, tally(model.rows, accepted))
    figure = {
        "num_draws": params.num_draws,
        "all_results": asdict(everything),
        "accepted": asdict(exact),
        "accepted_share": len(accepted) / len(samples),
        "draws": fmean(sample.num_draws for sample in samples),
        "nodes": fmean(result.num_nodes for result in many),
        "steps": fmean(result.num_steps for result in alone),
    }
    if not params.adaptive:
        figure["exact_kl"] = kl(
            law.target, law_of_results(law.mass, law.target, law.weights, params.num_draws)
        )
        figure["expected_draws"] = (
            1.0 if params.num_draws == 1 else expected_draws(law.mass, params.num_draws)
        )
    click.echo(
        f"  {'adaptive' if params.adaptive else 'plain':8} K={params.num_draws:<2}: KL {everything.kl:.2e} "
        f"(sampling error {everything.expected:.1e}), {figure['steps']:.1f} forwards, "
        f"{figure['nodes']:.1f} nodes, "
        f"{figure['draws']:.1f} draws, {figure['accepted_share']:.0%} accepted: ratio to sampling error "
        f"{exact.kl / exact.expected:.2f} {exact.verdict}"
    )
    return figure


def _answers(model: TableModel, params: DiscParams, seeds: range, together: int) -> list[DiscResult]:
    trie = TitleTrie.from_rows(model.rows, model.vocab_size)
    answers: list[DiscResult] = []
    for first in range(0, len(seeds), together):
        batch = [replace(params, reject_early=False, seed=seed) for seed in seeds[first : first + together]]
        for result in disc(model.prefill([PROMPT] * len(batch)), trie, batch):
            assert isinstance(result, DiscResult)  # nothing is cancelled here
            answers.append(result)
    return answers


def _cheapest(table: list[dict[str, Any]], way: str, target: float, cost: str) -> dict[str, Any] | None:
    """Return the cheapest setting whose results are that close; None when none is."""
    enough = [s for s in table if s["way"] == way and s["all_results"]["kl"] <= target]
    if not enough:
        return None
    best = min(enough, key=lambda s: s[cost])
    return {name: best[name] for name in ("num_draws", "steps", "nodes")}


def _describe(entry: dict[str, Any]) -> str:
    if entry["fewest_steps"] is None:
        return f"not reached with K <= {DRAWS[-1]}"
    return " or ".join(
        f"{s['steps']:.1f} forwards and {s['nodes']:.1f} nodes (K={s['num_draws']})"
        for s in (entry["fewest_steps"], entry["fewest_nodes"])
    )
