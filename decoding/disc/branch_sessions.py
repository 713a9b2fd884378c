"""Where the branches of every query are: in one session, until some queries go on without the others."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from decoding.language_model import DecodeSession


class BranchSession:
    """A session that holds the branches of some of the queries.

    Args:
        session: One row per query.
        queries: Which ones, by their numbers in the batch, ascending.
        widths: Columns written at each depth so far, from depth 1 on.
        num_queries: Of the batch, Q.

    Attributes:
        rows: Row of each query of the batch, -1 for those it has none of. Shape: (Q,), int64.
    """

    def __init__(
        self, session: DecodeSession, queries: list[int], widths: list[int], num_queries: int
    ) -> None:
        self.session, self.queries = session, queries
        self._widths = widths
        device = session.root_logits.device
        self.rows = torch.full((num_queries,), -1, dtype=torch.int64, device=device)
        self.rows[queries] = torch.arange(len(queries), device=device)

    def step(self, parents: Tensor, token_ids: Tensor, depth: int) -> tuple[Tensor, int]:
        """Write a frontier at a depth; see `DecodeSession.step`.

        Returns:
            (next-token logits of the frontier, column of its first branch among those of this depth).
        """
        logits = self.session.step(parents, token_ids, depth)
        if depth > len(self._widths):
            self._widths.append(0)
        first = self._widths[depth - 1]
        self._widths[depth - 1] += parents.shape[1]
        return logits, first

    def select(self, queries: list[int]) -> BranchSession:
        """Return a session over some of the queries of this one, with their branches."""
        places = [self.queries.index(query) for query in queries]
        session = self.session.select(places, branches=True)
        return BranchSession(session, queries, list(self._widths), len(self.rows))


class BranchSessions:
    """The sessions of one batch; every query has its branches in one of them.

    Args:
        session: Over all queries, no branches written yet. Q queries.
        num_queries: Q.
    """

    def __init__(self, session: DecodeSession, num_queries: int) -> None:
        whole = BranchSession(session, list(range(num_queries)), [], num_queries)
        self._of_query = [whole] * num_queries

    def narrow(self, queries: list[int]) -> None:
        """Put queries that go on without the others of their session into one of their own.

        Args:
            queries: Distinct, ascending.
        """
        for one in dict.fromkeys(self._of_query[query] for query in queries):
            going = [query for query in queries if self._of_query[query] is one]
            if len(going) < len(one.queries):
                part = one.select(going)
                for query in going:
                    self._of_query[query] = part

    def holding(self, query: Tensor) -> Iterator[tuple[BranchSession, Tensor]]:
        """Yield every session that some entries belong to, and which entries those are.

        Args:
            query: Query of each entry. Shape: (n,), int64.

        Yields:
            (session, indices of its entries of shape (m,), int64, m >= 1).
        """
        going = torch.unique(query).tolist()
        for one in dict.fromkeys(self._of_query[q] for q in going):
            mine = [q for q in going if self._of_query[q] is one]
            here = torch.isin(query, torch.tensor(mine, device=query.device))
            yield one, torch.nonzero(here).squeeze(1)
