"""A window: mentions read ahead, the rows that are known of them, and the questions that are left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from retrieval.filters.restriction import IdList
from retrieval.linking.answer_cache import AnswerCache, Question
from retrieval.linking.answers import LinkAnswer
from retrieval.linking.mention_stream import PlacedMention
from retrieval.types import Mention, RetrieveRequest

if TYPE_CHECKING:
    from retrieval.linking.row_maker import RowMaker


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """What is to be asked about one mention, and about those of the window that are put in the same words.

    Attributes:
        key: What makes it the same question.
        mention: The first of the mentions.
        request: What to ask the model.
        named: Ids of those the mention may stand for; None: all.
        near: Of them, those that the text around the mention speaks for.
        places: Of the mentions, in the window.
    """

    key: Question
    mention: Mention
    request: RetrieveRequest
    named: IdList | None
    near: frozenset[str]
    places: list[int]


class Window:
    """Some mentions in their order. Holds no document.

    Args:
        maker: Makes and counts the rows.
        cache: Gets the answers.
    """

    def __init__(self, maker: RowMaker, cache: AnswerCache) -> None:
        self._maker = maker
        self._cache = cache
        self._mentions: list[PlacedMention] = []
        self._rows: list[dict[str, Any] | None] = []
        self._open: dict[Question, OpenQuestion] = {}

    def __len__(self) -> int:
        return len(self._mentions)

    @property
    def questions(self) -> list[OpenQuestion]:
        """Those that are left."""
        return list(self._open.values())

    @property
    def num_questions(self) -> int:
        """How many are."""
        return len(self._open)

    def add(self, mention: PlacedMention) -> int:
        """Take in a mention that nothing is known of yet, and return its place."""
        self._mentions.append(mention)
        self._rows.append(None)
        return len(self._mentions) - 1

    def join(self, key: Question, place: int) -> bool:
        """Let a mention wait for the answer to a question that another one has; False: none has it."""
        waiting = self._open.get(key)
        if waiting is None:
            return False
        waiting.places.append(place)
        return True

    def ask(self, question: OpenQuestion) -> None:
        """Open a question."""
        self._open[question.key] = question

    def fill(self, place: int, answer: LinkAnswer, is_cached: bool = False) -> None:
        """Make the row of one mention."""
        self._rows[place] = self._maker.make(self._mentions[place], answer, is_cached)

    def settle(self, questions: Sequence[OpenQuestion], answers: Iterable[LinkAnswer]) -> None:
        """Make the rows of all that wait for some questions, and keep the answers; failures are not kept."""
        for question, answer in zip(questions, answers, strict=True):
            if answer.error is None:
                self._cache.put(question.key, answer)
            for number, place in enumerate(question.places):
                self.fill(place, answer, is_cached=number > 0 and answer.error is None)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows, once all questions are settled; those that are not to be written are left out."""
        return [row for row in self._rows if row is not None]
