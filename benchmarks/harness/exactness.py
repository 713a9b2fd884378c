"""Results of DISC: exactness against laws that are enumerated, and adaptive draws against plain ones.

Draws used are held against Theorem 3.1, too. Adaptive draws are compared by their distance from P_S and by
its cost.

They have two catalogues. The tree of the *small* one is soon seen whole, so that more draws hardly compute
more tokens; that of the *broad* one is not, and tokens grow with the draws. Distances are over a partition:
the heaviest rows one by one, all others together. Plain results have a law that is known
(`law_of_results`); adaptive ones are measured, sampling error taken off by a bootstrap of whole queries.
Beside both stands the share of accepted draws: what it leaves to one bounds the total variation distance from
P_S.

Adaptive draws need no fewer forwards at equal KL: both ways make one walk or two, and a plain K large enough
takes one wide walk. Where P_L(S) is small they need fewer draws, and fewer tokens where results or prefixes
are many to a query; with most first draws accepted there is nothing to gain. The
last line printed counts the cases.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import click
import numpy as np
import torch
from scipy import stats
from transformers import LlamaConfig, LlamaForCausalLM

from genret.decoding.disc import DiscResult, DiscSample, disc
from genret.decoding.language_model import LanguageModel
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.params import DiscParams
from genret.decoding.trie.title_trie import TitleTrie
from harness.divergence import (
    Array,
    Counts,
    clustered,
    divergence,
    expected_draws,
    holm,
    kl,
    law_of_results,
    theorem_rate,
)
from harness.enumerable import END, Law, Row, TableModel, prefixes, random_rows
from harness.report import shown

PROMPT = (1, 2, 1)
_EXACT_DRAWS = (1, 2, 4, 8, 16)
_PER_QUERY, _QUERIES = 128, 16
_Z = 1.96  # of a 95 % interval, for the picture
_ALPHA = 0.01  # of all tests together
MASSES = (0.5, 0.1, 0.02)
TARGETS = (0.1, 0.03, 0.01)
COSTS = {"steps": "forwards", "nodes": "tokens", "draws": "draws"}  # the last two per result
WAYS = ("plain", "adaptive")
DRAWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SAMPLES = (1, 16)  # results per query: one, and the service's default
_ALONE, _LIGHTEST = 30, 0.005  # rows looked at one by one: so many at most, and no lighter in P_S
_MOST_QUERIES, _MOST_DRAWS = 1024, 16_384  # at a time
_FIRST_DRAWS = {False: 40_000, True: 200_000}  # of a setting, if they adapt; the law of plain ones is known
_SAME = 0.02  # costs this close are called equal
_CERTAIN = 2  # standard errors
_FEWEST = 1600  # results of a setting, all the same

Setting = dict[str, Any]


def judged(p_values: dict[str, float]) -> dict[str, Any]:
    """Print and return the verdict of all tests together: of many at 95 %, some fail by chance."""
    adjusted = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    failed = [name for name, p in adjusted.items() if p < _ALPHA]
    verdict = {"tests": len(adjusted), "alpha": _ALPHA, "failed": failed}
    shown("together (Holm)", {**verdict, "smallest adjusted p": min(adjusted.values())})
    return {**verdict, "adjusted_p_values": adjusted}


def catalogues() -> Iterator[tuple[str, LanguageModel, Sequence[Row], Law]]:
    """Yield the catalogues, their models, and what the models say about them."""
    short = [(1, END), (1, 2, END), (1, 2, 3, END), (2, END), (2, 2, END), (4, 1, END)]
    for name, rows, vocab_size, mass in (
        ("6 titles, prefixes of each other", sorted(short), 5, 0.5),
        ("40 titles", random_rows(40, 12, 5, seed=1), 12, 0.3),
        ("12 titles, unlikely", random_rows(12, 8, 4, seed=2), 8, 0.1),
    ):
        model = TableModel.random(rows, vocab_size, mass, seed=len(rows))
        yield name, model, rows, model.law()
    yield tiny_llama()


def tiny_llama() -> tuple[str, LanguageModel, Sequence[Row], Law]:
    """Return a random Llama over 24 titles; its law is read from plain forwards of whole prefixes."""
    rows = random_rows(24, 10, 4, seed=3)
    config = LlamaConfig(
        vocab_size=10,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter *= 8  # away from the uniform distribution
        table = torch.cat([model(torch.tensor([[*PROMPT, *p]])).logits[:, -1] for p in prefixes(rows)])
    return "24 titles, a tiny Llama", HFLanguageModel(model), rows, TableModel(rows, table.float()).law()


def exactness(wanted: int) -> dict[str, Any]:
    """Compare what came out with the enumerated laws, for every catalogue and K."""
    tests: dict[str, float] = {}
    figures = []
    for name, model, rows, law in catalogues():
        click.echo(f"{name}: P_L(S) {law.mass:.3f}, {len(rows)} rows")
        by_draws = [_compare_laws(model, rows, law, k, wanted) for k in _EXACT_DRAWS]
        for figure in by_draws:
            place = f"{name}, K={figure['num_draws']}"
            tests[f"accepted draws follow P_S: {place}"] = figure["accepted"]["p_value"]
            own = figure["all_results_against_their_exact_law"]
            tests[f"results follow the law of Algorithm 1: {place}"] = own["p_value"]
            if figure["num_draws"] > 1:
                tests[f"mean draws are those of Theorem 3.1: {place}"] = figure["mean_draws_p_value"]
        figures.append({"catalogue": name, "rows": len(rows), "mass": law.mass, "by_draws": by_draws})
    return {"catalogues": figures, "together": judged(tests)}


def _compare_laws(model: LanguageModel, rows: Sequence[Row], law: Law, k: int, wanted: int) -> dict[str, Any]:
    samples = list(_samples(model, rows, wanted, DiscParams(num_draws=k, num_samples=_PER_QUERY)))
    everything = divergence(law.target, tally(rows, samples))
    accepted = divergence(law.target, tally(rows, [s for s in samples if s.accepted]))
    exact = law_of_results(law.mass, law.target, law.weights, k)
    own_law = divergence(exact, tally(rows, samples))
    used = np.array([s.num_draws for s in samples], dtype=float)
    stderr = float(used.std(ddof=1)) / math.sqrt(len(used))
    expected = 1.0 if k == 1 else expected_draws(law.mass, k)
    z = (float(used.mean()) - expected) / stderr if stderr else 0.0
    figure = {
        "num_draws": k,
        "all_results": asdict(everything),
        "all_results_against_their_exact_law": asdict(own_law),
        "accepted": asdict(accepted),
        "exact_kl": kl(law.target, exact),
        "theorem_rate": theorem_rate(law.mass, k),
        "mean_draws": float(used.mean()),
        "mean_draws_error": _Z * stderr,
        "mean_draws_z": z,
        "mean_draws_p_value": 2 * float(stats.norm.sf(abs(z))),
        "expected_draws": expected,
    }
    return shown(f"K={k}", figure)


def _samples(
    model: LanguageModel, rows: Sequence[Row], wanted: int, params: DiscParams
) -> Iterator[DiscSample]:
    """Yield results of as many queries, each with a seed of its own, as are needed."""
    trie = TitleTrie.from_rows(rows, model.vocab_size)
    own = (len(rows) << 40) + (params.num_draws << 20)  # no two settings share random numbers
    queries = math.ceil(wanted / params.num_samples)
    for result in results_of(model, trie, [replace(params, seed=own + n) for n in range(queries)], _QUERIES):
        yield from result.samples


def results_of(
    model: LanguageModel, trie: TitleTrie, params: Sequence[DiscParams], together: int
) -> Iterator[DiscResult]:
    """Yield the results of queries with the same prompt, so many at a time."""
    for first in range(0, len(params), together):
        batch = params[first : first + together]
        for result in disc(model.prefill([PROMPT] * len(batch)), trie, batch):
            assert isinstance(result, DiscResult)  # nothing is cancelled here
            yield result


def tally(rows: Sequence[Row], samples: Sequence[DiscSample]) -> Counts:
    """Count how often each row came out."""
    return np.bincount([s.hypothesis.row for s in samples], minlength=len(rows)).astype(np.int64)


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

    There are at most so many results per setting, fewer where that would take too many draws; as many
    queries as `runs` are answered alone, for the forwards.
    """
    tests: dict[str, float] = {}
    figures = [
        _compare_ways(catalogue, mass, samples, results, runs, tests)
        for catalogue in _CATALOGUES
        for mass in MASSES
        for samples in SAMPLES
    ]
    judged(tests)
    counts = Counter(
        f"{figure['catalogue']} catalogue, {COSTS[entry['cost']]}: {entry['cheaper']}"
        for figure in figures
        for entry in figure["needed"]
    )
    shown("cheaper at equal KL", counts)
    return figures


def _compare_ways(
    catalogue: _Catalogue, mass: float, samples: int, results: int, runs: int, tests: dict[str, float]
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
                tests[f"accepted draws follow P_S: {place}"] = setting["accepted_p_value"]
    return {
        "catalogue": catalogue.name,
        "rows": len(rows),
        "mass": law.mass,
        "num_samples": samples,
        "settings": table,
        "needed": shown("cheapest settings by distance and cost", needed(table)),
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
    return shown(f"{figure['way']}, K={params.num_draws}", figure)


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
    return list(results_of(model, trie, [replace(params, seed=seed) for seed in seeds], together))


def reaches(setting: Setting, target: float) -> bool:
    """Say whether results are that close, sampling error counted against them."""
    return bool(setting["kl"] + _CERTAIN * setting["kl_stderr"] <= target)


def needed(table: Sequence[Setting]) -> list[dict[str, Any]]:
    """Return, for every distance and cost, the cheapest setting of each way that comes so close."""
    found = []
    for target in TARGETS:
        for cost in COSTS:
            best = {way: _cheapest(table, way, target, cost) for way in WAYS}
            found.append({"kl": target, "cost": cost, **best, "cheaper": _cheaper(best, cost)})
    return found


def _cheapest(table: Sequence[Setting], way: str, target: float, cost: str) -> Setting | None:
    enough = [s for s in table if s["way"] == way and reaches(s, target)]
    return min(enough, key=lambda s: (s[cost], s["draws"]), default=None)


def _cheaper(best: dict[str, Setting | None], cost: str) -> str:
    """Return the way that is cheaper, or "neither"."""
    plain, adaptive = best["plain"], best["adaptive"]
    if plain is None or adaptive is None:
        return "neither" if plain is adaptive else "plain" if adaptive is None else "adaptive"
    if abs(plain[cost] - adaptive[cost]) <= _SAME * plain[cost]:
        return "neither"
    return "adaptive" if adaptive[cost] < plain[cost] else "plain"
