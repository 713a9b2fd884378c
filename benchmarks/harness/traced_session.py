"""A session that notes its memory after every step, and what other ways of keeping it would need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from genret.decoding.language_model import DecodeSession, KvUsage, TreeWriter
from genret.decoding.row_trees import RowTrees


@dataclass(frozen=True, slots=True)
class Moment:
    """The memory of one query after a step.

    Attributes:
        held_bytes: Held by the session.
        used_bytes: Of these, written and not collected.
        branches: Branches of the step.
        live: Tokens on the paths of these branches, each counted once.
        written: Tokens written so far, on any branch.
    """

    held_bytes: int
    used_bytes: int
    branches: int
    live: int
    written: int


class TracedSession:
    """A session over one query that is traced (`decoding.language_model.DecodeSession`).

    Args:
        session: What is traced: one query, nothing written yet.
    """

    def __init__(self, session: DecodeSession) -> None:
        if len(session.root_logits) != 1:
            raise ValueError(f"one query is traced at a time, got {len(session.root_logits)}")
        self._session = session
        self._parents: list[Tensor] = []
        self.moments: list[Moment] = []

    @property
    def root_logits(self) -> Tensor:
        """Logits after the prompt. Shape: (1, V)."""
        return self._session.root_logits

    @property
    def usage(self) -> KvUsage:
        """Memory of the session below."""
        return self._session.usage

    def keep_levels(self) -> None:
        """Keep all levels."""
        self._session.keep_levels()

    def step(self, parents: Tensor, token_ids: Tensor, depth: int | None = None) -> Tensor:
        """Write one token on every branch; see `DecodeSession.step`.

        Raises:
            ValueError: the step is not the next deeper one.
        """
        if depth not in (None, len(self._parents) + 1):
            raise ValueError(f"steps are traced from depth to depth, got depth {depth}")
        logits = self._session.step(parents, token_ids, *(() if depth is None else (depth,)))
        own = parents[0].clone()
        self._parents.append(own.clamp(min=0) if not self._parents else own)
        usage = self._session.usage
        branches = int((self._parents[-1] >= 0).sum())
        written = branches + (self.moments[-1].written if self.moments else 0)
        self.moments.append(
            Moment(usage.held_bytes, usage.used_bytes, branches, self._live_tokens(), written)
        )
        return logits

    def tree_writer(self, trees: RowTrees) -> TreeWriter:
        """Return what writes whole trees, which is not traced."""
        return self._session.tree_writer(trees)

    def select(self, queries: Sequence[int], branches: bool = False) -> DecodeSession:
        """Return a session over some of the queries, which is not traced."""
        return self._session.select(queries, branches)

    def _live_tokens(self) -> int:
        """Walk from the last branches to the prompt, and count."""
        columns = torch.nonzero(self._parents[-1] >= 0).squeeze(1)
        count = 0
        for parents in reversed(self._parents):
            count += len(columns)
            columns = torch.unique(parents[columns])
        return count
