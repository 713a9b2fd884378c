"""Whole draws of DISC on a device: whether the loop over their steps waits, and how long draws take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from genret.decoding.disc.draws import FIRST, DrawBatch, Proposer
from genret.decoding.disc.static_proposer import StaticProposer
from genret.decoding.disc.tree_proposer import TreeProposer
from genret.decoding.late_flag import LateFlag
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.params import MAX_SAMPLES, DiscParams
from genret.decoding.stopping import StopPoll
from genret.decoding.trie.title_trie import TitleTrie
from harness.report import Spread

PROMPT = [1] * 64


def loop(trie: TitleTrie, model: HFLanguageModel, branches: int, repeats: int) -> dict[str, Any]:
    """Draw whole titles: whether the loop waits, and its time against host-driven draws."""
    waits: str | None = None
    try:
        draw(trie, model, branches, _NeverWaiting)
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        waits = str(error)
    times: dict[type[Proposer], list[float]] = {StaticProposer: [], TreeProposer: []}
    for n in range(repeats + 1):
        for kind, column in times.items():
            seconds = draw(trie, model, branches, kind)
            if n:
                column.append(seconds)
    static, tree = times[StaticProposer], times[TreeProposer]
    return {
        "checked": model.device.type == "cuda",
        "waits": waits,
        "static_ms": Spread.of([1e3 * s for s in static]),
        "tree_ms": Spread.of([1e3 * s for s in tree]),
        "tree_over_static": Spread.of_ratios(tree, static),
    }


def draw(
    trie: TitleTrie, model: HFLanguageModel, branches: int, kind: Callable[[DrawBatch], Proposer]
) -> float:
    """Make so many draws for one query; return the time behind its prompt."""
    samples = min(branches, MAX_SAMPLES)
    params = DiscParams(num_samples=samples, num_draws=-(-branches // samples))
    session = model.prefill([PROMPT])
    batch = DrawBatch(session, trie, [params], StopPoll(1, None, None, model.device), range(1))
    draws = batch.new_draws([(0, sample, 0, params.num_draws) for sample in range(samples)])
    synchronize(model.device)
    begun = time.perf_counter()
    kind(batch).run(draws, FIRST, None)
    synchronize(model.device)
    return time.perf_counter() - begun


class _NeverWaiting(StaticProposer):
    """Fails where the loop over the steps waits for the device."""

    def _walk(self, walking: Any, flag: LateFlag) -> None:
        with _waiting_is_an_error(self._batch.device):
            super()._walk(walking, flag)


@contextmanager
def _waiting_is_an_error(device: torch.device) -> Iterator[None]:
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
