"""Constrains transformers' `generate` to titles: only tokens that continue some title keep their score.

The trie state of a row of `input_ids` follows from the tokens behind its prompt alone, so beams may be
reordered and a processor may serve one `generate` after another. Sampling this way follows the law of plain
constrained decoding, renormalised token by token; DISC corrects that bias, this does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import LogitsProcessor

from genret.decoding.constraints import Constraint
from genret.decoding.errors import InvalidLogitsError
from genret.decoding.trie.row_filter import FilteredTrie

# Most tokens compared to find every row's parent among the last rows; beyond it, titles are walked anew.
_MAX_COMPARED = 1 << 24
# Score of a forced token: below all scores of models, above the -1e9 of idle beams in `generate`.
_FORCED_SCORE = -1e6


class _Step(NamedTuple):
    """State of the rows after one call: the parents of the rows of the next call."""

    written: Tensor  # Tokens behind the prompt. Shape: (n, L), int64
    states: Tensor  # Shape: (n,), int64
    final: Tensor  # Whether the title is complete. Shape: (n,), bool


class TitleTrieLogitsProcessor(LogitsProcessor):
    """Lets `generate` write only titles: `model.generate(..., logits_processor=[it])`.

    For greedy search, sampling and beams, with several sequences per prompt and any batch size, decoder-only
    and encoder-decoder. All tokens but those that continue a title get the score -inf. A row whose title is
    complete may only write `eos_token_id`, and so may a beam that `generate` keeps idle with score -inf
    because there are fewer titles than beams. If other processors (`min_new_tokens`, `bad_words_ids`, ...)
    forbid all tokens that a row may write, those get one very low score: titles stay whole, and beams with
    another way on win.

    Pass `generate` the end token as well, `eos_token_id=`: by default it stops at the model's own, which
    titles of an index rendered for a pretrained model need not have (they often end with a newline). Pass
    `max_new_tokens=constraint.max_depth`, so that every title fits, and for beams `length_penalty=0.0`, so
    that they rank by log-probability. When sampling, `top_k=0` and `top_p=1.0` keep it from cutting allowed
    tokens (by default transformers cuts at 50 tokens).

    The constraint may live on another device than the model. One processor serves one `generate` at a time.

    Args:
        constraint: The constraint.
        prompt_length: Tokens before the titles in every row that `generate` extends. Decoder-only: the width
            of the padded `input_ids` given to it (0 with `inputs_embeds` alone). Encoder-decoder: the number
            of decoder start tokens, usually 1.
        eos_token_id: The token that ends every row of the constraint; `Index.end_token_id` for an index. If
            there are several, a complete title may go on with any of them.
        num_queries: Prompts in the batch; row i belongs to query i // (rows / num_queries), as `generate`
            repeats them. None: the number of filters of a `FilteredTrie`, 1 for any other constraint, whose
            queries are all alike.

    Raises:
        ValueError: an argument is out of range.
    """

    supports_continuous_batching = False

    def __init__(
        self,
        constraint: Constraint,
        prompt_length: int,
        eos_token_id: int | Sequence[int],
        num_queries: int | None = None,
    ) -> None:
        expected = constraint.num_queries if isinstance(constraint, FilteredTrie) else None
        if num_queries is None:
            num_queries = 1 if expected is None else expected
        if num_queries < 1:
            raise ValueError(f"num_queries: must be at least 1, got {num_queries}")
        if expected is not None and num_queries != expected:
            raise ValueError(f"num_queries: must be {expected}, one per filter, got {num_queries}")
        if prompt_length < 0:
            raise ValueError(f"prompt_length: must be >= 0, got {prompt_length}")
        ends = [eos_token_id] if isinstance(eos_token_id, int) else list(eos_token_id)
        if not ends or min(ends) < 0:
            raise ValueError(f"eos_token_id: expected a token or several, got {eos_token_id!r}")
        self.constraint = constraint
        self.prompt_length = prompt_length
        self.num_queries = num_queries
        self._device = constraint.start(torch.zeros(1, dtype=torch.int64)).device
        self._ends = torch.tensor(sorted(set(ends)), dtype=torch.int64, device=self._device)
        self._last: _Step | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores with -inf for every token that continues no title, as a new tensor.

        Args:
            input_ids: Prompts and the tokens written behind them. Shape: (n, T + L), int64.
            scores: Logits or log-probabilities. Shape: (n, V), floating point.

        Raises:
            ValueError: the rows do not go with `prompt_length` or `num_queries`, a title's token is outside
                the vocabulary, a query has no titles, or at the root other processors leave it no token.
            InvalidLogitsError: the score of an allowed token is NaN or +inf.
        """
        last, self._last = self._last, None  # after an error the next call starts afresh
        written = self._written(input_ids)
        states = self._locate(last, written)
        final = self.constraint.is_final(states)
        self._last = _Step(written, states, final)
        live = (states >= 0) & ~final
        row, token = self._allowed(states, live)
        if not written.shape[1]:
            self._check_titles(row, live)
        if int(token.max()) >= scores.shape[1]:
            raise ValueError(
                f"a title or eos_token_id holds token {int(token.max())}, but the model's scores are "
                f"{scores.shape[1]} wide: the trie was made for another tokenizer or model"
            )
        at = (row * scores.shape[1] + token).to(scores.device)
        values = scores.reshape(-1).index_select(0, at)
        values = self._possible(values, row.to(scores.device), live)
        masked = torch.full(scores.shape, -math.inf, dtype=scores.dtype, device=scores.device)
        masked.view(-1).scatter_(0, at, values)
        return masked

    def rows(self, sequences: Tensor) -> Tensor:
        """Return the rank of the title in each sequence, -1 without one, on the constraint's device. (n,).

        `sequences`, (n, T + L), int64, are the result of `generate`, prompts included; ValueError if they do
        not go with `prompt_length` or `num_queries`.
        """
        states = self._walk(self._written(sequences))
        return torch.where(self.constraint.is_final(states), self.constraint.row(states), -1)

    def _written(self, input_ids: Tensor) -> Tensor:
        rows, width = input_ids.shape
        if width < self.prompt_length:
            raise ValueError(
                f"prompt_length is {self.prompt_length}, but the rows that generate extends have {width} "
                f"tokens; {self._rule()}"
            )
        if rows % self.num_queries:
            raise ValueError(
                f"num_queries is {self.num_queries}, but generate extends {rows} rows, which is no multiple"
            )
        # A copy, because the next call reads it again.
        return input_ids[:, self.prompt_length :].to(self._device, copy=True)

    def _locate(self, last: _Step | None, written: Tensor) -> Tensor:
        """State of every row. Shapes: (n, L) and (n,), int64."""
        parents = None if last is None else self._parents(last, written)
        if last is not None and parents is not None:
            return self._follow(last.states[parents], last.final[parents], written[:, -1])
        states = self._walk(written)
        lost = states < 0
        if bool(lost.any()):
            row = int(lost.int().argmax())
            raise ValueError(
                f"row {row} (query {row // (len(written) // self.num_queries)}): no title begins with the "
                f"tokens {written[row].tolist()} that follow the first {self.prompt_length} "
                f"(prompt_length) of {self.prompt_length + written.shape[1]}; {self._rule()}"
            )
        return states

    def _parents(self, last: _Step, written: Tensor) -> Tensor | None:
        """Row of the last call that each row extends by a token; None if any extends none."""
        rows, depth = written.shape
        if last.written.shape != (rows, depth - 1):
            return None
        prefix = written[:, :-1]
        if torch.equal(prefix, last.written):  # no beam changed its place
            return torch.arange(rows, device=self._device)
        per_query = rows // self.num_queries
        if rows * per_query * depth > _MAX_COMPARED:
            return None
        shape = (self.num_queries, per_query, depth - 1)
        same = (prefix.view(shape).unsqueeze(2) == last.written.view(shape).unsqueeze(1)).all(dim=3)
        if not bool(same.any(dim=2).all()):
            return None
        first = torch.arange(0, rows, per_query, device=self._device).unsqueeze(1)
        return (first + same.int().argmax(dim=2)).flatten()

    def _walk(self, written: Tensor) -> Tensor:
        """States after following all tokens from the root. Shapes: (n, L) and (n,), int64."""
        per_query = max(len(written) // self.num_queries, 1)
        queries = torch.arange(len(written), device=self._device) // per_query
        states = self.constraint.start(queries)
        for tokens in written.unbind(dim=1):
            states = self._follow(states, self.constraint.is_final(states), tokens)
        return states

    def _follow(self, states: Tensor, final: Tensor, tokens: Tensor) -> Tensor:
        """Follow a token per row; a complete title stays complete, whatever `generate` pads it with."""
        return torch.where(final, states, self.constraint.advance(states, tokens))

    def _allowed(self, states: Tensor, live: Tensor) -> tuple[Tensor, Tensor]:
        """(row, token) of every token that may follow: those of a title, or an end. Shapes: (E,)."""
        children = self.constraint.children(states)
        over = torch.nonzero(~live).squeeze(1)
        if not len(over):
            return children.owner, children.token
        rows = torch.cat([children.owner, over.repeat_interleave(len(self._ends))])
        return rows, torch.cat([children.token, self._ends.repeat(len(over))])

    def _check_titles(self, row: Tensor, live: Tensor) -> None:
        """Refuse a query without any title, at the root; from later states a title always follows."""
        without = live & (torch.bincount(row, minlength=len(live)) == 0)
        if bool(without.any()):
            query = int(without.int().argmax()) // (len(live) // self.num_queries)
            raise ValueError(
                f"query {query}: there is no title to write: its filter allows none, or the trie has no rows"
            )

    def _possible(self, values: Tensor, row: Tensor, live: Tensor) -> Tensor:
        """Give the allowed tokens of rows in which all of them are -inf a finite score.

        `values` are the scores of the allowed tokens, (E,), `row` the row of each, `live` the rows within a
        title, (n,).
        """
        best = values.new_full(live.shape, -math.inf).scatter_reduce(0, row, values, "amax")
        if bool(torch.isfinite(best).all()):
            return values
        stuck = best == -math.inf
        if not bool((stuck | torch.isfinite(best)).all()):
            raise InvalidLogitsError("the score of a token that continues a title is NaN or +inf")
        self._check_root(stuck.to(live.device) & live, live)
        forced = max(_FORCED_SCORE, torch.finfo(values.dtype).min)
        return torch.where(stuck[row], values.new_tensor(forced), values)

    def _check_root(self, stuck: Tensor, live: Tensor) -> None:
        """Refuse settings of `generate` that forbid a query all titles from the first token on."""
        assert self._last is not None  # written before
        at_root = self._last.written.shape[1] == 0
        shape = (self.num_queries, -1)
        hopeless = (stuck.view(shape) == live.view(shape)).all(dim=1) & live.view(shape).any(dim=1)
        if at_root and bool(hopeless.any()):
            raise ValueError(
                f"query {int(hopeless.int().argmax())}: every token that begins a title has the score -inf; "
                "forced_bos_token_id, suppress_tokens or another processor forbids it"
            )

    def _rule(self) -> str:
        return (
            "it must be the width of the padded input_ids given to generate, or for an encoder-decoder the "
            "number of decoder start tokens"
        )
