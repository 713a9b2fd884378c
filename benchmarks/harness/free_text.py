"""Text without a catalogue: exactly n tokens, any but the end token."""

from __future__ import annotations

import torch
from torch import Tensor

from genret.decoding.constraints import Children


class FreeText:
    """A constraint that lets every token through until n have been written (`types.WideConstraint`).

    A state is the number of tokens written.

    Args:
        num_tokens: n, at least 1.
        vocab_size: Tokens there are.
        banned: The one token that may not be written.
    """

    is_wide = True

    def __init__(self, num_tokens: int, vocab_size: int, banned: int) -> None:
        self._length, self._banned = num_tokens, banned
        tokens = torch.arange(vocab_size)
        self._tokens = tokens[tokens != banned]

    @property
    def max_depth(self) -> int:
        """Tokens of every text."""
        return self._length

    def start(self, queries: Tensor) -> Tensor:
        """Return the state before the first token."""
        return torch.zeros_like(queries)

    def children(self, states: Tensor) -> Children:
        """Return every token for every state that is not final."""
        going = torch.nonzero(self._goes_on(states)).squeeze(1)
        tokens = self._tokens.to(states.device)
        owner = going.repeat_interleave(len(tokens))
        return Children(owner, tokens.repeat(len(going)), states[owner] + 1)

    def verify(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Check tokens; see `Constraint.verify`."""
        allowed = self._goes_on(states).unsqueeze(1) & (token_ids != self._banned)
        return torch.where(allowed, states.unsqueeze(1) + 1, -1)

    def advance(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Follow one token per state."""
        return self.verify(states, token_ids.unsqueeze(1)).squeeze(1)

    def is_final(self, states: Tensor) -> Tensor:
        """Whether all tokens have been written."""
        return states == self._length

    def row(self, states: Tensor) -> Tensor:
        """Texts have no ranks."""
        return torch.full_like(states, -1)

    def _goes_on(self, states: Tensor) -> Tensor:
        return (states >= 0) & (states < self._length)
