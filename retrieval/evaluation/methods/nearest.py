"""The evidence of an index without a model: all of it by its ranking, or its vectors alone."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from retrieval.errors import GenretError
from retrieval.evaluation.types import LabelledQuery, RankedEntity, Ranking
from retrieval.index.reader import Index

if TYPE_CHECKING:
    from retrieval.retriever import Retriever
    from retrieval.vectors.shortlister import Shortlister

Found = tuple[RankedEntity, ...] | str  # best first, or why there is none


class _ModelFreeMethod(ABC):
    """Ranks without a model; of a mention its own words are asked, without the context.

    Args:
        name: As the command line spells it.
        index: Whose entities.
        size: Entities looked up per query: what a shortlist of so many is made of.
        k: Of these, entities wanted.
        batch_size: Queries asked together.
    """

    is_constrained = True
    is_random = False

    def __init__(self, name: str, index: Index, size: int, k: int, batch_size: int) -> None:
        self.name = name
        self._index = index
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
            found = self._found([query.text for query in batch])
            seconds = (time.perf_counter() - started) / len(batch)
            for query, one in zip(batch, found, strict=True):
                if isinstance(one, str):
                    rankings.append(Ranking(query.query_id, (), seconds, error=one))
                else:
                    rankings.append(Ranking(query.query_id, one, seconds))
            report(len(rankings))
        return rankings

    def _found(self, texts: Sequence[str]) -> list[Found]:
        """Return a list per text, best first; nothing is found for a text without words."""
        asked = [i for i, text in enumerate(texts) if text.strip()]
        found: list[Found] = [() for _ in texts]
        if asked:
            for i, one in zip(asked, self._ask([texts[i] for i in asked]), strict=True):
                found[i] = one
        return found

    @abstractmethod
    def _ask(self, texts: Sequence[str]) -> Iterable[Found]:
        """Return a list per text, best first; each has words, and there is at least one."""

    def _ranked(self, numbers: Sequence[int], scores: Sequence[float]) -> tuple[RankedEntity, ...]:
        entities = [self._index.entity(number) for number in numbers[: self._k]]
        return tuple(
            RankedEntity(entity.entity_id, entity.title, score)
            for entity, score in zip(entities, scores, strict=False)
        )


class NearestMethod(_ModelFreeMethod):
    """Ranks by similarity alone.

    Args:
        name: As the command line spells it.
        index: Whose entities.
        shortlister: Of the same index.
        size: Entities looked up per query.
        k: Of these, entities wanted.
        batch_size: Queries asked together.
    """

    def __init__(
        self, name: str, index: Index, shortlister: Shortlister, size: int, k: int, batch_size: int
    ) -> None:
        super().__init__(name, index, size, k, batch_size)
        self._shortlister = shortlister

    def _ask(self, texts: Sequence[str]) -> Iterable[Found]:
        for vector in self._shortlister.embed(texts):
            found = self._shortlister.search(vector, self._size, None)
            yield self._ranked(found.entities.tolist(), found.similarities.tolist())


class EvidenceMethod(_ModelFreeMethod):
    """Ranks by all evidence, with the weights for answers without a model.

    Args:
        name: As the command line spells it.
        retriever: Whose index, evidence and ranking.
        size: Entities proposed per query.
        k: Of these, entities wanted.
        batch_size: Queries asked together.
    """

    def __init__(self, name: str, retriever: Retriever, size: int, k: int, batch_size: int) -> None:
        super().__init__(name, retriever.index, size, k, batch_size)
        self._ranker = retriever.ranker

    def _ask(self, texts: Sequence[str]) -> Iterable[Found]:
        for asked in self._ranker.ask(texts):
            if isinstance(asked, GenretError):
                yield str(asked)
                continue
            found = self._ranker.propose(asked, self._size)
            scores = self._ranker.alone.scores(found.features[: self._k])
            yield self._ranked(found.best.tolist(), scores.tolist())
