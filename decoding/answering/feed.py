"""A model that keeps up with texts that grow and are taken back, and what it says behind every token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from decoding.language_model import ChainSession


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Logits of one pass.

    Attributes:
        logits: Shape: (Q, R, V).
        first: For every query the number of the token that its row 0 speaks of, and which row 1 speaks of the
            next of. Length Q.
        behind: For every query the number of the last token that a row speaks of. Length Q.
        ran: Whether a query had tokens in the pass. Length Q.
    """

    logits: Tensor
    first: tuple[int, ...]
    behind: tuple[int, ...]
    ran: tuple[bool, ...]


class Feed:
    """A session with what its queries have been fed.

    Args:
        session: Just made.
        num_queries: Q.
    """

    def __init__(self, session: ChainSession, num_queries: int) -> None:
        self._session = session
        self._fed: list[list[int]] = [[] for _ in range(num_queries)]

    def lengths(self) -> list[int]:
        """Tokens that every query has been fed."""
        return [len(fed) for fed in self._fed]

    def run(self, texts: Sequence[Sequence[int] | None], wanted: Sequence[int]) -> Rows:
        """Feed every query what is new in its text, in one pass, and none if nothing is.

        What was fed and is not in the text any more is taken back, and so is what logits are wanted behind.

        Args:
            texts: Whole texts; None for queries that are to stay as they are. Length Q.
            wanted: Number of the first token that the rows must speak of, at most the length of the text.
                Length Q.
        """
        starts = not all(self._fed)
        chunks: list[list[int]] = []
        for query, text in enumerate(texts):
            if text is None:
                chunks.append([])
                continue
            fed = self._fed[query]
            del fed[max(min(_common(fed, text), wanted[query] - 1), 0) :]
            chunks.append(list(text[len(fed) :]))
        self._session.rewind([len(fed) for fed in self._fed])
        kept = self.lengths()
        logits = self._session.root_logits[:, None]
        if any(chunks):
            further = self._session.extend(chunks)
            logits = torch.cat([logits, further], dim=1) if starts else further
        else:
            starts = True
        for fed, chunk in zip(self._fed, chunks, strict=True):
            fed += chunk
        return Rows(
            logits=logits,
            first=tuple(length + (not starts) for length in kept),
            behind=tuple(self.lengths()),
            ran=tuple(map(bool, chunks)),
        )

    def select(self, queries: Sequence[int]) -> Feed:
        """A feed of some of the queries, in that order."""
        other = Feed(self._session.select(queries), 0)
        other._fed = [list(self._fed[query]) for query in queries]
        return other


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that two texts begin with alike."""
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))
