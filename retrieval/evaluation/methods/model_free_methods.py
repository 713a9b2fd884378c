"""Ranks without a model: by the evidence of an index, by its vectors, by BM25, or by another system's run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from genret.retrieval.errors import GenretError, MissingExtraError
from genret.retrieval.evaluation.datasets.index_entities import EntityFinder, aliases_of
from genret.retrieval.evaluation.labelled_sets import INVALID, LabelledQuery, RankedAnswers, RankedEntity
from genret.retrieval.evaluation.methods.evaluated_method import MethodAnswer, timed_answers
from genret.retrieval.index.layout import TITLE
from genret.retrieval.index.reader import Index
from genret.retrieval.types import Entity

if TYPE_CHECKING:
    from genret.retrieval.retriever import Retriever
    from genret.retrieval.vectors.vector_search import VectorProposer


class _ModelFreeMethod(ABC):
    """Ranks without a model; of a mention its own words are asked, without the context.

    `size` entities are looked up per query, and `k` of them listed.
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
    ) -> list[RankedAnswers]:
        """Return a ranking per query, in order; `report` gets the number answered so far."""
        rankings: list[RankedAnswers] = []
        for at in range(0, len(queries), self._batch_size):
            batch = queries[at : at + self._batch_size]
            rankings += timed_answers(batch, partial(self._found, [query.text for query in batch]))
            report(len(rankings))
        return rankings

    def _found(self, texts: Sequence[str]) -> list[MethodAnswer]:
        """Return a list per text, best first; a text without words has an empty one."""
        asked = [text for text in texts if text.strip()]
        found = iter(self._ask(asked) if asked else ())
        return [next(found) if text.strip() else () for text in texts]

    @abstractmethod
    def _ask(self, texts: Sequence[str]) -> Iterable[MethodAnswer]:
        """Return a list for each of some texts with words, best first."""

    def _ranked(self, numbers: Sequence[int], scores: Sequence[float]) -> tuple[RankedEntity, ...]:
        entities = [self._index.entity(number) for number in numbers[: self._k]]
        return tuple(
            RankedEntity(entity.entity_id, entity.title, score)
            for entity, score in zip(entities, scores, strict=False)
        )


class NearestMethod(_ModelFreeMethod):
    """Ranks by the similarity of vectors alone."""

    def __init__(
        self, name: str, index: Index, vectors: VectorProposer, size: int, k: int, batch_size: int
    ) -> None:
        super().__init__(name, index, size, k, batch_size)
        self._vectors = vectors

    def _ask(self, texts: Sequence[str]) -> Iterable[MethodAnswer]:
        for vector in self._vectors.embed(texts):
            found = self._vectors.search(vector, self._size, None)
            yield self._ranked(found.entities.tolist(), found.similarities.tolist())


class EvidenceMethod(_ModelFreeMethod):
    """Ranks by all evidence, with the weights for answers without a model."""

    def __init__(self, name: str, retriever: Retriever, size: int, k: int, batch_size: int) -> None:
        super().__init__(name, retriever.index, size, k, batch_size)
        self._ranker = retriever.ranker

    def _ask(self, texts: Sequence[str]) -> Iterable[MethodAnswer]:
        for asked in self._ranker.ask(texts):
            if isinstance(asked, GenretError):
                yield str(asked)
                continue
            found = self._ranker.propose(asked, self._size)
            scores = self._ranker.alone.scores(found.features[: self._k])
            yield self._ranked(found.best.tolist(), scores.tolist())


DESCRIPTION = "description"
# Titles hold words of one letter ("C (programming language)") and of nothing but stop words ("The Who").
_TOKEN_PATTERN = r"(?u)\b\w+\b"


def check_bm25s() -> None:
    """Check that bm25s is installed, before anything is loaded.

    Raises:
        MissingExtraError: it is not installed.
    """
    if find_spec("bm25s") is None:
        raise MissingExtraError("bm25s", "eval")


class LexicalIndex:
    """A BM25 index (bm25s, Lucene's variant, k1 1.5 and b 0.75) with one document per entity.

    A document is the title, the aliases and the description, if the index has that column, as words in lower
    case without stemming or stop words.

    Raises:
        MissingExtraError: bm25s is not installed.
    """

    def __init__(self, index: Index) -> None:
        check_bm25s()
        import bm25s

        self._tokenize: Callable[..., Any] = bm25s.tokenize
        self._index = index
        self._bm25 = bm25s.BM25()
        tokens = self._tokens(list(_documents(index)))
        self._is_empty = not tokens.vocab  # bm25s cannot index no words at all
        if not self._is_empty:
            self._bm25.index(tokens, show_progress=False)

    def propose(self, texts: Sequence[str], k: int) -> list[tuple[RankedEntity, ...]]:
        """Return at most k entities that share a word with each text, best first; ties are in index order."""
        return [self._best(words, k) for words in self._tokens(list(texts), return_ids=False)]

    def _best(self, words: list[str], k: int) -> tuple[RankedEntity, ...]:
        if self._is_empty or not words:
            return ()
        scores = self._bm25.get_scores(words)
        # Few entities share a word with a text: only these are sorted.
        numbers = np.flatnonzero(scores)
        values = scores[numbers]
        if len(numbers) > k:
            enough = values >= np.partition(values, -k)[-k]
            numbers, values = numbers[enough], values[enough]
        ranked = []
        for at in np.lexsort((numbers, -values))[:k].tolist():
            entity = self._index.entity(int(numbers[at]))
            ranked.append(RankedEntity(entity.entity_id, entity.title, float(values[at])))
        return tuple(ranked)

    def _tokens(self, texts: list[str], return_ids: bool = True) -> Any:
        return self._tokenize(
            texts, stopwords=None, token_pattern=_TOKEN_PATTERN, return_ids=return_ids, show_progress=False
        )


class LexicalMethod(_ModelFreeMethod):
    """Ranks by BM25 alone, with an index that is built on first use."""

    def __init__(
        self, name: str, index: Index, lexical: Callable[[], LexicalIndex], k: int, batch_size: int
    ) -> None:
        super().__init__(name, index, k, k, batch_size)
        self._lexical = lexical

    def answer(
        self, queries: Sequence[LabelledQuery], seed: int, report: Callable[[int], None]
    ) -> list[RankedAnswers]:
        """Return a ranking per query, in order; `report` gets the number answered so far."""
        self._lexical()  # built in no query's time
        return super().answer(queries, seed, report)

    def _ask(self, texts: Sequence[str]) -> Iterable[MethodAnswer]:
        return self._lexical().propose(texts, self._k)


def _documents(index: Index) -> Iterator[str]:
    titles = index.entities.column(TITLE).to_pylist()
    aliases = aliases_of(index)
    has_descriptions = DESCRIPTION in index.metadata_columns
    descriptions = index.metadata_column(DESCRIPTION).to_pylist() if has_descriptions else []
    for number, title in enumerate(titles):
        parts = [title]
        if aliases:
            parts += aliases[number]
        if descriptions and descriptions[number] is not None:
            parts.append(str(descriptions[number]))
        yield " ".join(parts)


class RunFileMethod:
    """Answers with a run file; queries it does not name have no answer, and times are not known."""

    is_constrained = False
    is_random = False

    def __init__(self, name: str, file: str, k: int, titles: EntityFinder) -> None:
        self.name = name
        self._file = Path(file)
        self._k = k
        self._titles = titles

    def answer(
        self, queries: Sequence[LabelledQuery], seed: int, report: Callable[[int], None]
    ) -> list[RankedAnswers]:
        """Return a ranking per query, in order; an entity that the index lacks is an invalid answer.

        Raises:
            SourceError: the file is missing or malformed.
        """
        from genret.retrieval.evaluation.run_files import read_run

        run = read_run(self._file)
        listed = [run.get(query.query_id, ())[: self._k] for query in queries]
        known = self._titles.entities(list({entity.entity_id for found in listed for entity in found}))
        report(len(queries))
        return [
            RankedAnswers(query.query_id, tuple(_checked(entity, known) for entity in found))
            for query, found in zip(queries, listed, strict=True)
        ]


def _checked(answer: RankedEntity, known: Mapping[str, Entity]) -> RankedEntity:
    entity = known.get(answer.entity_id)
    if entity is None:
        return replace(answer, entity_id=INVALID + answer.entity_id)
    return replace(answer, title=entity.title)
