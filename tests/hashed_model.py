"""A model without host synchronisation whose true distribution can still be enumerated.

The logits after a text are a row of a table, chosen by a hash of the text: steps are lookups by tensors, on
any device, and a whole row's probability is computed again with plain integers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_PRIME = 2_147_483_647
_FACTOR = 1_000_003


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
            key = _follow(key, token)
        return total


class HashedSession:
    """Branches are hashes of what they wrote (`decoding.language_model.DecodeSession`)."""

    def __init__(self, table: Tensor, roots: Tensor) -> None:
        self._table, self._roots = table, roots
        self._keys = roots.unsqueeze(1)
        self.num_forwards = 0
        self.num_branches: list[int] = []

    @property
    def root_logits(self) -> Tensor:
        return self._table[self._roots % len(self._table)]

    def step(self, parents: Tensor, token_ids: Tensor) -> Tensor:
        source = parents.clamp(min=0) if self.num_forwards else torch.zeros_like(parents)
        self.num_forwards += 1
        self.num_branches.append(parents.shape[1])
        self._keys = _follow(self._keys.gather(1, source), token_ids)
        return self._table[self._keys % len(self._table)]

    def select(self, queries: Sequence[int], branches: bool = False) -> HashedSession:
        assert not branches
        return HashedSession(self._table, self._roots[list(queries)])

    @property
    def kv_bytes(self) -> int:
        return 0


def _follow(key, token):
    return (key * _FACTOR + token + 1) % _PRIME
