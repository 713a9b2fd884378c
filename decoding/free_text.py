"""The constraint of free text: any tokens, until an end token or a number of tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from genret.decoding.constraints import Children


class FreeText:
    """Lets every token through. A text is complete with an end token, or with `max_tokens` tokens.

    It is a `constraints.WideConstraint`. A state is the number of tokens written, `max_tokens` for a complete
    text.

    Args:
        vocab_size: Number of logits, V.
        max_tokens: Most tokens of a text, the end token included; at least 1.
        end_token: Token that ends a text.
        min_tokens: Least tokens before the end token; `max_tokens`: it never comes.
    """

    is_wide = True

    def __init__(self, vocab_size: int, max_tokens: int, end_token: int, min_tokens: int = 0) -> None:
        self.max_depth = max_tokens  # length in tokens of the longest text
        self._min_tokens = min_tokens
        self._vocab_size, self._end = vocab_size, end_token

    def start(self, queries: Tensor) -> Tensor:
        """Return the state before the first token. Shape: (n,), int64."""
        return torch.zeros_like(queries)

    def children(self, states: Tensor) -> Children:
        """Return every token that may follow every state; none behind a complete text."""
        following = self.verify(states, torch.arange(self._vocab_size, device=states.device).unsqueeze(0))
        owner, token = torch.nonzero(following >= 0, as_tuple=True)
        return Children(owner, token, following[owner, token])

    def verify(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Return the states behind M tokens of each state, -1 where one may not follow. Shape: (n, M)."""
        written = states.unsqueeze(1)
        is_end = token_ids == self._end
        following = torch.where(is_end, self.max_depth, written + 1)
        goes_on = (written >= 0) & (written < self.max_depth)
        return torch.where(goes_on & ~(is_end & (written < self._min_tokens)), following, -1)

    def advance(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Follow one token per state. Shape: (n,), int64."""
        return self.verify(states, token_ids.unsqueeze(1)).squeeze(1)

    def is_final(self, states: Tensor) -> Tensor:
        """Whether a text is complete. Shape: (n,), bool."""
        return states == self.max_depth

    def row(self, states: Tensor) -> Tensor:
        """Return -1: texts have no ranks. Shape: (n,), int64."""
        return torch.full_like(states, -1)
