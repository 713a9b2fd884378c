"""A constraint that lets through most tokens of the vocabulary, or a random subset of them at every place."""

from __future__ import annotations

import torch
from torch import Tensor

from genret.decoding.constraints import Children
from tests.tables_model import Row, follow

END = 0
_KEY_BITS = 31
_DEPTH_BITS = 8


class Text:
    """Texts of at most `length` tokens; what may follow is a row of a table, chosen by a hash of the text.

    A state is a hash of the text, above it its length, above that whether it is complete.

    Args:
        allowed: Tokens that may follow. Shape: (K, V), bool.
        length: Most tokens, the end token included.
        end: What completes a text, and the only token that may be the last; None: every text has `length`
            tokens, of any kind.
        is_wide: What it says of itself (`decoding.constraints.WideConstraint`).
    """

    def __init__(self, allowed: Tensor, length: int, end: int | None, is_wide: bool) -> None:
        self._allowed = allowed
        self._end = end
        self.max_depth = length
        self.is_wide = is_wide
        self.num_listed = 0  # states whose continuations were listed

    def start(self, queries: Tensor) -> Tensor:
        return torch.zeros_like(queries)

    def _tokens(self, states: Tensor) -> Tensor:
        """Which tokens may follow. Shape: (n, V), bool."""
        key = states & ((1 << _KEY_BITS) - 1)
        depth = (states >> _KEY_BITS) & ((1 << _DEPTH_BITS) - 1)
        allowed = self._allowed[key % len(self._allowed)]
        if self._end is not None:
            last = torch.arange(self._allowed.shape[1]) == self._end
            allowed = torch.where((depth == self.max_depth - 1).unsqueeze(1), last, allowed)
        return allowed & ((states >= 0) & ~self.is_final(states)).unsqueeze(1)

    def _next(self, states: Tensor, tokens: Tensor) -> Tensor:
        key = follow(states & ((1 << _KEY_BITS) - 1), tokens)
        depth = ((states >> _KEY_BITS) & ((1 << _DEPTH_BITS) - 1)) + 1
        final = depth == self.max_depth
        if self._end is not None:
            final = tokens == self._end
        return key | depth << _KEY_BITS | final.long() << (_KEY_BITS + _DEPTH_BITS)

    def children(self, states: Tensor) -> Children:
        self.num_listed += int((states >= 0).sum())
        owner, token = torch.nonzero(self._tokens(states), as_tuple=True)
        return Children(owner, token, self._next(states[owner], token))

    def verify(self, states: Tensor, token_ids: Tensor) -> Tensor:
        valid = self._tokens(states).gather(1, token_ids)
        return torch.where(valid, self._next(states.unsqueeze(1), token_ids), -1)

    def advance(self, states: Tensor, token_ids: Tensor) -> Tensor:
        return self.verify(states, token_ids.unsqueeze(1)).squeeze(1)

    def is_final(self, states: Tensor) -> Tensor:
        return (states >= 0) & (states >> (_KEY_BITS + _DEPTH_BITS) > 0)

    def row(self, states: Tensor) -> Tensor:
        return torch.full_like(states, -1)

    def enumerate(self) -> list[Row]:
        """Every text, sorted."""
        found, level = [], [((), 0)]
        while level:
            states = torch.tensor([state for _, state in level])
            children = self.children(states)
            edges = zip(*(column.tolist() for column in children), strict=True)
            texts = [((*level[owner][0], token), state) for owner, token, state in edges]
            done = self.is_final(children.next_state).tolist()
            found += [text for (text, _), final in zip(texts, done, strict=True) if final]
            level = [entry for entry, final in zip(texts, done, strict=True) if not final]
        self.num_listed = 0
        return sorted(found)


def free_text(vocab_size: int, length: int, is_wide: bool = True) -> Text:
    """All tokens at every place but the last, which is the end token's alone."""
    allowed = torch.ones(1, vocab_size, dtype=torch.bool)
    allowed[:, END] = False
    return Text(allowed, length, END, is_wide)


def random_text(
    seed: int, vocab_size: int, length: int, share: float, is_wide: bool = True, end: int | None = END
) -> Text:
    """A random subset of the vocabulary after every text; it may end at any length, where that is allowed.

    Without an end token every text has the same length, and any token may be its last.
    """
    generator = torch.Generator().manual_seed(seed)
    allowed = torch.rand(61, vocab_size, generator=generator) < share
    nothing = ~allowed.any(dim=1)
    allowed[nothing, END] = True
    return Text(allowed, length, end, is_wide)
