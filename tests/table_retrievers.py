"""Retrievers over table models: tokenizer and prompts, replies without costs, prefills that are counted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from genret import RetrievalResult, Retriever, RetrieveRequest
from genret.decoding.language_model import PromptPrefix
from genret.retrieval.text import TextTokenizer
from genret.retrieval.types import KvShare, Timings
from tests.checkpoints import END, checkpoint_config, train_tokenizer
from tests.fakes import TableModel, TableSession

TOKENIZER = TextTokenizer(train_tokenizer(), END, "tiny")
CONFIG = checkpoint_config()
POISON = "#"  # a query that holds it breaks a `poisoned` model
METHODS = ("auto", "beam", "disc", "shortlist")


def poisoned(sound: TableModel, value: float = math.nan, depth: int = 0) -> TableModel:
    """Return a model that breaks behind prompts with `POISON`, by `value` once `depth` tokens are written."""
    (poison,) = TOKENIZER.encode_text(POISON)

    def function(prompt: tuple[int, ...], written: tuple[int, ...]) -> Tensor:
        logits = sound.logits(prompt, written)
        return torch.full_like(logits, value) if poison in prompt and len(written) >= depth else logits

    return TableModel(sound.vocab_size, function)


class CountingModel(TableModel):
    """Remembers its sessions, and how many prompts each began with."""

    def __init__(self, base: TableModel) -> None:
        super().__init__(base.vocab_size, base.logits)
        self.sessions: list[TableSession] = []
        self.prompts: list[int] = []

    def prefill(self, prompts: Sequence[Sequence[int]], prefix: PromptPrefix | None = None) -> TableSession:
        self.sessions.append(super().prefill(prompts, prefix))
        self.prompts.append(len(prompts))
        return self.sessions[-1]


def answers(retriever: Retriever, *requests: RetrieveRequest) -> list[RetrievalResult]:
    """Return the results of a batch; fail where a reply is an error."""
    replies = retriever.retrieve_batch(requests)
    found = [reply for reply in replies if isinstance(reply, RetrievalResult)]
    assert len(found) == len(requests), replies
    return found


def without_costs(result: Any) -> RetrievalResult:
    """Return a result without its times, memory and number of decode steps."""
    assert isinstance(result, RetrievalResult), result
    return replace(result, timings=Timings(), kv=KvShare(), num_steps=0)


def assert_alike(
    one: Any, other: Any, logprob: float = 1e-4, probability: float = 1e-3, mass: float = 1e-4
) -> None:
    """Fail unless two results are equal but for costs and the last bits that a batch's shape decides.

    Args:
        one: A result.
        other: A result.
        logprob: Largest difference of log-probabilities.
        probability: Largest relative difference of probabilities.
        mass: Largest relative difference of masses.
    """
    mine, its = without_costs(one), without_costs(other)
    for name in ("query", "method", "seed", "certified", "num_draws"):
        assert getattr(mine, name) == getattr(its, name), name
    assert _differ_by(mine.mass, its.mass) <= mass
    names = [[(c.entity_id, c.surface) for c in result.candidates] for result in (mine, its)]
    assert names[0] == names[1]
    for found, expected in zip(mine.candidates, its.candidates, strict=True):
        assert abs(found.logprob - expected.logprob) <= logprob
        assert _differ_by(found.probability, expected.probability) <= probability


def _differ_by(one: float | None, other: float | None) -> float:
    """Return the relative difference of two numbers; infinity where only one is there."""
    if one is None or other is None:
        return 0.0 if one is other else math.inf
    return abs(one - other) / abs(other) if other else abs(one)
