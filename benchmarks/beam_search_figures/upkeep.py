"""What of a step is not the model's forward. Instrumented: not the runs that are compared with others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

import click
from harness.equal_titles import EqualTitles
from harness.twin_models import Twins
from torch import nn

import genret.decoding.beam_search.trie_beam_search as walks
from beam_search_figures.settings import Setting
from genret.decoding.beam_search import beam_search
from genret.decoding.model.hf_session import TreeSession
from genret.decoding.model.token_tree import TokenTree
from genret.decoding.model.tree_cache import TreeCache
from genret.decoding.params import BeamParams

SETTINGS = (*(Setting(512, beams) for beams in (5, 15, 40)), Setting(512, 15, 8))
FORWARD, STEP, GROW, COLLECT, EXPAND = (
    "forward",
    "step",
    "masks and positions",
    "collection and room",
    "expansion",
)


def upkeep(
    twins: Twins, titles: EqualTitles, settings: Sequence[Setting], repeats: int
) -> list[dict[str, Any]]:
    """Take the time of decoding apart, by medians over the repeats."""
    figures = []
    for setting in settings:
        runs = [_shares(twins, titles, setting, seed) for seed in range(repeats)]
        figure = {part: median(run[part] for run in runs) for part in runs[0]}
        shares = {part: value for part, value in figure.items() if part != "ms_per_step"}
        click.echo(
            f"prompt {setting.prompt}, {setting.beams} beams, {setting.batch} queries: "
            f"{figure['ms_per_step']:.1f} ms per step; "
            + ", ".join(f"{part} {share:.1%}" for part, share in shares.items())
        )
        figures.append({"setting": setting.text(), **figure})
    return figures


def _shares(twins: Twins, titles: EqualTitles, setting: Setting, seed: int) -> dict[str, float]:
    """Run one search and return shares of the time behind its prefill, and the time of a step."""
    model = twins.model()
    session = model.prefill(setting.prompts(model.vocab_size, seed).tolist())
    clock = _Clock()
    with clock.measuring(twins.own):
        begun = time.perf_counter()
        (result, *_) = beam_search(
            session, titles.trie, [BeamParams(setting.beams, setting.beams)] * setting.batch
        )
        whole = time.perf_counter() - begun
    if isinstance(result, Exception):
        raise result
    spent = clock.seconds
    upkeep_s = whole - spent[FORWARD]
    session_s = spent[STEP] - spent[FORWARD]
    parts = {
        "upkeep": upkeep_s,
        GROW: spent[GROW],
        COLLECT: spent[COLLECT],
        "rest of the session": session_s - spent[GROW] - spent[COLLECT],
        EXPAND: spent[EXPAND],
        "choice and lists": upkeep_s - session_s - spent[EXPAND],
    }
    return {
        **{part: seconds / whole for part, seconds in parts.items()},
        "ms_per_step": 1e3 * whole / max(1, result.num_steps),
    }


class _Clock:
    """Seconds spent in some functions of the decoder, by name."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys((FORWARD, STEP, GROW, COLLECT, EXPAND), 0.0)

    @contextmanager
    def measuring(self, module: nn.Module) -> Iterator[None]:
        """Put clocks around the functions, and take them away at the end."""
        with ExitStack() as stack:
            stack.enter_context(self._around(module, "forward", FORWARD))
            stack.enter_context(self._around(TreeSession, "step", STEP))
            stack.enter_context(self._around(TokenTree, "grow", GROW))
            stack.enter_context(self._around(TokenTree, "collect", COLLECT))
            stack.enter_context(self._around(TreeCache, "compact", COLLECT))
            stack.enter_context(self._around(TreeCache, "make_room", COLLECT))
            stack.enter_context(self._around(walks, "listed", EXPAND))
            yield

    @contextmanager
    def _around(self, owner: Any, name: str, part: str) -> Iterator[None]:
        inner: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                self.seconds[part] += time.perf_counter() - begun

        own = name in vars(owner)  # a module's `forward` is its class's
        setattr(owner, name, timed)
        try:
            yield
        finally:
            setattr(owner, name, inner) if own else delattr(owner, name)
