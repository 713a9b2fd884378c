"""Free outputs: so many tokens without a catalogue, the kind of work token trees were proposed for.

Beams of weights at random need not have ancestors in common as those of a trained model have, and what they
share is what a tree saves. So both are run: the random model, and the default one behind real queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from harness.free_text import FreeText
from harness.twin_models import END, Twins

from beam_search_figures.contest import Disagreements, Work, compete
from beam_search_figures.sample_prompts import default_model, sample_prompts
from beam_search_figures.settings import Setting
from beam_search_figures.trace import traced
from genret.decoding.model.token_tree import CollectionPolicy

SETTINGS = tuple(Setting(prompt, beams) for prompt in (64, 400) for beams in (9, 15))


def free_outputs(
    twins: Twins, settings: Sequence[Setting], new_tokens: int, repeats: int, most_seconds: float
) -> dict[str, Any]:
    """Search free outputs at several settings, on a random model and on the default one."""
    disagreements = Disagreements()
    figures: dict[str, Any] = {}
    for name, model in (("random", twins), ("default", default_model())):
        click.echo(f"{name} model of {model.num_parameters / 1e6:.1f} M parameters, {new_tokens} new tokens")
        work = Work(model, FreeText(new_tokens, model.vocab_size, END), None, new_tokens)
        figures[name] = []
        for setting in settings:
            prompts = (
                sample_prompts(setting.prompt, setting.batch)
                if name == "default"
                else setting.prompts(model.vocab_size)
            )
            cell = compete(work, setting, prompts, repeats, most_seconds, disagreements)
            cell["live"] = _live(work, setting, prompts[0].tolist())
            figures[name].append(cell)
    return {"new_tokens": new_tokens, **figures, "agreement": disagreements.report()}


def _live(work: Work, setting: Setting, prompt: list[int]) -> dict[str, float]:
    """Count the tokens that live in the tree, in a run of its own."""
    moments = traced(work.twins.model(CollectionPolicy.never()), work.constraint, prompt, setting.beams)
    steps = len(moments)
    figure = {
        "live_per_depth": moments[-1].live / steps,
        "written_per_depth": moments[-1].written / steps,
        "branches": setting.beams,
    }
    click.echo(
        f"  live at the end, per token of the text: {figure['live_per_depth']:.2f} of "
        f"{figure['written_per_depth']:.2f} written"
    )
    return figure
