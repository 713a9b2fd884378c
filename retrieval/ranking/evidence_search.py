"""Answers queries from the evidence of an index alone, without a model: `EvidenceSearch`."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from genret.retrieval.arguments import Restriction, options_of
from genret.retrieval.errors import GenretError, InputError
from genret.retrieval.evidence.postings import Mask
from genret.retrieval.index.owners import best_first
from genret.retrieval.index.reader import Index
from genret.retrieval.ranking.ranker import Ranker
from genret.retrieval.types import Candidate, RetrievalResult, RetrieveRequest, Timings

# Options of `auto` that need a model.
_OF_A_MODEL = ("decoder", "exact", "length_penalty", "aggregate", "vector_weight", "explain")


class EvidenceSearch:
    """Answers queries by `auto` without a model: candidates, probabilities, shares.

    The index is open, and closed together with the search.

    Raises:
        EvidenceMissingError: the index has no evidence that proposes entities.
        GenretError: it has some, but none is usable.
    """

    def __init__(self, index: Index, ranker: Ranker) -> None:
        self.index = index
        self.ranker = ranker
        ranker.require(index)

    @classmethod
    def open(cls, index: str | Path, encoder: str | Path | None = None) -> Self:
        """Open an index directory; `encoder` is the present place of its vectors' encoder, None: unchanged.

        A GenretError says why the index cannot be used, or that it has no usable evidence.
        """
        opened = Index.open(index)
        try:
            return cls(opened, Ranker.open(opened, encoder))
        except BaseException:
            opened.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.index.close()

    @staticmethod
    def check(request: RetrieveRequest) -> None:
        """Raise an InputError unless the method is `auto` and no option of a model is set."""
        if request.method != "auto":
            raise InputError("method", f"must be auto without a model, got {request.method!r}")
        for name in _OF_A_MODEL:
            if getattr(request, name) != options_of(RetrieveRequest)[name].default:
                raise InputError(name, "needs a model")

    def retrieve_batch(self, requests: Sequence[RetrieveRequest]) -> list[RetrievalResult | GenretError]:
        """Answer requests one by one, each with its result, without `logprob`, or with its own error."""
        answers: list[RetrievalResult | GenretError] = []
        for request in requests:
            begin = time.perf_counter()
            try:
                result = self._answer(request)
            except GenretError as error:
                answers.append(error)
                continue
            took = (time.perf_counter() - begin) * 1000
            answers.append(replace(result, timings=Timings(total_ms=took, shortlist_ms=took)))
        return answers

    def _answer(self, request: RetrieveRequest) -> RetrievalResult:
        self.check(request)
        allowed = self._allowed(request.restriction)
        (asked,) = self.ranker.ask([request.evidence_text])
        if isinstance(asked, GenretError):
            raise asked
        proposals = self.ranker.propose(asked, request.k, allowed)
        ranked = self.ranker.alone.rank(proposals.features)
        places = {entity: place for place, entity in enumerate(proposals.entities.tolist())}
        scores = dict(zip(places, ranked.scores.tolist(), strict=True))
        candidates = []
        for number in best_first(self.index, scores, request.k):
            entity, place = self.index.entity(number), places[number]
            candidates.append(
                Candidate(
                    entity_id=entity.entity_id,
                    title=entity.title,
                    surface=entity.title,
                    logprob=math.nan,
                    probability=float(ranked.probabilities[place]),
                    metadata=entity.metadata,
                    score=scores[number],
                    shares=ranked.shares_of(place),
                )
            )
        return RetrievalResult(
            query=request.query,
            method=request.method,
            candidates=tuple(candidates),
            shortlist_size=len(places),
            nothing_fits=ranked.nothing,
            missing_evidence=self.ranker.missing(asked),
        )

    def _allowed(self, restriction: Restriction) -> Mask | None:
        if restriction.is_open:
            return None
        # Imported late: it brings torch, which nothing else here needs.
        from genret.retrieval.filters.entity_filter import FilterStore

        return FilterStore(self.index, "cpu").make(restriction).allowed
