"""What collecting dead branches does to memory and time: never, by default, and often."""

from __future__ import annotations

from dataclasses import asdict
from statistics import fmean
from typing import Any

import click
from harness.beam_contest import Agreement, Run, search
from harness.equal_titles import EqualTitles
from harness.free_text import FreeText
from harness.report import Spread
from harness.twin_models import END, Twins
from torch import Tensor

from beam_search_figures.contest import Disagreements
from beam_search_figures.sample_prompts import default_model, sample_prompts
from beam_search_figures.settings import Setting
from beam_search_figures.trace import traced
from genret.decoding.constraints import Constraint
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.model.token_tree import CollectionPolicy

NEVER = "never"
POLICIES = {
    NEVER: CollectionPolicy.never(),
    "default": CollectionPolicy(),
    "every 4 steps": CollectionPolicy(interval=4),
}


def ablation(
    twins: Twins,
    titles: EqualTitles,
    free_setting: Setting,
    title_setting: Setting,
    new_tokens: int,
    repeats: int,
) -> dict[str, Any]:
    """Compare policies on titles and on free outputs. The lists must not depend on them."""
    disagreements = Disagreements()
    sample = default_model()
    own_texts = FreeText(new_tokens, sample.vocab_size, END)
    texts = FreeText(new_tokens, twins.vocab_size, END)
    asked = sample_prompts(free_setting.prompt, free_setting.batch)
    cases: list[tuple[str, Twins, Constraint, Setting, Tensor]] = [
        ("titles", twins, titles.trie, title_setting, title_setting.prompts(twins.vocab_size)),
        ("free", twins, texts, free_setting, free_setting.prompts(twins.vocab_size)),
        ("free, default model", sample, own_texts, free_setting, asked),
    ]
    figures: dict[str, Any] = {
        name: _compare(name, model, constraint, setting, prompts, repeats, disagreements)
        for name, model, constraint, setting, prompts in cases
    }
    return {**figures, "agreement": disagreements.report()}


def _compare(
    name: str,
    twins: Twins,
    constraint: Constraint,
    setting: Setting,
    prompts: Tensor,
    repeats: int,
    disagreements: Disagreements,
) -> dict[str, Any]:
    click.echo(f"{name}: prompt {setting.prompt}, {setting.beams} beams, {setting.batch} queries")
    models = {policy: twins.model(settings) for policy, settings in POLICIES.items()}
    runs: dict[str, list[Run]] = {policy: [] for policy in POLICIES}
    for _ in range(repeats):
        for policy, model in models.items():
            runs[policy].append(search(model, constraint, prompts, setting.beams))
    figures: dict[str, Any] = {**asdict(setting)}
    for policy, model in models.items():
        for one, other in zip(runs[NEVER], runs[policy], strict=True):
            disagreements.add(f"{name}, {policy}", Agreement.of(one.lists, other.lists))
        figures[policy] = _figure(policy, runs[policy], runs[NEVER]) | _saved(
            twins, model, constraint, prompts.tolist(), setting.beams
        )
        _describe(policy, figures[policy])
    return figures


def _figure(policy: str, runs: list[Run], kept: list[Run]) -> dict[str, Any]:
    usage = runs[0].usage
    assert usage is not None  # ours has one
    return {
        "policy": policy,
        "total_s": Spread.of([run.total_s for run in runs]),
        "time_over_never": Spread.of_ratios([run.decode_s for run in runs], [run.decode_s for run in kept]),
        "peak_bytes": usage.peak_bytes,
        "per_branch_bytes": usage.per_branch_bytes,
        "collections": usage.num_collections,
    }


def _saved(
    twins: Twins, model: HFLanguageModel, constraint: Constraint, prompts: list[list[int]], beams: int
) -> dict[str, float]:
    """Return entries of keys and values per query, as a step that has most of them needs."""
    used, avoided = [], []
    for prompt in prompts:
        moments = traced(model, constraint, prompt, beams)
        most = max(moment.used_bytes for moment in moments) // twins.token_bytes
        per_beam = max(moment.branches * (len(prompt) + n) for n, moment in enumerate(moments, start=1))
        used.append(most - len(prompt))
        avoided.append(per_beam - most)
    return {"slots": fmean(used), "saved_tokens": fmean(avoided)}


def _describe(policy: str, figure: dict[str, Any]) -> None:
    click.echo(
        f"  {policy:14} KV at most {figure['peak_bytes'] / 1e6:7.2f} MB "
        f"(a cache per beam {figure['per_branch_bytes'] / 1e6:.2f}), most slots behind a prompt "
        f"{figure['slots']:6.1f}, saved tokens {figure['saved_tokens']:8.1f}, {figure['collections']} "
        f"collections, decode over never {figure['time_over_never'].text()}"
    )
