"""Logits looked up in tables by a hash of the text: millions of texts can be scored at once.

`TablesModel` has a table per query, and its sessions are strict: what a caller of a session may not do fails
here. `HashedModel` has one table, and its sessions never wait for the device.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from genret.decoding.language_model import KvUsage

Row = tuple[int, ...]

VOCAB = 9
NUM_CONTEXTS = 211

_PRIME = 2_147_483_647
_FACTOR = 1_000_003


def _normal(scale: float) -> Callable[[torch.Generator, int], Tensor]:
    def draw(generator: torch.Generator, vocab_size: int) -> Tensor:
        return torch.randn(NUM_CONTEXTS, vocab_size, generator=generator) * scale

    return draw


def _tied(generator: torch.Generator, vocab_size: int) -> Tensor:
    """Few different logits, so that many rows have the very same probability."""
    return torch.randint(0, 3, (NUM_CONTEXTS, vocab_size), generator=generator).float()


def _flat(_: torch.Generator, vocab_size: int) -> Tensor:
    return torch.zeros(NUM_CONTEXTS, vocab_size)


def _falling(generator: torch.Generator, vocab_size: int) -> Tensor:
    """Likely are the end and the letters that the catalogues use most."""
    return _normal(2.0)(generator, vocab_size) - 1.5 * torch.arange(vocab_size)


def _with_impossible_tokens(generator: torch.Generator, vocab_size: int) -> Tensor:
    logits = _normal(2.0)(generator, vocab_size)
    impossible = torch.rand(logits.shape, generator=generator) < 0.3
    impossible[torch.arange(NUM_CONTEXTS), logits.argmax(1)] = False
    return logits.masked_fill(impossible, -math.inf)


# name -> a table of logits by context. Shape: (NUM_CONTEXTS, vocab_size), float32.
LOGITS: dict[str, Callable[[torch.Generator, int], Tensor]] = {
    "usual": _normal(1.5),
    "nearly flat": _normal(1e-3),
    "flat": _flat,
    "likely rows": _falling,
    "peaked": _normal(12.0),
    "certain": _normal(40.0),
    "tied": _tied,
    "impossible tokens": _with_impossible_tokens,
}


def follow(key, token):
    """Hash of a text that goes on; for integers and tensors."""
    return (key * _FACTOR + token + 1) % _PRIME


class TablesModel:
    """Logits that are looked up by a hash of the text, in a table of each query's own.

    Args:
        tables: Shape: (Q, K, V), float32.
        roots: Hash of every prompt. Length Q.
    """

    def __init__(self, tables: Tensor, roots: Sequence[int]) -> None:
        self.tables = tables
        self.roots = list(roots)

    @classmethod
    def random(cls, seed: int, kinds: Sequence[str], vocab_size: int = VOCAB) -> TablesModel:
        """One query per kind of logits."""
        generator = torch.Generator().manual_seed(seed)
        tables = torch.stack([LOGITS[kind](generator, vocab_size) for kind in kinds])
        roots = torch.randint(0, _PRIME, (len(kinds),), generator=generator).tolist()
        return cls(tables, roots)

    def to(self, device: torch.device | str) -> TablesModel:
        return TablesModel(self.tables.to(device), self.roots)

    def only(self, queries: Sequence[int]) -> TablesModel:
        return TablesModel(self.tables[list(queries)], [self.roots[query] for query in queries])

    def prefill(self, meter: Meter | None = None) -> TablesSession:
        return TablesSession(self, meter)

    def key(self, query: int, prefix: Row) -> int:
        """Hash of a prefix behind the query's prompt."""
        key = self.roots[query]
        for token in prefix:
            key = follow(key, token)
        return key

    def next_logprobs(self, query: int, prefix: Row) -> list[float]:
        """log P(token | prefix) in float64."""
        logits = self.tables[query, self.key(query, prefix) % self.tables.shape[1]].double()
        return torch.log_softmax(logits, -1).tolist()

    def logprobs(self, rows: Sequence[Row]) -> Tensor:
        """log P_L of rows under every query, by the chain rule. Shape: (Q, N), float64, on the CPU."""
        tables = torch.log_softmax(self.tables.cpu().double(), -1)
        longest = max(map(len, rows), default=0)
        padded = torch.tensor([[*row, *[-1] * (longest - len(row))] for row in rows], dtype=torch.int64)
        keys = torch.tensor(self.roots).unsqueeze(1).expand(-1, len(rows))
        total = torch.zeros(keys.shape, dtype=torch.float64)
        query = torch.arange(len(self.roots)).unsqueeze(1)
        for depth in range(longest):
            token = padded[:, depth].expand(len(self.roots), -1)
            logprob = tables[query, keys % tables.shape[1], token.clamp(min=0)]
            total += torch.where(token >= 0, logprob, 0.0)
            keys = follow(keys, token)
        return total


@dataclass(slots=True)
class Meter:
    """What the sessions of one batch were asked to do.

    Attributes:
        nodes: Branches written per query of the batch, padding left out.
        forwards: Steps of all sessions.
        on_forward: Called after every step with their number so far.
        keys: Hashes of the prefixes written, per query of the batch, where they are asked for.
    """

    nodes: list[int]
    forwards: int = 0
    on_forward: Callable[[int], None] = field(default=lambda number: None)
    keys: list[set[int]] | None = None


class HashedSession:
    """Branches are hashes of what they wrote (`decoding.language_model.DecodeSession`), on any device.

    Nothing waits for the device. Padding has logits that would lead any search astray.

    Args:
        tables: Shape: (Q, K, V), float32.
        roots: Hash of every prompt. Shape: (Q,), int64.
    """

    def __init__(self, tables: Tensor, roots: Tensor) -> None:
        self._tables = tables
        self._keeps_levels = False
        self._levels = [roots.unsqueeze(1)]  # of the prompts, then per depth, -1 for padding: (Q, branches)
        self.num_forwards = 0
        self.num_branches: list[int] = []

    @property
    def root_logits(self) -> Tensor:
        return self._logits(self._levels[0]).squeeze(1)

    def keep_levels(self) -> None:
        assert self._keeps_levels or len(self._levels) == 1
        self._keeps_levels = True

    def step(self, parents: Tensor, token_ids: Tensor, depth: int | None = None) -> Tensor:
        deepest = len(self._levels) - 1
        depth = deepest + 1 if depth is None else depth
        assert 1 <= depth <= deepest + 1
        assert depth == deepest + 1 or self._keeps_levels
        source = parents.clamp(min=0) if depth > 1 else torch.zeros_like(parents)
        written = follow(self._levels[depth - 1].gather(1, source), token_ids)
        keys = torch.where(parents >= 0, written, -1)
        if depth > deepest:
            self._levels.append(keys)
        else:
            self._levels[depth] = torch.cat([self._levels[depth], keys], dim=1)
        self.num_forwards += 1
        self.num_branches.append(parents.shape[1])
        return self._logits(keys)

    def _logits(self, keys: Tensor) -> Tensor:
        query = torch.arange(len(keys), device=keys.device).unsqueeze(1)
        logits = self._tables[query, keys.clamp(min=0) % self._tables.shape[1]]
        misleading = torch.linspace(1e4, 0.0, self._tables.shape[2], device=keys.device)
        return torch.where((keys >= 0).unsqueeze(2), logits, misleading)

    def select(self, queries: Sequence[int], branches: bool = False) -> Self:
        chosen = list(queries)
        assert chosen
        other = copy.copy(self)
        other._tables = self._tables[chosen]
        other._keeps_levels = branches and self._keeps_levels
        other._levels = [level[chosen] for level in (self._levels if branches else self._levels[:1])]
        other.num_forwards, other.num_branches = 0, []
        return other

    @property
    def usage(self) -> KvUsage:
        return KvUsage()


class TablesSession(HashedSession):
    """The same, strictly checked and metered: a branch below padding is refused."""

    def __init__(self, model: TablesModel, meter: Meter | None = None) -> None:
        super().__init__(model.tables, torch.tensor(model.roots, device=model.tables.device))
        self._numbers = list(range(len(model.roots)))  # of the queries, in the batch
        self.meter = meter or Meter([0] * len(model.roots))

    def step(self, parents: Tensor, token_ids: Tensor, depth: int | None = None) -> Tensor:
        depth = len(self._levels) if depth is None else depth
        assert parents.shape == token_ids.shape
        assert parents.shape[1] > 0
        live = parents >= 0
        assert bool((token_ids >= 0).all())
        assert bool((token_ids < self._tables.shape[2]).all())
        if depth > 1:
            above = self._levels[depth - 1]
            assert bool((parents < above.shape[1]).all())
            below_padding = above.gather(1, parents.clamp(min=0)) < 0
            assert not bool((below_padding & live).any()), "a branch below padding"
        logits = super().step(parents, token_ids, depth)
        for number, count in zip(self._numbers, live.sum(1).tolist(), strict=True):
            self.meter.nodes[number] += count
        if self.meter.keys is not None:
            keys = self._levels[depth][:, -parents.shape[1] :]
            for number, written in zip(self._numbers, keys.tolist(), strict=True):
                self.meter.keys[number].update(key for key in written if key >= 0)
        self.meter.forwards += 1
        self.meter.on_forward(self.meter.forwards)
        return logits

    def select(self, queries: Sequence[int], branches: bool = False) -> Self:
        other = super().select(queries, branches)
        other._numbers = [self._numbers[query] for query in queries]
        return other


class HashedModel:
    """One table of logits for all queries; prompts are numbers.

    Args:
        table: Logits. Shape: (K, V).
    """

    def __init__(self, table: Tensor) -> None:
        self.table = table

    @classmethod
    def random(cls, vocab_size: int, seed: int, num_contexts: int = 97, scale: float = 1.5) -> HashedModel:
        generator = torch.Generator().manual_seed(seed)
        return cls(torch.randn(num_contexts, vocab_size, generator=generator) * scale)

    def prefill(self, prompts: Sequence[int], session: type[HashedSession] = HashedSession) -> HashedSession:
        """Start one query per prompt."""
        roots = torch.tensor(list(prompts), device=self.table.device)
        return session(self.table.expand(len(roots), -1, -1), roots)

    def logprob(self, prompt: int, row: Sequence[int]) -> float:
        """log P_L(row | prompt) in float64, by the chain rule."""
        return float(TablesModel(self.table.unsqueeze(0), [prompt]).logprobs([tuple(row)]))
