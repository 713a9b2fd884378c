"""Retrievers and decoders over table models: prompts, replies without costs, prefills that are counted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from genret import RetrievalResult, Retriever, RetrieveRequest
from genret.decoding.cancellation import CancelToken
from genret.decoding.language_model import PromptPrefix
from genret.decoding.trie.title_trie import TitleTrie
from genret.retrieval.filters.entity_filter import EntityFilter
from genret.retrieval.index.reader import Index
from genret.retrieval.methods.decoded_methods import Asked, Decoded, decode_by_beam, decode_by_disc
from genret.retrieval.text import TextTokenizer
from genret.retrieval.types import KvShare, Timings
from tests.checkpoints import END, checkpoint_config, train_tokenizer
from tests.fakes import TableModel, TableSession

TOKENIZER = TextTokenizer(train_tokenizer(), END, "tiny")
CONFIG = checkpoint_config()
POISON = "#"  # a query that holds it breaks a `poisoned` model
METHODS = ("auto", "beam", "disc", "shortlist")
PROMPT = (9, 10, 11)


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


def decode(
    index: Index,
    model: TableModel,
    *requests: RetrieveRequest,
    prompts: Sequence[Sequence[int]] | None = None,
    filters: Sequence[EntityFilter | None] | None = None,
    cancel: Sequence[CancelToken | None] | None = None,
) -> list[Any]:
    """Return what beam search or DISC alone says, without the batches and retries of a retriever."""
    nothing = [None] * len(requests)
    rows = zip(requests, filters or nothing, nothing, cancel or nothing, strict=True)
    asked = [Asked(*row) for row in rows]
    session = model.prefill(prompts or [PROMPT] * len(requests))
    trie = TitleTrie(index.trie_arrays(), model.vocab_size, model.device)
    run = decode_by_disc if requests[0].decoding == "disc" else decode_by_beam
    found = run(session, trie, index, asked)
    return [query.answer if isinstance(query, Decoded) else query for query in found]


def without_costs(result: Any) -> RetrievalResult:
    """Return a result without its times, memory and number of decode steps."""
    assert isinstance(result, RetrievalResult), result
    return replace(result, timings=Timings(), kv=KvShare(), num_steps=0)


def assert_alike(one: Any, other: Any) -> None:
    """Fail unless two results are equal but for costs and the last bits that a batch's shape decides."""
    mine, its = without_costs(one), without_costs(other)
    for name in ("query", "method", "seed", "certified", "num_draws"):
        assert getattr(mine, name) == getattr(its, name), name
    assert mine.mass == _near(its.mass, 1e-4)
    names = [[(c.entity_id, c.surface) for c in result.candidates] for result in (mine, its)]
    assert names[0] == names[1]
    for found, expected in zip(mine.candidates, its.candidates, strict=True):
        assert found.logprob == pytest.approx(expected.logprob, rel=0, abs=1e-4)
        assert found.probability == _near(expected.probability, 1e-3)


def _near(value: float | None, rel: float) -> Any:
    return None if value is None else pytest.approx(value, rel=rel)
