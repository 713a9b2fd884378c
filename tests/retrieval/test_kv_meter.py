"""What a query answers for: its part of every session it was in."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from decoding.language_model import KvUsage
from decoding.row_trees import NodeSpan, RowLayout, RowTrees
from retrieval.kv_memory import KvMeter
from retrieval.types import KvShare


class Session:
    """Each query holds 100 bytes and 10 for every step; growing takes twice what is held."""

    root_logits = torch.zeros(1, 4)

    def __init__(self, num_queries: int) -> None:
        self.num_queries = num_queries
        self.steps = 0
        self.keeps_levels = False

    @property
    def usage(self) -> KvUsage:
        held = self.num_queries * (100 + 10 * self.steps)
        return KvUsage(
            held_bytes=held,
            peak_bytes=held * (2 if self.steps else 1),
            per_branch_bytes=self.num_queries * 1000 * self.steps,
            shared_bytes=77,
            num_collections=self.steps // 2,
        )

    def keep_levels(self) -> None:
        self.keeps_levels = True

    def step(self, parents: Tensor, token_ids: Tensor, depth: int | None = None) -> Tensor:
        self.steps += 1
        return torch.zeros(*parents.shape, 4)

    def tree_writer(self, trees: RowTrees) -> Session:
        return self

    def write(self, spans: Sequence[NodeSpan]) -> Tensor:
        self.steps += 1
        return torch.zeros(sum(span.end - span.first for span in spans), 4)

    def select(self, queries: Sequence[int], branches: bool = False) -> Session:
        return Session(len(queries))


def test_every_query_answers_for_its_part_of_every_session() -> None:
    inner = Session(4)
    meter = KvMeter(inner, 4)
    session = meter.session
    nothing = torch.zeros((4, 1), dtype=torch.int64)
    assert meter.share(0) == KvShare(100, 0, 77, 0)
    session.keep_levels()
    assert inner.keeps_levels
    for _ in range(3):
        session.step(nothing, nothing)
    assert meter.share(3) == KvShare(260, 3000, 77, 1)
    later = session.select([3, 1])
    for _ in range(5):
        later.step(nothing[:2], nothing[:2])
    last = later.select([1])  # query 1 of the batch
    last.step(nothing[:1], nothing[:1])
    assert meter.share(0) == KvShare(260, 3000, 77, 1)
    # The first session stays while the later one has its peak: 130 and 300 bytes of each query.
    assert meter.share(3) == KvShare(430, 5000, 77, 3)
    assert meter.share(1) == KvShare(430, 5000, 77, 3)


def test_a_metered_session_is_the_session() -> None:
    inner = Session(2)
    session = KvMeter(inner, 2).session
    nothing = torch.zeros((2, 3), dtype=torch.int64)
    assert session.root_logits is inner.root_logits
    assert session.step(nothing, nothing).shape == (2, 3, 4)
    assert session.usage == inner.usage


def test_whole_trees_are_metered_like_steps() -> None:
    inner = Session(2)
    meter = KvMeter(inner, 2)
    trees = RowLayout.of([[[1, 2, 3]], [[1, 2]]], 4).trees
    writer = meter.session.tree_writer(trees)
    assert meter.share(0).peak_bytes == 100
    assert writer.write([trees.span(0), NodeSpan(1, 2, 3)]).shape == (3, 4)
    assert meter.share(0).peak_bytes == 220
    assert inner.steps == 1
