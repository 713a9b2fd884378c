"""Scores given rows: log-probabilities of all of them from few forwards over one token tree per query.

The rows of a query are laid out as one tree below its prompt, so that beginnings they share are computed
once, and every token attends to its prompt and its ancestors only ("Trie-based beam search", Algorithms 2 and
3; sections 3.3 to 3.5).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genret.decoding.cancellation import CancelToken
from genret.decoding.constraints import at_least_float32, log_normalisers
from genret.decoding.errors import DecodingCancelledError, InvalidLogitsError
from genret.decoding.language_model import DecodeSession
from genret.decoding.row_trees import Ints, NodeSpan, RowLayout, take_nodes
from genret.decoding.stopping import StopPoll

# Bound on the logits of one forward: larger trees are written in several, parents before children.
MAX_LOGITS_BYTES = 256 * 2**20
# Most nodes of one forward, however small the vocabulary: more take more memory and save no time.
_MOST_NODES = 2048
# Logits whose normalisers a device other than a CPU computes at once.
_MOST_ON_DEVICE = 1 << 25


@dataclass(frozen=True, slots=True)
class RowScores:
    """Scores of the rows of one query."""

    # Natural log of the model's probability of each row, all of its tokens; None for a row of more tokens
    # than there is room for. One per row, in order.
    logprobs: tuple[float | None, ...]
    # Tokens the model computed behind the prompt: shared beginnings count once, and last tokens, behind which
    # nothing is asked, not at all.
    num_nodes: int


def score_rows(
    session: DecodeSession,
    rows: Sequence[Sequence[Sequence[int]]],
    cancel: Sequence[CancelToken | None] | None = None,
    room: Sequence[int | None] | None = None,
) -> list[RowScores | DecodingCancelledError]:
    """Score given rows behind every prompt of a session.

    Args:
        session: The session; it stays as it is, and its branches are not attended to.
        rows: Per query any number of rows, none of them empty; repeated rows and rows that begin another are
            allowed. Tokens are ids of the vocabulary. Length Q.
        cancel: Cancel tokens, one per query, polled between forwards.
        room: Most tokens that may follow each prompt; None without bound.

    Returns:
        Per query its scores, or why it was ended.

    Raises:
        InvalidLogitsError: the model returned NaN or +inf, or no finite logit at all, where some row is asked
            for; it names the query.
        PromptTooLongError: there is room for rows that need more positions than the model has.
        ValueError: not one list per query, an empty row, or a token outside the vocabulary.
    """
    num_queries, vocab_size = session.root_logits.shape
    for name, given in (("rows", rows), ("cancel", cancel), ("room", room)):
        if given is not None and len(given) != num_queries:
            raise ValueError(f"{name} must have one entry per query, {num_queries}, got {len(given)}")
    bounds: Sequence[int | None] = [None] * num_queries if room is None else room
    fitting = [
        list(of_query) if most is None else [row for row in of_query if len(row) <= most]
        for of_query, most in zip(rows, bounds, strict=True)
    ]
    layout = RowLayout.of(fitting, vocab_size)
    stop = StopPoll(num_queries, cancel, None, session.root_logits.device)
    stop.poll()
    nodes_at_once = MAX_LOGITS_BYTES // (vocab_size * session.root_logits.element_size())
    steps = _Steps(layout)
    steps.ask_prompts(session.root_logits)
    writer = session.tree_writer(layout.trees)
    for spans in _forwards(layout, stop, min(max(nodes_at_once, 1), _MOST_NODES)):
        steps.ask(writer.write(spans), spans)
    logprobs = layout.row_sums(steps.logprobs(stop))
    return _results(rows, bounds, layout, logprobs, stop)


def _forwards(layout: RowLayout, stop: StopPoll, nodes_at_once: int) -> Iterator[list[NodeSpan]]:
    """Yield the nodes of one forward after the other: every tree in order, without cancelled queries."""
    trees = layout.trees
    pending = [span for query in range(trees.num_queries) if (span := trees.span(query)).first < span.end]
    while True:
        stop.poll([span.query for span in pending])
        pending = [span for span in pending if stop.error(span.query) is None]
        if not pending:
            return
        yield take_nodes(pending, nodes_at_once)


class _Steps:
    """Collects log-probabilities of the steps of a layout. Waits for the device once."""

    def __init__(self, layout: RowLayout) -> None:
        self._layout = layout
        # Steps asked for so far, and on the device their logits and normalisers.
        self._asked: list[Ints] = []
        self._logits: list[Tensor] = []
        self._normalisers: list[Tensor] = []

    def ask_prompts(self, root_logits: Tensor) -> None:
        """Take the steps behind the prompts. Shape: (Q, V)."""
        steps = np.arange(np.searchsorted(self._layout.step_nodes, 0))
        self._take(root_logits, steps, -1 - self._layout.step_nodes[steps])

    def ask(self, logits: Tensor, spans: Sequence[NodeSpan]) -> None:
        """Take the steps behind the nodes of a forward. Shape: (P, V)."""
        steps, rows, start = [], [], 0
        for span in spans:
            behind = self._layout.steps_behind(span)
            steps.append(np.arange(behind.start, behind.stop))
            rows.append(self._layout.step_nodes[behind] - span.first + start)
            start += span.end - span.first
        self._take(logits, np.concatenate(steps), np.concatenate(rows))

    def _take(self, logits: Tensor, steps: Ints, rows: Ints) -> None:
        places = torch.from_numpy(np.stack([rows, self._layout.step_tokens[steps]])).to(logits.device)
        self._asked.append(steps)
        self._logits.append(at_least_float32(logits[places[0], places[1]]))
        self._normalisers.append(log_normalisers(logits, most_at_once=_MOST_ON_DEVICE)[places[0]])

    def logprobs(self, stop: StopPoll) -> NDArray[np.float64]:
        """Return all of them, (E,), NaN for cancelled queries; InvalidLogitsError for other broken logits."""
        asked = np.concatenate(self._asked)
        logits = torch.cat(self._logits).double()
        normalisers = torch.cat(self._normalisers).double()
        values, sums = torch.stack([logits - normalisers, normalisers]).cpu().numpy()
        self._refuse_broken(asked[~np.isfinite(sums)], stop)
        found = np.full(len(self._layout.step_nodes), np.nan)
        found[asked] = values
        return found

    def _refuse_broken(self, steps: Ints, stop: StopPoll) -> None:
        trees, nodes = self._layout.trees, self._layout.step_nodes[steps]
        queries = np.where(nodes < 0, -1 - nodes, np.searchsorted(trees.offsets, nodes, side="right") - 1)
        for query in np.unique(queries).tolist():
            if stop.error(query) is None:
                broken = len(np.unique(nodes[queries == query]))
                raise InvalidLogitsError(
                    f"the model returned NaN or infinite logits for query {query}, behind {broken} of the "
                    "beginnings of its rows"
                )


def _results(
    rows: Sequence[Sequence[Sequence[int]]],
    bounds: Sequence[int | None],
    layout: RowLayout,
    logprobs: NDArray[np.float64],
    stop: StopPoll,
) -> list[RowScores | DecodingCancelledError]:
    found = iter(logprobs.tolist())
    results: list[RowScores | DecodingCancelledError] = []
    for query, (of_query, most) in enumerate(zip(rows, bounds, strict=True)):
        mine = tuple(next(found) if most is None or len(row) <= most else None for row in of_query)
        error, span = stop.error(query), layout.trees.span(query)
        results.append(RowScores(mine, span.end - span.first) if error is None else error)
    return results
