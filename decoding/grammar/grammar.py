"""A compiled schema over one vocabulary: which tokens may come, and where each leads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decoding.grammar.leaves.hole import HoleName


@dataclass(frozen=True, slots=True)
class HoleValue:
    """A string of an answer that came out of a hole.

    Attributes:
        pointer: JSON pointer of the string in the answer: "/people/0/name".
        name: The set it comes from.
        members: Numbers of the members it stands for, ascending; several where they share a text.
        first_byte: Where the value begins in the answer's bytes, its opening quote.
        last_byte: Where it ends, behind its closing quote.
    """

    pointer: str
    name: HoleName
    members: tuple[int, ...]
    first_byte: int
    last_byte: int


class Grammar:
    """Configurations of the automaton as ints, with their token masks and successors, made on demand.

    Immutable to its users and safe to use from several threads: what is asked for the first time is computed
    under a lock and kept. State 0 is the empty text. State ids are small and dense.
    """

    @property
    def vocab_size(self) -> int:
        """Logits of the model the masks are for, V."""

    @property
    def start(self) -> int:
        """The state before the first token, 0."""

    def mask(self, state: int) -> NDArray[np.uint32]:
        """Tokens that may come next, by reference: bit t % 32 of word t // 32 is token t.

        The end token is allowed exactly where the text is complete; other special tokens never are.
        Shape: (ceil(V / 32),), uint32, read-only.
        """

    def advance(self, state: int, token: int) -> int:
        """The state behind one token, -1 where it is not allowed. Behind the end token: `finished`."""

    @property
    def finished(self) -> int:
        """The state behind the end token."""

    def is_complete(self, state: int) -> bool:
        """Whether the text so far is a whole answer, so that the end token may follow."""

    def advance_bytes(self, state: int, text: bytes) -> int:
        """The state behind some bytes, -1 where they are not allowed."""

    def forced_bytes(self, state: int, limit: int = 1024) -> bytes:
        """The bytes that must follow whatever is chosen, and after which something may be chosen or ended."""

    def tokens_to_finish(self, state: int) -> int:
        """Tokens that suffice to complete the text, end token included.

        An upper bound that can always be kept: wherever it is n > 1, some allowed token leads to a state
        where it is at most n - 1.
        """

    def holes(self, text: bytes) -> tuple[HoleValue, ...]:
        """The strings of a complete answer that came out of holes, in order.

        Raises:
            ValueError: the text is not a complete answer.
        """

    def text(self, token_ids: Sequence[int]) -> bytes:
        """The bytes that tokens write; the end token writes none."""

    @property
    def num_bytes(self) -> int:
        """Memory held by this grammar alone, masks and states that were added later included."""
