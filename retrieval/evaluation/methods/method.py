"""What a method is, and how the command line names it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from retrieval.evaluation.types import LabelledQuery, Ranking

if TYPE_CHECKING:
    from retrieval.retriever import Retriever

METHOD_FORMS = (
    "unconstrained[:BEAMS]",
    "trie",
    "disc:K",
    "beam[:B]",
    "exact",
    "shortlist[:N]",
    "bm25",
    "run:FILE",
)


class EvaluatedMethod(Protocol):
    """Answers labelled queries.

    Attributes:
        name: As the command line spells it.
        is_constrained: Whether it can only answer with entities of the index.
        is_random: Whether another seed gives other answers.
    """

    name: str
    is_constrained: bool
    is_random: bool

    def answer(
        self, queries: Sequence[LabelledQuery], seed: int, report: Callable[[int], None]
    ) -> list[Ranking]:
        """Return a ranking per query, in order; `report` gets the number answered so far."""


def make_method(text: str, retriever: Retriever, k: int, batch_size: int) -> EvaluatedMethod:
    """Return the method that the command line calls `text`, one of `METHOD_FORMS`.

    Raises:
        InputError: there is no such method, or its setting is out of range.
        MissingExtraError: its library is not installed; names the extra.
    """
    raise NotImplementedError
