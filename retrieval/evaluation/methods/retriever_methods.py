"""Answers labelled queries with the retriever's own methods: DISC, beam search, shortlists and `auto`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import xxhash

from genret.retrieval.errors import InputError
from genret.retrieval.evaluation.labelled_sets import LabelledQuery, RankedAnswers, RankedEntity
from genret.retrieval.evaluation.methods.evaluated_method import (
    Answered,
    MethodAnswer,
    MethodMaker,
    MethodSpec,
    timed_answers,
)
from genret.retrieval.loaded_model import Limits, PromptEncoder
from genret.retrieval.retriever import Retriever
from genret.retrieval.types import RetrievalResult, RetrieveRequest

_ANY_TEXT = "query"  # of a request whose own text is put in its place


class RetrieverMethod:
    """Answers with the retriever's own methods."""

    is_constrained = True

    def __init__(self, spec: MethodSpec, maker: MethodMaker) -> None:
        self.name = spec.name
        self.is_random = "disc" in (spec.family, spec.decoder)
        self._spec = spec
        self._maker = maker
        self._retriever = maker.retriever
        self._prompts = QueryPrompts(maker.retriever)
        self._asked = _request(spec, maker.k)

    def answer(self, queries: Sequence[LabelledQuery], seed: int, report: Answered) -> list[RankedAnswers]:
        """Return a ranking per query, in order."""

        def request_of(query: LabelledQuery) -> RetrieveRequest:
            drawn = seed_of(seed, query.query_id) if self.is_random else None
            return replace(self._asked, seed=drawn)

        ask = self._ask
        if self._spec.family == "bm25-shortlist":
            ask = self._ask_proposed
            # A filter that is kept from another pass over the queries would cost this one nothing.
            self._retriever.filters.cache.clear()
        return answer_in_batches(self._prompts, queries, request_of, ask, self._maker.batch_size, report)

    def _ask(self, batch: Sequence[PendingQuery]) -> list[MethodAnswer]:
        replies = self._retriever.retrieve_batch([asked.request for asked in batch])
        return [
            tuple(RankedEntity(c.entity_id, c.title, c.score, c.logprob) for c in reply.candidates)
            if isinstance(reply, RetrievalResult)
            else str(reply)
            for reply in replies
        ]

    def _ask_proposed(self, batch: Sequence[PendingQuery]) -> list[MethodAnswer]:
        """Ask among the entities that BM25 proposes; without any, the answer is empty."""
        proposed = self._maker.lexical.propose([asked.query.text for asked in batch], self._spec.size)
        listed = [
            asked._replace(request=replace(asked.request, allow_ids=tuple(e.entity_id for e in entities)))
            for asked, entities in zip(batch, proposed, strict=True)
        ]
        return self._ask(listed)


def seed_of(seed: int, name: str) -> int:
    """Return the seed of a query or a method: they draw independently, and alike in every order and batch."""
    return xxhash.xxh3_64_intdigest(f"{seed}\0{name}".encode()) >> 1  # seeds of requests are signed


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


class PendingQuery(NamedTuple):
    """A query on its way to the model."""

    query: LabelledQuery  # query as it is labelled
    request: RetrieveRequest  # request to the retriever: the text for its template, cut if it was too long
    prompt: list[int]  # token ids of the prompt, by which queries of like length are found


class QueryPrompts:
    """Puts labelled queries into the checkpoint's prompt template for queries, or that for mentions.

    A text that is too long for the model loses its end, as in training: an evaluation goes on where a service
    would refuse.
    """

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever
        self._limit = Limits.of(retriever.model).prompt_tokens(retriever.trie.max_depth)
        self._encoder = PromptEncoder(retriever.tokenizer, retriever.model.vocab_size, self._limit)

    def ask(self, query: LabelledQuery, asked: RetrieveRequest) -> PendingQuery:
        """Return the request for a query, with the options of `asked`.

        An InputError refuses an empty query, and a template that leaves no room for one.
        """
        if query.mention is None:
            request = replace(asked, query=query.text)
        else:
            shown = self._fitted(query.mention.mention, self._retriever.tokenizer.encode_text)
            mention = replace(query.mention, mention=shown)
            request = self._retriever.mention_request(mention, asked)
        template = self._retriever.config.prompt(request.prompt)
        encode = partial(template.encode, self._retriever.tokenizer)
        fitted = replace(request, query=self._fitted(request.query, encode))
        return PendingQuery(query, fitted, self._encoder.encode(template, fitted.query))

    def encode(self, request: RetrieveRequest) -> list[int]:
        """Return the token ids of the prompt of a request that `ask` checked, made anew."""
        return self._retriever.config.prompt(request.prompt).encode(self._retriever.tokenizer, request.query)

    def _fitted(self, text: str, encode: Callable[[str], Sequence[int]]) -> str:
        """Return the longest beginning of a text whose tokens the model takes."""
        if self._limit is None or len(encode(text)) <= self._limit:
            return text
        fits = bisect_right(range(1, len(text)), self._limit, key=lambda length: len(encode(text[:length])))
        return text[:fits]


def answer_in_batches(
    prompts: QueryPrompts,
    queries: Sequence[LabelledQuery],
    request_of: Callable[[LabelledQuery], RetrieveRequest],
    ask: Callable[[Sequence[PendingQuery]], Sequence[MethodAnswer]],
    batch_size: int,
    report: Answered,
) -> list[RankedAnswers]:
    """Answer queries in batches of like length, and return the rankings in the order of the queries.

    `request_of` gives the options of a query's request. Only `ask` is timed, which begins with the text of a
    query; sorting the queries is not.
    """
    rankings: dict[int, RankedAnswers] = {}
    asked: dict[int, PendingQuery] = {}
    for i, query in enumerate(queries):
        try:
            asked[i] = prompts.ask(query, request_of(query))
        except InputError as error:
            rankings[i] = RankedAnswers(query.query_id, (), error=str(error))
    order = sorted(asked, key=lambda i: len(asked[i].prompt))
    for at in range(0, len(order), batch_size):
        batch = order[at : at + batch_size]
        pending = [asked[i] for i in batch]
        answers = timed_answers([queries[i] for i in batch], partial(ask, pending))
        rankings.update(zip(batch, answers, strict=True))
        report(len(rankings))
    return [rankings[i] for i in range(len(queries))]
