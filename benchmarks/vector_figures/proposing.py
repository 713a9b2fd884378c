"""Shortlists with the time that each part of them took."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from retrieval.index.reader import Index
from retrieval.vectors.embedder import FloatMatrix, TextEmbedder
from retrieval.vectors.exact import ExactSimilarities
from retrieval.vectors.kinds import efforts
from retrieval.vectors.methods import open_embedder
from retrieval.vectors.pipeline import searcher_of
from retrieval.vectors.searching import VectorSearcher
from retrieval.vectors.shortlist import Shortlist
from retrieval.vectors.shortlister import Shortlister
from retrieval.vectors.vector_file import open_vectors
from retrieval.vectors.views import EntityTexts

Mask = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

# Together these have more different words than an embedder keeps: 32,768.
_OTHERS, _OTHER_BLOCKS = 4096, 6

WHOLE, EMBEDDING, SEARCH, ORDERING = "propose", "embedding", "search", "exact ordering"
PARTS = (WHOLE, EMBEDDING, SEARCH, ORDERING)


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """One shortlist.

    Attributes:
        shortlist: What `propose` returned.
        candidates: Entities that were put in order by exact similarities; where none were, the shortlist's.
        wall_s: Seconds by part.
        cpu_s: Seconds of all threads by part.
    """

    shortlist: Shortlist
    candidates: IntArray
    wall_s: Mapping[str, float]
    cpu_s: Mapping[str, float]


class TimedVectors:
    """The vectors of an index, asked one query at a time.

    Args:
        index: Open, with vectors.

    Attributes:
        entry: What the manifest says about them.
        texts: The texts that have a vector each.
        embedder: Made them.
        efforts: Efforts that this kind of index can be asked with, rising.
    """

    def __init__(self, index: Index) -> None:
        opened = open_vectors(index)
        self.entry = opened.entry
        self.embedder = open_embedder(opened.entry, opened.arrays)
        self.texts = EntityTexts(index, opened.entry.columns)
        self.efforts = efforts(opened.index)
        self._vectors = opened.index
        self._num_entities = index.num_entities
        self._clock = _Clock()
        self._timed_embedder = _TimedEmbedder(self.embedder, self._clock)
        self._exact = _TimedSimilarities(self.embedder, self.texts, self._clock)

    def searcher(self) -> VectorSearcher:
        """Return what searches with the effort of the index, and orders what others found."""
        return searcher_of(self._vectors, self.entry, self._num_entities, self._exact)

    def meet_others(self, rng: np.random.Generator) -> None:
        """Leave a lexical embedder with the words of other texts, as a server's is by the time of a query."""
        if self.entry.source:
            return
        for _ in range(_OTHER_BLOCKS):
            self.embedder.embed_texts(self.texts.of(rng.integers(0, self._num_entities, _OTHERS)).texts)

    def ask(
        self, texts: Sequence[str], size: int, effort: int | None = None, allowed: Mask | None = None
    ) -> list[Asked]:
        """Ask for a shortlist of every query, one query at a time.

        Args:
            texts: The queries.
            size: Most entities of a list.
            effort: In place of the index's own.
            allowed: Which entities may be found, None for all. Shape: (num_entities,), bool.
        """
        entry = self.entry if effort is None else replace(self.entry, effort=effort)
        searcher = searcher_of(self._vectors, entry, self._num_entities, self._exact)
        shortlister = Shortlister(entry, self._timed_embedder, searcher, self._exact, 0)
        return [self._ask(shortlister, text, size, allowed) for text in texts]

    def _ask(self, shortlister: Shortlister, text: str, size: int, allowed: Mask | None) -> Asked:
        clock = self._clock
        clock.clear()
        self._exact.seen = None
        with clock.part(WHOLE):
            (shortlist,) = shortlister.propose([text], [size], [allowed])
        for seconds in (clock.wall_s, clock.cpu_s):
            seconds[SEARCH] = seconds[WHOLE] - seconds[EMBEDDING] - seconds[ORDERING]
        seen = shortlist.entities if self._exact.seen is None else self._exact.seen
        return Asked(shortlist, seen, dict(clock.wall_s), dict(clock.cpu_s))


class _Clock:
    """Adds up wall and processor time by part."""

    wall_s: dict[str, float]
    cpu_s: dict[str, float]

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.wall_s = dict.fromkeys(PARTS, 0.0)
        self.cpu_s = dict.fromkeys(PARTS, 0.0)

    def part(self, name: str) -> _Part:
        return _Part(self, name)


class _Part:
    def __init__(self, clock: _Clock, name: str) -> None:
        self._clock, self._name = clock, name

    def __enter__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._clock.wall_s[self._name] += time.perf_counter() - self._wall
        self._clock.cpu_s[self._name] += time.process_time() - self._cpu


class _TimedEmbedder:
    """An embedder whose queries are timed."""

    def __init__(self, embedder: TextEmbedder, clock: _Clock) -> None:
        self._embedder, self._clock = embedder, clock
        self.dimensions, self.fingerprint = embedder.dimensions, embedder.fingerprint
        self.embed_texts, self.similarities = embedder.embed_texts, embedder.similarities
        self.arrays = embedder.arrays

    def embed_queries(self, texts: Sequence[str]) -> FloatMatrix:
        with self._clock.part(EMBEDDING):
            return self._embedder.embed_queries(texts)


class _TimedSimilarities(ExactSimilarities):
    """Exact similarities, timed; `seen` are the entities that were compared last."""

    def __init__(self, embedder: TextEmbedder, texts: EntityTexts, clock: _Clock) -> None:
        super().__init__(embedder, texts)
        self.seen: IntArray | None = None
        self._clock = clock

    def __call__(self, query: str, entities: IntArray) -> npt.NDArray[np.float32]:
        self.seen = entities
        with self._clock.part(ORDERING):
            return super().__call__(query, entities)
