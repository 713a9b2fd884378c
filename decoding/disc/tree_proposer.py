"""Draws of DISC over an explored tree: what the model computed once for a query is not computed again.

Draws advance together, level by level. At a level they are grouped by node, choose among its edges, follow
edges that were explored before for nothing, and share one forward for all nodes that are new. The draws of
phase two go on over the same tree.

Draws that adapt follow an edge with probability P(edge) c(child) / C(node), where c is the child's envelope
(`decoding.disc.explored_tree`) and C(node) the sum over the node's edges. The weight, P_L of the row over the
probability of proposing it, is then the product of C(node) / c(node) over the nodes met, with c = 1 at the
root. An envelope never rises, so C(node) <= c(node): the weight only falls while a draw walks, from C(root),
its bound. Where draws do not adapt, every c is 1.

The host looks at every level to see which nodes are new, so it waits for the device at every step. This is
the reference, and the way for CPUs; `decoding.disc.static_proposer` is the one that never waits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from decoding.counter_rng import extend_key, hash_key, uniforms_of
from decoding.disc.branch_sessions import BranchSession, BranchSessions
from decoding.disc.draws import Draws
from decoding.disc.explored_tree import ExploredTree, Level
from decoding.disc.proposer import DrawBatch
from decoding.frontier import merge_branches


class TreeProposer:
    """Draws by ancestral sampling among the valid tokens (`decoding.disc.proposer.Proposer`).

    Args:
        batch: The queries.
        keeps_ways: Whether the ways of the draws are kept.

    Attributes:
        ways: Where they are, the edge that every draw followed in each level, by call of `run`; of draws that
            had ended the entry is meaningless. Each of shape (D,), int64.
    """

    def __init__(self, batch: DrawBatch, keeps_ways: bool = False) -> None:
        self._batch = batch
        self._keeps_ways = keeps_ways
        self.ways: list[list[Tensor]] = []
        self._adaptive = batch.params[0].adaptive
        self._tree = ExploredTree()
        self._sessions = BranchSessions(batch.session, batch.num_queries)
        if any(p.num_draws > 1 for p in batch.params):  # with one draw each there is one walk
            batch.session.keep_levels()
        self.num_steps = 0
        self._nodes = torch.zeros(batch.num_queries, dtype=torch.int64, device=batch.device)

    @property
    def levels(self) -> list[Level]:
        """What was computed, by depth; roots are numbered by query."""
        return self._tree.levels

    def nodes_of_queries(self) -> list[int]:
        """Return the tokens computed behind each prompt so far."""
        return [int(count) for count in self._nodes.tolist()]

    def log_upper_bounds(self) -> list[float] | None:
        """Return the envelopes of the roots, None where `top_m` may have left valid tokens out."""
        if self._batch.top_m is not None:
            return None
        if not self._tree.levels:
            return [0.0] * self._batch.num_queries
        return [float(bound) for bound in self._tree.log_root_envelopes().tolist()]

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
        draws.drop(draws.running)  # only a set without rows lets a draw come here
        if self._adaptive:
            self._tree.refresh()

    def _expand_roots(self) -> None:
        batch = self._batch
        states = batch.constraint.start(batch.numbers)
        edges = batch.expand(states.unsqueeze(1), batch.session.root_logits.unsqueeze(1))
        self._tree.add(0, Level(torch.zeros_like(states), torch.full_like(states, -1), edges))

    def _sample_step(self, draws: Draws, node: Tensor, key: Tensor, depth: int) -> Tensor:
        """Choose an edge for every running draw and write its token.

        Args:
            draws: All of them.
            node: Where each stands, in the level at `depth`; any for ended draws. Shape: (D,), int64.
            key: Hash of each draw's coordinates but the step. Shape: (D,), int64.
            depth: Of the level.

        Returns:
            The edge of each draw in its level, meaningless for draws that write nothing. Shape: (D,), int64.
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
        """Compute the nodes that edges lead to where they are new.

        Args:
            draws: All of them.
            live: Those that go on. Shape: (n,), int64.
            node: Where each of these stands, in the level at `depth`. Shape: (n,), int64.
            edge: Which it follows. Shape: (n,), int64.
            depth: Of the level left behind.

        Returns:
            Their nodes in the next level. Shape: (n,), int64.
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
        """Run the model on the nodes that some draws of one session enter, and add them to the tree.

        Args:
            home: Where the draws' branches are.
            draws: All of them; state and last token are those of the nodes.
            which: Those that enter a new node. Shape: (n,), int64.
            parents: Column of the branch that each node grows from. Shape: (n,), int64.
            edge: Edge of the level above that leads to each node. Shape: (n,), int64.
            depth: Of the nodes.
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
        self._tree.add(depth, Level(columns, parent_edge, edges))
