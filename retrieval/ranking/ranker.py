"""Opens the evidence of an index with its ranking: together they propose candidates and order them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Self

import numpy as np
import numpy.typing as npt

from genret.retrieval.errors import EvidenceMissingError, GenretError, IndexMismatchError
from genret.retrieval.evidence.evidence import VECTORS, Evidence, EvidenceQuery, open_evidence
from genret.retrieval.evidence.field import NAMES, QUERIES, TEXTS
from genret.retrieval.evidence.loops import compile_loops
from genret.retrieval.evidence.postings import IntArray, Mask
from genret.retrieval.index.layout import PRIOR_FILE
from genret.retrieval.index.priors import Prior, read_priors
from genret.retrieval.index.reader import Index
from genret.retrieval.ranking.rankings import DEFAULT_RANKING, MODEL_PRIOR, NO_MODEL, Ranking, Rankings

_LOG = logging.getLogger(__name__)

# Texts that each kind of evidence proposes, by each of its ways to search.
PROPOSALS = 50
RANKING, PRIOR = "ranking", "prior"
_MAKES_PRIOR = "genret tune INDEX --model MODEL --prior"
_PROPOSING = (NAMES, TEXTS, QUERIES, VECTORS)


@dataclass(frozen=True, slots=True, eq=False)
class Proposals:
    """Entities that the evidence proposes for one query."""

    asked: EvidenceQuery  # the query
    entities: IntArray  # all entities found, best first by the evidence alone; shape (n,)
    # Their features. An entity that a decoder finds too keeps these, because some are shares among all that
    # was found. Shape: (n, number of features)
    features: npt.NDArray[np.float32]
    size: int  # number of proposals, the first ones

    @property
    def best(self) -> IntArray:
        """The proposed entities. Shape: (at most size,)."""
        return self.entities[: self.size]


class Ranker:
    """Proposes candidates and orders them. Safe to use from several threads.

    Attributes:
        evidence: Evidence of the index.
        ranking: Weighs evidence and the model.
        alone: Weighs evidence without a model.
        problems: Errors of unusable kinds of evidence, of the rankings (`RANKING`), and of the prior that
            the model's ranking would need (`PRIOR`).
        is_weighed: Whether `ranking` was fitted with the answering model.
    """

    def __init__(
        self,
        evidence: Evidence,
        ranking: Ranking,
        alone: Ranking,
        problems: Mapping[str, GenretError] = MappingProxyType({}),
        is_weighed: bool = False,
    ) -> None:
        self.evidence = evidence
        self.ranking = ranking
        self.alone = alone
        self.is_weighed = is_weighed
        self.problems = {**evidence.problems, **problems}
        self._has_warned = False

    @classmethod
    def open(
        cls,
        index: Index,
        encoder: str | Path | None = None,
        device: str = "cpu",
        fingerprint: Callable[[], str] | None = None,
        prompts: str | None = None,
    ) -> Self:
        """Open the evidence and the ranking of an index; unusable parts are no error, but in `problems`.

        `encoder` is the present place of the vectors' encoder, None: unchanged. `fingerprint` returns that of
        the answering model, if any; `prompts` is the digest of the prompts that its prior must be computed
        with.
        """
        evidence = open_evidence(index, encoder, device)
        rankings, problems = Rankings(), dict[str, GenretError]()
        try:
            rankings = Rankings.read(index)
        except GenretError as error:
            problems[RANKING] = error.with_traceback(None)
            _LOG.warning("the ranking of %s cannot be used, others' weights are: %s", index.path, error)
        alone, _ = rankings.of(NO_MODEL)
        ranking, is_weighed = alone, False
        if fingerprint is not None:
            compile_loops()  # now, not while the first requests wait
            # It reads gigabytes of weights, so it is called only if the model can be a weighed one.
            is_known = set(rankings.fitted) - {NO_MODEL} or index.manifest.file(PRIOR_FILE) is not None
            model = fingerprint() if is_known else "unweighed"
            ranking, is_weighed = rankings.of(model)
            try:
                prior = usable_prior(index, model, prompts)
                evidence.use_prior(prior)
                if missing := prior.num_missing:
                    _LOG.info("%d entities of %s count as the mean: %s", missing, index.path, _MAKES_PRIOR)
            except GenretError as error:
                if ranking.weights[MODEL_PRIOR]:
                    problems[PRIOR] = error.with_traceback(None)
                    ranking, is_weighed = rankings.unweighed(), False
                    _LOG.warning("the ranking of %s for this model needs its prior: %s", index.path, error)
        return cls(evidence, ranking, alone, problems, is_weighed)

    @classmethod
    def none(cls, index: Index) -> Self:
        """Return the ranker of an index without evidence."""
        return cls(Evidence(index), DEFAULT_RANKING, DEFAULT_RANKING)

    @property
    def can_propose(self) -> bool:
        """Whether any evidence proposes entities."""
        return any(kind in _PROPOSING for kind in self.evidence.kinds)

    def require(self, index: Index) -> None:
        """Check that some evidence can propose entities.

        Raises:
            EvidenceMissingError: the index has none.
            GenretError: it has some, but none is usable.
        """
        if self.can_propose:
            return
        self.require_all()
        raise EvidenceMissingError(
            f"the index {index.path} has no evidence that proposes entities; add some with: "
            "genret update INDEX --evidence all"
        )

    def require_all(self) -> None:
        """Raise a GenretError unless all evidence of the index and its ranking are usable."""
        for problem in self.problems.values():
            raise _another(problem)

    def ask(self, texts: Sequence[str]) -> Sequence[EvidenceQuery | GenretError]:
        """Look up queries.

        A query for which the encoder fails is looked up without its vector; if only vectors can propose
        entities, it gets the error.
        """
        try:
            return self.evidence.ask(texts)
        except GenretError as error:
            if len(texts) > 1:  # one text that cannot be embedded must not fail the others
                return [self.ask([text])[0] for text in texts]
            if not self._has_warned:  # later failures show in the answers' `missing_evidence`
                self._has_warned = True
                _LOG.warning("an encoder failed, and a request is answered without vectors: %s", error)
            if not self.evidence.fields:
                return [error.with_traceback(None)]
            return self.evidence.ask(texts, with_vectors=False)

    def propose(self, asked: EvidenceQuery, size: int, allowed: Mask | None = None) -> Proposals:
        """Return the entities found, ordered by the evidence alone; the first `size` are the proposals.

        Only entities of the mask `allowed` are found; None allows all. Shape: (num_entities,).
        """
        entities = self.evidence.propose(asked, max(size, PROPOSALS), allowed)
        features = self.evidence.features(asked, entities)
        order = np.lexsort((entities, -self.alone.scores(features)))
        return Proposals(asked, entities[order], features[order], size)

    def missing(self, asked: EvidenceQuery | None) -> tuple[str, ...]:
        """Return the kinds of evidence that an answer lacks; without a query, the encoder failed."""
        blind = self.evidence.vectors is not None and (asked is None or asked.vector is None)
        return tuple(sorted({*self.problems, *([VECTORS] if blind else [])}))


def usable_prior(index: Index, model: str, prompts: str | None) -> Prior:
    """Return the prior of a model by its fingerprint, if it was computed with the `prompts` of this digest.

    Raises:
        EvidenceMissingError: the index has none for this model.
        IndexMismatchError: it was computed with other prompts.
        IndexChecksumError, IndexFormatError: the file is damaged or malformed.
    """
    prior = read_priors(index).get(model)
    if prior is None:
        raise EvidenceMissingError(
            f"the index {index.path} has no prior for the model {model}; it is computed with: {_MAKES_PRIOR}"
        )
    if prompts is not None and prior.prompts != prompts:
        raise IndexMismatchError(
            f"{PRIOR_FILE}: computed with other prompts than those of the template in use; it is computed "
            f"anew with: {_MAKES_PRIOR}"
        )
    return prior


def _another(error: GenretError) -> GenretError:
    """Copy an error: one that is raised again and again holds the frames of all its callers."""
    made: GenretError = type(error).__new__(type(error), *error.args)
    made.__dict__.update(error.__dict__)
    return made
