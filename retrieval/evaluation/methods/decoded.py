"""Methods of the retriever itself: DISC, beam search, shortlists that are scored or searched with beams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import xxhash

from retrieval.evaluation.methods.lexical import LexicalIndex
from retrieval.evaluation.methods.prompts import Answer, Asked, QueryPrompts, answer_in_batches
from retrieval.evaluation.methods.spec import MethodSpec
from retrieval.evaluation.types import LabelledQuery, RankedEntity, Ranking
from retrieval.retriever import Retriever
from retrieval.types import RetrievalResult, RetrieveRequest

_ANY_TEXT = "query"  # of a request whose own text is put in its place


class RetrieverMethod:
    """Answers with the retriever's own methods.

    Args:
        spec: "disc", "beam", "exact", "shortlist", "auto" or "bm25-shortlist".
        retriever: Answers.
        k: Entities wanted.
        batch_size: Queries decoded together.
        lexical: Proposes the entities of a `bm25-shortlist`.
    """

    is_constrained = True

    def __init__(
        self,
        spec: MethodSpec,
        retriever: Retriever,
        k: int,
        batch_size: int,
        lexical: Callable[[], LexicalIndex],
    ) -> None:
        self.name = spec.name
        self.is_random = "disc" in (spec.family, spec.decoder)
        self._spec = spec
        self._retriever = retriever
        self._batch_size = batch_size
        self._lexical = lexical
        self._prompts = QueryPrompts(retriever)
        self._asked = _request(spec, k)

    def answer(
        self, queries: Sequence[LabelledQuery], seed: int, report: Callable[[int], None]
    ) -> list[Ranking]:
        """Return a ranking per query, in order; `report` gets the number answered so far."""

        def request_of(query: LabelledQuery) -> RetrieveRequest:
            return (
                replace(self._asked, seed=query_seed(seed, query.query_id)) if self.is_random else self._asked
            )

        ask = self._ask
        if self._spec.family == "bm25-shortlist":
            ask = self._ask_proposed
            # A filter that is kept from another pass over the queries would cost this one nothing.
            self._retriever.filters.clear()
        return answer_in_batches(self._prompts, queries, request_of, ask, self._batch_size, report)

    def _ask(self, batch: Sequence[Asked]) -> list[Answer]:
        replies = self._retriever.retrieve_batch([asked.request for asked in batch])
        return [_entities(r) if isinstance(r, RetrievalResult) else str(r) for r in replies]

    def _ask_proposed(self, batch: Sequence[Asked]) -> list[Answer]:
        """Ask among what bm25 proposes. Where it finds nothing, nothing is answered."""
        proposed = self._lexical().propose([asked.query.text for asked in batch], self._spec.size)
        listed = [
            replace(asked, request=replace(asked.request, allow_ids=tuple(e.entity_id for e in entities)))
            for asked, entities in zip(batch, proposed, strict=True)
        ]
        return self._ask(listed)


def query_seed(seed: int, query_id: str) -> int:
    """Return the seed of one query: queries draw independently, and alike in every order and batch."""
    return xxhash.xxh3_64_intdigest(f"{seed}\0{query_id}".encode()) >> 1  # seeds of requests are signed


def _request(spec: MethodSpec, k: int) -> RetrieveRequest:
    if spec.family == "disc":
        return RetrieveRequest(
            _ANY_TEXT,
            k=k,
            method="disc",
            num_draws=spec.draws,
            num_samples=spec.samples,
            beam_size=spec.beams,
            adaptive=spec.adaptive,
            top_m=spec.top_m,
        )
    if spec.family in ("shortlist", "auto"):
        return RetrieveRequest(
            _ANY_TEXT,
            k=k,
            method=spec.family,
            shortlist_size=spec.size or None,
            vector_weight=spec.weight,
            decoder=spec.decoder,
        )
    return RetrieveRequest(_ANY_TEXT, k=k, method="beam", beam_size=spec.beams, exact=spec.family == "exact")


def _entities(result: RetrievalResult) -> tuple[RankedEntity, ...]:
    return tuple(RankedEntity(c.entity_id, c.title, c.score, c.logprob) for c in result.candidates)
