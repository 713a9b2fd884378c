"""What follows a beam search that has to be exact: the dropped prefixes that could still matter, best first.

A prefix matters as long as its optimistic score exceeds that of the k-th row. Every prefix whose optimistic
score exceeds the *final* k-th row's has to be computed before the list is certain; the others need not be,
and the most promising open prefix is never one of those. With a goal, which needs the best score of anything
unseen to fall below a mark that nobody knows beforehand, the same is true of the prefixes above that mark;
the list that rules prefixes out is then as long as the goal asks for. A forward that computed the best one
alone would waste the model, which computes some dozens of tokens at nearly the price of one. So a query goes
on where its most promising prefix is, and takes along the prefixes of the same length among its `beam_size`
most promising: the likeliest to be needed as well, at a small risk to the budget.

What a query does next depends on nothing but the query, so that it gets the same list whatever else is in the
batch. A forward writes at one depth: it serves the queries that are about to go on there, the others wait.
The depth that most queries ask for is served; of several the longest, for no reason but to choose.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from decoding.beam_search.candidates import listed
from decoding.beam_search.open_nodes import Nodes
from decoding.beam_search.recorder import Frontier
from decoding.beam_search.search import Search
from decoding.language_model import DecodeSession


class _Plan(NamedTuple):
    """Prefixes of one length that a forward computes, by query."""

    depth: int
    nodes: dict[int, Nodes]


class _Rectangle(NamedTuple):
    """The same as rectangles, one row per query of the batch. Shapes: (Q, B)."""

    parents: Tensor
    tokens: Tensor
    states: Tensor
    logprob: Tensor


def best_first(search: Search) -> None:
    """Compute open prefixes until every list is certain, its goal reached, or its budget spent.

    Raises:
        InvalidLogitsError: the model returned NaN or infinite logits.
    """
    session, members = search.session, list(range(len(search.params)))
    while True:
        search.stop.poll()
        waiting = _waiting(search)
        if not waiting:
            return
        if 2 * len(waiting) <= len(members):
            # Queries that are done would be computed as padding. Each time half of them are left, so all
            # the copying together costs no more than the first.
            session = session.select([members.index(query) for query in waiting], branches=True)
            members = waiting
        _step(search, session, members, _plan(search, waiting))


def _waiting(search: Search) -> list[int]:
    """Queries that are not done and that may go on."""
    last_score = search.finished.last_score().tolist()
    able = []
    for query, open_nodes in search.open.items():
        open_nodes.purge(last_score[query])
        spent = search.num_exact_nodes[query] >= search.params[query].exact_budget
        if len(open_nodes.nodes.depth) and not spent and search.stop.error(query) is None:
            able.append(query)
    search.ask_goals(able)
    return [query for query in able if not search.goals.reached(query)]


def _plan(search: Search, waiting: list[int]) -> _Plan:
    wishes = {}
    for query in waiting:
        left = search.params[query].exact_budget - search.num_exact_nodes[query]
        best = search.open[query].best(min(search.params[query].width, left))
        depths = search.open[query].nodes.depth[best]
        wishes[query] = (int(depths[0]), best[depths == depths[0]])
    votes = Counter(depth for depth, _ in wishes.values())
    chosen = max(votes, key=lambda depth: (votes[depth], depth))
    nodes = {
        query: search.open[query].remove(numbers)
        for query, (depth, numbers) in wishes.items()
        if depth == chosen
    }
    return _Plan(chosen, nodes)


def _step(search: Search, session: DecodeSession, members: list[int], plan: _Plan) -> None:
    """Compute prefixes and sort their continuations into finished rows and open prefixes."""
    frontier = _rectangle(search, plan)
    rows = torch.tensor(members, device=search.device)
    computed = session.step(frontier.parents[rows], frontier.tokens[rows], plan.depth)
    first = search.written.add(plan.depth, frontier.parents, frontier.tokens)
    search.num_steps += 1
    for query, nodes in plan.nodes.items():
        search.num_exact_nodes[query] += len(nodes.depth)
    search.num_nodes = search.num_nodes + (frontier.states >= 0).sum(dim=1)
    # Only the rows of queries that take part are looked at.
    found = listed(search.constraint, frontier.states[rows], frontier.logprob[rows], computed)
    found = found.spread(rows, len(search.params))._replace(slot=found.slot + first)
    if search.recorder is not None:
        continued = Frontier(plan.depth, first, frontier.states, frontier.logprob)
        for query, nodes in plan.nodes.items():
            search.recorder.computed(query, nodes, continued, found)
    if bool(found.final.any()):
        search.finished.take(found, plan.depth + 1)
    search.keep_open(found, found.open_logprob(), plan.depth + 1)


def _rectangle(search: Search, plan: _Plan) -> _Rectangle:
    shape = (len(search.params), max(len(nodes.depth) for nodes in plan.nodes.values()))
    parents, states = np.full(shape, -1, dtype=np.int64), np.full(shape, -1, dtype=np.int64)
    tokens, logprob = np.zeros(shape, dtype=np.int64), np.full(shape, -np.inf)
    for query, nodes in plan.nodes.items():
        here = slice(len(nodes.depth))
        parents[query, here], states[query, here] = nodes.parent, nodes.state
        tokens[query, here], logprob[query, here] = nodes.token, nodes.logprob
    return _Rectangle(
        *(torch.from_numpy(part).to(search.device) for part in (parents, tokens, states, logprob))
    )
