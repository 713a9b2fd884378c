"""Runs trie beam search: the k best rows, with a certificate when the list is proven exact.

All beams of all queries advance in one forward per step over one prompt KV per query. Live prefixes of a step
have one length and are ranked by log P_L; finished rows leave the beam and are ranked by log P_L over length
** length_penalty. Log-probabilities only fall, which bounds the score a prefix may reach
(`decoding.beam_search.beams`). A query is done when its k-th finished row beats the bound of every live
prefix; its list is the exact top-k if that row also beats the bound of everything given up. Ties: among
equally likely prefixes those come first whose parents rank first, then those with smaller tokens; among rows
with equal scores the one finished first, then in the same sense.

`trimmed_walk` asks the device after every step how many prefixes live, and computes no others; on a CPU
asking costs nothing. `static_walk` finds the same and never asks: every query has as many slots as the widest
beam of the batch, every prefix as many children as the widest of its depth, and whether anything still lives
is read late.

`best_first` follows for exact queries, until the list is certified or the caller's goal is reached. A forward
for the most promising open prefix alone would waste the model, which computes some dozens of tokens at nearly
the price of one. So a query takes along the prefixes of the same depth among its `beam_size` most promising:
the likeliest to be needed as well, at a small risk to the budget. The choice depends on nothing but the
query, so its list does not depend on the batch. A forward writes at one depth: the one most queries ask for,
the largest if several tie.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from genret.decoding.beam_search.beams import Candidates, likeliest, listed, padded
from genret.decoding.beam_search.search_state import BeamResult, Frontier, Goal, Nodes, Search
from genret.decoding.cancellation import CancelToken
from genret.decoding.constraints import Constraint, StaticConstraint, WideConstraint
from genret.decoding.errors import DecodingCancelledError
from genret.decoding.language_model import DecodeSession
from genret.decoding.late_flag import LateFlag, goes_on
from genret.decoding.params import BeamParams
from genret.decoding.stopping import StopPoll
from genret.decoding.trace import Trace

# Place of broken logits, for their error.
_BROKEN = "a branch of the beam"


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
        constraint: The constraint.
        params: One per query; they may differ in everything. Length Q.
        cancel: Polled before every step; a cancelled query leaves the batch, the others go on.
        room: Most tokens that may be written per query, None for no bound; prefixes that reach it count as
            pruned.
        goals: Goals of exact queries, followed until they are proven or the budget is spent; None for the k
            best rows. The beam search that comes first is for k; the list may become as long as the goal
            asks.
        traces: Traces to write each query's search into, None for none. The results are the same.

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
    """Whether only the likeliest tokens are candidates, not all that may follow."""
    return isinstance(search.constraint, WideConstraint) and search.constraint.is_wide


def suits_static(search: Search) -> bool:
    """Whether a search can do without waiting for the device, and gains by it.

    Open prefixes and traces are brought to the host, which waits for the device.
    """
    static = isinstance(search.constraint, StaticConstraint) and not is_wide(search)
    return static and search.device.type == "cuda" and not search.open and search.recorder is None


def trimmed_walk(search: Search) -> None:
    """Take steps over live prefixes only, until none is left."""
    beams, constraint = search.beams, search.constraint
    candidates_of = _lister(search)
    logits = search.session.root_logits.unsqueeze(1)  # (Q, 1, V)
    for depth in range(max(1, constraint.max_depth)):
        beams.give_up(search.stop.dropped_queries(depth))
        candidates = candidates_of(logits)
        parents, tokens = search.advance(candidates, bool(candidates.final.any()))
        slots = beams.trim()
        if not slots or depth + 1 >= constraint.max_depth:
            break
        logits = search.write(parents[:, :slots], tokens[:, :slots])
    _give_up_all(search)


def static_walk(search: Search) -> None:
    """Take steps of fixed shapes until the device reports that nothing is left."""
    flag = LateFlag(2, search.device)
    _static_steps(search, flag)
    goes_on(flag.last(), _BROKEN)  # raises for broken logits that the loop ended too early to see


def _static_steps(search: Search, flag: LateFlag) -> None:
    """Take the steps; waits for the device only for a flag of several steps ago."""
    beams, constraint = search.beams, search.constraint
    assert isinstance(constraint, StaticConstraint)  # see `suits_static`
    keep = (beams.widest + 1, search.finished.most)
    logits = search.session.root_logits.unsqueeze(1)  # (Q, 1, V)
    broken = torch.zeros((), dtype=torch.bool, device=search.device)
    for depth in range(max(1, constraint.max_depth)):
        beams.give_up(search.stop.dropped_queries(depth))
        candidates, broken_here = padded(constraint, beams.states, beams.logprob, logits, depth, keep)
        broken = broken | broken_here
        parents, tokens = search.advance(candidates)
        flag.put(torch.stack([(beams.states >= 0).any(), broken]))
        if not goes_on(flag.latest(), _BROKEN) or depth + 1 >= constraint.max_depth:
            break
        logits = search.write(parents, tokens)
    _give_up_all(search)


def _give_up_all(search: Search) -> None:
    """Count the prefixes that still live at the end as pruned."""
    search.beams.give_up(torch.ones_like(search.beams.pruned, dtype=torch.bool))


def _lister(search: Search) -> Callable[[Tensor], Candidates]:
    """Return what lists the continuations of the live prefixes, given their logits; waits for the device.

    Of a constraint that allows most of the vocabulary it lists twice as many tokens as can enter the beam or
    the list, plus two: most states allow nearly everything. Unlisted ones count as pruned. A query that is to
    be certified has all continuations listed, because it may have to continue any.
    """
    beams, constraint = search.beams, search.constraint
    if not is_wide(search):
        return lambda logits: listed(constraint, beams.states, beams.logprob, logits)
    vocab = search.session.root_logits.shape[1]
    wanted = [vocab if p.exact else min(vocab, 2 * (max(p.k, p.width) + 1)) for p in search.params]
    most = max((m for m in wanted if m < vocab), default=1)
    looked_at = torch.tensor(wanted, device=search.device)

    def likeliest_ones(logits: Tensor) -> Candidates:
        found, left_out = likeliest(constraint, beams.states, beams.logprob, logits, looked_at, most)
        beams.count_pruned(left_out)
        return found

    return likeliest_ones


def best_first(search: Search) -> None:
    """Compute open prefixes until every list is certain, its goal reached, or its budget spent."""
    session, members = search.session, list(range(len(search.params)))
    while True:
        search.stop.poll()
        waiting = _waiting(search)
        if not waiting:
            return
        if 2 * len(waiting) <= len(members):
            # Queries that are done would be computed as padding. Selecting only when half are left keeps all
            # copies together as cheap as the first.
            session = session.select([members.index(query) for query in waiting], branches=True)
            members = waiting
        _step(search, session, members, *_plan(search, waiting))


def _waiting(search: Search) -> list[int]:
    """Queries that are not done and may continue."""
    last_score = search.finished.last_score().tolist()
    able = []
    for query, open_nodes in search.open.items():
        open_nodes.purge(last_score[query])
        spent = search.num_exact_nodes[query] >= search.params[query].exact_budget
        if len(open_nodes.nodes.depth) and not spent and search.stop.error(query) is None:
            able.append(query)
    search.ask_goals(able)
    return [query for query in able if not search.goals.reached(query)]


def _plan(search: Search, waiting: list[int]) -> tuple[int, dict[int, Nodes]]:
    """Return the depth that a forward computes, and the prefixes of that many tokens, by query."""
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
    return chosen, nodes


def _step(
    search: Search, session: DecodeSession, members: list[int], depth: int, planned: dict[int, Nodes]
) -> None:
    """Compute prefixes and sort their continuations into finished rows and open prefixes."""
    parents, tokens, states, logprob = _rectangles(search, planned)
    rows = torch.tensor(members, device=search.device)
    computed = session.step(parents[rows], tokens[rows], depth)
    first = search.written.add(depth, parents, tokens)
    search.num_steps += 1
    for query, nodes in planned.items():
        search.num_exact_nodes[query] += len(nodes.depth)
    search.num_nodes = search.num_nodes + (states >= 0).sum(dim=1)
    found = listed(search.constraint, states[rows], logprob[rows], computed)
    found = found.spread(rows, len(search.params))._replace(slot=found.slot + first)
    if search.recorder is not None:
        continued = Frontier(depth, first, states, logprob)
        for query, nodes in planned.items():
            search.recorder.computed(query, nodes, continued, found)
    if bool(found.final.any()):
        search.finished.take(found, depth + 1)
    search.keep_open(found, found.open_logprob(), depth + 1)


def _rectangles(search: Search, planned: dict[int, Nodes]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Parents, tokens, states and logprobs of prefixes, one row per query of the batch. Shapes: (Q, B)."""
    shape = (len(search.params), max(len(nodes.depth) for nodes in planned.values()))
    parents, states = np.full(shape, -1, dtype=np.int64), np.full(shape, -1, dtype=np.int64)
    tokens, logprob = np.zeros(shape, dtype=np.int64), np.full(shape, -np.inf)
    for query, nodes in planned.items():
        here = slice(len(nodes.depth))
        parents[query, here], states[query, here] = nodes.parent, nodes.state
        tokens[query, here], logprob[query, here] = nodes.token, nodes.logprob
    return (
        torch.from_numpy(parents).to(search.device),
        torch.from_numpy(tokens).to(search.device),
        torch.from_numpy(states).to(search.device),
        torch.from_numpy(logprob).to(search.device),
    )
