"""A model without host synchronisation whose true distribution can still be enumerated.

The logits after a text are a row of a table, chosen by a hash of the text: steps are lookups by tensors, on
any device, and a whole row's probability is computed again with plain integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from benchmarks.harness.stepped_trees import SteppedTrees
from genret.decoding.language_model import KvUsage
from genret.decoding.row_trees import RowTrees
from tests.tables_model import follow


class HashedModel:
    """A language model over a table of logits.

    Args:
        table: Logits. Shape: (K, V).
    """

    def __init__(self, table: Tensor) -> None:
        self.table = table

    @classmethod
    def random(cls, vocab_size: int, seed: int, num_contexts: int = 97, scale: float = 1.5) -> HashedModel:
        generator = torch.Generator().manual_seed(seed)
        return cls(torch.randn(num_contexts, vocab_size, generator=generator) * scale)

    def prefill(self, prompts: Sequence[int]) -> HashedSession:
        """Start one query per prompt, a number."""
        return HashedSession(self.table, torch.tensor(list(prompts), device=self.table.device))

    def logprob(self, prompt: int, row: Sequence[int], temperature: float = 1.0) -> float:
        """log P_L(row | prompt) in float64, by the chain rule."""
        total, key = 0.0, prompt
        for token in row:
            logits = self.table[key % len(self.table)].double() / temperature
            total += float(torch.log_softmax(logits, -1)[token])
            key = follow(key, token)
        return total


class HashedSession:
    """Branches are hashes of what they wrote (`decoding.language_model.DecodeSession`)."""

    def __init__(self, table: Tensor, roots: Tensor) -> None:
        self._table, self._roots = table, roots
        self._keeps_levels = False
        self._levels = [roots.unsqueeze(1)]  # of the prompts, then per depth: (Q, branches)
        self.num_forwards = 0
        self.num_branches: list[int] = []

    @property
    def root_logits(self) -> Tensor:
        return self._table[self._roots % len(self._table)]

    def keep_levels(self) -> None:
        assert len(self._levels) == 1
        self._keeps_levels = True

    def step(self, parents: Tensor, token_ids: Tensor, depth: int | None = None) -> Tensor:
        depth = len(self._levels) if depth is None else depth
        assert 1 <= depth <= len(self._levels)
        assert depth == len(self._levels) or self._keeps_levels
        source = parents.clamp(min=0) if depth > 1 else torch.zeros_like(parents)
        keys = follow(self._levels[depth - 1].gather(1, source), token_ids)
        if depth == len(self._levels):
            self._levels.append(keys)
        else:
            self._levels[depth] = torch.cat([self._levels[depth], keys], dim=1)
        self.num_forwards += 1
        self.num_branches.append(parents.shape[1])
        return self._table[keys % len(self._table)]

    def tree_writer(self, trees: RowTrees) -> SteppedTrees:
        return SteppedTrees(self, trees)

    def select(self, queries: Sequence[int], branches: bool = False) -> Self:
        chosen = list(queries)
        other = type(self)(self._table, self._roots[chosen])
        if branches:
            other._keeps_levels = self._keeps_levels
            other._levels = [level[chosen] for level in self._levels]
        return other

    @property
    def usage(self) -> KvUsage:
        return KvUsage()
