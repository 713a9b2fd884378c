"""Bytes of keys and values after every step: ours, ours without collection, per beam, and one branch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import click
from harness.equal_titles import EqualTitles
from harness.free_text import FreeText
from harness.traced_session import Moment, TracedSession
from harness.twin_models import END, Twins

from beam_search_figures.sample_prompts import default_model, sample_prompts
from beam_search_figures.settings import Setting
from genret.decoding.beam_search import beam_search
from genret.decoding.constraints import Constraint
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.model.token_tree import CollectionPolicy
from genret.decoding.params import BeamParams


@dataclass(frozen=True, slots=True)
class Curves:
    """Mean bytes per query after the prompt and after every step; all lists have one length.

    Attributes:
        held: Of ours, held.
        used: Of ours, written and not collected.
        uncollected: Written, when nothing is ever collected.
        live: Of tokens on the paths of live branches: the least that could be kept.
        per_beam: One cache per beam.
        greedy: One branch.
    """

    held: list[float]
    used: list[float]
    uncollected: list[float]
    live: list[float]
    per_beam: list[float]
    greedy: list[float]


def traced(model: HFLanguageModel, constraint: Constraint, prompt: list[int], beams: int) -> list[Moment]:
    """Search for one prompt and return the memory after every step."""
    session = TracedSession(model.prefill([prompt]))
    for result in beam_search(session, constraint, [BeamParams(beams, beams)]):
        if isinstance(result, Exception):
            raise result
    return session.moments


def trace(
    twins: Twins, titles: EqualTitles, free_setting: Setting, title_setting: Setting, new_tokens: int
) -> list[dict[str, Any]]:
    """Trace free outputs of the default model and of a random one, and titles of the random one.

    Args:
        twins: The random model.
        titles: The catalogue.
        free_setting: Of free outputs; as many queries, one after the other, as its batch says.
        title_setting: Of titles.
        new_tokens: Of free outputs.
    """
    sample = default_model()
    own_texts = FreeText(new_tokens, sample.vocab_size, END)
    texts = FreeText(new_tokens, twins.vocab_size, END)
    asked = sample_prompts(free_setting.prompt, free_setting.batch).tolist()
    random = free_setting.prompts(twins.vocab_size).tolist()
    questions = title_setting.prompts(twins.vocab_size).tolist()
    return [
        _panel("free outputs, default model", sample, own_texts, free_setting, asked),
        _panel("free outputs, random model", twins, texts, free_setting, random),
        _panel("titles, random model", twins, titles.trie, title_setting, questions),
    ]


def _panel(
    name: str, twins: Twins, constraint: Constraint, setting: Setting, prompts: Sequence[list[int]]
) -> dict[str, Any]:
    usual, never = twins.model(), twins.model(CollectionPolicy.never())
    ours = [traced(usual, constraint, prompt, setting.beams) for prompt in prompts]
    kept = [traced(never, constraint, prompt, setting.beams) for prompt in prompts]
    curves = _curves(ours, kept, setting, twins.token_bytes)
    last = {field: column[-1] / 1e6 for field, column in asdict(curves).items()}
    click.echo(
        f"{name}, prompt {setting.prompt}, {setting.beams} beams, {len(prompts)} queries, MB after the last "
        "step: " + ", ".join(f"{field} {value:.2f}" for field, value in last.items())
    )
    return {"name": name, **asdict(setting), "token_bytes": twins.token_bytes, "curves": asdict(curves)}


def _curves(ours: list[list[Moment]], kept: list[list[Moment]], setting: Setting, token_bytes: int) -> Curves:
    """Take means over the queries, up to the last step that all of them made."""
    prompt = setting.prompt
    start = float(prompt * token_bytes)
    steps = range(min(len(moments) for moments in (*ours, *kept)))

    def column(runs: list[list[Moment]], field: str, factor: int, offset: float) -> list[float]:
        return [start, *(offset + factor * fmean(getattr(run[n], field) for run in runs) for n in steps)]

    branches = [fmean(run[n].branches for run in ours) for n in steps]
    return Curves(
        held=column(ours, "held_bytes", 1, 0.0),
        used=column(ours, "used_bytes", 1, 0.0),
        uncollected=column(kept, "written", token_bytes, start),
        live=column(ours, "live", token_bytes, start),
        per_beam=[setting.beams * start, *(branches[n] * (prompt + n + 1) * token_bytes for n in steps)],
        greedy=[start, *((prompt + n + 1.0) * token_bytes for n in steps)],
    )
