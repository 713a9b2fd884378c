"""DISC: time per draw, the bias of constrained decoding, proposal beams, what the mass can tell.

    python benchmarks/disc.py                                         # everything, on synthetic titles
    python benchmarks/disc.py --only time --index six_million.index   # wall time over an index of GPT-2 ids

`time`: a whole request (prompt of 256 tokens) on a random Llama of 102 M parameters that leans towards
titles (`harness/leaning_model.py` says how), fp32, one torch thread: K draws against one, and eight draws
together against eight over the same prompt KV with the same random numbers, with the prefill and without;
runs that needed phase two, which doubles the forwards, are told apart. `bias`: constrained decoding and DISC
on a catalogue where the first is wrong by a formula (`harness/trie_bias.py`). `beams` and `calibration`: the
default model on the dev and test queries of data/.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import torch
from harness.divergence import Array, auc
from harness.leaning_model import LeaningModel
from harness.report import COUNT, FOLDER, Spread, benchmark, shown
from harness.sample_data import Query, answers, held_out_queries, sample_retriever
from harness.timing import timed
from harness.trie_bias import bias
from harness.twin_models import random_model
from torch import Tensor

from genret import RetrievalResult, Retriever, RetrieveRequest
from genret.decoding.disc import DiscResult, disc
from genret.decoding.disc.draws import FIRST, DrawBatch
from genret.decoding.disc.tree_proposer import TreeProposer
from genret.decoding.params import DiscParams
from genret.decoding.stopping import StopPoll
from genret.decoding.trie.title_trie import TitleTrie
from genret.retrieval.index.reader import Index

_SECTIONS = ("time", "bias", "beams", "calibration")
_VOCAB, _TITLE_TOKENS = 50_257, 8  # GPT-2's vocabulary; mean length of Wikipedia's titles in it
_HIDDEN, _LAYERS = 768, 9
_PROMPT = 256
_TOGETHER = 8
# Probability of the valid tokens together at a step: most first draws are accepted; two in five are; none is,
# so that phase two always runs.
_VALID = (0.97, 0.9, 0.5)
_TIMED = (1, 2, 4, 8)
BEAM_SIZES = (1, 2, 4)
DRAWS = (1, 2, 3, 4)
_THRESHOLDS = (0.05, 0.1, 0.25, 0.5, 0.75)
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@benchmark("numpy", "numba", "torch", "transformers")
@click.option(
    "--only", multiple=True, type=click.Choice(_SECTIONS), help="Run this section; may be repeated."
)
@click.option("--index", type=FOLDER, help="`time`: titles of an index.")
@click.option(
    "--limit", type=COUNT, default=200_000, help="`time`: synthetic titles, where there is no index."
)
@click.option("--repeats", type=COUNT, default=9, help="`time`: pairs of measurements.")
@click.option("--results", type=click.IntRange(min=2), default=20_000, help="Most results per law compared.")
@click.option("--seeds", type=COUNT, default=3, help="`beams`: seeds.")
@click.option("--queries", type=COUNT, help="`beams`, `calibration`: only so many queries.")
@click.option("--hidden", type=click.IntRange(min=64), default=_HIDDEN, help="`time`: width of the model.")
@click.option("--layers", type=COUNT, default=_LAYERS, help="`time`: depth of the model.")
def main(options: SimpleNamespace) -> dict[str, Any]:
    """Measure DISC."""
    chosen = options.only or _SECTIONS
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}

    def section(name: str, measure: Callable[[], Any]) -> None:
        if name in chosen:
            click.echo(f"\n{name}")
            figures[name] = measure()

    section("time", lambda: _time(options))
    section("bias", lambda: bias(options.results))
    if {"beams", "calibration"} & set(chosen):
        asked = held_out_queries(options.queries)
        with sample_retriever() as retriever:
            section("beams", lambda: beams(retriever, asked, options.seeds))
            section("calibration", lambda: calibration(retriever, asked))
    return figures


def _time(options: SimpleNamespace) -> dict[str, Any]:
    sizes = (_VOCAB, options.hidden, options.layers, options.repeats)
    if options.index is not None:
        with Index.open(options.index, verify_digests=False) as opened:
            trie = TitleTrie(opened.trie_arrays(), _VOCAB)
            click.echo(f"{opened.num_rows:,} rows of an index")
            return {"rows": opened.num_rows, **wall_time(trie, *sizes)}
    rows = _synthetic(options.limit)
    click.echo(f"{len(rows):,} synthetic titles")
    return {"rows": len(rows), **wall_time(TitleTrie.from_rows(rows, _VOCAB), *sizes)}


def _synthetic(count: int) -> set[tuple[int, ...]]:
    """Rows with skewed tokens, with shared prefixes as in real titles; the end token is the last id."""
    rng = np.random.default_rng(0)
    ranks = rng.zipf(1.2, size=(count, _TITLE_TOKENS)) % (_VOCAB - 1)
    return {(*row, _VOCAB - 1) for row in ranks.tolist()}


@dataclass(frozen=True, slots=True)
class _Run:
    """A request: seconds of its prefill and of all else, whether phase two was needed, and the mass found."""

    prefill: float
    drawing: float
    second: bool
    mass: float

    @property
    def whole(self) -> float:
        return self.prefill + self.drawing


def wall_time(trie: TitleTrie, vocab_size: int, hidden: int, layers: int, repeats: int) -> dict[str, Any]:
    """Time draws for one prompt of 256 tokens on a random Llama that leans towards titles."""
    base = random_model(vocab_size, hidden, layers)
    prompts = torch.randint(1, vocab_size, (repeats + 1, _PROMPT), generator=torch.Generator().manual_seed(0))
    figures: dict[str, Any] = {"prompt": _PROMPT, "hidden": hidden, "layers": layers, "draws": []}
    for valid in _VALID:
        model = LeaningModel(base, trie, valid)
        figures["draws"].append(_more_draws(model, trie, prompts, valid))
    figures["together"] = _together(LeaningModel(base, trie, _VALID[0]), trie, prompts)
    return figures


def _more_draws(model: LeaningModel, trie: TitleTrie, prompts: Tensor, valid: float) -> dict[str, Any]:
    """Time a whole request with 1, 2, 4 and 8 draws in turn; the share that is prefill is told apart."""
    runs: dict[int, list[_Run]] = {k: [] for k in _TIMED}
    for repeat, prompt in enumerate(prompts.tolist()):
        for k in _TIMED:
            params = DiscParams(num_draws=k, seed=repeat, reject_early=False)
            began, _, session = timed(model.prefill, [prompt])
            took, _, (result,) = timed(disc, session, trie, [params])
            assert isinstance(result, DiscResult)  # nothing is cancelled here
            if repeat:  # the first prompt warms up
                runs[k].append(_Run(began, took, result.num_draws > k, result.mass))
    one = runs[1]
    figure: dict[str, Any] = {
        "valid": valid,
        "mass": sum(run.mass for run in runs[4]) / len(one),
        "seconds_at_1": Spread.of([run.whole for run in one]),
        "prefill_share_at_1": Spread.of([run.prefill / run.whole for run in one]),
    }
    for k in _TIMED[1:]:
        figure[f"K={k}"] = _against_one(runs[k], one)
    return shown(f"valid mass {valid} per token", figure)


def _against_one(many: list[_Run], one: list[_Run]) -> dict[str, Any]:
    """Return times of K draws over those of one, and apart for runs that had a second phase and had not."""
    pairs = list(zip(many, one, strict=True))
    figure: dict[str, Any] = {
        "second_phase": sum(run.second for run in many) / len(many),
        "ratio": Spread.of([a.whole / b.whole for a, b in pairs]),
        "ratio_without_prefill": Spread.of([a.drawing / b.drawing for a, b in pairs]),
    }
    for name, second in (("one_phase", False), ("two_phases", True)):
        ratios = [a.whole / b.whole for a, b in pairs if a.second == second]
        figure[f"ratio_{name}"] = Spread.of(ratios) if ratios else None
    return figure


def _together(model: LeaningModel, trie: TitleTrie, prompts: Tensor) -> dict[str, Any]:
    """Time eight draws as one batch of branches and one by one, all with the same random numbers."""
    whole: list[tuple[float, float]] = []
    drawing: list[tuple[float, float]] = []
    same = True
    for repeat, prompt in enumerate(prompts.tolist()):
        prefill, _, session = timed(model.prefill, [prompt])
        one_by_one, _, apart = timed(_one_by_one, session, trie, repeat)
        at_once, _, joined = timed(_draw, session, trie, repeat, 0, _TOGETHER)
        same &= joined == apart
        if repeat:
            whole.append((prefill + one_by_one, prefill + at_once))
            drawing.append((one_by_one, at_once))
    figure = {
        "draws": _TOGETHER,
        "same_draws": same,
        "together_s": Spread.of([b for _, b in whole]),
        "one_by_one_s": Spread.of([a for a, _ in whole]),
        "ratio": Spread.of([a / b for a, b in whole]),
        "ratio_without_prefill": Spread.of([a / b for a, b in drawing]),
    }
    return shown("together", figure)


def _one_by_one(session: Any, trie: TitleTrie, seed: int) -> list[tuple[int, ...]]:
    return [row for number in range(_TOGETHER) for row in _draw(session.select([0]), trie, seed, number, 1)]


def _draw(session: Any, trie: TitleTrie, seed: int, first: int, count: int) -> list[tuple[int, ...]]:
    """Make draws first … first + count - 1 of the first phase, to their ends."""
    params = [DiscParams(num_draws=_TOGETHER, seed=seed, reject_early=False)]
    batch = DrawBatch(session, trie, params, StopPoll(1, None, None, session.root_logits.device), [0])
    draws = batch.new_draws([(0, 0, first, count)])
    TreeProposer(batch).run(draws, FIRST, None)
    return [hypothesis.token_ids for hypothesis in draws.hypotheses(list(range(count)), trie)]


def beams(retriever: Retriever, queries: Sequence[Query], seeds: int) -> dict[str, Any]:
    """Share of right answers with one result per query, drawn by small beams (the paper's Table 6).

    Right first answers are counted for every beam size and K, and those of trie beam search.
    """
    best = [result.candidates for result in retriever.retrieve([q.text for q in queries], k=1, method="beam")]
    likeliest = _percent(queries, [c[0].entity_id if c else "" for c in best])
    table = []
    for beam_size in BEAM_SIZES:
        for num_draws in DRAWS:
            hits = Spread.of([_hits(retriever, queries, num_draws, beam_size, seed) for seed in range(seeds)])
            table.append({"beam_size": beam_size, "num_draws": num_draws, "hits_at_1": hits})
    figures = {"queries": len(queries), "seeds": seeds, "beam_search": likeliest, "disc": table}
    return shown("percent of right first answers", figures)


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


def calibration(retriever: Retriever, queries: Sequence[Query]) -> dict[str, Any]:
    """Compare the masses of queries with those of the same queries when their answer is denied.

    Those of right first answers are compared with those of wrong ones, too.
    """
    present = answers(retriever, [_request(q, n, ()) for n, q in enumerate(queries)])
    absent = answers(retriever, [_request(q, n, (q.entity_id,)) for n, q in enumerate(queries)])
    inside, outside = (
        np.array([result.bounded_mass for result in results], dtype=np.float64)
        for results in (present, absent)
    )
    right = np.array([_is_right(q, r) for q, r in zip(queries, present, strict=True)])
    figures = {
        "queries": len(queries),
        "right_first": float(right.mean()),
        "quantiles": list(_QUANTILES),
        "mass_answer_present": np.quantile(inside, _QUANTILES).tolist(),
        "mass_answer_denied": np.quantile(outside, _QUANTILES).tolist(),
        "auc_present_against_denied": auc(inside, outside),
        "auc_right_against_wrong": auc(inside[right], inside[~right]),
        "thresholds": [_at(threshold, inside, outside, right) for threshold in _THRESHOLDS],
    }
    return shown("masses", figures)


def _request(query: Query, number: int, denied: tuple[str, ...]) -> RetrieveRequest:
    return RetrieveRequest(query.text, k=1, method="disc", seed=number, deny_ids=denied)


def _is_right(query: Query, result: RetrievalResult) -> bool:
    return bool(result.candidates) and result.candidates[0].entity_id == query.entity_id


def _at(threshold: float, inside: Array, outside: Array, right: Array) -> dict[str, float]:
    """Say what a `min_mass` would do."""
    answered = inside >= threshold
    return {
        "min_mass": threshold,
        "answered_though_denied": float((outside >= threshold).mean()),
        "answered": float(answered.mean()),
        "right_among_answered": float(right[answered].mean()) if answered.any() else 0.0,
    }


if __name__ == "__main__":
    main()
