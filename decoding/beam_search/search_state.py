"""Holds the state of one beam search and its steps, and the recorder that writes them into traces.

Recording waits for the device at every step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from genret.decoding.beam_search.beams import Beams, Finished, Written
from genret.decoding.beam_search.candidates import Candidates, Scoring, best_columns
from genret.decoding.beam_search.certificate import FinishedRows, Goal, Goals, Nodes, OpenNodes
from genret.decoding.constraints import Constraint, Hypothesis
from genret.decoding.language_model import DecodeSession
from genret.decoding.params import BeamParams
from genret.decoding.stopping import StopPoll
from genret.decoding.trace import ROOT, NodeState, Trace


class Search:
    """Live prefixes, finished rows, back pointers and open prefixes of Q queries.

    `room` bounds the tokens written per query; `goals` are those of exact queries, None for the k best rows.
    `num_nodes`, (Q,), counts the tokens computed behind each prompt, `num_exact_nodes` those computed for
    open prefixes.
    """

    def __init__(
        self,
        session: DecodeSession,
        constraint: Constraint,
        params: Sequence[BeamParams],
        stop: StopPoll,
        room: Sequence[int | None] | None,
        goals: Sequence[Goal | None] | None = None,
    ) -> None:
        self.session, self.constraint, self.params, self.stop = session, constraint, params, stop
        self.device = session.root_logits.device
        self.scoring = Scoring(params, constraint.max_depth, self.device)
        self.beams = Beams(constraint, params, self.scoring, self.device)
        self.goals = Goals(goals, params)  # The goals, and the number of rows that every query keeps
        self.finished = Finished(params, self.scoring, self.device, self.goals.num_rows)
        self.written = Written()
        bounds = [None] * len(params) if room is None else room
        self.open = {  # The open prefixes of each exact query, by query
            query: OpenNodes(
                constraint.max_depth if bound is None else min(bound, constraint.max_depth), p.exact_budget
            )
            for query, (p, bound) in enumerate(zip(params, bounds, strict=True))
            if p.exact
        }
        self._counts_rejected = torch.tensor([not p.exact for p in params], device=self.device)
        self.num_nodes = torch.zeros(len(params), dtype=torch.int64, device=self.device)
        self.num_exact_nodes = [0] * len(params)
        self.num_steps = 0  # Forwards of the batch
        self.recorder: Recorder | None = None  # Writes traces; None without any
        if self.open:
            session.keep_levels()

    def record(self, traces: Sequence[Trace | None], counts: bool) -> None:
        """Write all further steps into traces; `counts` says whether candidates are all tokens that may
        follow.
        """
        if len(traces) != len(self.params):
            raise ValueError(f"traces must have one entry per query ({len(self.params)}), got {len(traces)}")
        recorded = {query: trace for query, trace in enumerate(traces) if trace is not None}
        if recorded:
            widths = [p.width for p in self.params]
            self.recorder = Recorder(self.constraint, widths, self.goals.num_rows, recorded, counts)

    def advance(self, candidates: Candidates, take_finished: bool = True) -> tuple[Tensor, Tensor]:
        """Take a step: finished rows into the pool (unless `take_finished` is False), the likeliest others
        into the beam.

        Returns (parents, tokens) of the new live prefixes, parent -1 for dead slots. Shapes: (Q, B), int64.
        """
        beams = self.beams
        before = Frontier(beams.depth, 0, beams.states, beams.logprob)
        if take_finished:
            self.finished.take(candidates, beams.depth + 1)
        selection = beams.advance(candidates)
        beams.count_rejected(selection.rejected, self._counts_rejected)
        stopped = beams.stop_beaten(self.finished.kth_score())
        if self.recorder is not None:
            self.recorder.walked(before, candidates, stopped)
        if self.open:
            # Prefixes that a full list of k rows has beaten may still matter to a goal, so they stay open.
            refused = selection.refused(candidates)
            left = torch.where(stopped.unsqueeze(1), candidates.open_logprob(), refused)
            self.keep_open(candidates, left, beams.depth)
        return torch.where(beams.states >= 0, selection.parents, -1), selection.tokens

    def keep_open(self, candidates: Candidates, logprob: Tensor, depth: int) -> None:
        """Keep prefixes of exact queries that could still matter. Waits for the device.

        `logprob`, (Q, C), is that of the candidates to be kept, -inf elsewhere; `depth` their length in
        tokens.
        """
        last_score = self.finished.last_score()
        optimistic = self.scoring.optimistic(logprob, depth)
        matters = torch.isfinite(logprob) & (optimistic > last_score.unsqueeze(1))
        matters &= ~self._counts_rejected.unsqueeze(1)
        query, column = torch.nonzero(matters, as_tuple=True)
        edge = candidates.edge[query, column]
        integers = torch.stack(
            [query, candidates.slot[edge], candidates.token[edge], candidates.next_state[edge]]
        )
        query_of, parent, token, state = integers.cpu().numpy()
        floats = torch.stack([logprob[query, column], optimistic[query, column]]).cpu().numpy()
        lengths = np.full(len(query_of), depth, dtype=np.int64)
        new = Nodes(lengths, parent, token, state, floats[0], floats[1])
        bars = last_score.tolist()
        for number, open_nodes in self.open.items():
            open_nodes.add(new.take(query_of == number), bars[number])

    def ask_goals(self, queries: Sequence[int]) -> None:
        """Ask the goals of some queries whether they are reached. Waits for the device if any has one."""
        asked = [query for query in self.goals.queries if query in queries]
        if not asked:
            return
        pool = self.finished
        kept = pool.kept()[asked]
        row = self.constraint.row(pool.state[asked][kept])
        rows, lengths = torch.stack([row, pool.length[asked][kept]]).cpu().numpy()
        logprobs = pool.logprob[asked][kept].cpu().numpy()
        ends = kept.sum(dim=1).cumsum(dim=0).tolist()
        bounds = torch.maximum(self.beams.pruned, pool.last_score()).tolist()
        for query, begin, end in zip(asked, [0, *ends], ends, strict=False):
            mine = slice(begin, end)
            found = FinishedRows(rows[mine], logprobs[mine], lengths[mine])
            self.goals.ask(query, found, max(bounds[query], self.open[query].bound()))

    def write(self, parents: Tensor, tokens: Tensor) -> Tensor:
        """Compute the live prefixes. Shapes: (Q, B), int64; returns logits (Q, B, V)."""
        self.written.add(self.beams.depth, parents, tokens)
        self.num_nodes = self.num_nodes + (parents >= 0).sum(dim=1)
        self.num_steps += 1
        return self.session.step(parents, tokens)

    def results(self) -> list[BeamResult]:
        """Put the lists together. Waits for the device."""
        found = self.finished.kept().cpu().numpy()
        query, place = np.nonzero(found)  # in the order of queries, best first
        pool = self.finished
        rows = self.constraint.row(pool.state[query, place]).tolist()
        length, slot, token = (
            column.cpu().numpy()[query, place] for column in (pool.length, pool.slot, pool.token)
        )
        texts = self.written.texts(query, length, slot, token)
        logprobs = pool.logprob.cpu().numpy()[query, place].tolist()
        lists: list[list[Hypothesis]] = [[] for _ in self.params]
        for owner, text, row, logprob in zip(query.tolist(), texts, rows, logprobs, strict=True):
            lists[owner].append(Hypothesis(text, row, logprob))
        pruned = self.beams.pruned.tolist()
        kth = pool.kth_score().tolist()
        nodes = self.num_nodes.tolist()
        return [
            self._result(number, lists[number], pruned[number], kth[number], nodes[number])
            for number in range(len(self.params))
        ]

    def _result(
        self, query: int, rows: list[Hypothesis], pruned: float, kth_score: float, num_nodes: int
    ) -> BeamResult:
        if query in self.open:
            pruned = max(pruned, self.open[query].bound())
        return BeamResult(
            hypotheses=tuple(rows),
            certified=pruned == -math.inf or pruned <= kth_score,
            best_pruned_score=pruned,
            num_steps=self.num_steps,
            num_nodes=num_nodes,
            num_exact_nodes=self.num_exact_nodes[query],
        )


# Cut candidates recorded per beam in every step, the likeliest ones.
_CUT_PER_BEAM = 2


class Frontier(NamedTuple):
    """The prefixes of one depth that a step continued."""

    depth: int  # Their tokens
    first: int  # Number, at its depth, of the branch in the first column
    states: Tensor  # Constraint states, -1 for none. Shape: (Q, B), int64
    logprob: Tensor  # log P_L. Shape: (Q, B), float64


class _Found(NamedTuple):
    """Some candidates of one query on the host, likeliest first."""

    slot: list[int]
    token: list[int]
    state: Tensor
    logprob: list[float]


class Recorder:
    """Writes the traces of some queries, by query.

    `widths` are the beam sizes, `num_rows` the rows that queries keep. `counts` says whether all tokens that
    may follow are among the candidates, so that they can be counted.
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
        # Position in its trace of every branch, by query and by (depth, number at that depth).
        self._places: dict[int, dict[tuple[int, int], int]] = {query: {(0, 0): ROOT} for query in traces}

    def walked(self, frontier: Frontier, candidates: Candidates, stopped: Tensor) -> None:
        """Record a step; `stopped`, (Q,), are queries whose new prefixes all proved to lead to nothing
        better.
        """
        ended = stopped.tolist()
        for query, trace in self._traces.items():
            kept = self._continued(query, frontier, candidates)[: self._widths[query]]
            for branch, place in enumerate(kept):
                self._places[query][frontier.depth + 1, branch] = place
                if ended[query]:
                    trace.leave(place, "closed")

    def computed(self, query: int, nodes: Nodes, frontier: Frontier, candidates: Candidates) -> None:
        """Record prefixes that an exact search continued, in the order of the frontier's columns."""
        if query not in self._traces:
            return
        trace, places = self._traces[query], self._places[query]
        columns = (nodes.parent.tolist(), nodes.token.tolist(), nodes.logprob.tolist())
        for column, (parent, token, logprob) in enumerate(zip(*columns, strict=True)):
            above = places[frontier.depth - 1, parent]
            places[frontier.depth, frontier.first + column] = trace.enter(above, token, logprob, "expanded")
        self._continued(query, frontier, candidates)

    def finish(self, search: Search) -> None:
        """Mark the open prefixes of exact searches that are proven to be no better."""
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
        """Record the prefixes of one query and their candidates.

        Returns the places of the candidates that complete nothing, likeliest first: three per beam.
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
            # Dead slots, whose logprob is -inf, have no candidates.
            share = torch.exp(total[there] - frontier.logprob[query][slot])
            masses = share.new_zeros(len(states)).index_add(0, slot, share).tolist()
            # Allowed tokens of probability zero are no candidates, but they count.
            counts = torch.bincount(self._constraint.children(states).owner, minlength=len(states)).tolist()
        for column, state in enumerate(states.tolist()):
            if state >= 0:
                place = self._places[query][frontier.depth, frontier.first + column]
                trace.expand(place, masses[column], counts[column])

    def _best(self, query: int, candidates: Candidates, logprob: Tensor, count: int) -> _Found:
        """The likeliest candidates of a query. `logprob`: -inf for those to be ignored. Shape: (C,)."""
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


@dataclass(frozen=True, slots=True)
class BeamResult:
    """The list of one query.

    Scores are log-probabilities, divided by length ** length_penalty if one was given.

    Attributes:
        hypotheses: Distinct rows, best score first; fewer than k if the constraint allows fewer (or if the
            beam lost the others), up to `num_rows` of a goal. Rows of probability zero are left out.
        certified: Whether the first k are proven to be the exact top-k.
        best_pruned_score: No row that was neither finished nor beaten by a full list can have a larger score:
            the best that a dropped prefix could still have become. -inf if none was dropped; an exact search
            does not count prefixes that the list, of `num_rows` with a goal, had beaten by then.
        num_steps: Decode steps of the batch.
        num_nodes: Tokens computed behind the prompt of this query.
        num_exact_nodes: Those of them that were computed after the beam search, to certify the list or to
            reach the goal.
    """

    hypotheses: tuple[Hypothesis, ...]
    certified: bool
    best_pruned_score: float
    num_steps: int
    num_nodes: int = 0
    num_exact_nodes: int = 0
