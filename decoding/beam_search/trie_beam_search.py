"""Runs trie beam search: the k best rows, with a certificate when the list is proven exact.

All beams of all queries advance in one forward per step over one prompt KV per query. Live prefixes are
ranked by log P_L, for those of one step have one length; finished rows leave the beam and are ranked by log
P_L over length ** length_penalty. Log-probabilities only fall, which bounds what a prefix may still become
(`decoding.beam_search.scoring`). So a query is done when its k-th finished row beats every live prefix's
bound, and its list is the exact top-k when that row also beats the bound of everything that was given up.
Where asked for, the search goes on through what was given up until that is so, or until whatever else the
caller wants to know is (`best_first`, `decoding.beam_search.certificate`).

Ties: of equally likely prefixes the beam takes those whose parents rank first, and of one parent's those
with smaller tokens; of rows with equal scores the list keeps the one finished first, and of one step's the
one that ranks first in the same sense. A certified list is one of the exact ones where scores are equal.

Two ways through the steps find the same. `trimmed_walk` asks the device after every step how many prefixes
live, and computes no others. On a CPU that costs nothing. `static_walk` never asks: every query has as many
slots as the widest beam of the batch and every prefix as many children as the widest of its depth, and
whether anything lives at all is read late. What that computes in vain a CUDA device computes side by side;
what it saves is several waits per step.

`best_first` follows a beam search that has to be exact. A dropped prefix matters as long as its optimistic
score exceeds that of the k-th row. Every prefix whose optimistic score exceeds the *final* k-th row's has to
be computed before the list is certain; the others need not be, and the most promising open prefix is never
one of those. With a goal, which needs the best score of anything unseen to fall below a mark that nobody
knows beforehand, the same is true of the prefixes above that mark; the list that rules prefixes out is then
as long as the goal asks for. A forward that computed the best one alone would waste the model, which
computes some dozens of tokens at nearly the price of one. So a query goes on where its most promising prefix
is, and takes along the prefixes of the same length among its `beam_size` most promising: the likeliest to be
needed as well, at a small risk to the budget. What a query does next depends on nothing but the query, so
that it gets the same list whatever else is in the batch. A forward writes at one depth: it serves the
queries that are about to go on there, the others wait. The depth that most queries ask for is served; of
several the longest, for no reason but to choose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from decoding.beam_search.candidates import MAX_CELLS, Candidates, PaddedBuilder, likeliest, listed
from decoding.beam_search.certificate import Goal, Nodes
from decoding.beam_search.search_state import BeamResult, Frontier, Search
from decoding.cancellation import CancelToken
from decoding.constraints import Constraint, StaticConstraint, WideConstraint
from decoding.errors import DecodingCancelledError, InvalidLogitsError
from decoding.language_model import DecodeSession
from decoding.late_flag import LateFlag
from decoding.params import BeamParams
from decoding.stopping import StopPoll
from decoding.trace import Trace


def beam_search(
    session: DecodeSession,
    constraint: Constraint,
    params: Sequence[BeamParams],
    cancel: Sequence[CancelToken | None] | None = None,
    room: Sequence[int | None] | None = None,
    goals: Sequence[Goal | None] | None = None,
    traces: Sequence[Trace | None] | None = None,
) -> list[BeamResult | DecodingCancelledError]:
    """Find the best rows of the constraint for every query of a session.

    Args:
        session: Prefilled prompts, nothing written behind them. Q queries.
        constraint: What may be written.
        params: One per query; they may differ in everything. Length Q.
        cancel: Polled before every step; a cancelled query leaves the batch, the others go on.
        room: Most tokens that may be written per query, None for no bound; prefixes that reach it count
            as pruned.
        goals: What exact queries go on for, until it is proven or their budget is spent; None for the k best
            rows. The beam search that comes first is that of k, and the list may become as long as the goal
            asks for.
        traces: What each query's search is written into, None for none. The results are the same.

    Returns:
        One result per query, or the error that ended it.

    Raises:
        InvalidLogitsError: the model returned NaN or infinite logits.
        ValueError: the length of `params`, `cancel`, `room`, `goals` or `traces` is not Q; a query with a
            goal is not exact, or its goal wants fewer rows than k.
    """
    num_queries = session.root_logits.shape[0]
    if len(params) != num_queries:
        raise ValueError(f"params must have one entry per query ({num_queries}), got {len(params)}")
    stop = StopPoll(num_queries, cancel, room, session.root_logits.device)
    search = Search(session, constraint, params, stop, room, goals)
    if traces is not None:
        search.record(traces, counts=not is_wide(search))
    walk = static_walk if suits_static(search) else trimmed_walk
    walk(search)
    best_first(search)
    if search.recorder is not None:
        search.recorder.finish(search)
    return [stop.error(query) or result for query, result in enumerate(search.results())]


def is_wide(search: Search) -> bool:
    """Whether the likeliest tokens are looked at instead of all that may follow."""
    return isinstance(search.constraint, WideConstraint) and search.constraint.is_wide


def suits_static(search: Search) -> bool:
    """Whether a search can do without waiting for the device, and gains by it.

    Prefixes that are kept to be gone on from, or that are recorded, are brought to the host, which waits for
    them.
    """
    static = isinstance(search.constraint, StaticConstraint) and not is_wide(search)
    return static and search.device.type == "cuda" and not search.open and search.recorder is None


def trimmed_walk(search: Search) -> None:
    """Take steps over live prefixes only, until none is left.

    Raises:
        InvalidLogitsError: the model returned NaN or infinite logits.
    """
    beams, constraint = search.beams, search.constraint
    builder = _Likeliest(search) if is_wide(search) else None
    logits = search.session.root_logits.unsqueeze(1)  # (Q, 1, V)
    for depth in range(max(1, constraint.max_depth)):
        beams.give_up(search.stop.dropped_queries(depth))
        if builder is not None:
            candidates = builder.candidates(logits)
        else:
            candidates = listed(constraint, beams.states, beams.logprob, logits)
        parents, tokens = search.advance(candidates, bool(candidates.final.any()))
        slots = beams.trim()
        if not slots or depth + 1 >= constraint.max_depth:
            break
        logits = search.write(parents[:, :slots], tokens[:, :slots])
    _give_up_all(search)


def static_walk(
    search: Search, new_flag: Callable[[int, torch.device], LateFlag] = LateFlag, max_cells: int = MAX_CELLS
) -> None:
    """Take steps of fixed shapes until the device has said that nothing is left.

    Args:
        search: What is searched; its constraint lists its children padded.
        new_flag: Makes what tells the host, late, whether to go on, from a number of booleans and a device.
        max_cells: Children looked at in one piece.

    Raises:
        TypeError: the constraint cannot list its children padded.
        InvalidLogitsError: the model returned NaN or infinite logits.
    """
    constraint = search.constraint
    if not isinstance(constraint, StaticConstraint):
        raise TypeError(f"{type(constraint).__name__} does not list its children padded")
    builder = PaddedBuilder(constraint, search.beams.widest + 1, search.finished.most, max_cells)
    flag = new_flag(2, search.device)
    _static_steps(search, builder, flag)
    _goes_on(flag.last())  # raises if what the loop did not live to see was broken


def _static_steps(search: Search, builder: PaddedBuilder, flag: LateFlag) -> None:
    """Nothing here waits for the device, but for a flag whose answer the host is several steps ahead of."""
    beams, max_depth = search.beams, search.constraint.max_depth
    logits = search.session.root_logits.unsqueeze(1)  # (Q, 1, V)
    broken = torch.zeros((), dtype=torch.bool, device=search.device)
    for depth in range(max(1, max_depth)):
        beams.give_up(search.stop.dropped_queries(depth))
        candidates, broken_here = builder.padded(beams.states, beams.logprob, logits, depth)
        broken = broken | broken_here
        parents, tokens = search.advance(candidates)
        flag.put(torch.stack([(beams.states >= 0).any(), broken]))
        if not _goes_on(flag.latest()) or depth + 1 >= max_depth:
            break
        logits = search.write(parents, tokens)
    _give_up_all(search)


def _give_up_all(search: Search) -> None:
    """Whatever still lives at the end has not been finished."""
    search.beams.give_up(torch.ones_like(search.beams.pruned, dtype=torch.bool))


def _goes_on(flags: tuple[bool, ...] | None) -> bool:
    """Return whether prefixes live, as far as is known.

    Raises:
        InvalidLogitsError: the logits of a live prefix were broken.
    """
    if flags is None:
        return True
    alive, broken = flags
    if broken:
        raise InvalidLogitsError("the model returned NaN or infinite logits on a branch of the beam")
    return alive


class _Likeliest:
    """Continuations where most of the vocabulary may follow.

    Twice as many tokens are looked at as can enter the beam or the list, and one more of each: most states of
    such a constraint allow nearly everything. A query that is to be certified has all of them listed, for
    it must be able to go on from any.
    """

    def __init__(self, search: Search) -> None:
        self._search = search
        vocab = search.session.root_logits.shape[1]
        wanted = [vocab if p.exact else min(vocab, 2 * (max(p.k, p.width) + 1)) for p in search.params]
        self._most = max((m for m in wanted if m < vocab), default=1)
        self._looked_at = torch.tensor(wanted, device=search.device)

    def candidates(self, logits: Tensor) -> Candidates:
        """List continuations of the live prefixes; what is left out counts as pruned."""
        beams = self._search.beams
        found, left_out = likeliest(
            self._search.constraint, beams.states, beams.logprob, logits, self._looked_at, self._most
        )
        beams.left_out(left_out)
        return found


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
