"""Logits looked up in tables, one per query of a batch: millions of texts can be scored at once.

Sessions over them are strict: what a caller of a session may not do fails here, and padding has logits that
would lead a search astray.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from benchmarks.harness.stepped_trees import SteppedTrees
from genret.decoding.language_model import KvUsage
from genret.decoding.row_trees import RowTrees

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


class TablesSession:
    """Branches are hashes of what they wrote (`decoding.language_model.DecodeSession`), strictly checked.

    Padding has logits that would lead any search astray; a branch below padding is refused.
    """

    def __init__(self, model: TablesModel, meter: Meter | None = None, numbers: Sequence[int] = ()) -> None:
        self._model = model
        device = model.tables.device
        self._roots = torch.tensor(model.roots, dtype=torch.int64, device=device)
        self._numbers = list(numbers) or list(range(len(model.roots)))  # of the queries, in the batch
        self.meter = meter or Meter([0] * len(model.roots))
        self._keeps_levels = False
        self._levels: list[Tensor] = []  # hashes per depth, -1 for padding: (Q, branches)

    @property
    def root_logits(self) -> Tensor:
        return self._logits(self._roots.unsqueeze(1)).squeeze(1)

    def keep_levels(self) -> None:
        assert self._keeps_levels or not self._levels
        self._keeps_levels = True

    def step(self, parents: Tensor, token_ids: Tensor, depth: int | None = None) -> Tensor:
        deepest = len(self._levels)
        depth = deepest + 1 if depth is None else depth
        assert 1 <= depth <= deepest + 1
        assert depth == deepest + 1 or self._keeps_levels
        assert parents.shape == token_ids.shape
        assert parents.shape[1] > 0
        live = parents >= 0
        assert bool((token_ids >= 0).all())
        assert bool((token_ids < self._model.tables.shape[2]).all())
        if depth == 1:
            above = self._roots.unsqueeze(1).expand(parents.shape)
        else:
            level = self._levels[depth - 2]
            assert bool((parents < level.shape[1]).all())
            above = level.gather(1, parents.clamp(min=0))
        assert bool(((above >= 0) | ~live).all()), "a branch below padding"
        keys = torch.where(live, follow(above, token_ids), -1)
        if depth > deepest:
            self._levels.append(keys)
        else:
            self._levels[depth - 1] = torch.cat([self._levels[depth - 1], keys], dim=1)
        for number, count in zip(self._numbers, live.sum(1).tolist(), strict=True):
            self.meter.nodes[number] += count
        if self.meter.keys is not None:
            for number, written in zip(self._numbers, keys.tolist(), strict=True):
                self.meter.keys[number].update(key for key in written if key >= 0)
        self.meter.forwards += 1
        self.meter.on_forward(self.meter.forwards)
        return self._logits(keys)

    def _logits(self, keys: Tensor) -> Tensor:
        tables = self._model.tables
        query = torch.arange(len(keys), device=keys.device).unsqueeze(1)
        logits = tables[query, keys.clamp(min=0) % tables.shape[1]]
        misleading = torch.linspace(1e4, 0.0, tables.shape[2], device=keys.device)
        return torch.where((keys >= 0).unsqueeze(2), logits, misleading)

    def tree_writer(self, trees: RowTrees) -> SteppedTrees:
        return SteppedTrees(self, trees)

    def select(self, queries: Sequence[int], branches: bool = False) -> TablesSession:
        chosen = list(queries)
        assert chosen
        numbers = [self._numbers[query] for query in chosen]
        other = TablesSession(self._model.only(chosen), self.meter, numbers)
        if branches:
            other._keeps_levels = self._keeps_levels
            other._levels = [level[chosen] for level in self._levels]
        return other

    @property
    def usage(self) -> KvUsage:
        return KvUsage()
