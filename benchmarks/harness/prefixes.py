"""Prefixes of real rows for decoding steps to stand on, and the states of a constraint after them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import click
import numpy as np
import numpy.typing as npt
import torch

from genret.decoding.constraints import Constraint
from genret.retrieval.index.reader import Index


def sample_prefixes(
    index: Index,
    allowed: npt.NDArray[np.int64],
    number: int,
    rng: np.random.Generator,
    depths: Sequence[int] = range(1, 7),
) -> list[list[tuple[int, ...]]]:
    """Return, for every depth, prefixes of that many tokens of random allowed rows that go on after them.

    Where a filter allows too few such rows, their prefixes repeat.
    """
    found: list[list[tuple[int, ...]]] = [[] for _ in depths]
    for rank in rng.choice(allowed, size=min(len(allowed), 50 * number), replace=False).tolist():
        row = index.row_token_ids(rank)
        for prefixes, depth in zip(found, depths, strict=True):
            if len(row) > depth and len(prefixes) < number:
                prefixes.append(row[:depth])
        if all(len(prefixes) == number for prefixes in found):
            break
    return [list(itertools.islice(itertools.cycle(prefixes), number)) for prefixes in found if prefixes]


def walk(
    constraint: Constraint, prefixes: Sequence[tuple[int, ...]], queries: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the states after some prefixes of one length, of the first query by default. Shape: (n,)."""
    if queries is None:
        queries = torch.zeros(len(prefixes), dtype=torch.int64)
    states = constraint.start(queries)
    for tokens in torch.tensor(prefixes, dtype=torch.int64, device=queries.device).T:
        states = constraint.advance(states, tokens)
    if (states < 0).any():
        raise click.ClickException("a prefix of an allowed row was refused")
    return states
