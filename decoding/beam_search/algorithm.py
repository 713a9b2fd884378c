"""Trie beam search: the k best rows, with a certificate when the list is proven exact.

All beams of all queries advance in one forward per step over one prompt KV per query. Live prefixes are
ranked by log P_L, for those of one step have one length; finished rows leave the beam and are ranked by log
P_L over length ** length_penalty. Log-probabilities only fall, which bounds what a prefix may still become
(`decoding.beam_search.ranking`). So a query is done when its k-th finished row beats every live prefix's
bound, and its list is the exact top-k when that row also beats the bound of everything that was given up.
Where asked for, the search goes on through what was given up until that is so, or until whatever else the
caller wants to know is (`decoding.beam_search.best_first`, `decoding.beam_search.goal`).

Ties: of equally likely prefixes the beam takes those whose parents rank first, and of one parent's those with
smaller tokens; of rows with equal scores the list keeps the one finished first, and of one step's the one
that ranks first in the same sense. A certified list is one of the exact ones where scores are equal.
"""

from __future__ import annotations

from collections.abc import Sequence

from decoding.beam_search.best_first import best_first
from decoding.beam_search.goal import Goal
from decoding.beam_search.results import BeamResult
from decoding.beam_search.search import Search
from decoding.beam_search.walks import is_wide, static_walk, suits_static, trimmed_walk
from decoding.cancellation import CancelToken
from decoding.errors import DecodingCancelledError
from decoding.language_model import DecodeSession
from decoding.params import BeamParams
from decoding.stopping import StopPoll
from decoding.trace import Trace
from decoding.types import Constraint


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
