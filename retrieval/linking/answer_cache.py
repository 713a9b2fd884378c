"""Answers of mentions that were put to the model before, the ones used last, up to a number of them."""

from __future__ import annotations

from collections import OrderedDict

from retrieval.linking.answers import LinkAnswer

# What the model is asked, the name it chooses among, "" for all, what evidence is asked, "" for none, and of
# the entities of that name those that the text around the mention speaks for.
Question = tuple[str, str, str, frozenset[str]]


class AnswerCache:
    """The answers used last. The same question with the same options has the same answer.

    Args:
        max_entries: Most answers kept; with 0, none are.
    """

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._held: OrderedDict[Question, LinkAnswer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, question: Question) -> LinkAnswer | None:
        """Return the answer to a question; None where it is not kept."""
        answer = self._held.get(question)
        if answer is not None:
            self._held.move_to_end(question)
        return answer

    def put(self, question: Question, answer: LinkAnswer) -> None:
        """Keep an answer; the one not used for longest goes where there are too many."""
        if not self._max_entries:
            return
        self._held[question] = answer
        self._held.move_to_end(question)
        if len(self._held) > self._max_entries:
            self._held.popitem(last=False)
