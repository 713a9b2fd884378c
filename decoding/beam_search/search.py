"""The state of one beam search, and what a step does to it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from decoding.beam_search.beams import Beams
from decoding.beam_search.candidates import Candidates
from decoding.beam_search.finished import Finished
from decoding.beam_search.goal import FinishedRows, Goal, Goals
from decoding.beam_search.open_nodes import Nodes, OpenNodes
from decoding.beam_search.ranking import Scoring
from decoding.beam_search.recorder import Frontier, Recorder
from decoding.beam_search.results import BeamResult
from decoding.beam_search.written import Written
from decoding.language_model import DecodeSession
from decoding.params import BeamParams
from decoding.stopping import StopPoll
from decoding.trace import Trace
from decoding.types import Constraint, Hypothesis


class Search:
    """Live prefixes, finished rows, back pointers and open prefixes of Q queries.

    Args:
        session: Prefilled prompts.
        constraint: What may be written.
        params: One per query.
        stop: Polled before every step.
        room: Most tokens that may be written per query, None for no bound.
        goals: What is to be proven of exact queries, None for the k best rows.

    Attributes:
        goals: What exact queries go on for, and how many rows every query keeps.
        open: The open prefixes of each exact query, by query.
        num_nodes: Tokens computed behind each prompt. Shape: (Q,), int64.
        num_exact_nodes: Those of them that were computed for open prefixes. Length Q.
        num_steps: Forwards of the batch.
        recorder: Writes down what is done; None: nobody asked.
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
        self.goals = Goals(goals, params)
        self.finished = Finished(params, self.scoring, self.device, self.goals.num_rows)
        self.written = Written()
        bounds = [None] * len(params) if room is None else room
        self.open = {
            query: OpenNodes(
                constraint.max_depth if bound is None else min(bound, constraint.max_depth), p.exact_budget
            )
            for query, (p, bound) in enumerate(zip(params, bounds, strict=True))
            if p.exact
        }
        self._counts_rejected = torch.tensor([not p.exact for p in params], device=self.device)
        self.num_nodes = torch.zeros(len(params), dtype=torch.int64, device=self.device)
        self.num_exact_nodes = [0] * len(params)
        self.num_steps = 0
        self.recorder: Recorder | None = None
        if self.open:
            session.keep_levels()

    def record(self, traces: Sequence[Trace | None], counts: bool) -> None:
        """Write what is done from now on into traces.

        Args:
            traces: None for queries that are not recorded. Length Q.
            counts: Whether all tokens that may follow a prefix are looked at.

        Raises:
            ValueError: there is not one entry per query.
        """
        if len(traces) != len(self.params):
            raise ValueError(f"traces must have one entry per query ({len(self.params)}), got {len(traces)}")
        recorded = {query: trace for query, trace in enumerate(traces) if trace is not None}
        if recorded:
            widths = [p.width for p in self.params]
            self.recorder = Recorder(self.constraint, widths, self.goals.num_rows, recorded, counts)

    def advance(self, candidates: Candidates, take_finished: bool = True) -> tuple[Tensor, Tensor]:
        """Make a step: finished rows into the pool, the likeliest other candidates into the beam.

        Args:
            candidates: Continuations of the live prefixes.
            take_finished: False: none of them completes a row.

        Returns:
            (parents, tokens) of the new live prefixes, parent -1 for dead slots. Shapes: (Q, B), int64.
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
            # What a full list of k rows has beaten may still matter to a goal: it stays open as well.
            refused = selection.refused(candidates)
            left = torch.where(stopped.unsqueeze(1), candidates.open_logprob(), refused)
            self.keep_open(candidates, left, beams.depth)
        return torch.where(beams.states >= 0, selection.parents, -1), selection.tokens

    def keep_open(self, candidates: Candidates, logprob: Tensor, depth: int) -> None:
        """Keep prefixes of exact queries that could still matter. Waits for the device.

        Args:
            candidates: What they are among.
            logprob: Of those to be kept, -inf elsewhere. Shape: (Q, C), float64.
            depth: Their length in tokens.
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
        """Ask the goals of some queries whether they are reached. Waits for the device where any has one."""
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
