"""The vectors of an index alone: the entities whose texts are most like the query."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from retrieval.evaluation.types import LabelledQuery, RankedEntity, Ranking
from retrieval.index.reader import Index

if TYPE_CHECKING:
    from retrieval.vectors.searching import Shortlist
    from retrieval.vectors.shortlister import Shortlister


class NearestMethod:
    """Ranks by similarity alone; of a mention its own words are asked, without the context.

    Args:
        name: As the command line spells it.
        index: Whose entities.
        shortlister: Of the same index.
        size: Entities looked up per query: what a shortlist of so many is made of.
        k: Of these, entities wanted.
        batch_size: Queries asked together.
    """

    is_constrained = True
    is_random = False

    def __init__(
        self, name: str, index: Index, shortlister: Shortlister, size: int, k: int, batch_size: int
    ) -> None:
        self.name = name
        self._index = index
        self._shortlister = shortlister
        self._size = size
        self._k = k
        self._batch_size = batch_size

    def answer(
        self, queries: Sequence[LabelledQuery], seed: int, report: Callable[[int], None]
    ) -> list[Ranking]:
        """Return a ranking per query, in order; `report` gets the number answered so far."""
        rankings: list[Ranking] = []
        for at in range(0, len(queries), self._batch_size):
            batch = queries[at : at + self._batch_size]
            started = time.perf_counter()
            found = self._nearest([query.text for query in batch])
            seconds = (time.perf_counter() - started) / len(batch)
            rankings += [Ranking(q.query_id, e, seconds) for q, e in zip(batch, found, strict=True)]
            report(len(rankings))
        return rankings

    def _nearest(self, texts: Sequence[str]) -> list[tuple[RankedEntity, ...]]:
        """Return a list per text, best first; a text without words is like nothing."""
        asked = [i for i, text in enumerate(texts) if text.strip()]
        found: list[tuple[RankedEntity, ...]] = [() for _ in texts]
        if asked:
            lists = self._shortlister.propose([texts[i] for i in asked], [self._size] * len(asked))
            for i, shortlist in zip(asked, lists, strict=True):
                found[i] = self._ranked(shortlist)
        return found

    def _ranked(self, shortlist: Shortlist) -> tuple[RankedEntity, ...]:
        numbers = shortlist.entities[: self._k].tolist()
        similarities = shortlist.similarities[: self._k].tolist()
        entities = [self._index.entity(number) for number in numbers]
        return tuple(
            RankedEntity(entity.entity_id, entity.title, similarity)
            for entity, similarity in zip(entities, similarities, strict=True)
        )
