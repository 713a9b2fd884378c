"""The evidence of an index beside the model: proposes candidates for a query, and computes their features.

Every kind of evidence proposes entities, and describes any entity by a few numbers (`FEATURES`), whoever
proposed it; `retrieval.ranking` weighs them. If some evidence is damaged or missing, the rest still works.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
from rapidfuzz import process
from rapidfuzz.distance import Indel

from genret.retrieval.errors import GenretError
from genret.retrieval.evidence.field import NAMES, QUERIES, TEXTS, Counted, Field, open_field
from genret.retrieval.evidence.loops import compile_loops
from genret.retrieval.evidence.postings import (
    Characters,
    FloatArray,
    IntArray,
    Lookup,
    Mask,
    TermLists,
    Terms,
    fold_all,
)
from genret.retrieval.index.layout import FIELD_FILES
from genret.retrieval.index.priors import Prior
from genret.retrieval.index.reader import EntityTexts, Index
from genret.retrieval.vectors.vector_search import VectorProposer

VECTORS, MODEL, WEIGHT = "vectors", "model", "weight"
# Kinds of evidence, in the order in which they are shown.
KINDS = (NAMES, TEXTS, QUERIES, VECTORS, MODEL, WEIGHT)


@dataclass(frozen=True, slots=True)
class Feature:
    """A number that describes an entity in the light of a query; `name` is unique within the `kind`."""

    kind: str
    name: str
    meaning: str

    def __str__(self) -> str:
        return f"{self.kind}.{self.name}"


_NAME_FEATURES = (
    Feature(NAMES, "words", "BM25 of the query's words in the name"),
    Feature(
        NAMES,
        "letters",
        "share of the query's letter trigrams that the name has, rare ones counting more; "
        "1 if it begins with the query",
    ),
    Feature(NAMES, "likeness", "1 - edit distance / length of both (insertions and deletions)"),
    Feature(NAMES, "closeness", "0 up to a likeness of 3/4, then rising to 1: a name with typing errors"),
    Feature(NAMES, "beginning", "1 if the name begins with the query"),
    Feature(
        NAMES, "mentioned", "`length` if the query holds the name, capitals and accents included; else 0"
    ),
    Feature(NAMES, "whole", "1 if the name is the query, capitals, accents and punctuation apart"),
    Feature(NAMES, "length", "log(1 + letters) of the name"),
)
# A long query only mentions the name; other features then tell whether it is meant.
_LONG_FEATURES = tuple(
    Feature(NAMES, f"{feature.name}_long", f"`{feature.name}` times `query length`")
    for feature in _NAME_FEATURES
)
FEATURES = (
    *_NAME_FEATURES,
    *_LONG_FEATURES,
    Feature(TEXTS, "words", "BM25 of the query's words in the entity's texts"),
    Feature(TEXTS, "letters", "BM25 of the query's letter trigrams in them"),
    Feature(QUERIES, "words", "BM25 of the query's words in all past queries for the entity"),
    Feature(QUERIES, "letters", "BM25 of the query's letter trigrams in them"),
    Feature(
        QUERIES,
        "nearest",
        "largest share of the query's trigrams in one past query, for the 16 entities with most `letters`",
    ),
    Feature(QUERIES, "same", "share of the entity in the past queries that are the same as this one"),
    Feature(VECTORS, "similarity", "cosine of the query and the entity's most similar text"),
    Feature(MODEL, "logprob", "log P(e | q), at least -40"),
    Feature(MODEL, "prior", "-log P(e | queries without content), at most 40: how rare the text is anyway"),
    Feature(WEIGHT, "weight", "log(1 + the entity's weight / the mean weight)"),
)
FEATURE_NUMBER = {str(feature): number for number, feature in enumerate(FEATURES)}

# Number of words from which a query is as long as any: `query length` = log(words) / log(16).
_LONG_QUERY = 16
LEAST_LOGPROB = -40.0
# Likeness from which a name may be the query with typing errors.
_CLOSE = 0.75
_EDGES = re.compile(r"\W+")
# Candidates described at once: their texts are read and searched.
_BLOCK = 1024
# Up to so many queries, uncompiled loops are faster than compiling: `genret ask --no-model` asks few.
_PLAIN_QUERIES = 32
# Candidates whose past queries are compared one by one.
_COMPARED = 16


@dataclass(frozen=True, slots=True, eq=False)
class EvidenceQuery:
    """A query, prepared for evidence."""

    text: str  # as it was asked
    folded: str  # as it is compared
    words: npt.NDArray[np.uint32]  # its distinct words; shape (n,), uint32
    letters: npt.NDArray[np.uint32]  # its distinct trigrams; shape (m,), uint32
    lookups: dict[str, tuple[Lookup, Lookup]]  # lists of its words and of its trigrams, by field
    vector: FloatArray | None = None  # from the encoder; shape (d,); None without one

    @property
    def length(self) -> float:
        """`query length` of the features: 0 for one word, 1 for sixteen or more."""
        return min(1.0, math.log(max(self.folded.count(" ") + 1, 1)) / math.log(_LONG_QUERY))


class Evidence:
    """The evidence of one open index. Safe to use from several threads.

    Attributes:
        fields: The usable fields, by kind in the order of `KINDS`.
        vectors: Proposes by vectors; None if missing or unusable.
        problems: Why kinds that the index has cannot be used.
    """

    def __init__(
        self,
        index: Index,
        fields: Mapping[str, Field] = MappingProxyType({}),
        vectors: VectorProposer | None = None,
        problems: Mapping[str, GenretError] = MappingProxyType({}),
    ) -> None:
        self.vectors = vectors
        self.problems = problems
        self.fields = fields
        self._num_asked = 0
        self._prior: tuple[Prior, float] | None = None
        self._names = EntityTexts(index)
        weights = index.weights
        self._weights = weights if weights is not None and weights.any() else None
        self._mean_weight = 1.0 if self._weights is None else float(self._weights.mean())

    @property
    def kinds(self) -> tuple[str, ...]:
        """The usable kinds of evidence, in the order of `KINDS`, without `MODEL`."""
        has_vectors, has_weights = self.vectors is not None, self._weights is not None
        has = {*self.fields, *[VECTORS] * has_vectors, *[WEIGHT] * has_weights}
        return tuple(kind for kind in KINDS if kind in has)

    def use_prior(self, prior: Prior) -> None:
        """Add the prior of the answering model as a feature; entities without one get the mean.

        To be called before the evidence is shared between threads.
        """
        known = prior.logprobs[~np.isnan(prior.logprobs)]
        self._prior = prior, float(_surprise(known).mean()) if len(known) else 0.0

    def ask(self, texts: Sequence[str], with_vectors: bool = True) -> list[EvidenceQuery]:
        """Prepare queries; the encoder of the vectors, if used, sees all of them at once.

        Raises:
            ModelError: the encoder fails.
        """
        self._num_asked += len(texts)
        if self._num_asked > _PLAIN_QUERIES:
            compile_loops()
        vectors: list[FloatArray | None] = [None] * len(texts)
        if self.vectors is not None and with_vectors:
            vectors = list(self.vectors.embed(texts))
        asked = []
        for text, vector in zip(texts, vectors, strict=True):
            (folded,) = fold_all([text])
            characters = Characters([folded])
            words, letters = np.unique(characters.words().term), np.unique(characters.letters().term)
            lookups = {kind: field.look_up(words, letters) for kind, field in self.fields.items()}
            asked.append(EvidenceQuery(text, folded, words, letters, lookups, vector))
        return asked

    def propose(self, asked: EvidenceQuery, size: int, allowed: Mask | None = None) -> IntArray:
        """Return the entities that any kind proposes, ascending: up to `size` texts by each way to search.

        Only entities of the mask `allowed` are proposed; None allows all. Shape: (num_entities,).
        """
        found = [field.propose(asked.lookups[kind], size, allowed) for kind, field in self.fields.items()]
        if self.vectors is not None and asked.vector is not None:
            found.append(self.vectors.search(asked.vector, size, allowed).entities)
        return np.unique(np.concatenate([np.empty(0, np.int64), *found]))

    def features(self, asked: EvidenceQuery, entities: IntArray, without_same: bool = False) -> FloatArray:
        """Return the features of entities in the light of a query, 0 for missing kinds, and for log P(e | q).

        `without_same` leaves out past queries equal to this one, as for fitting weights to queries that were
        asked. Columns as in `FEATURES`. Shape: (n, number of features), float32.
        """
        found = np.zeros((len(entities), len(FEATURES)), np.float32)
        for begin in range(0, len(entities), _BLOCK):
            part = slice(begin, begin + _BLOCK)
            self._describe(asked, entities[part], found[part])
        if QUERIES in self.fields:
            self._compare_queries(asked, entities, found, without_same)
        if self.vectors is not None and asked.vector is not None and len(entities):
            similarities = self.vectors.similarities(asked.vector, entities)
            found[:, FEATURE_NUMBER["vectors.similarity"]] = similarities
        if self._prior is not None:
            prior, mean = self._prior
            logprobs = prior.logprobs[entities]
            found[:, FEATURE_NUMBER["model.prior"]] = np.where(np.isnan(logprobs), mean, _surprise(logprobs))
        if self._weights is not None:
            # If half the queries are for entities drawn by weight and half for any, each gets a share of
            # (1 / n + weight / total) / 2: a weight of 1 for this feature is then their prior.
            shares = self._weights[entities] / self._mean_weight
            found[:, FEATURE_NUMBER["weight.weight"]] = np.log1p(shares)
        return found

    def _describe(self, asked: EvidenceQuery, entities: IntArray, found: FloatArray) -> None:
        if NAMES in self.fields:
            batch = self._names.of(entities)
            names = _describe_names(asked, batch.texts, self.fields[NAMES])
            _maxima(found, entities, batch.numbers, names)
        for kind in (TEXTS, QUERIES):
            if kind in self.fields:
                columns = _columns(kind)
                scores = self.fields[kind].scores_of(asked.lookups[kind], entities)
                found[:, columns.start : columns.start + 2] = scores

    def _compare_queries(
        self, asked: EvidenceQuery, entities: IntArray, found: FloatArray, without_same: bool
    ) -> None:
        """Compare the query with the past queries of the entities that have the best scores by them."""
        letters, nearest = FEATURE_NUMBER["queries.letters"], FEATURE_NUMBER["queries.nearest"]
        order = np.argsort(-found[:, letters], kind="stable")[:_COMPARED]
        chosen = order[found[order, letters] > 0]
        past = self.fields[QUERIES].queries_of(entities[chosen])
        folded = fold_all([query for mine in past for query, _ in mine])
        owner = np.repeat(chosen, [len(mine) for mine in past])
        is_same = np.array([text == asked.folded for text in folded], np.bool_)
        lookup = asked.lookups[QUERIES][1]
        shares = _overlap(Characters(folded).letters(), lookup, len(folded)) / _total(lookup)
        if without_same:
            shares[is_same] = 0
            self._forget(asked, entities, found, chosen, past, folded)
        else:
            counts = np.array([count for mine in past for _, count in mine], np.float32)
            same = np.zeros(len(entities), np.float32)
            np.add.at(same, owner[is_same], counts[is_same])
            found[:, FEATURE_NUMBER["queries.same"]] = same / max(same.sum(), 1)
        np.maximum.at(found[:, nearest], owner, shares)

    def _forget(
        self,
        asked: EvidenceQuery,
        entities: IntArray,
        found: FloatArray,
        chosen: IntArray,
        past: Sequence[Sequence[Counted]],
        folded: Sequence[str],
    ) -> None:
        """Score the past queries of entities as if this query were not among them."""
        at, field = 0, self.fields[QUERIES]
        for place, mine in zip(chosen.tolist(), past, strict=True):
            others = [text for text in folded[at : at + len(mine)] if text != asked.folded]
            if len(others) < len(mine):
                characters = Characters([" ".join(others)])
                for number, terms, lookup, postings in zip(
                    range(2),
                    (characters.words(), characters.letters()),
                    asked.lookups[QUERIES],
                    (field.words, field.letters),
                    strict=True,
                ):
                    score = _overlap(terms, lookup, 1) * _factor(terms, postings, 1)
                    found[place, _columns(QUERIES).start + number] = score[0]
            at += len(mine)


def _describe_names(asked: EvidenceQuery, names: Sequence[str], field: Field) -> FloatArray:
    """Return the features of names. Shape: (len(names), number of these features)."""
    folded = fold_all(names)
    characters = Characters(folded)
    words, letters = asked.lookups[NAMES]
    of_words = characters.words()
    text = f" {_EDGES.sub(' ', asked.text).strip()} "
    plain_names = [_EDGES.sub(" ", name).strip() for name in names]
    length = np.log1p([len(name) for name in folded])
    likeness = process.cdist([asked.folded], folded, scorer=Indel.normalized_similarity)[0]
    shared = _overlap(characters.letters(), letters, len(names)) / _total(letters)
    begins = np.array([name.startswith(asked.folded) for name in folded], np.bool_)
    shared[begins] = 1  # the last trigrams of half a name are not in the whole
    columns = [
        _overlap(of_words, words, len(names)) * _factor(of_words, field.words, len(names)),
        shared,
        likeness,
        np.maximum(likeness - _CLOSE, 0) / (1 - _CLOSE),
        begins,
        [name != "" and f" {name} " in text for name in plain_names] * length,
        [name == asked.folded for name in folded],
        length,
    ]
    plain = np.stack([np.asarray(column, np.float32) for column in columns], axis=1)
    return np.concatenate([plain, plain * np.float32(asked.length)], axis=1)


def _maxima(found: FloatArray, entities: IntArray, owner: IntArray, names: FloatArray) -> None:
    """Give every entity the largest of each feature of its names, and the length of its likeliest name."""
    order = np.argsort(entities, kind="stable")
    at = order[np.searchsorted(entities[order], owner)]
    columns = _columns(NAMES)
    best = np.full((len(entities), names.shape[1]), -np.inf, np.float32)
    np.maximum.at(best, at, names)
    likeness, length = FEATURE_NUMBER["names.likeness"], FEATURE_NUMBER["names.length"]
    is_best = names[:, likeness] == best[at, likeness]
    for column in (length, length + len(_NAME_FEATURES)):
        best[:, column] = 0
        best[at[is_best], column] = names[is_best, column]
    found[:, columns] = np.where(np.isneginf(best), 0, best)


def _overlap(terms: Terms, lookup: Lookup, count: int) -> FloatArray:
    """Return the summed idf of the query's terms that each of `count` texts has. Shape: (count,)."""
    if not len(lookup.term) or not len(terms.term):
        return np.zeros(count, np.float32)
    at = np.minimum(np.searchsorted(lookup.term, terms.term), len(lookup.term) - 1)
    idf = np.where(lookup.term[at] == terms.term, lookup.idf[at], 0)
    return np.bincount(terms.text, weights=idf, minlength=count).astype(np.float32)


def _factor(terms: Terms, postings: TermLists, count: int) -> FloatArray:
    lengths = np.bincount(terms.text, minlength=count)
    return postings.length_factor[np.minimum(lengths, len(postings.length_factor) - 1)]


def _surprise(logprobs: FloatArray) -> FloatArray:
    return np.clip(-logprobs, 0, -LEAST_LOGPROB)


def _total(lookup: Lookup) -> float:
    return max(float(lookup.idf.sum()), 1e-9)


def _columns(kind: str) -> slice:
    numbers = [number for number, feature in enumerate(FEATURES) if feature.kind == kind]
    return slice(numbers[0], numbers[-1] + 1)


_LOG = logging.getLogger(__name__)


def open_evidence(index: Index, encoder: str | Path | None = None, device: str = "cpu") -> Evidence:
    """Open the evidence of an index; unusable evidence is no error, but named in `Evidence.problems`.

    `encoder` is the present place of the encoder that made the vectors; None: unchanged.
    """
    problems: dict[str, GenretError] = {}
    fields: dict[str, Field] = {}
    for kind, file in FIELD_FILES.items():
        if index.manifest.file(file) is None:
            continue
        try:
            fields[kind] = open_field(index, kind)
        except GenretError as error:
            problems[kind] = error.with_traceback(None)
    vectors = None
    if index.vectors is not None:
        try:
            vectors = VectorProposer.open(index, encoder, device)
        except GenretError as error:
            problems[VECTORS] = error.with_traceback(None)
    for kind, problem in problems.items():
        _LOG.warning("the %s of %s cannot be used as evidence: %s", kind, index.path, problem)
    return Evidence(index, fields, vectors, problems)
