"""Random token trees: prompts, what is written below them, and which path every branch stands for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_PADDING_SHARE = 0.2


@dataclass(frozen=True, slots=True, eq=False)
class RandomTree:
    """The trees of Q queries, all of one depth and one width. Depth 0 is the prompt alone.

    Attributes:
        prompts: Their lengths may differ. Length Q.
        prefix_length: Tokens that all prompts begin with, less than the shortest has.
        parents: Column of every branch's parent one level up, -1 for padding branches; 0 at depth 1.
            Shape: (depth, Q, B), int64.
        tokens: What every branch writes. Shape: (depth, Q, B), int64.
    """

    prompts: tuple[tuple[int, ...], ...]
    prefix_length: int
    parents: Tensor
    tokens: Tensor

    @property
    def num_queries(self) -> int:
        """Q."""
        return len(self.prompts)

    @property
    def depth(self) -> int:
        """Tokens on the deepest branches."""
        return self.tokens.shape[0]

    def columns(self, depth: int) -> Tensor:
        """True where a branch is no padding. Shape: (Q, B), bool; (Q, 1) at depth 0."""
        if depth == 0:
            return torch.ones(self.num_queries, 1, dtype=torch.bool)
        return self.parents[depth - 1] >= 0

    def ancestry(self, query: int, depth: int, column: int) -> list[int]:
        """Columns on the way from depth 0 to a branch, both included. Length depth + 1."""
        columns = [column]
        for level in range(depth - 1, -1, -1):
            column = int(self.parents[level, query, column]) if level else 0
            columns.append(column)
        return columns[::-1]

    def path(self, query: int, depth: int, column: int) -> list[int]:
        """Tokens from the prompt to a branch. Length depth."""
        columns = self.ancestry(query, depth, column)
        return [int(self.tokens[level, query, columns[level + 1]]) for level in range(depth)]

    def leaves(self) -> Iterator[tuple[int, int, int]]:
        """(query, depth, column) of every branch without children; a prompt that has none is one too."""
        for query in range(self.num_queries):
            for depth in range(self.depth + 1):
                below = set(self.parents[depth, query].tolist()) if depth < self.depth else set()
                for column in self.columns(depth)[query].nonzero()[:, 0].tolist():
                    if column not in below:
                        yield query, depth, column


def random_tree(
    lengths: Sequence[int],
    prefix_length: int,
    depth: int,
    branches: int,
    allowed: Tensor,
    generator: torch.Generator,
) -> RandomTree:
    """Draw a tree: crossing parents, and about a fifth of the branches padding.

    Args:
        lengths: Tokens of every prompt, more than `prefix_length` each.
        prefix_length: Tokens that all prompts begin with.
        depth: Levels to write.
        branches: Width of every level; the first column of a query is never padding.
        allowed: Token ids to draw from. Shape: (n,), int64.
        generator: Source of everything random.
    """

    def draw(*shape: int) -> Tensor:
        return allowed[torch.randint(len(allowed), shape, generator=generator)]

    prefix = draw(prefix_length).tolist()
    prompts = tuple(tuple(prefix + draw(length - prefix_length).tolist()) for length in lengths)
    shape = (depth, len(lengths), branches)
    padding = torch.rand(shape, generator=generator) < _PADDING_SHARE
    padding[:, :, 0] = False
    parents = torch.zeros(shape, dtype=torch.int64)
    for level in range(1, depth):
        for query in range(len(lengths)):
            written = (~padding[level - 1, query]).nonzero()[:, 0]
            parents[level, query] = written[torch.randint(len(written), (branches,), generator=generator)]
    return RandomTree(prompts, prefix_length, parents.masked_fill(padding, -1), draw(*shape))
