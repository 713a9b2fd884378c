"""Catalogues so small, under models so simple, that every row's probability is known.

A `TableModel` has a table of next-token logits, one line per prefix of a row: a decoder that writes rows of
the catalogue alone never asks for another. `Law` follows from such a table: P_L of every row, the weight DISC
gives it, P_S and P_L(S).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from genret.decoding.language_model import KvUsage, PromptPrefix
from genret.decoding.row_trees import RowTrees
from harness.divergence import Array
from harness.stepped_trees import Branches, SteppedTrees

Row = tuple[int, ...]
END = 0


@dataclass(frozen=True, slots=True)
class Law:
    """Probabilities of all rows of a catalogue under a model. Shape of the arrays: (N,)."""

    mass: float  # P_L(S)
    target: Array  # P_S of every row
    weights: Array  # x of every row: the product of the valid masses met while writing it


class TableModel:
    """A language model that is one table, the same for every prompt.

    Args:
        rows: The catalogue, sorted.
        logits: Logits behind every prefix of a row that is none itself, in the order of `prefixes(rows)`.
            Shape: (number of prefixes, V), float32.
    """

    device = torch.device("cpu")
    max_positions = None
    max_prompt_tokens = None
    is_encoder_decoder = False

    def __init__(self, rows: Sequence[Row], logits: Tensor) -> None:
        self.rows, self.table = list(rows), logits
        self.vocab_size = logits.shape[1]
        names = prefixes(rows)
        number = {prefix: place for place, prefix in enumerate(names)}
        self.children = torch.full((len(names), self.vocab_size), -1, dtype=torch.int64)
        self.valid = torch.zeros((len(names), self.vocab_size), dtype=torch.bool)
        for row in rows:
            for depth, token in enumerate(row):
                self.valid[number[row[:depth]], token] = True
                if depth + 1 < len(row):
                    self.children[number[row[:depth]], token] = number[row[: depth + 1]]
        path = [
            (place, number[row[:d]], token) for place, row in enumerate(rows) for d, token in enumerate(row)
        ]
        self._row, self._node, self._token = torch.tensor(path).T

    def law(self) -> Law:
        """Return what this table says about its rows, in float64."""
        logprob = torch.log_softmax(self.table.double(), dim=-1)
        log_valid = torch.logsumexp(torch.where(self.valid, logprob, -math.inf), dim=-1)
        log_p = self._sums(logprob[self._node, self._token])
        log_x = self._sums(log_valid[self._node])
        p = np.exp(log_p)
        mass = float(p.sum())
        return Law(mass, p / mass, np.exp(log_x))

    def _sums(self, steps: Tensor) -> Array:
        """Add up what was found at every step of every row. Shape: (N,), float64."""
        sums = torch.zeros(len(self.rows), dtype=torch.float64).index_add(0, self._row, steps)
        values: Array = sums.numpy()
        return values

    def share_prefix(self, token_ids: Sequence[int]) -> PromptPrefix | None:
        """Return None: nothing is computed for prompts that could be shared."""
        return None

    def prefill(self, prompts: Sequence[Sequence[int]], prefix: PromptPrefix | None = None) -> TableSession:
        """Return a session; prompts matter by their number alone."""
        return TableSession(self, Branches(torch.zeros(len(prompts), dtype=torch.int64)))


class TableSession:
    """A session over a table (`decoding.language_model.DecodeSession`)."""

    usage = KvUsage()

    def __init__(self, model: TableModel, branches: Branches) -> None:
        self._model, self._branches = model, branches

    @property
    def root_logits(self) -> Tensor:
        """Logits of the empty prefix. Shape: (Q, V)."""
        return self._model.table[self._branches.root]

    def keep_levels(self) -> None:
        """Keep all levels, as is always done here."""

    def step(self, parents: Tensor, token_ids: Tensor, depth: int | None = None) -> Tensor:
        """Write one token on every branch; see `DecodeSession.step`."""
        depth = self._branches.next_depth(depth)
        before = self._branches.parents(parents, depth)
        node = self._model.children[before, token_ids].clamp(min=0)  # padding may say anything
        self._branches.add(node, depth)
        return self._model.table[node]

    def tree_writer(self, trees: RowTrees) -> SteppedTrees:
        """Return what writes whole trees, by steps."""
        return SteppedTrees(self, trees)

    def select(self, queries: Sequence[int], branches: bool = False) -> TableSession:
        """Return a session over some of the queries."""
        return TableSession(self._model, self._branches.select(list(queries), branches))


def prefixes(rows: Iterable[Row]) -> list[Row]:
    """Return the prefixes of rows that are no rows themselves, shortest first."""
    return sorted({row[:depth] for row in rows for depth in range(len(row))}, key=lambda p: (len(p), p))
