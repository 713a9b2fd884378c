"""A constraint of grammars: a batch of branches, each under its own grammar and within its token budget.

`TokenGrammar` is the contract that a grammar meets. A state of the constraint is a grammar's state with the
tokens that may still be written. Most tokens that may follow are never chosen, so successors are not looked
up for all of them: `children` and `verify` return *pending* states, which hold the state before and the token
and are looked up when they are passed in. `_MaskPool` uploads each token mask to the device once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genret.decoding.constraints import Children
from genret.decoding.grammar.errors import AnswerBudgetError
from genret.decoding.grammar.vocabulary import WORD_BITS, Vocabulary, tokens_of


class TokenGrammar(Hashable, Protocol):
    """A set of texts over one vocabulary, equal only to itself; `Grammar` describes states and methods."""

    @property
    def vocab_size(self) -> int:
        """Logits of the model the masks are for, V."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary whose tokens the masks are of."""

    @property
    def start(self) -> int:
        """The state before the first token."""

    @property
    def finished(self) -> int:
        """The state behind the end token."""

    def mask(self, state: int) -> NDArray[np.uint32]:
        """Tokens that may come next, packed; read-only. Shape: (ceil(V / 32),), uint32."""

    def tokens(self, state: int) -> NDArray[np.int64]:
        """The same as ids, ascending. Shape: (n,), int64."""

    def advance(self, state: int, token: int) -> int:
        """The state behind one token, -1 where it is not allowed."""

    def advance_bytes(self, state: int, text: bytes) -> int:
        """The state behind some bytes, -1 where they are not allowed."""

    def is_complete(self, state: int) -> bool:
        """Whether the end token may follow."""

    def forced_bytes(self, state: int, limit: int = 1024) -> bytes:
        """The bytes that must follow whatever is chosen."""

    def tokens_to_finish(self, state: int) -> int:
        """Tokens that suffice to complete the text, end token included; a bound that can be kept."""

    def can_finish(self, state: int, tokens: int) -> bool:
        """Whether `tokens_to_finish` is at most `tokens`."""

    def most_tokens_to_finish(self, state: int) -> int | None:
        """Most `tokens_to_finish` behind any allowed token; None: not known."""

    def fitting_tokens(self, state: int, left: int) -> NDArray[np.int64]:
        """Those of `tokens(state)` behind which fewer than `left` tokens can finish. Shape: (n,), int64."""

    def text(self, token_ids: Sequence[int]) -> bytes:
        """The bytes that tokens write."""


_PENDING = 1 << 62
_TOKEN_BITS = 21
_TOKEN = (1 << _TOKEN_BITS) - 1
_BEFORE = (1 << 62 - _TOKEN_BITS) - 1
_NOWHERE = -1


class GrammarConstraint:
    """A `WideConstraint` for answers under grammars. Not to be shared between threads, as its grammars are.

    A token is allowed only if the text can still be completed within the budget, so that no answer is cut.

    Args:
        grammars: One per query, over one vocabulary.
        max_tokens: Most tokens of an answer, end token included: for all queries, or one number per query.
        device: The device of states and masks.

    Attributes:
        max_depth: The largest budget.
        is_wide: True: strings let through most tokens.

    Raises:
        AnswerBudgetError: a budget is smaller than the shortest answer.
        ValueError: there are no grammars, not as many budgets, or the vocabularies differ.
    """

    is_wide = True

    def __init__(
        self,
        grammars: Sequence[TokenGrammar],
        max_tokens: int | Sequence[int],
        device: torch.device | str = "cpu",
    ) -> None:
        if not grammars:
            raise ValueError("grammars: expected one per query, got none")
        budgets = [max_tokens] * len(grammars) if isinstance(max_tokens, int) else list(max_tokens)
        if len(budgets) != len(grammars):
            raise ValueError(f"max_tokens: expected {len(grammars)} numbers, got {len(budgets)}")
        vocabulary = grammars[0].vocabulary
        if any(grammar.vocabulary is not vocabulary for grammar in grammars):
            raise ValueError("grammars: expected all of them over one vocabulary")
        if vocabulary.vocab_size > _TOKEN:
            raise ValueError(f"the vocabulary must have at most {_TOKEN} tokens, got {vocabulary.vocab_size}")
        for grammar, budget in zip(grammars, budgets, strict=True):
            needed = grammar.tokens_to_finish(grammar.start)
            if needed > budget:
                raise AnswerBudgetError(budget, needed)
        self.max_depth = max(budgets)
        self._end = vocabulary.end_token_id
        self._vocabulary = vocabulary
        self._device = torch.device(device)
        self._pool = _MaskPool(vocabulary.vocab_size, self._device)
        # By state: its grammar, the grammar's state, the tokens left, and the row of its mask.
        self._grammars: list[TokenGrammar] = []
        self._states: list[int] = []
        self._left: list[int] = []
        self._rows: list[int | None] = []
        self._numbers: dict[tuple[TokenGrammar, int, int], int] = {}
        self._starts = [
            self._number(grammar, grammar.start, budget)
            for grammar, budget in zip(grammars, budgets, strict=True)
        ]

    def start(self, queries: Tensor) -> Tensor:
        """Return the start state of each query's grammar (`Constraint.start`)."""
        return self._tensor([self._starts[query] for query in queries.tolist()])

    def children(self, states: Tensor) -> Children:
        """Return every allowed continuation of every state, as pending states (`Constraint.children`)."""
        numbers = self._resolved(states)
        rows = [self._row(number) for number in numbers]
        tokens = [self._pool.tokens(row) for row in rows]
        counts = [len(column) for column in tokens]
        total = sum(counts)
        before = torch.repeat_interleave(
            self._tensor([self._packed(number) for number in numbers]),
            self._tensor(counts),
            output_size=total,
        )
        owner = torch.repeat_interleave(
            torch.arange(len(numbers), device=self._device), self._tensor(counts), output_size=total
        )
        token = torch.cat(tokens) if tokens else owner
        return Children(owner, token, before | token)

    def verify(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Check M candidate tokens per state; successors are pending states (`Constraint.verify`)."""
        numbers = self._resolved(states)
        rows = self._tensor([self._row(number) for number in numbers])
        before = self._tensor([self._packed(number) for number in numbers])
        allowed = self._pool.contains(rows, token_ids)
        return torch.where(allowed, before.unsqueeze(1) | token_ids, _NOWHERE)

    def advance(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Follow one token per state (`Constraint.advance`)."""
        return self.verify(states, token_ids.unsqueeze(1)).squeeze(1)

    def is_final(self, states: Tensor) -> Tensor:
        """Whether the end token has been written (`Constraint.is_final`)."""
        pending = states >= _PENDING
        final = pending & ((states & _TOKEN) == self._end)
        if bool(pending.all()):
            return final
        known = [
            0 <= state < len(self._states) and self._states[state] == self._grammars[state].finished
            for state in states.tolist()
        ]
        return final | torch.tensor(known, dtype=torch.bool, device=self._device)

    def row(self, states: Tensor) -> Tensor:
        """Return -1: answers have no ranks (`Constraint.row`)."""
        return torch.full_like(states, _NOWHERE)

    def allowed(self, states: Tensor) -> Tensor:
        """The tokens that may follow each state, one column for each. Shape: (n, V), bool, from (n,)."""
        return self._pool.unpacked(self._mask_rows(states))

    def packed(self, states: Tensor) -> Tensor:
        """The same as `allowed`, packed as `Grammar.mask` is. Shape: (n, ceil(V / 32)), int32, from (n,)."""
        return self._pool.packed(self._mask_rows(states))

    def _mask_rows(self, states: Tensor) -> Tensor:
        return self._tensor([self._row(number) for number in self._resolved(states)])

    def _tensor(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)

    def _packed(self, number: int) -> int:
        """The pending state of a number, but for its token."""
        return _PENDING | max(number, 0) << _TOKEN_BITS

    def _number(self, grammar: TokenGrammar, state: int, left: int) -> int:
        key = (grammar, state, left)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._states)
            self._grammars.append(grammar)
            self._states.append(state)
            self._left.append(left)
            self._rows.append(None)
        return number

    def _resolved(self, states: Tensor) -> list[int]:
        """Look up the successors that pending states stand for, each once."""
        known: dict[int, int] = {}
        numbers = []
        for state in states.tolist():
            if state < _PENDING:
                numbers.append(state)
                continue
            number = known.get(state)
            if number is None:
                number = known[state] = self._follow(state >> _TOKEN_BITS & _BEFORE, state & _TOKEN)
            numbers.append(number)
        return numbers

    def _follow(self, number: int, token: int) -> int:
        grammar = self._grammars[number]
        state = grammar.advance(self._states[number], token)
        return _NOWHERE if state < 0 else self._number(grammar, state, self._left[number] - 1)

    def _row(self, number: int) -> int:
        if number < 0:
            return 0
        row = self._rows[number]
        if row is None:
            row = self._rows[number] = self._pool.row(self._mask(number))
        return row

    def _mask(self, number: int) -> NDArray[np.uint32]:
        """The tokens that may follow within the budget, looked at one by one only where it is tight."""
        grammar, state, left = self._grammars[number], self._states[number], self._left[number]
        most = grammar.most_tokens_to_finish(state)
        if most is not None and most < left:
            return grammar.mask(state)
        fitting = grammar.fitting_tokens(state, left)
        if len(fitting) == len(grammar.tokens(state)):
            return grammar.mask(state)
        return self._vocabulary.packed(fitting.tolist())


_FIRST_ROWS = 16


class _MaskPool:
    """Packed masks as the rows of one tensor that grows. Row 0 allows nothing."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._num_words = -(-vocab_size // WORD_BITS)
        self._rows = torch.zeros(_FIRST_ROWS, self._num_words, dtype=torch.int32, device=device)
        self._shifts = torch.arange(WORD_BITS, dtype=torch.int32, device=device)
        # The masks are kept, so that no other one can be at the same address.
        self._masks: list[NDArray[np.uint32] | None] = [None]
        self._by_address: dict[int, int] = {}
        self._tokens: dict[int, Tensor] = {}

    def row(self, mask: NDArray[np.uint32]) -> int:
        """The row of a mask, uploaded if it is not there. The mask must not be changed later."""
        row = self._by_address.get(id(mask))
        if row is None:
            row = len(self._masks)
            if row == len(self._rows):
                self._rows = torch.cat([self._rows, torch.zeros_like(self._rows)])
            self._rows[row] = torch.from_numpy(mask.view(np.int32).copy()).to(self._device)
            self._by_address[id(mask)] = row
            self._masks.append(mask)
        return row

    def packed(self, rows: Tensor) -> Tensor:
        """Gather rows. Shape: (n, ceil(V / 32)), int32, from (n,), int64."""
        return self._rows.index_select(0, rows)

    def unpacked(self, rows: Tensor) -> Tensor:
        """Gather rows, one column for each token. Shape: (n, V), bool, from (n,), int64."""
        bits = (self.packed(rows).unsqueeze(2) >> self._shifts) & 1
        return bits.flatten(1)[:, : self._vocab_size].bool()

    def contains(self, rows: Tensor, token_ids: Tensor) -> Tensor:
        """Whether rows allow tokens, which may be any numbers. Shape: (n, M), bool, from (n,) and (n, M)."""
        in_range = (token_ids >= 0) & (token_ids < self._vocab_size)
        token = torch.where(in_range, token_ids, 0)
        words = self._rows[rows.unsqueeze(1), token // WORD_BITS]
        return in_range & ((words >> (token % WORD_BITS).int()) & 1).bool()

    def tokens(self, row: int) -> Tensor:
        """The tokens that a row allows, ascending. Shape: (n,), int64."""
        tokens = self._tokens.get(row)
        if tokens is None:
            mask = self._masks[row]
            listed = tokens_of(np.zeros(0, np.uint32) if mask is None else mask)
            tokens = self._tokens[row] = torch.from_numpy(listed).to(self._device)
        return tokens
