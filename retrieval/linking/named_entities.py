"""Entities that are called what a mention says: the only ones it may be linked to, where so asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from retrieval.filters.restriction import checked_ids
from retrieval.linking.answers import LinkAnswer, nobody, only_entity
from retrieval.linking.options import LinkOptions
from retrieval.normalize import normalize

if TYPE_CHECKING:
    from retrieval.index.reader import Index
    from retrieval.types import Entity


@runtime_checkable
class NameTable(Protocol):
    """Knows who is called what."""

    def entity_ids(self, text: str) -> Sequence[str]:
        """Return the ids of the entities that have a text as a title or alias, in any letter case."""


class NamedEntities:
    """Looks up who a mention may stand for, and answers where the model has nothing to choose.

    A mention that one entity alone is called needs no model, and is linked with probability 1. It is asked
    all the same where the options want what only it can say (`min_logprob`, `min_mass`), and under a filter,
    which the entity may not pass.

    Args:
        index: Where the entities are.
        names: Of the same index.
        options: What is asked for.
    """

    def __init__(self, index: Index, names: NameTable, options: LinkOptions) -> None:
        self._index = index
        self._names = names
        self._method = options.method
        needed = (options.min_logprob, options.min_mass, options.filter)
        self._may_skip_model = all(value is None for value in needed)

    def look_up(self, mention: str) -> LinkAnswer | tuple[str, ...]:
        """Return the answer where it is known without the model, else the ids it chooses among."""
        ids = self._names.entity_ids(mention)
        if not len(ids):
            return nobody(self._method)
        if len(ids) == 1 and self._may_skip_model:
            entity = self._index.entity_by_id(ids[0])
            if entity is not None:
                return only_entity(entity, _surface(entity, mention))
        return checked_ids("allow_ids", ids)


def _surface(entity: Entity, mention: str) -> str:
    """Return the form that the mention is spelled like; the title where letter case does not tell."""
    spelled = normalize(mention)
    forms = (entity.title, *entity.aliases)
    if spelled in forms:
        return spelled
    alike = (form for form in forms if form.casefold() == spelled.casefold())
    return next(alike, entity.title)
