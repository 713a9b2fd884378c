"""Holds the state of one beam search: its steps, its certificate, and the recorder that writes traces.

By default a query wants its k best rows and is done when nothing open can beat the k-th. A caller that makes
something else of rows, such as entities with several rows each, may need fewer or many more; it passes a
goal, which an exact search asks as it goes on. Open prefixes are those that the search dropped and may still
continue. Every branch keeps one token and one back pointer, so a step costs the same however long prefixes
are; texts are put together once, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from genret.decoding.beam_search.beams import Beams, Candidates, Finished, Scoring, best_columns
from genret.decoding.constraints import Constraint, Hypothesis
from genret.decoding.language_model import DecodeSession
from genret.decoding.params import BeamParams
from genret.decoding.stopping import StopPoll
from genret.decoding.trace import ROOT, NodeState, Trace

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


class FinishedRows(NamedTuple):
    """The rows of one query found so far, best score first. On the host."""

    row: npt.NDArray[np.int64]  # Ranks in the constraint, -1 where it has no ranks. Shape: (n,), int64
    logprob: npt.NDArray[np.float64]  # log P_L of the rows. Shape: (n,), float64
    length: npt.NDArray[np.int64]  # In tokens, the end token included. Shape: (n,), int64


class Goal(Protocol):
    """The aim of one query's search. Once it is reached it must stay reached."""

    @property
    def num_rows(self) -> int:
        """Most rows kept for it, at least k."""

    def reached(self, rows: FinishedRows, unseen: float) -> bool:
        """Return whether the aim is proven.

        Args:
            rows: The best rows found, `num_rows` at most.
            unseen: No row that has not been among `rows`, now or before, has a larger score.
        """


class Goals:
    """The goals of Q queries; None: the k best rows. Each is asked only when its arguments have changed.

    `num_rows` are the rows kept for each query: as many as its goal wants, k without one.

    Raises:
        ValueError: the lengths differ; a query with a goal is not exact, or its goal wants fewer rows than k.
    """

    def __init__(self, goals: Sequence[Goal | None] | None, params: Sequence[BeamParams]) -> None:
        self._goals = list(goals) if goals is not None else [None] * len(params)
        if len(self._goals) != len(params):
            raise ValueError(f"goals must have one entry per query ({len(params)}), got {len(self._goals)}")
        self.num_rows: list[int] = []
        for query, (goal, mine) in enumerate(zip(self._goals, params, strict=True)):
            if goal is not None and not mine.exact:
                raise ValueError(f"goals[{query}]: only a query that is exact can have a goal")
            num_rows = mine.k if goal is None else goal.num_rows
            if num_rows < mine.k:
                raise ValueError(f"goals[{query}].num_rows must be at least k ({mine.k}), got {num_rows}")
            self.num_rows.append(num_rows)
        self._answers = {query: False for query, goal in enumerate(self._goals) if goal is not None}
        self._told: dict[int, tuple[float, bytes]] = {}

    @property
    def queries(self) -> list[int]:
        """Queries with a goal that is not known to be reached."""
        return [query for query, answer in self._answers.items() if not answer]

    def reached(self, query: int) -> bool:
        """Return the last answer of a query's goal; False without one or before it was asked."""
        return self._answers.get(query, False)

    def ask(self, query: int, rows: FinishedRows, unseen: float) -> None:
        """Ask the goal of a query, unless it was asked the same before."""
        goal = self._goals[query]
        told = (unseen, rows.row.tobytes() + rows.logprob.tobytes())
        if goal is not None and self._told.get(query) != told:
            self._told[query] = told
            self._answers[query] = goal.reached(rows, unseen)


class Nodes(NamedTuple):
    """Prefixes of one query that have not been computed."""

    depth: _Ints  # Tokens, the last included. Shape: (n,), int64
    parent: _Ints  # Number, at its depth, of the branch that the last token continues. Shape: (n,), int64
    token: _Ints  # The last token. Shape: (n,), int64
    state: _Ints  # Constraint state after it. Shape: (n,), int64
    logprob: _Floats  # log P_L of the prefix. Shape: (n,), float64
    optimistic: _Floats  # No row below it has a larger score. Shape: (n,), float64

    def take(self, which: npt.NDArray[np.bool_] | _Ints) -> Nodes:
        """Return some of them, by mask or by number."""
        return Nodes._make(column[which] for column in self)


_NO_INTS = np.zeros(0, dtype=np.int64)
_NO_FLOATS = np.zeros(0)
NO_NODES = Nodes(_NO_INTS, _NO_INTS, _NO_INTS, _NO_INTS, _NO_FLOATS, _NO_FLOATS)


class OpenNodes:
    """The open prefixes of one query, on the host and bounded in number.

    When there are too many the worst are forgotten, but the best score they could have reached is kept, so
    what is said of the list stays true. If `most` is what the search may still compute, nothing is lost:
    computing the first forgotten prefix requires computing all kept ones before.

    `max_depth`: a prefix of this many tokens cannot be continued and counts as forgotten at once. `most`:
    most prefixes kept, at 48 bytes each.
    """

    def __init__(self, max_depth: int, most: int) -> None:
        self._max_depth = max_depth
        self._most = most
        self.nodes = NO_NODES  # The prefixes, in the order they were added
        self.forgotten = -math.inf  # Best score that anything forgotten could have had, -inf if nothing was

    def add(self, new: Nodes, last_score: float) -> None:
        """Add prefixes, except those that the list has beaten.

        `new`: prefixes of one length. `last_score`: score of the last row of the list, -inf while it is not
        full.
        """
        self._forget(new.optimistic[new.depth >= self._max_depth])
        new = new.take(new.depth < self._max_depth)
        self.nodes = Nodes(*(np.concatenate(columns) for columns in zip(self.nodes, new, strict=True)))
        self.purge(last_score)
        surplus = len(self.nodes.optimistic) - self._most
        if surplus > 0:
            # Among equals the first stay: a stable order makes the choice a function of the search alone.
            order = np.argsort(-self.nodes.optimistic, kind="stable")
            self._forget(self.nodes.optimistic[order[self._most :]])
            self.nodes = self.nodes.take(np.sort(order[: self._most]))

    def purge(self, last_score: float) -> None:
        """Forget the prefixes that the list has beaten. Scores of lists only rise, so they stay beaten."""
        beaten = self.nodes.optimistic <= last_score
        if beaten.any():
            self._forget(self.nodes.optimistic[beaten])
            self.nodes = self.nodes.take(~beaten)

    def bound(self) -> float:
        """Best score that anything open or forgotten may have, -inf if there is nothing."""
        return max(self.forgotten, float(self.nodes.optimistic.max(initial=-math.inf)))

    def best(self, count: int) -> _Ints:
        """Numbers of the `count` most promising prefixes, best first; among equals the first added."""
        scores = self.nodes.optimistic
        if len(scores) <= count:
            return np.argsort(-scores, kind="stable")
        last = np.partition(scores, len(scores) - count)[len(scores) - count]
        (promising,) = np.nonzero(scores >= last)
        return promising[np.argsort(-scores[promising], kind="stable")[:count]]

    def remove(self, numbers: _Ints) -> Nodes:
        """Take prefixes out and return them."""
        taken = self.nodes.take(numbers)
        stay = np.ones(len(self.nodes.depth), dtype=bool)
        stay[numbers] = False
        self.nodes = self.nodes.take(stay)
        return taken

    def _forget(self, optimistic: _Floats) -> None:
        self.forgotten = max(self.forgotten, float(optimistic.max(initial=-math.inf)))


class Written:
    """The branches of Q queries by depth, numbered in the order they were written."""

    def __init__(self) -> None:
        self._frontiers: list[tuple[int, Tensor, Tensor]] = []  # (depth, parents, tokens)
        self._widths: dict[int, int] = {}

    def add(self, depth: int, parents: Tensor, tokens: Tensor) -> int:
        """Note a frontier `depth` tokens deep, and return the number of its first branch at its depth.

        `parents` are numbers at the depth above. Shapes: (Q, B), int64.
        """
        first = self._widths.get(depth, 0)
        self._frontiers.append((depth, parents, tokens))
        self._widths[depth] = first + parents.shape[1]
        return first

    def texts(self, query: _Ints, length: _Ints, slot: _Ints, token: _Ints) -> list[tuple[int, ...]]:
        """Put together n texts that end with one more token than was written. Waits for the device, once.

        `slot` is the branch that the last token continues, `length` counts that token. Shapes: (n,).
        """
        longest = int(length.max(initial=1))
        tokens = np.zeros((len(query), longest), dtype=np.int64)
        tokens[np.arange(len(query)), length - 1] = token
        levels = self._on_host()
        branch = slot.copy()
        for depth in range(longest - 1, 0, -1):
            (here,) = np.nonzero(length > depth)
            parents, written = levels[depth]
            at = query[here], branch[here]
            tokens[here, depth - 1] = written[at]
            branch[here] = parents[at]
        return [tuple(row[:n].tolist()) for row, n in zip(tokens, length.tolist(), strict=True)]

    def _on_host(self) -> dict[int, tuple[_Ints, _Ints]]:
        """(parents, tokens) by depth. Shapes: (Q, n)."""
        if not self._frontiers:
            return {}
        depths, all_parents, all_tokens = zip(*self._frontiers, strict=True)
        flat = [torch.cat(pieces, dim=1) for pieces in (all_parents, all_tokens)]
        parents, tokens = torch.stack(flat).cpu().numpy()
        columns: dict[int, list[_Ints]] = {}
        begin = 0
        for depth, there in zip(depths, all_parents, strict=True):
            columns.setdefault(depth, []).append(np.arange(begin, begin + there.shape[1]))
            begin += there.shape[1]
        places = {depth: np.concatenate(pieces) for depth, pieces in columns.items()}
        return {depth: (parents[:, place], tokens[:, place]) for depth, place in places.items()}


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
        goals: Sequence[Goal | None] | None,
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
        """Write further steps into traces; `counts`: whether candidates are all tokens that may follow."""
        if len(traces) != len(self.params):
            raise ValueError(f"traces must have one entry per query ({len(self.params)}), got {len(traces)}")
        recorded = {query: trace for query, trace in enumerate(traces) if trace is not None}
        if recorded:
            widths = [p.width for p in self.params]
            self.recorder = Recorder(self.constraint, widths, self.goals.num_rows, recorded, counts)

    def advance(self, candidates: Candidates, take_finished: bool = True) -> tuple[Tensor, Tensor]:
        """Take a step: finished rows, if they are taken, into the pool, the likeliest others into the beam.

        Returns (parents, tokens) of the new live prefixes, parent -1 for dead slots. Shapes: (Q, B), int64.
        """
        beams = self.beams
        before = Frontier(beams.depth, 0, beams.states, beams.logprob)
        if take_finished:
            self.finished.take(candidates, beams.depth + 1)
        selection = beams.advance(candidates)
        beams.count_pruned(selection.rejected, self._counts_rejected)
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
        pruned, kth, nodes = self.beams.pruned.tolist(), pool.kth_score().tolist(), self.num_nodes.tolist()
        for number, open_nodes in self.open.items():
            pruned[number] = max(pruned[number], open_nodes.bound())
        return [
            BeamResult(
                hypotheses=tuple(lists[number]),
                certified=pruned[number] == -math.inf or pruned[number] <= kth[number],
                best_pruned_score=pruned[number],
                num_steps=self.num_steps,
                num_nodes=nodes[number],
                num_exact_nodes=self.num_exact_nodes[number],
            )
            for number in range(len(self.params))
        ]


# Cut candidates recorded per beam in every step, the likeliest ones.
_CUT_PER_BEAM = 2


class Frontier(NamedTuple):
    """The prefixes of one depth that a step continued."""

    depth: int  # Their tokens
    first: int  # Number, at its depth, of the branch in the first column
    states: Tensor  # Constraint states, -1 for none. Shape: (Q, B), int64
    logprob: Tensor  # log P_L. Shape: (Q, B), float64


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
        """Record a step; new prefixes of the queries `stopped`, (Q,), proved to lead to nothing better."""
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
        self._expand(query, frontier, candidates)
        finals, others = candidates.final_logprob()[query], candidates.open_logprob()[query]
        self._enter(query, frontier, candidates, finals, min(self._num_rows[query], len(finals)), "finished")
        most = (1 + _CUT_PER_BEAM) * self._widths[query]
        return self._enter(query, frontier, candidates, others, most, "pruned")

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

    def _enter(
        self,
        query: int,
        frontier: Frontier,
        candidates: Candidates,
        logprob: Tensor,
        count: int,
        state: NodeState,
    ) -> list[int]:
        """Record the likeliest candidates of a query and return their places.

        `logprob`: -inf for those to be ignored. Shape: (C,).
        """
        best = best_columns(logprob.unsqueeze(0), count)
        there = torch.isfinite(best.values[0])
        edge = candidates.edge[query][best.columns[0][there]]
        is_row = state == "finished"
        rows = self._constraint.row(candidates.next_state[edge]) if is_row else torch.full_like(edge, -1)
        columns = (candidates.slot[edge], candidates.token[edge], best.values[0][there], rows)
        trace, places = self._traces[query], self._places[query]
        return [
            trace.enter(places[frontier.depth, slot], token, total, state, row)
            for slot, token, total, row in zip(*(column.tolist() for column in columns), strict=True)
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
