"""Holds the live prefixes and finished rows of a beam search, and lists the candidates of one step.

Live prefixes stand likeliest first, finished rows by score; every tensor has one row per query. Candidates
are all continuations of all live prefixes. Three ways give the same ones in the same order (by parent, then
by token):

- `listed`: exactly the existing ones, ragged. It waits for the device, so it is the way on a CPU.
- `padded`: as many columns for every prefix as the widest of its depth needs. Shapes are known beforehand and
  nothing waits for the device.
- `likeliest`: for constraints that allow most of the vocabulary, the likeliest allowed tokens (`top_tokens`).
  The only way that leaves continuations out; it bounds their probability.

`Scoring` scores rows under a length penalty and bounds the scores that prefixes may reach. It waits for no
device, and neither does `best_columns`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from genret.decoding.constraints import (
    MAX_CELLS,
    Constraint,
    Edges,
    StaticConstraint,
    check_normalisers,
    expand,
    log_normalisers,
    verified_children,
)
from genret.decoding.params import BeamParams


class Selection(NamedTuple):
    """The outcome of one step."""

    parents: Tensor  # Slot that every new prefix continues, -1 for dead slots. Shape: (Q, B), int64
    tokens: Tensor  # Token that it adds, 0 for dead slots. Shape: (Q, B), int64
    columns: Tensor  # Candidate of every new prefix, meaningless for dead slots. Shape: (Q, B), int64
    # Log-probability of the best candidate not taken, -inf without one. Shape: (Q, 1), float64.
    rejected: Tensor

    def refused(self, candidates: Candidates) -> Tensor:
        """Log-probabilities of unfinished candidates not taken, -inf elsewhere. Shape: (Q, C), float64."""
        logprob = candidates.open_logprob()
        taken = torch.where(self.parents >= 0, -math.inf, math.inf).to(logprob.dtype)
        return logprob.scatter_reduce(1, self.columns, taken, "amin")


class Beams:
    """Live prefixes of Q queries. A dead slot has state -1 and logprob -inf; live ones stand first.

    Prefixes of one step have one length and are ranked by log-probability; ties by their parent's rank, then
    by the smaller token. `logprob` is (Q, B), float64; `pruned` the best score that anything given up could
    still have reached, (Q,), float64.
    """

    def __init__(
        self, constraint: Constraint, params: Sequence[BeamParams], scoring: Scoring, device: torch.device
    ) -> None:
        self._scoring = scoring
        self._width = torch.tensor([[p.width] for p in params], device=device)  # (Q, 1)
        self.widest = max(p.width for p in params)  # The largest beam size of the batch
        queries = torch.arange(len(params), device=device)
        self.states = constraint.start(queries).unsqueeze(1)  # Shape: (Q, B), int64
        self.logprob = torch.zeros((len(params), 1), dtype=torch.float64, device=device)
        self.depth = 0  # Tokens on the prefixes
        self.pruned = torch.full((len(params),), -math.inf, dtype=torch.float64, device=device)

    def bound(self) -> Tensor:
        """Best score that a live prefix may still reach, -inf without one. Shape: (Q,), float64."""
        return self._most_score(self.logprob)

    def _most_score(self, logprob: Tensor) -> Tensor:
        """Best score below any of some prefixes as long as the live ones. Shapes: (Q, n) to (Q,), float64."""
        best = logprob.max(dim=1, keepdim=True).values
        return self._scoring.optimistic(best, self.depth).squeeze(1)

    def count_pruned(self, logprob: Tensor, queries: Tensor | None = None) -> None:
        """Count prefixes of some queries, (Q,), bool, as pruned; None: of all. (Q, n), -inf for none."""
        lost = self._most_score(logprob)
        if queries is not None:
            lost = lost.masked_fill(~queries, -math.inf)
        self.pruned = torch.maximum(self.pruned, lost)

    def give_up(self, queries: Tensor) -> None:
        """Drop the live prefixes of queries and count them as pruned. `queries` shape: (Q,), bool."""
        self.count_pruned(self.logprob, queries)
        self._kill(queries)

    def stop_beaten(self, kth_score: Tensor) -> Tensor:
        """End the queries whose live prefixes cannot beat the score of the k-th row, (Q,).

        Returns whether a query has no live prefix now. Shape: (Q,), bool.
        """
        beaten = kth_score >= self.bound()
        self._kill(beaten)
        return beaten

    def _kill(self, queries: Tensor) -> None:
        self.logprob = self.logprob.masked_fill(queries.unsqueeze(1), -math.inf)
        self.states = self.states.masked_fill(queries.unsqueeze(1), -1)

    def advance(self, candidates: Candidates) -> Selection:
        """Make the likeliest unfinished candidates the live prefixes. Refused ones do not count as pruned."""
        logprob = candidates.open_logprob()
        best = best_columns(logprob, self.widest + 1)  # one more than kept: the best one refused
        rejected = best.values.gather(1, self._width)
        columns = torch.arange(self.widest, device=logprob.device)
        kept = best.values[:, :-1].masked_fill(columns >= self._width, -math.inf)
        live = torch.isfinite(kept)
        edge = candidates.edge.gather(1, best.columns[:, :-1])
        self.logprob = kept
        self.states = torch.where(live, candidates.next_state[edge], -1)
        self.depth += 1
        return Selection(
            parents=torch.where(live, candidates.slot[edge], -1),
            tokens=torch.where(live, candidates.token[edge], 0),
            columns=best.columns[:, :-1],
            rejected=rejected,
        )

    def trim(self) -> int:
        """Drop slots that no query needs, since each would cost a forward of its token. Waits for the device.

        Returns:
            Slots that some query needs, 0 if none lives; one dead slot is then left.
        """
        slots = int((self.states >= 0).sum(dim=1).max())
        left = max(1, slots)
        self.states, self.logprob = self.states[:, :left], self.logprob[:, :left]
        return slots


class Finished:
    """The best finished rows of Q queries, best first: as many columns as some query needs.

    The columns for the largest k of the batch exist from the start. Queries that keep more rows (`num_rows`)
    get columns as rows are found, which waits for the device. Ties: the row finished first stands first;
    within a step the parent's rank decides, then the smaller token.

    Attributes:
        most: Most columns there may be: the largest of `num_rows`. A query's own rows are the first ones.
        score: -inf for no row. Shape: (Q, K), float64.
        slot: Branch that the last token was written on. Shape: (Q, K), int64, like `length`, `token` and
            `state`.
    """

    def __init__(
        self,
        params: Sequence[BeamParams],
        scoring: Scoring,
        device: torch.device,
        num_rows: Sequence[int],
    ) -> None:
        self._scoring = scoring
        self._kth = torch.tensor([[p.k - 1] for p in params], device=device)  # (Q, 1)
        self._last = torch.tensor([[count - 1] for count in num_rows], device=device)  # (Q, 1)
        self.most = max(num_rows)
        self._least = max(p.k for p in params)
        shape = (len(params), self._least)
        self.score = torch.full(shape, -math.inf, dtype=torch.float64, device=device)
        self.logprob = self.score  # Shape: (Q, K), float64
        self.length, self.slot, self.token, self.state = (
            torch.zeros(shape, dtype=torch.int64, device=device) for _ in range(4)
        )

    def kth_score(self) -> Tensor:
        """Score of the k-th row, -inf while there are fewer. Shape: (Q,), float64."""
        return self.score.gather(1, self._kth).squeeze(1)

    def last_score(self) -> Tensor:
        """Score of the last row a query keeps, -inf while it has room for more. Shape: (Q,), float64.

        Rows that cannot beat it change nothing any more.
        """
        if self.most == self._least:
            return self.score.gather(1, self._last).squeeze(1)
        columns = self.score.shape[1]
        last = self.score.gather(1, self._last.clamp(max=columns - 1))
        return last.masked_fill(self._last >= columns, -math.inf).squeeze(1)

    def kept(self) -> Tensor:
        """Mask of the rows that queries keep. Shape: (Q, K), bool."""
        columns = torch.arange(self.score.shape[1], device=self.score.device)
        return torch.isfinite(self.score) & (columns <= self._last)

    def take(self, candidates: Candidates, length: int) -> None:
        """Add the candidates that complete a row of `length` tokens."""
        found = best_columns(candidates.final_logprob(), min(self.most, candidates.final.shape[1]))
        edge = candidates.edge.gather(1, found.columns)
        score = torch.cat([self.score, self._scoring.scores(found.values, length)], dim=1)
        columns = self._least
        if self.most > columns:
            columns = min(self.most, max(columns, int(torch.isfinite(score).sum(dim=1).max())))
        best = best_columns(score, columns)

        def merged(old: Tensor, new: Tensor) -> Tensor:
            return torch.cat([old, new], dim=1).gather(1, best.columns)

        self.score = best.values
        self.logprob = merged(self.logprob, found.values)
        self.length = merged(self.length, torch.full_like(edge, length))
        self.slot = merged(self.slot, candidates.slot[edge])
        self.token = merged(self.token, candidates.token[edge])
        self.state = merged(self.state, candidates.next_state[edge])


class Candidates(NamedTuple):
    """Continuations of the live prefixes of Q queries, one row per query.

    The first three are rectangles; the others are flat lists that `edge` points into.
    """

    logprob: Tensor  # log P_L of the prefix with its continuation, -inf for padding. Shape: (Q, C), float64
    edge: Tensor  # Number of the continuation, 0 for padding. Shape: (Q, C), int64
    final: Tensor  # Whether it completes a row. Shape: (Q, C), bool
    slot: Tensor  # Branch of its query that is continued. Shape: (E,), int64
    token: Tensor  # Shape: (E,), int64
    next_state: Tensor  # Shape: (E,), int64

    def open_logprob(self) -> Tensor:
        """Log-probabilities of unfinished candidates, -inf elsewhere. Shape: (Q, C), float64."""
        return self.logprob.masked_fill(self.final, -math.inf)

    def final_logprob(self) -> Tensor:
        """Log-probabilities of candidates that complete a row, -inf elsewhere. Shape: (Q, C), float64."""
        return self.logprob.masked_fill(~self.final, -math.inf)

    def spread(self, queries: Tensor, num_queries: int) -> Candidates:
        """Return the candidates of some queries, (Q,), as those of the whole batch of `num_queries`."""
        shape = (num_queries, self.logprob.shape[1])
        return self._replace(
            logprob=self.logprob.new_full(shape, -math.inf).index_copy(0, queries, self.logprob),
            edge=self.edge.new_zeros(shape).index_copy(0, queries, self.edge),
            final=self.final.new_zeros(shape).index_copy(0, queries, self.final),
        )


def listed(constraint: Constraint, states: Tensor, logprob: Tensor, logits: Tensor) -> Candidates:
    """List every continuation of the live prefixes.

    Shapes: states (Q, B), -1 for none; logprob (Q, B), log P_L of every prefix; logits (Q, B, V). Raises
    InvalidLogitsError if logits of a live prefix hold NaN or +inf, or are -inf everywhere.
    """
    return laid_out(constraint, expand(constraint, states.flatten(), logits.flatten(0, 1)), logprob)


def laid_out(constraint: Constraint, edges: Edges, logprob: Tensor) -> Candidates:
    """Lay continuations of flattened prefixes, (Q, B), out as one row per query. Waits for the device."""
    queries, branches = logprob.shape
    count = len(edges.owner)
    if not count:
        nothing = edges.owner.new_zeros(1)
        edges = Edges(nothing, nothing, nothing - 1, logprob.new_full((1,), -math.inf))
    query = torch.div(edges.owner, branches, rounding_mode="floor")
    counts = torch.bincount(query, minlength=queries)
    column = torch.arange(len(query), device=query.device) - (counts.cumsum(0) - counts)[query]
    shape = (queries, int(counts.max()))
    total = logprob.new_full(shape, -math.inf)
    total[query, column] = logprob.flatten()[edges.owner] + edges.logprob
    edge = query.new_zeros(shape)
    edge[query, column] = torch.arange(len(query), device=query.device)
    final = torch.zeros(shape, dtype=torch.bool, device=query.device)
    if count:
        final[query, column] = constraint.is_final(edges.next_state)
    return Candidates(total, edge, final, edges.owner % branches, edges.token, edges.next_state)


def likeliest(
    constraint: Constraint, states: Tensor, logprob: Tensor, logits: Tensor, looked_at: Tensor, most: int
) -> tuple[Candidates, Tensor]:
    """List the likeliest continuations of every prefix; all of them if few are among the likeliest tokens.

    With M tokens per prefix, the allowed ones among the likeliest M - 1 are listed. Tokens as likely as the
    M-th are left out as well, so that the order in which a device returns equal logits makes no difference.
    If fewer than M / 2 remain, every continuation is listed instead.

    `looked_at`, (Q,), is M by query; from V on every continuation is listed, and no M below V exceeds `most`.
    The others are as in `listed`. Returns the candidates, and per prefix the largest log P_L that an unlisted
    continuation can have, -inf if there is none, (Q, B), float64.
    """
    queries, branches, vocab = logits.shape
    flat, rows = states.flatten(), logits.flatten(0, 1)
    normaliser = log_normalisers(rows, flat)
    check_normalisers(normaliser, flat)
    wanted = looked_at.repeat_interleave(branches, output_size=queries * branches)  # (n,)
    values, tokens = top_tokens(rows, max(1, min(most, vocab)))
    last = values.gather(1, (wanted - 1).clamp(max=values.shape[1] - 1).unsqueeze(1))
    top, order = tokens.sort(dim=1)
    above = values.gather(1, order) > last
    following = torch.where(above, constraint.verify(flat, top), -1)
    short = ((following >= 0).sum(dim=1) < wanted // 2) | (wanted >= vocab)
    owners, token, state = verified_children(constraint, flat, top, following, short)
    gained = rows[owners, token].double() - normaliser[owners].double()
    left_out = logprob.flatten() + (last.squeeze(1).double() - normaliser.double())
    left_out = left_out.masked_fill(short | (flat < 0), -math.inf).view(queries, branches)
    return laid_out(constraint, Edges(owners, token, state, gained), logprob), left_out


def padded(
    constraint: StaticConstraint,
    states: Tensor,
    logprob: Tensor,
    logits: Tensor,
    depth: int,
    keep: tuple[int, int],
) -> tuple[Candidates, Tensor]:
    """List every continuation in a fixed number of columns, without waiting for the device.

    If the prefixes, of `depth` tokens, do not fit into one piece of `MAX_CELLS` children, only the best of
    every prefix are listed: at least as many unfinished and row-completing ones as `keep` says. Other
    arguments are as in `listed`. Returns the candidates, and whether the logits of a live prefix were broken,
    (), bool; the candidates are then meaningless.
    """
    queries, branches, _ = logits.shape
    flat, before, rows = states.flatten(), logprob.flatten(), logits.flatten(0, 1)
    normaliser = log_normalisers(rows)
    broken = (~torch.isfinite(normaliser) & (flat >= 0)).any()
    width = max(1, constraint.width_at(depth))
    step = max(1, MAX_CELLS // width)
    pieces = []
    for here in (slice(first, first + step) for first in range(0, len(flat), step)):
        piece = _padded_piece(constraint, flat[here], before[here], rows[here], normaliser[here], width)
        pieces.append(piece if len(flat) <= step else _reduced(*piece, keep))
    total, token, next_state, final = (torch.cat(columns) for columns in zip(*pieces, strict=True))
    shape = (queries, branches * token.shape[1])
    edge = torch.arange(token.numel(), device=token.device)
    slot = torch.div(edge, token.shape[1], rounding_mode="floor") % branches
    columns = (total.view(shape), edge.view(shape), final.view(shape), slot)
    return Candidates(*columns, token.flatten(), next_state.flatten()), broken


def _padded_piece(
    constraint: StaticConstraint,
    states: Tensor,
    before: Tensor,
    logits: Tensor,
    normaliser: Tensor,
    width: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(log P_L, token, next state, final) of the continuations of some prefixes. Shapes: (n, width)."""
    token, next_state = constraint.padded_children(states, width)
    gained = logits.gather(1, token.clamp(min=0)).double() - normaliser.double().unsqueeze(1)
    total = torch.where(next_state >= 0, before.unsqueeze(1) + gained, -math.inf)
    return total, token, next_state, constraint.is_final(next_state.flatten()).view(next_state.shape)


def _reduced(
    total: Tensor, token: Tensor, next_state: Tensor, final: Tensor, keep: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The best unfinished and the best row-completing columns of a piece."""
    kept = [
        best_columns(total.masked_fill(hidden, -math.inf), min(most, total.shape[1]))
        for hidden, most in zip((final, ~final), keep, strict=True)
    ]
    values, columns = (torch.cat(parts, dim=1) for parts in zip(*kept, strict=True))
    return values, token.gather(1, columns), next_state.gather(1, columns), final.gather(1, columns)


# Tokens per group; a group's largest logit decides whether its tokens are compared one by one.
_GROUP = 32


def top_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest logits of every row, (n, V), in order, and their tokens. Shapes: (n, count).

    A token among the `count` likeliest lies in one of the `count` groups with the largest maxima, so only
    those groups are searched. (15 rows of 32k, 32 tokens, one busy core: 0.6 ms instead of 2.3.) The choice
    among tokens that tie for the last place is left open, as by `torch.topk`. No NaN.
    """
    rows, vocab = logits.shape
    groups = vocab // _GROUP
    if groups <= 2 * count:
        values, tokens = logits.topk(count, dim=1)
        return values, tokens
    # Group g is tokens g, g + groups, g + 2 * groups, …: a maximum over strides runs over whole vectors.
    in_groups = groups * _GROUP
    largest = logits[:, :in_groups].reshape(rows, _GROUP, groups).amax(dim=1)
    chosen = largest.topk(count, dim=1, sorted=False).indices
    strides = torch.arange(0, in_groups, groups, device=logits.device)
    rest = torch.arange(in_groups, vocab, device=logits.device).expand(rows, -1)
    tokens = torch.cat([(chosen.unsqueeze(2) + strides).flatten(1), rest], dim=1)
    best = logits.gather(1, tokens).topk(count, dim=1)
    return best.values, tokens.gather(1, best.indices)


# Most columns that are sorted whole; with more, the best are picked first.
_SORTED_WHOLE = 512


class Best(NamedTuple):
    """The best columns of every row, best first."""

    values: Tensor  # -inf where a row has no more. Shape: (Q, n), float64
    columns: Tensor  # Their columns; in range, but meaningless, where the value is -inf. Shape: (Q, n), int64


def best_columns(values: Tensor, count: int) -> Best:
    """Pick the `count` largest values of every row, (Q, C), no NaN; of equal ones the leftmost, in order.

    `torch.topk` leaves the choice among equal values open, and devices differ in it. `count` may exceed C.
    """
    columns = values.shape[1]
    if columns <= max(count, _SORTED_WHOLE):
        ordered = values.sort(dim=1, descending=True, stable=True)
        missing = (0, max(0, count - columns))
        best = torch.nn.functional.pad(ordered.values[:, :count], missing, value=-math.inf)
        return Best(best, torch.nn.functional.pad(ordered.indices[:, :count], missing))
    last = values.topk(count, dim=1).values[:, -1:]
    above, equal = values > last, values == last
    left = count - above.sum(dim=1, keepdim=True)
    taken = above | (equal & (equal.cumsum(dim=1) <= left))
    # Exactly `count` are taken; the largest of these numbers are the taken columns from left to right.
    from_right = torch.arange(columns, 0, -1, device=values.device)
    chosen = columns - torch.where(taken, from_right, 0).topk(count, dim=1).values
    ordered = values.gather(1, chosen).sort(dim=1, descending=True, stable=True)
    return Best(ordered.values, chosen.gather(1, ordered.indices))


class Scoring:
    """Scores of the rows of Q queries, at most `max_depth` long: logprob over length ** length_penalty."""

    def __init__(self, params: Sequence[BeamParams], max_depth: int, device: torch.device) -> None:
        self._max_depth = max_depth
        self._penalty: Tensor | None = None
        if any(p.length_penalty for p in params):
            penalties = [[p.length_penalty] for p in params]
            self._penalty = torch.tensor(penalties, dtype=torch.float64, device=device)  # (Q, 1)

    def scores(self, logprob: Tensor, length: int) -> Tensor:
        """Return the scores of rows of one length. Shapes: (Q, n), float64."""
        if self._penalty is None:
            return logprob
        return logprob / torch.pow(float(length), self._penalty)

    def optimistic(self, logprob: Tensor, depth: int) -> Tensor:
        """Return a bound on the score of every row below prefixes of `depth` tokens. Shapes: (Q, n), float64.

        Log-probabilities only fall. So the best row below a prefix costs nothing more; it is as long as rows
        get if length is rewarded, and otherwise one token longer than the prefix.
        """
        if self._penalty is None:
            return logprob
        shortest = float(depth + 1)
        longest = float(max(self._max_depth, depth + 1))
        rewarded = self._penalty > 0
        divisor = torch.where(rewarded, torch.pow(longest, self._penalty), torch.pow(shortest, self._penalty))
        return logprob / divisor
