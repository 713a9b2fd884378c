"""Wall time: K draws against one, and K draws together against K one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click
import torch
from harness.leaning_model import LeaningModel, random_llama
from harness.report import Spread
from torch import Tensor

from genret.decoding.disc import DiscResult, disc
from genret.decoding.disc.draws import FIRST, DrawBatch
from genret.decoding.disc.tree_proposer import TreeProposer
from genret.decoding.params import DiscParams
from genret.decoding.stopping import StopPoll
from genret.decoding.trie.title_trie import TitleTrie

PROMPT = 256
_TOGETHER = 8
# Probability of the valid tokens together at a step: most first draws are accepted; two in five are; none is,
# so that phase two always runs.
_VALID = (0.97, 0.9, 0.5)
_TIMED = (1, 2, 4, 8)


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
    base = random_llama(vocab_size, hidden, layers)
    prompts = torch.randint(1, vocab_size, (repeats + 1, PROMPT), generator=torch.Generator().manual_seed(0))
    figures: dict[str, Any] = {"prompt": PROMPT, "hidden": hidden, "layers": layers, "draws": []}
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
            began, session = _timed(lambda: model.prefill([prompt]))  # noqa: B023
            took, (result,) = _timed(lambda: disc(session, trie, [params]))  # noqa: B023
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
    click.echo(
        f"valid mass {valid} per token, P_L(S) about {figure['mass']:.3f}: K=1 takes "
        f"{figure['seconds_at_1'].text()} s, {figure['prefill_share_at_1'].median:.0%} of it prefill"
    )
    for k in _TIMED[1:]:
        figure[f"K={k}"] = _against_one(k, runs[k], one)
    return figure


def _against_one(k: int, many: list[_Run], one: list[_Run]) -> dict[str, Any]:
    """Return times of K draws over those of one, and apart for runs that had a second phase and had not."""
    pairs = list(zip(many, one, strict=True))
    figure: dict[str, Any] = {
        "second_phase": sum(run.second for run in many) / len(many),
        "ratio": Spread.of([a.whole / b.whole for a, b in pairs]),
        "ratio_without_prefill": Spread.of([a.drawing / b.drawing for a, b in pairs]),
    }
    apart = []
    for name, second in (("one_phase", False), ("two_phases", True)):
        ratios = [a.whole / b.whole for a, b in pairs if a.second == second]
        figure[f"ratio_{name}"] = Spread.of(ratios) if ratios else None
        if ratios:
            apart.append(f"{name.replace('_', ' ')} {figure[f'ratio_{name}'].text()}")
    click.echo(
        f"  K={k}: {figure['ratio'].text()} times that, {figure['ratio_without_prefill'].text()} without the "
        f"prefill; phase two in {figure['second_phase']:.0%} of the runs ({', '.join(apart)})"
    )
    return figure


def _together(model: LeaningModel, trie: TitleTrie, prompts: Tensor) -> dict[str, Any]:
    """Time eight draws as one batch of branches and one by one, all with the same random numbers."""
    whole: list[tuple[float, float]] = []
    drawing: list[tuple[float, float]] = []
    same = True
    for repeat, prompt in enumerate(prompts.tolist()):
        prefill, session = _timed(lambda: model.prefill([prompt]))  # noqa: B023
        one_by_one, apart = _timed(lambda: _one_by_one(session, trie, repeat))  # noqa: B023
        at_once, joined = _timed(lambda: _draw(session, trie, repeat, 0, _TOGETHER))  # noqa: B023
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
    click.echo(
        f"{_TOGETHER} draws together {figure['together_s'].text()} s, one by one over the same prompt KV "
        f"{figure['one_by_one_s'].text()} s: {figure['ratio'].text()} times faster, "
        f"{figure['ratio_without_prefill'].text()} without the prefill; same draws: {same}"
    )
    return figure


def _one_by_one(session: Any, trie: TitleTrie, seed: int) -> list[tuple[int, ...]]:
    return [row for number in range(_TOGETHER) for row in _draw(session.select([0]), trie, seed, number, 1)]


def _draw(session: Any, trie: TitleTrie, seed: int, first: int, count: int) -> list[tuple[int, ...]]:
    """Make draws first … first + count - 1 of the first phase, to their ends."""
    params = [DiscParams(num_draws=_TOGETHER, seed=seed, reject_early=False)]
    batch = DrawBatch(session, trie, params, StopPoll(1, None, None, session.root_logits.device), [0])
    draws = batch.new_draws([(0, 0, first, count)])
    TreeProposer(batch).run(draws, FIRST, None)
    return [hypothesis.token_ids for hypothesis in draws.hypotheses(list(range(count)), trie)]


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    value = call()
    return time.perf_counter() - begun, value
