"""Checks numerically, at loading, the architectures that no test of this repository covers.

One random tree below two short prompts is run as plain forward passes over every path and as a token tree. A
model whose answers differ is refused by name. `decoding.conformance.examination` examines more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from genret.decoding.conformance.difference import Tolerance, exactly
from genret.decoding.conformance.plain_passes import PlainAnswers, RandomTree, plain_answers, random_tree
from genret.decoding.conformance.scenarios import MIXED_LENGTHS, DrivenModel, Driver, replay
from genret.decoding.errors import UnsupportedModelError
from genret.decoding.model.architectures import other_engine, writable_tokens

_PROMPT_LENGTHS = (11, 6)
_DEPTH = 3
_BRANCHES = 3
_SEED = 0


@dataclass(frozen=True, slots=True, eq=False)
class Expectation:
    """Results of plain forward passes, made before the model's attention was replaced."""

    model_type: str  # The architecture, for messages
    dtype: torch.dtype  # What the model computes in
    tree: RandomTree  # What was written
    answers: PlainAnswers  # What was answered


def probe(model: PreTrainedModel, decoder_prompt: Sequence[int]) -> Expectation:
    """Run every path of a random tree alone, without a cache, with the model's own attention.

    Raises:
        UnsupportedModelError: the model fails even so.
    """
    generator = torch.Generator().manual_seed(_SEED)
    tree = random_tree(_PROMPT_LENGTHS, 1, _DEPTH, _BRANCHES, writable_tokens(model), generator)
    name = model.config.model_type
    try:
        with exactly(model.dtype):
            answers = plain_answers(model, decoder_prompt, tree)
    except Exception as error:
        raise UnsupportedModelError(
            f"model type {name!r} cannot be checked: a plain forward pass failed: {error}"
        ) from error
    return Expectation(name, model.dtype, tree, answers)


def refuse_if_different(model: DrivenModel, expected: Expectation) -> None:
    """Decode the same paths as a token tree and compare.

    Raises:
        UnsupportedModelError: the tree fails, or its log-probabilities differ.
    """
    name, generator = expected.model_type, torch.Generator().manual_seed(_SEED)
    try:
        with exactly(expected.dtype):
            outcome = replay(Driver(model, expected.tree, None, generator), MIXED_LENGTHS, expected.answers)
    except Exception as error:
        raise UnsupportedModelError(
            f"model type {name!r} is not supported: token-tree decoding failed: {error}{other_engine(name)}"
        ) from error
    tolerance = Tolerance.relative(expected.dtype)
    if not tolerance.holds(outcome.logits):
        raise UnsupportedModelError(
            f"model type {name!r} is not supported: token-tree decoding differs from plain forward passes by "
            f"{tolerance.measure(outcome.logits):.2g} (relative), at most {tolerance.allowed:g} is allowed"
            f"{other_engine(name)}"
        )
