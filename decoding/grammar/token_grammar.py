"""What those who write under a grammar ask of it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from decoding.grammar.vocabulary.vocabulary import Vocabulary


class TokenGrammar(Hashable, Protocol):
    """A set of texts over one vocabulary: states are ints, as `decoding.grammar.grammar.Grammar` says.

    Equal only to itself.
    """

    @property
    def vocab_size(self) -> int:
        """Logits of the model the masks are for, V."""

    @property
    def vocabulary(self) -> Vocabulary:
        """Whose tokens the masks are of."""

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
        """No allowed token leads to a state where `tokens_to_finish` is more; None: not known."""

    def fitting_tokens(self, state: int, left: int) -> NDArray[np.int64]:
        """Those of `tokens(state)` behind which fewer than `left` tokens can finish. Shape: (n,), int64."""

    def text(self, token_ids: Sequence[int]) -> bytes:
        """The bytes that tokens write."""
