"""Ranks without a model: by the evidence of an index, by its vectors, by BM25, or by another system's run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from genret.retrieval.errors import GenretError
from genret.retrieval.evaluation.datasets.index_entities import EntityFinder, aliases_of
from genret.retrieval.evaluation.labelled_sets import INVALID, LabelledQuery, RankedAnswers, RankedEntity
from genret.retrieval.evaluation.methods.evaluated_method import Answered, MethodAnswer, timed_answers
from genret.retrieval.index.layout import TITLE
from genret.retrieval.index.reader import Index
from genret.retrieval.retriever import Retriever
from genret.retrieval.types import Entity
from genret.retrieval.vectors.vector_search import VectorProposer

# Returns a list for each of some texts with words, best first.
Ask = Callable[[Sequence[str]], Iterable[MethodAnswer]]


class ModelFreeMethod:
    """Ranks without a model; of a mention its own words are asked, without the context."""

    is_constrained = True
    is_random = False

    def __init__(self, name: str, ask: Ask, batch_size: int) -> None:
        self.name = name
        self._ask = ask
        self._batch_size = batch_size

    def answer(self, queries: Sequence[LabelledQuery], seed: int, report: Answered) -> list[RankedAnswers]:
        """Return a ranking per query, in order; a text without words has an empty one."""
        rankings: list[RankedAnswers] = []
        for at in range(0, len(queries), self._batch_size):
            batch = queries[at : at + self._batch_size]
            rankings += timed_answers(batch, partial(_found, self._ask, [query.text for query in batch]))
            report(len(rankings))
        return rankings


def _found(ask: Ask, texts: Sequence[str]) -> list[MethodAnswer]:
    asked = [text for text in texts if text.strip()]
    found = iter(ask(asked) if asked else ())
    return [next(found) if text.strip() else () for text in texts]


def by_vectors(index: Index, vectors: VectorProposer, size: int, k: int) -> Ask:
    """Rank by the similarity of vectors alone: `k` of `size` entities that are looked up."""

    def ask(texts: Sequence[str]) -> Iterator[MethodAnswer]:
        for vector in vectors.embed(texts):
            found = vectors.search(vector, size, None)
            yield _ranked(index, found.entities[:k].tolist(), found.similarities.tolist())

    return ask


def by_evidence(retriever: Retriever, size: int, k: int) -> Ask:
    """Rank by all evidence, with the weights for answers without a model."""
    ranker = retriever.ranker

    def ask(texts: Sequence[str]) -> Iterator[MethodAnswer]:
        for asked in ranker.ask(texts):
            if isinstance(asked, GenretError):
                yield str(asked)
                continue
            found = ranker.propose(asked, size)
            scores = ranker.alone.scores(found.features[:k])
            yield _ranked(retriever.index, found.best[:k].tolist(), scores.tolist())

    return ask


def _ranked(index: Index, numbers: Sequence[int], scores: Sequence[float]) -> tuple[RankedEntity, ...]:
    entities = map(index.entity, numbers)
    return tuple(RankedEntity(e.entity_id, e.title, s) for e, s in zip(entities, scores, strict=False))


DESCRIPTION = "description"
# Titles hold words of one letter ("C (programming language)") and of nothing but stop words ("The Who").
_TOKEN_PATTERN = r"(?u)\b\w+\b"


class LexicalIndex:
    """A BM25 index (bm25s, Lucene's variant, k1 1.5 and b 0.75) with one document per entity.

    A document is the title, the aliases and the description, if the index has that column, as words in lower
    case without stemming or stop words.
    """

    def __init__(self, index: Index) -> None:
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
        best = np.lexsort((numbers, -values))[:k]
        return _ranked(self._index, numbers[best].tolist(), values[best].tolist())

    def _tokens(self, texts: list[str], return_ids: bool = True) -> Any:
        return self._tokenize(
            texts, stopwords=None, token_pattern=_TOKEN_PATTERN, return_ids=return_ids, show_progress=False
        )


def _documents(index: Index) -> Iterator[str]:
    titles = index.entities.column(TITLE).to_pylist()
    aliases = aliases_of(index) or [[]] * len(titles)
    descriptions: list[Any] = [None] * len(titles)
    if DESCRIPTION in index.metadata_columns:
        descriptions = index.metadata_column(DESCRIPTION).to_pylist()
    for title, others, description in zip(titles, aliases, descriptions, strict=True):
        yield " ".join([title, *others, *([] if description is None else [str(description)])])


class RunFileMethod:
    """Answers with a run file; queries it does not name have no answer, and times are not known."""

    is_constrained = False
    is_random = False

    def __init__(self, name: str, file: str, k: int, titles: EntityFinder) -> None:
        self.name = name
        self._file = Path(file)
        self._k = k
        self._titles = titles

    def answer(self, queries: Sequence[LabelledQuery], seed: int, report: Answered) -> list[RankedAnswers]:
        """Return a ranking per query, in order; an entity that the index lacks is an invalid answer.

        A SourceError says that the file is missing or malformed.
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
