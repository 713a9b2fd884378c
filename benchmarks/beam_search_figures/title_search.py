"""Titles: a list of the catalogue against `generate` with a dictionary trie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.equal_titles import EqualTitles
from harness.twin_models import Twins

from beam_search_figures.contest import Disagreements, Work, compete
from beam_search_figures.settings import Setting

SETTINGS = tuple(
    Setting(prompt, beams, batch) for prompt in (64, 512, 2048) for beams in (5, 15, 40) for batch in (1, 8)
)


def title_search(
    twins: Twins, titles: EqualTitles, settings: Sequence[Setting], repeats: int, most_seconds: float
) -> dict[str, Any]:
    """Search the titles at several settings."""
    disagreements = Disagreements()
    work = Work(twins, titles.trie, titles.dictionary, titles.tokens)
    cells = [
        compete(work, setting, setting.prompts(twins.vocab_size), repeats, most_seconds, disagreements)
        for setting in settings
    ]
    return {"titles": titles.number, "cells": cells, "agreement": disagreements.report()}
