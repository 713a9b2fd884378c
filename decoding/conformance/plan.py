"""What an examination runs: prompts long enough to reach behind windows, and what stays uncovered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

# Windows up to here are covered without being asked: plain passes over longer prompts take minutes on a CPU.
COVERED_WINDOW = 512
USUAL_PROMPT_TOKENS = 48
LEAST_PROMPT_TOKENS = 8
_BEHIND_WINDOW = 16
_QUERIES = 4


class PlanError(ValueError):
    """What was asked for does not fit the model's positions, or is no examination at all."""


@dataclass(frozen=True, slots=True)
class ExamineOptions:
    """What is drawn at random, and how much of it.

    Attributes:
        seed: The same seed examines the same trees.
        trees: Random trees of four queries each.
        depth: Tokens written below every prompt.
        beams: Branches per query and level, about a fifth of them padding.
        prompt_tokens: Length of the longest prompt; None is 48, or enough to reach behind the windows of the
            model where they are short.
    """

    seed: int = 0
    trees: int = 2
    depth: int = 6
    beams: int = 4
    prompt_tokens: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("trees", 1), ("depth", 1), ("beams", 1)):
            if getattr(self, name) < least:
                raise PlanError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.prompt_tokens is not None and self.prompt_tokens < LEAST_PROMPT_TOKENS:
            raise PlanError(f"prompt_tokens must be at least {LEAST_PROMPT_TOKENS}, got {self.prompt_tokens}")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run.

    Attributes:
        prompt_tokens: Length of the longest prompt.
        depth: Tokens written below every prompt.
        uncovered: What no comparison reaches, for a reader.
    """

    prompt_tokens: int
    depth: int
    uncovered: tuple[str, ...]


def make_plan(
    options: ExamineOptions,
    windows: Iterable[int | None],
    prompt_limit: int | None,
    title_limit: int | None,
    shared_positions: bool,
) -> Plan:
    """Choose prompts long enough for the windows of the decoder, within its positions.

    Args:
        options: What was asked for.
        windows: Of every decoder layer. Empty for encoder-decoders, whose prompts the decoder does not read.
        prompt_limit: Positions for a prompt, None without bound.
        title_limit: Positions for what is written, None without bound.
        shared_positions: Whether prompt and what is written below it share their positions.

    Raises:
        PlanError: the model has fewer positions than was asked for.
    """
    if title_limit is not None and options.depth >= title_limit:
        raise PlanError(f"depth must be below {title_limit}, the positions of the model, got {options.depth}")
    room = prompt_limit
    if shared_positions and prompt_limit is not None:
        room = prompt_limit - options.depth
    distinct = sorted({window for window in windows if window is not None})
    wanted = options.prompt_tokens
    if wanted is None:
        coverable = [window for window in distinct if window <= COVERED_WINDOW]
        wanted = max([USUAL_PROMPT_TOKENS, *(window + _BEHIND_WINDOW for window in coverable)])
        wanted = wanted if room is None else min(wanted, room)
    if (room is not None and wanted > room) or wanted < LEAST_PROMPT_TOKENS:
        raise PlanError(
            f"prompt_tokens must be in [{LEAST_PROMPT_TOKENS}, {room}] for this model, got {wanted}"
        )
    uncovered = [
        f"the window of {window} tokens: prompts end at {wanted}"
        + (
            f", --prompt-tokens {window + _BEHIND_WINDOW} goes behind it"
            if room is None or window + _BEHIND_WINDOW <= room
            else f", and the model has {prompt_limit} positions"
        )
        for window in distinct
        if window >= wanted
    ]
    return Plan(wanted, options.depth, tuple(uncovered))


def prompt_lengths(plan: Plan, number: int, generator: torch.Generator) -> tuple[list[int], int]:
    """Lengths of the prompts of a tree, and of what they share.

    Even trees share little and their lengths are mixed, one of them the longest; odd trees share nearly all.

    Returns:
        Lengths of four prompts, and the shared length, below all of them.
    """
    longest = plan.prompt_tokens
    prefix = longest // 4 if number % 2 == 0 else longest - 4
    drawn = torch.randint(prefix + 1, longest + 1, (_QUERIES - 2,), generator=generator).tolist()
    return [longest, *drawn, prefix + 1], prefix
