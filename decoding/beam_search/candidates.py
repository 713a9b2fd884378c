"""Lists the candidates of one step of a beam search: all continuations of all live prefixes, per query.

Three ways give the same continuations in the same order (by parent, then by token):

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
)
from genret.decoding.params import BeamParams


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
    valid = following >= 0
    short = (valid.sum(dim=1) < wanted // 2) | (wanted >= vocab)
    exact = constraint.children(torch.where(short, flat, -1))
    owner, column = torch.nonzero(valid & ~short.unsqueeze(1), as_tuple=True)
    owners = torch.cat([owner, exact.owner])
    sorted_by = torch.argsort(owners, stable=True)
    owners = owners[sorted_by]
    token = torch.cat([top[owner, column], exact.token])[sorted_by]
    state = torch.cat([following[owner, column], exact.next_state])[sorted_by]
    gained = rows[owners, token].double() - normaliser[owners].double()
    left_out = logprob.flatten() + (last.squeeze(1).double() - normaliser.double())
    left_out = left_out.masked_fill(short | (flat < 0), -math.inf).view(queries, branches)
    return laid_out(constraint, Edges(owners, token, state, gained), logprob), left_out


class PaddedBuilder:
    """Lists every continuation in a fixed number of columns, without waiting for the device.

    Of each query no more than `keep_open` unfinished and `keep_final` row-completing continuations are
    needed; `max_cells` children are handled in one piece.
    """

    def __init__(
        self, constraint: StaticConstraint, keep_open: int, keep_final: int, max_cells: int = MAX_CELLS
    ) -> None:
        self._constraint = constraint
        self._keep_open = keep_open
        self._keep_final = keep_final
        self._max_cells = max_cells

    def padded(
        self, states: Tensor, logprob: Tensor, logits: Tensor, depth: int
    ) -> tuple[Candidates, Tensor]:
        """List every continuation; if the prefixes do not fit into one piece, only the best of every prefix.

        Arguments are as in `listed`, with the `depth` of the prefixes. Returns the candidates, and whether
        the logits of a live prefix were broken, (), bool; the candidates are then meaningless.
        """
        queries, branches, _ = logits.shape
        flat, before, rows = states.flatten(), logprob.flatten(), logits.flatten(0, 1)
        normaliser = log_normalisers(rows)
        broken = (~torch.isfinite(normaliser) & (flat >= 0)).any()
        width = max(1, self._constraint.width_at(depth))
        step = max(1, self._max_cells // width)
        pieces = [
            self._piece(flat[here], before[here], rows[here], normaliser[here], width, len(flat) > step)
            for here in (slice(first, first + step) for first in range(0, len(flat), step))
        ]
        total, token, next_state, final = (torch.cat(columns) for columns in zip(*pieces, strict=True))
        shape = (queries, branches * token.shape[1])
        edge = torch.arange(token.numel(), device=token.device)
        slot = torch.div(edge, token.shape[1], rounding_mode="floor") % branches
        return (
            Candidates(
                total.view(shape),
                edge.view(shape),
                final.view(shape),
                slot,
                token.flatten(),
                next_state.flatten(),
            ),
            broken,
        )

    def _piece(
        self, states: Tensor, before: Tensor, logits: Tensor, normaliser: Tensor, width: int, reduce: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(log P_L, token, next state, final) of the continuations of some prefixes. Shapes: (n, columns)."""
        token, next_state = self._constraint.padded_children(states, width)
        gained = logits.gather(1, token.clamp(min=0)).double() - normaliser.double().unsqueeze(1)
        total = torch.where(next_state >= 0, before.unsqueeze(1) + gained, -math.inf)
        final = self._constraint.is_final(next_state.flatten()).view(next_state.shape)
        if not reduce:
            return total, token, next_state, final
        kept = [
            best_columns(total.masked_fill(hidden, -math.inf), min(most, width))
            for hidden, most in ((final, self._keep_open), (~final, self._keep_final))
        ]
        columns = torch.cat([best.columns for best in kept], dim=1)
        values = torch.cat([best.values for best in kept], dim=1)
        return values, token.gather(1, columns), next_state.gather(1, columns), final.gather(1, columns)


# Tokens per group; a group's largest logit decides whether its tokens are compared one by one.
_GROUP = 32


def top_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest logits of every row, (n, V), largest first, and their tokens. Shapes: (n,
    count).

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
    """Pick the `count` largest values of every row, (Q, C), no NaN; among equal ones those further left, in
    that order.

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
