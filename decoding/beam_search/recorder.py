"""Writes down what a beam search does, where somebody asked for it. Waits for the device at every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from decoding.beam_search.candidates import Candidates
from decoding.beam_search.ranking import Scoring, best_columns
from decoding.trace import ROOT, NodeState, Trace
from decoding.types import Constraint

if TYPE_CHECKING:
    from decoding.beam_search.open_nodes import Nodes
    from decoding.beam_search.search import Search

# Of the candidates that were cut in a step, those that came next are recorded: so many per beam.
_CUT_PER_BEAM = 2


class Frontier(NamedTuple):
    """The prefixes of one depth that a step continued.

    Attributes:
        depth: Their tokens.
        first: Number, on its level, of the branch in the first column.
        states: Constraint states, -1 for none. Shape: (Q, B), int64.
        logprob: log P_L. Shape: (Q, B), float64.
    """

    depth: int
    first: int
    states: Tensor
    logprob: Tensor


class _Found(NamedTuple):
    """Some candidates of one query on the host, likeliest first."""

    slot: list[int]
    token: list[int]
    state: Tensor
    logprob: list[float]


class Recorder:
    """Traces of the queries of one search.

    Args:
        constraint: What may be written.
        widths: Beam size of each query.
        num_rows: Rows that each query keeps.
        traces: Of the queries to be recorded, by query.
        counts: Whether all tokens that may follow are among the candidates, so that they can be counted.
    """

    def __init__(
        self,
        constraint: Constraint,
        widths: Sequence[int],
        num_rows: Sequence[int],
        traces: Mapping[int, Trace],
        counts: bool,
    ) -> None:
        self._constraint, self._widths, self._num_rows = constraint, widths, num_rows
        self._traces = traces
        self._counts = counts
        # Position in its trace of every branch, by query and by (depth, number on the level).
        self._places: dict[int, dict[tuple[int, int], int]] = {query: {(0, 0): ROOT} for query in traces}

    def walked(self, frontier: Frontier, candidates: Candidates, stopped: Tensor) -> None:
        """Record a step of the beam search.

        Args:
            frontier: The live prefixes before it.
            candidates: Their continuations.
            stopped: Queries whose new prefixes were all proven to lead to nothing better. Shape: (Q,), bool.
        """
        ended = stopped.tolist()
        for query, trace in self._traces.items():
            kept = self._continued(query, frontier, candidates)[: self._widths[query]]
            for branch, place in enumerate(kept):
                self._places[query][frontier.depth + 1, branch] = place
                if ended[query]:
                    trace.leave(place, "closed")

    def computed(self, query: int, nodes: Nodes, frontier: Frontier, candidates: Candidates) -> None:
        """Record prefixes that an exact search went on from.

        Args:
            query: Whose they are.
            nodes: They, in the order of the frontier's columns.
            frontier: Of all queries.
            candidates: Its continuations; their slots are numbered on the level.
        """
        if query not in self._traces:
            return
        trace, places = self._traces[query], self._places[query]
        columns = (nodes.parent.tolist(), nodes.token.tolist(), nodes.logprob.tolist())
        for column, (parent, token, logprob) in enumerate(zip(*columns, strict=True)):
            above = places[frontier.depth - 1, parent]
            places[frontier.depth, frontier.first + column] = trace.enter(above, token, logprob, "expanded")
        self._continued(query, frontier, candidates)

    def finish(self, search: Search) -> None:
        """Say of the prefixes that an exact search left open which ones are proven to be no better."""
        last_scores = search.finished.last_score().tolist()
        for query, trace in self._traces.items():
            if query not in search.open:
                continue
            reached = search.goals.reached(query)
            scoring = Scoring([search.params[query]], search.constraint.max_depth, torch.device("cpu"))
            for place, node in enumerate(trace.nodes):
                if node.state == "pruned":
                    total = torch.tensor([[node.total_logprob]], dtype=torch.float64)
                    beaten = float(scoring.optimistic(total, node.depth)) <= last_scores[query]
                    trace.leave(place, "closed" if reached or beaten else "pruned")

    def _continued(self, query: int, frontier: Frontier, candidates: Candidates) -> list[int]:
        """Record the prefixes of one query and what may follow them.

        Returns:
            Places of the candidates that complete nothing, likeliest first: three per beam.
        """
        if not bool((frontier.states[query] >= 0).any()):
            return []
        trace = self._traces[query]
        self._expand(query, frontier, candidates)
        finals = candidates.final_logprob()[query]
        done = self._best(query, candidates, finals, min(self._num_rows[query], len(finals)))
        rows = self._constraint.row(done.state).tolist()
        self._enter(trace, query, frontier, done, "finished", rows)
        most = (1 + _CUT_PER_BEAM) * self._widths[query]
        left = self._best(query, candidates, candidates.open_logprob()[query], most)
        return self._enter(trace, query, frontier, left, "pruned", [-1] * len(left.slot))

    def _expand(self, query: int, frontier: Frontier, candidates: Candidates) -> None:
        states, trace = frontier.states[query], self._traces[query]
        masses: list[float | None] = [None] * len(states)
        counts: list[int | None] = [None] * len(states)
        if self._counts:
            total = candidates.logprob[query]
            there = torch.isfinite(total)
            slot = candidates.slot[candidates.edge[query][there]] - frontier.first
            # Of a dead slot, whose logprob is -inf, there are no candidates.
            share = torch.exp(total[there] - frontier.logprob[query][slot])
            masses = share.new_zeros(len(states)).index_add(0, slot, share).tolist()
            # Tokens that the model thinks impossible may follow as well, and are no candidates.
            counts = torch.bincount(self._constraint.children(states).owner, minlength=len(states)).tolist()
        for column, state in enumerate(states.tolist()):
            if state >= 0:
                place = self._places[query][frontier.depth, frontier.first + column]
                trace.expand(place, masses[column], counts[column])

    def _best(self, query: int, candidates: Candidates, logprob: Tensor, count: int) -> _Found:
        """The likeliest of some candidates of a query. `logprob`: -inf for the others. Shape: (C,)."""
        best = best_columns(logprob.unsqueeze(0), count)
        there = torch.isfinite(best.values[0])
        edge = candidates.edge[query][best.columns[0][there]]
        return _Found(
            candidates.slot[edge].tolist(),
            candidates.token[edge].tolist(),
            candidates.next_state[edge],
            best.values[0][there].tolist(),
        )

    def _enter(
        self,
        trace: Trace,
        query: int,
        frontier: Frontier,
        found: _Found,
        state: NodeState,
        rows: Sequence[int],
    ) -> list[int]:
        places = self._places[query]
        return [
            trace.enter(places[frontier.depth, slot], token, logprob, state, row)
            for slot, token, logprob, row in zip(found.slot, found.token, found.logprob, rows, strict=True)
        ]
