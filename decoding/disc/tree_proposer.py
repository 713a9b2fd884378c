"""Makes draws of DISC over an explored tree, in which every prefix of a query is computed once.

Draws advance together, depth by depth: they are grouped by node, choose among its edges, follow explored
edges for free, and share one forward for all new nodes. The draws of phase two go on over the same tree. The
host finds the new nodes of every level, so it waits for the device; `decoding.disc.static_proposer` never
does.

Every node has an envelope c, an upper bound of the probability that a continuation of it belongs to the set:
c = 1 before the node is computed, then the sum over its edges of P(edge) c(child), refreshed from the deepest
level up. Adaptive draws follow an edge with probability P(edge) c(child) / C(node), with C(node) that sum.
The weight, P_L of the row over the probability of proposing it, is then the product of C(node) / c(node) over
the nodes met, with c = 1 at the root. An envelope never rises, so C(node) <= c(node): the weight only falls
while a draw walks, from C(root), its bound. For draws that do not adapt, every c is 1.

`record_draws` writes the draws into traces, from the explored tree, once all were made.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from genret.decoding.constraints import EdgeChooser, Edges
from genret.decoding.counter_rng import extend_key, hash_key, uniforms_of
from genret.decoding.disc.draws import DecidedDraws, DrawBatch, Draws, Proposer, merge_branches
from genret.decoding.language_model import DecodeSession
from genret.decoding.params import DiscParams
from genret.decoding.trace import ROOT, Trace, TraceDraw


class TreeProposer(Proposer):
    """Draws by ancestral sampling among the valid tokens.

    With `keeps_ways`, `ways` has the edge that every draw followed in each level, by call of `run`, each of
    shape (D,), int64; meaningless for draws that had ended.
    """

    def __init__(self, batch: DrawBatch, keeps_ways: bool = False) -> None:
        super().__init__(batch)
        self._keeps_ways = keeps_ways
        self.ways: list[list[Tensor]] = []
        self._adaptive = batch.params[0].adaptive
        self._tree = ExploredTree()
        self._sessions = BranchSessions(batch.session, batch.num_queries)
        if any(p.num_draws > 1 for p in batch.params):  # with one draw each there is one walk
            batch.session.keep_levels()

    @property
    def levels(self) -> list[ExploredDepth]:
        """The computed nodes, by depth; roots are numbered by query."""
        return self._tree.levels

    def _log_bounds(self) -> Tensor:
        """The envelopes of the roots."""
        return self._tree.log_root_envelopes() if self._tree.levels else self._log_root_mass

    def run(self, draws: Draws, stream: int, log_threshold: Tensor | None) -> None:
        """Walk draws to their ends; see `Proposer.run`."""
        batch = self._batch
        self._sessions.narrow(torch.unique(draws.query).tolist())
        draws.state = batch.constraint.start(batch.numbers[draws.query])
        if not self._tree.levels:
            self._expand_roots()
        key = hash_key(batch.seed[draws.query], stream, draws.sample, draws.number)
        node = draws.query.clone()  # roots are numbered by query
        way: list[Tensor] = []
        for depth in range(batch.constraint.max_depth):
            draws.drop(batch.stop.dropped_queries(depth)[draws.query] & draws.running)
            edge = self._sample_step(draws, node, key, depth)
            if self._keeps_ways:
                way.append(edge)
            if log_threshold is not None:
                draws.running &= draws.log_weight - draws.log_bound >= log_threshold
            live = torch.nonzero(draws.running).squeeze(1)
            if not len(live):
                break
            node[live] = self._follow(draws, live, node[live], edge[live], depth)
        self.ways.append(way)
        draws.drop(draws.running)  # still running only if the set has no rows
        if self._adaptive:
            self._tree.refresh()

    def _expand_roots(self) -> None:
        batch = self._batch
        states = batch.constraint.start(batch.numbers)
        edges = batch.expand(states.unsqueeze(1), batch.session.root_logits.unsqueeze(1))
        self._tree.add(0, ExploredDepth(torch.zeros_like(states), torch.full_like(states, -1), edges))

    def _sample_step(self, draws: Draws, node: Tensor, key: Tensor, depth: int) -> Tensor:
        """Choose an edge for every running draw and write its token.

        `node` is each draw's node in the level at `depth`, `key` its hash without the step; shapes (D,),
        int64. Returns the edge of each draw, meaningless for draws that write nothing. Shape: (D,), int64.
        """
        chosen = torch.zeros_like(node)
        live = torch.nonzero(draws.running).squeeze(1)
        if not len(live):
            return chosen
        level, chooser = self._tree.levels[depth], self._tree.chooser(depth)
        here = node[live]
        log_mass = chooser.log_mass[here]
        if depth == 0 and self._adaptive:
            draws.log_bound[live] = log_mass
        entered = level.log_envelope[here] if depth else 0.0
        draws.log_weight[live] += torch.clamp(log_mass - entered, max=0.0)
        stuck = torch.zeros_like(draws.running)
        stuck[live] = ~torch.isfinite(log_mass)
        draws.drop(stuck)  # nothing valid: weight zero
        column = torch.full_like(draws.state, -1)
        moving = torch.nonzero(draws.running).squeeze(1)
        if len(moving):
            edge = chooser.choose(node[moving], uniforms_of(extend_key(key[moving], depth)))
            chosen[moving] = edge
            draws.logprob[moving] += level.edges.logprob[edge]
            draws.state[moving] = level.edges.next_state[edge]
            column[moving] = level.edges.token[edge]
        draws.tokens.append(column)
        done = draws.running & self._batch.constraint.is_final(draws.state)
        draws.finished |= done
        draws.running &= ~done
        return chosen

    def _follow(self, draws: Draws, live: Tensor, node: Tensor, edge: Tensor, depth: int) -> Tensor:
        """Return the nodes that edges lead to, after computing the new ones. Shape: (n,), int64.

        `live` are the draws that go on, `node` their nodes in the level at `depth`, `edge` their edges.
        Shapes: (n,), int64.
        """
        level = self._tree.levels[depth]
        fresh = torch.nonzero(level.child[edge] < 0).squeeze(1)
        if len(fresh):
            for session, mine in self._sessions.holding(draws.query[live[fresh]]):
                which = fresh[mine]
                self._compute(session, draws, live[which], level.column[node[which]], edge[which], depth + 1)
        return level.child[edge]

    def _compute(
        self, home: BranchSession, draws: Draws, which: Tensor, parents: Tensor, edge: Tensor, depth: int
    ) -> None:
        """Run the model on the nodes at `depth` that the draws `which` enter, and add them to the tree.

        `parents` are columns of the branches that the nodes grow from, `edge` the edges that lead to them.
        Shapes: (n,), int64.
        """
        batch = self._batch
        rows = home.rows[draws.query[which]]
        frontier = merge_branches(
            len(home.queries), rows, draws.state[which], draws.tokens[-1][which], parents
        )
        logits, first_column = home.step(frontier.parents, frontier.tokens, depth)
        self.num_steps += 1
        self._nodes[home.queries] += (frontier.parents >= 0).sum(dim=1)
        num_rows, width = frontier.states.shape
        edges = batch.expand(frontier.states, logits, home.queries)
        states = frontier.states.flatten()
        columns = torch.arange(first_column, first_column + width, device=states.device).repeat(num_rows)
        parent_edge = torch.full_like(states, -1)
        parent_edge[rows * width + frontier.slots] = edge
        self._tree.add(depth, ExploredDepth(columns, parent_edge, edges))


class ExploredDepth:
    """The nodes at one depth, N of them, numbered in the order computed. Padding counts: it has no edges.

    Attributes:
        column: Column of each node among its query's branches of this depth. Shape: (N,), int64.
        parent_edge: Edge of the level above that leads to each node, -1 for roots and padding. Shape: (N,),
            int64.
        edges: Valid edges out of the nodes. E of them.
        child: Node of the level below that each edge leads to, -1 until it is computed. Shape: (E,), int64.
        log_envelope: log c of each node as of the last refresh, 0 for nodes computed since. Shape: (N,),
            float64.
        chooser: Chooser among the edges with their children's envelopes; None after a change.
    """

    def __init__(self, column: Tensor, parent_edge: Tensor, edges: Edges) -> None:
        self.column, self.parent_edge, self.edges = column, parent_edge, edges
        self.child = torch.full_like(edges.token, -1)
        self.log_envelope = torch.zeros_like(column, dtype=torch.float64)
        self.chooser: EdgeChooser | None = None

    def __len__(self) -> int:
        return len(self.column)

    def extend(self, other: ExploredDepth) -> None:
        """Append nodes."""
        moved = other.edges._replace(owner=other.edges.owner + len(self))
        self.edges = Edges(*(torch.cat(pair) for pair in zip(self.edges, moved, strict=True)))
        self.child = torch.cat([self.child, other.child])
        self.column = torch.cat([self.column, other.column])
        self.parent_edge = torch.cat([self.parent_edge, other.parent_edge])
        self.log_envelope = torch.cat([self.log_envelope, other.log_envelope])
        self.chooser = None


class ExploredTree:
    """The computed nodes of all queries of a batch, level by level. Roots are level 0, one per query."""

    def __init__(self) -> None:
        self.levels: list[ExploredDepth] = []
        self._deepest_news = -1  # deepest level with nodes added since the last refresh

    def add(self, depth: int, level: ExploredDepth) -> None:
        """Add nodes computed at a depth, and link their parents' edges to them."""
        if depth == len(self.levels):
            first = 0
            self.levels.append(level)
        else:
            first = len(self.levels[depth])
            self.levels[depth].extend(level)
        if depth:
            added = torch.nonzero(level.parent_edge >= 0).squeeze(1)
            self.levels[depth - 1].child[level.parent_edge[added]] = added + first
        self._deepest_news = max(self._deepest_news, depth)

    def chooser(self, depth: int) -> EdgeChooser:
        """Return the chooser among the edges of a level, by probability times their child's envelope."""
        level = self.levels[depth]
        if level.chooser is None:
            level.chooser = EdgeChooser(self._weighted_edges(depth), len(level))
        return level.chooser

    def refresh(self) -> None:
        """Update the envelopes from everything computed. They never rise."""
        for depth in range(self._deepest_news, -1, -1):
            level = self.levels[depth]
            level.chooser = None
            chooser = self.chooser(depth)
            # In exact arithmetic the envelope falls; rounding must not lift a weight above its bound.
            chooser.log_mass = torch.minimum(chooser.log_mass, level.log_envelope)
            level.log_envelope = chooser.log_mass
        self._deepest_news = -1

    def log_root_envelopes(self) -> Tensor:
        """Return log c of every root as of now, without a refresh. Shape: (Q,), float64."""
        latest = copy.copy(self)
        latest.levels = [copy.copy(level) for level in self.levels]
        latest.refresh()
        return latest.levels[0].log_envelope

    def _weighted_edges(self, depth: int) -> Edges:
        """The edges of a level, their log-probabilities lowered by their children's envelopes."""
        edges = self.levels[depth].edges
        if depth + 1 == len(self.levels):
            return edges
        below = self.levels[depth + 1]
        lowered = torch.nonzero((below.parent_edge >= 0) & (below.log_envelope < 0)).squeeze(1)
        if not len(lowered):
            return edges
        logprob = edges.logprob.clone()
        logprob[below.parent_edge[lowered]] += below.log_envelope[lowered]
        return edges._replace(logprob=logprob)


class BranchSession:
    """A session that holds the branches of some `queries`, ascending numbers in the batch.

    `widths` are the columns written at each depth so far, from depth 1 on. `rows`, (Q,), are the row of each
    query of the batch, -1 for queries it does not hold.
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
        """Write a frontier at a depth; return its logits and the column of its first branch at that depth."""
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
    """The sessions of one batch; every query has its branches in one of them."""

    def __init__(self, session: DecodeSession, num_queries: int) -> None:
        whole = BranchSession(session, list(range(num_queries)), [], num_queries)
        self._of_query = [whole] * num_queries

    def narrow(self, queries: list[int]) -> None:
        """Move queries (ascending) that go on without others of their session into one of their own."""
        for one in dict.fromkeys(self._of_query[query] for query in queries):
            going = [query for query in queries if self._of_query[query] is one]
            if len(going) < len(one.queries):
                part = one.select(going)
                for query in going:
                    self._of_query[query] = part

    def holding(self, query: Tensor) -> Iterator[tuple[BranchSession, Tensor]]:
        """Yield every session that some entries, (n,), belong to, with the indices of its entries, (m,)."""
        going = torch.unique(query).tolist()
        for one in dict.fromkeys(self._of_query[q] for q in going):
            mine = [q for q in going if self._of_query[q] is one]
            here = torch.isin(query, torch.tensor(mine, device=query.device))
            yield one, torch.nonzero(here).squeeze(1)


_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


def check_recordable(params: Sequence[DiscParams], traces: Sequence[Trace | None] | None) -> dict[int, Trace]:
    """Return the traces by query; ValueError for lengths that differ, or draws that are not plain."""
    if traces is not None and len(traces) != len(params):
        raise ValueError(f"traces must have one entry per query ({len(params)}), got {len(traces)}")
    recorded = {query: trace for query, trace in enumerate(traces or ()) if trace is not None}
    if recorded and any(p.adaptive or p.beam_size > 1 or p.stops_early for p in params):
        raise ValueError("only draws that neither adapt nor keep several prefixes nor stop early are traced")
    return recorded


class _HostLevel(NamedTuple):
    """The nodes and edges of one depth on the host."""

    logprob: _Floats  # Log-probability of every edge. Shape: (E,), float64
    child: _Ints  # Node that every edge leads to, -1 if it was not computed. Shape: (E,), int64
    mass: _Floats  # Probability of all edges of every node. Shape: (N,), float64
    degree: _Ints  # Edges of every node. Shape: (N,), int64

    @classmethod
    def of(cls, level: ExploredDepth) -> _HostLevel:
        edges = level.edges
        mass = edges.logprob.new_zeros(len(level)).index_add(0, edges.owner, edges.logprob.exp())
        degree = torch.bincount(edges.owner, minlength=len(level))
        return cls(*(part.cpu().numpy() for part in (edges.logprob, level.child, mass, degree)))


def record_draws(
    batch: DrawBatch, proposer: TreeProposer, verdicts: Sequence[DecidedDraws], traces: Mapping[int, Trace]
) -> None:
    """Write the draws of some queries into their traces.

    `verdicts` are the decided draws of each run of the proposer, which kept their ways.
    """
    levels = [_HostLevel.of(level) for level in proposer.levels]
    for query, trace in traces.items():
        _expand(trace, ROOT, levels[0], query, batch.top_m is None)
    for verdict, way in zip(verdicts, proposer.ways, strict=True):
        taken = zip(verdict.draws.tokens, way, strict=False)  # a walk that ends at once leaves no tokens
        _record(batch, verdict, [torch.stack(pair).cpu().numpy() for pair in taken], levels, traces)
    for trace in traces.values():
        trace.draws.sort(key=lambda draw: (draw.sample, draw.draw))


def _record(
    batch: DrawBatch,
    verdict: DecidedDraws,
    steps: Sequence[_Ints],
    levels: Sequence[_HostLevel],
    traces: Mapping[int, Trace],
) -> None:
    """Enter the draws of the traced queries, and the nodes they walked; what finds no place is left out.

    `steps` are tokens (-1 for none) and edges of the draws, by depth. Each of shape (2, D).
    """
    draws, chosen = verdict.draws, set(verdict.winners.values())
    rows = batch.constraint.row(draws.state).tolist()
    queries, samples, numbers = (column.tolist() for column in (draws.query, draws.sample, draws.number))
    weights, bounds = draws.log_weight.tolist(), draws.log_bound.tolist()
    finished, accepted = draws.finished.tolist(), verdict.accepted.tolist()
    for index, query in enumerate(queries):
        if query not in traces:
            continue
        trace, place, total = traces[query], ROOT, 0.0
        for depth, (tokens, edges) in enumerate(steps):
            token, edge = int(tokens[index]), int(edges[index])
            if token < 0:
                break
            total += float(levels[depth].logprob[edge])
            child = int(levels[depth].child[edge])
            if child >= 0:
                place = trace.enter(place, token, total, "expanded")
                _expand(trace, place, levels[depth + 1], child, batch.top_m is None)
            elif finished[index]:
                place = trace.enter(place, token, total, "finished", rows[index])
            else:
                place = trace.enter(place, token, total, "pruned")
        if place < 0:
            continue
        is_judged = finished[index] and not verdict.is_second
        draw = TraceDraw(
            sample=samples[index],
            draw=numbers[index] + (batch.params[query].num_draws if verdict.is_second else 0),
            node=place,
            valid_mass=math.exp(weights[index]),
            acceptance_probability=math.exp(weights[index] - bounds[index]) if is_judged else 0.0,
            accepted=accepted[index],
            chosen=index in chosen,
        )
        trace.draws.append(draw)


def _expand(trace: Trace, place: int, level: _HostLevel, node: int, is_counted: bool) -> None:
    trace.expand(place, float(level.mass[node]), int(level.degree[node]) if is_counted else None)
