"""Results of DISC against laws that are enumerated, and draws used against Theorem 3.1."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
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
    Counts,
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
_ALPHA = 0.01  # of all tests together


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
