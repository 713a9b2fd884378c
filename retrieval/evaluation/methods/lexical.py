"""BM25 over titles, aliases and descriptions: a method of its own, and what proposes entities to another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from retrieval.errors import MissingExtraError
from retrieval.evaluation.catalogue import aliases_of
from retrieval.evaluation.types import LabelledQuery, RankedEntity, Ranking
from retrieval.index.layout import TITLE
from retrieval.index.reader import Index

DESCRIPTION = "description"
# Titles hold words of one letter ("C (programming language)") and of nothing but stop words ("The Who").
_TOKEN_PATTERN = r"(?u)\b\w+\b"


def check_bm25s() -> None:
    """Find bm25s before anything is loaded.

    Raises:
        MissingExtraError: it is not installed.
    """
    if find_spec("bm25s") is None:
        raise MissingExtraError("bm25s", "eval")


class LexicalIndex:
    """A BM25 index (bm25s, Lucene's variant, k1 1.5 and b 0.75) with one document per entity.

    A document is the title, the aliases and, where the index has that column, the description, in lower case,
    cut into words; nothing is stemmed and no word is left out.

    Args:
        index: An open index.

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
        """Return the k best entities for every text, best first; fewer where fewer share a word with it.

        Equal scores stand in the order of the index.
        """
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


class LexicalMethod:
    """Ranks by BM25 alone; of a mention its own words are asked, without the context.

    Args:
        name: As the command line spells it.
        lexical: The index, made on first use.
        k: Entities wanted.
        batch_size: Queries asked together.
    """

    is_constrained = True
    is_random = False

    def __init__(self, name: str, lexical: Callable[[], LexicalIndex], k: int, batch_size: int) -> None:
        self.name = name
        self._lexical = lexical
        self._k = k
        self._batch_size = batch_size

    def answer(
        self, queries: Sequence[LabelledQuery], seed: int, report: Callable[[int], None]
    ) -> list[Ranking]:
        """Return a ranking per query, in order; `report` gets the number answered so far."""
        lexical = self._lexical()
        rankings: list[Ranking] = []
        for at in range(0, len(queries), self._batch_size):
            batch = queries[at : at + self._batch_size]
            started = time.perf_counter()
            found = lexical.propose([query.text for query in batch], self._k)
            seconds = (time.perf_counter() - started) / len(batch)
            rankings += [Ranking(q.query_id, e, seconds) for q, e in zip(batch, found, strict=True)]
            report(len(rankings))
        return rankings


def _documents(index: Index) -> Iterator[str]:
    titles = index.entities.column(TITLE).to_pylist()
    aliases = aliases_of(index)
    descriptions = (
        index.metadata_column(DESCRIPTION).to_pylist() if DESCRIPTION in index.metadata_columns else []
    )
    for number, title in enumerate(titles):
        parts = [title]
        if aliases:
            parts += aliases[number]
        if descriptions and descriptions[number] is not None:
            parts.append(str(descriptions[number]))
        yield " ".join(parts)
