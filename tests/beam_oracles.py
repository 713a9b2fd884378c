"""Beam search worked out by hand: a textbook search, and what a list and its certificate must be.

A row's score is its log-probability divided by length ** length_penalty, the end token included. What a
prefix could still become is bounded by its own log-probability over the kindest length it may yet reach.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import pytest
from torch import Tensor

from genret.decoding.beam_search import BeamResult
from genret.decoding.params import BeamParams
from genret.decoding.trace import Trace
from tests.fakes import tokens_after

Row = tuple[int, ...]

TOLERANCE = 1e-4  # absolute; sums of a dozen logarithms out of float32 logits of up to a hundred


def score(logprob: float, length: int, length_penalty: float) -> float:
    return logprob / length**length_penalty


def optimistic_score(logprob: float, depth: int, max_depth: int, length_penalty: float) -> float:
    """The best score that any continuation of a prefix could have, were all its further tokens certain."""
    return max(score(logprob, length, length_penalty) for length in range(depth + 1, max_depth + 1))


def close(left: float, right: float) -> bool:
    return math.isclose(left, right, rel_tol=1e-5, abs_tol=TOLERANCE)


def at_most(low: float, high: float) -> bool:
    return low <= high or close(low, high)


def inner_prefixes(rows: Iterable[Row]) -> set[Row]:
    """Prefixes that a model has to be run on: neither empty nor a whole row."""
    return {row[:depth] for row in rows for depth in range(1, len(row))}


class ValidTokens:
    """The tokens that continue every prefix of a set of rows, with their log-probabilities.

    Args:
        rows: The rows that may be written; none is a prefix of another.
        next_logprobs: log P(token | prefix) by token.
    """

    def __init__(self, rows: Iterable[Row], next_logprobs: Callable[[Row], Sequence[float]]) -> None:
        self.rows = set(rows)
        self._next_logprobs = next_logprobs
        self._allowed = tokens_after(self.rows)
        self.after = cache(self._after)

    def _after(self, prefix: Row) -> list[tuple[int, float]]:
        """(token, log P(token | prefix)) of every valid token, ascending; none after a whole row."""
        if prefix not in self._allowed:
            return []
        logprobs = self._next_logprobs(prefix)
        return [(token, logprobs[token]) for token in sorted(self._allowed[prefix])]

    def logprob(self, prefix: Row) -> float:
        """log P_L of a row or of a prefix of one."""
        return math.fsum(dict(self.after(prefix[:depth]))[token] for depth, token in enumerate(prefix))

    def log_weight(self, row: Row) -> float:
        """Log of the product of the valid masses met while writing the row: DISC's log x."""
        after = [self.after(row[:depth]) for depth in range(len(row))]
        return math.fsum(math.log(math.fsum(math.exp(logprob) for _, logprob in valid)) for valid in after)


@dataclass(frozen=True, slots=True)
class Listed:
    """One row of a list."""

    score: float
    row: Row


@dataclass(frozen=True, slots=True)
class TextbookResult:
    """What a beam search has to say.

    Attributes:
        found: Best first.
        certified: Whether nothing dropped can beat the k-th.
        best_pruned_score: The best optimistic score of what was dropped.
        num_nodes: Prefixes the model was run on.
        smallest_gap: The closest call among all comparisons: below some tolerance, rounding may decide.
    """

    found: tuple[Listed, ...]
    certified: bool
    best_pruned_score: float
    num_nodes: int
    smallest_gap: float


def textbook_beam_search(
    tokens: ValidTokens, params: BeamParams, max_depth: int, room: int | None = None
) -> TextbookResult:
    """Beam search one prefix at a time, as one would write it on paper.

    Args:
        tokens: The tokens that may be written.
        params: Without `exact`.
        max_depth: Length of the longest row of the constraint.
        room: Most tokens that may be written.
    """
    penalty, k, width = params.length_penalty, params.k, params.width

    def bound(entry: tuple[float, Row]) -> float:
        return optimistic_score(entry[0], len(entry[1]), max_depth, penalty)

    live: list[tuple[float, Row]] = [(0.0, ())]
    pool: list[Listed] = []
    pruned, num_nodes, gaps = -math.inf, 0, [math.inf]
    while live:
        if room is not None and len(live[0][1]) >= room:
            pruned = max(pruned, max(map(bound, live)))
            break
        found = [(lp + step, (*prefix, token)) for lp, prefix in live for token, step in tokens.after(prefix)]
        candidates = sorted((entry for entry in found if entry[0] > -math.inf), reverse=True)
        pool += [Listed(score(lp, len(row), penalty), row) for lp, row in candidates if row in tokens.rows]
        pool = sorted(pool, key=lambda listed: (-listed.score, listed.row))[: k + 1]
        gaps += [high.score - low.score for high, low in itertools.pairwise(pool)]
        pool = pool[:k]
        unfinished = [entry for entry in candidates if entry[1] not in tokens.rows]
        gaps += [high[0] - low[0] for high, low in itertools.pairwise(unfinished[: width + 1])]
        live, dropped = unfinished[:width], unfinished[width:]
        pruned = max([pruned, *map(bound, dropped)])
        if live and len(pool) == k:
            best = max(map(bound, live))
            gaps.append(abs(pool[-1].score - best))
            if pool[-1].score >= best:
                break
        num_nodes += len(live)
    kth = pool[-1].score if len(pool) == k else -math.inf
    if math.isfinite(kth) and math.isfinite(pruned):
        gaps.append(abs(kth - pruned))
    certified = pruned == -math.inf or pruned <= kth
    return TextbookResult(tuple(pool), certified, pruned, num_nodes, min(gaps))


@dataclass(frozen=True, slots=True)
class Truth:
    """Everything there is to know of one query: rows of positive probability with their log-probabilities."""

    logprob: dict[Row, float]
    rows: Sequence[Row]  # of the constraint, by rank; empty where it has no ranks

    def ranking(self, length_penalty: float) -> list[Listed]:
        listed = (Listed(score(lp, len(row), length_penalty), row) for row, lp in self.logprob.items())
        return sorted(listed, key=lambda entry: entry.score, reverse=True)


def truth_of(rows: Sequence[Row], logprobs: Tensor, allowed: Iterable[int] | None = None) -> Truth:
    """Of one query. `logprobs` shape: (N,); `allowed`: ranks, None for all of them."""
    values = logprobs.tolist()
    ranks = range(len(rows)) if allowed is None else allowed
    return Truth({rows[rank]: values[rank] for rank in ranks if values[rank] > -math.inf}, rows)


def scores_of(result: BeamResult, length_penalty: float) -> list[float]:
    return [hypothesis.score(length_penalty) for hypothesis in result.hypotheses]


def kth_score(result: BeamResult, params: BeamParams) -> float:
    """Score of the k-th row, -inf while there are fewer."""
    found = scores_of(result, params.length_penalty)
    return found[params.k - 1] if len(found) >= params.k else -math.inf


def check_list(result: BeamResult, truth: Truth, params: BeamParams) -> None:
    """At most k rows of positive probability, no duplicate, right scores, best first."""
    found = [hypothesis.token_ids for hypothesis in result.hypotheses]
    assert len(set(found)) == len(found) <= params.k
    for hypothesis in result.hypotheses:
        assert hypothesis.token_ids in truth.logprob
        assert close(hypothesis.logprob, truth.logprob[hypothesis.token_ids])
        if truth.rows:
            assert truth.rows[hypothesis.row] == hypothesis.token_ids
        else:
            assert hypothesis.row == -1
    for high, low in itertools.pairwise(scores_of(result, params.length_penalty)):
        assert high >= low or math.isclose(high, low, rel_tol=1e-12)


def is_true_top_k(result: BeamResult, truth: Truth, params: BeamParams) -> bool:
    """Whether the list is the exact top-k; rows whose scores tie may stand for one another."""
    expected = truth.ranking(params.length_penalty)[: params.k]
    found = scores_of(result, params.length_penalty)
    return len(found) == len(expected) and all(
        close(mine, theirs.score) for mine, theirs in zip(found, expected, strict=True)
    )


def check_certificate(result: BeamResult, truth: Truth, params: BeamParams) -> None:
    """The list is valid, the bound covers every row that is not listed, and a certificate is the truth."""
    check_list(result, truth, params)
    kth = kth_score(result, params)
    found = {hypothesis.token_ids for hypothesis in result.hypotheses}
    for entry in truth.ranking(params.length_penalty):
        if entry.row not in found:
            assert at_most(entry.score, max(result.best_pruned_score, kth)), "a row above the bound"
    if result.certified:
        assert at_most(result.best_pruned_score, kth)
        assert is_true_top_k(result, truth, params)
    else:
        assert result.best_pruned_score > kth or close(result.best_pruned_score, kth)


def assert_same_lists(left: Sequence[object], right: Sequence[object], tolerance: float = 0.0) -> None:
    """The same rows, certificates and nodes, with numbers that differ by no more than rounding."""
    for mine, theirs in zip(left, right, strict=True):
        assert isinstance(mine, BeamResult)
        assert isinstance(theirs, BeamResult)
        for a, b in zip(mine.hypotheses, theirs.hypotheses, strict=True):
            assert (a.token_ids, a.row) == (b.token_ids, b.row)
            assert a.logprob == pytest.approx(b.logprob, abs=tolerance, rel=0)
        assert mine.best_pruned_score == pytest.approx(theirs.best_pruned_score, abs=tolerance, rel=0)
        for name in ("certified", "num_nodes", "num_exact_nodes"):
            assert getattr(mine, name) == getattr(theirs, name)


def prefixes_of(trace: Trace) -> list[Row]:
    """Return the tokens of every node of a trace, by its place."""
    written: list[Row] = []
    for place, node in enumerate(trace.nodes):
        assert node.parent < place
        written.append(() if node.parent < 0 else (*written[node.parent], node.token))
        assert node.depth == len(written[-1])
    assert len(set(written)) == len(written)
    return written


def check_nodes(
    trace: Trace,
    rows: Sequence[Row],
    after: Callable[[Row], list[tuple[int, float]]],
    tolerance: float = TOLERANCE,
) -> None:
    """Hold every number of a trace to (token, log P(token | prefix)) of the valid tokens after a prefix.

    Args:
        trace: The trace.
        rows: Every row that the constraint knows, by rank.
        after: Valid tokens after a prefix with their log-probabilities; none after a whole row.
        tolerance: Largest error of a log-probability, absolute; a tenth of it where it is relative.
    """
    below: defaultdict[int, float] = defaultdict(float)
    for node, prefix in zip(trace.nodes, prefixes_of(trace), strict=True):
        steps = [dict(after(prefix[:depth]))[token] for depth, token in enumerate(prefix)]
        expected = math.fsum(steps)
        assert math.isclose(node.total_logprob, expected, rel_tol=tolerance / 10, abs_tol=tolerance)
        if node.parent >= 0:
            assert trace.nodes[node.parent].state == "expanded"
            below[node.parent] += math.exp(node.total_logprob - trace.nodes[node.parent].total_logprob)
        valid = after(prefix)
        if node.state == "expanded":
            mass = math.fsum(math.exp(logprob) for _, logprob in valid)
            assert math.isclose(node.valid_mass, mass, rel_tol=1e-5, abs_tol=tolerance * 1e-5)
            assert node.num_valid == len(valid)
        else:
            assert (node.valid_mass, node.num_valid) == (None, None)
        assert (node.state == "finished") == (not valid and len(prefix) > 0)
        assert node.row == (rows.index(prefix) if node.state == "finished" else -1)
    for place, mass in below.items():
        assert mass <= trace.nodes[place].valid_mass + tolerance / 10  # both out of float32 logits
