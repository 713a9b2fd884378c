"""Entities that are called what a mention says: the only ones it may be linked to, where so asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from retrieval.filters.restriction import IdList, checked_ids
from retrieval.linking.answers import LinkAnswer, nobody, only_entity
from retrieval.linking.finding.folding import fold_name
from retrieval.linking.options import LinkOptions

if TYPE_CHECKING:
    from retrieval.index.reader import Index
    from retrieval.linking.finding.finder import SpanFinder
    from retrieval.linking.window import OpenQuestion
    from retrieval.types import Entity


class NamedEntities:
    """Looks up who a mention may stand for, and answers where the model has nothing to choose.

    A mention that one entity alone is called needs no model, and is linked with probability 1. It is asked
    all the same where the options want what only it can say (`min_logprob`, `min_mass`), and under a filter,
    which the entity may not pass.

    Args:
        index: Where the entities are.
        finder: Of the same index.
        options: What is asked for.
    """

    def __init__(self, index: Index, finder: SpanFinder, options: LinkOptions) -> None:
        self._index = index
        self._finder = finder
        self._method = options.method
        needed = (options.min_logprob, options.min_mass, options.filter)
        self._may_skip_model = all(value is None for value in needed)

    def ids(self, mention: str) -> IdList:
        """Return the ids of those a mention may stand for."""
        return checked_ids("allow_ids", self._finder.entity_ids(mention))

    def is_settled(self, ids: IdList | None) -> bool:
        """Whether the model has nothing to choose among these."""
        return ids is not None and (not ids or (len(ids) == 1 and self._may_skip_model))

    def answers(self, questions: Sequence[OpenQuestion]) -> list[LinkAnswer]:
        """Answer questions that are settled; the ids of all of them are looked up together."""
        wanted = sorted({question.named[0] for question in questions if question.named})
        numbers = self._index.entities.find(wanted).tolist() if wanted else []
        known = dict(zip(wanted, numbers, strict=True))
        return [
            self._answer(question.mention.mention, known[question.named[0]])
            if question.named
            else nobody(self._method)
            for question in questions
        ]

    def _answer(self, mention: str, number: int) -> LinkAnswer:
        if number < 0:  # the finder is of another index
            return nobody(self._method)
        entity = self._index.entity(number)
        return only_entity(entity, _surface(entity, mention))


def _surface(entity: Entity, mention: str) -> str:
    """Return the form that the mention is spelled like, in its own letter case where there is one."""
    forms = (entity.title, *entity.aliases)
    for keep_case in (True, False):
        spelled = fold_name(mention, keep_case)
        for form in forms:
            if fold_name(form, keep_case) == spelled:
                return form
    return entity.title
