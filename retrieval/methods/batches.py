"""Answers requests in batches: filters, proposed entities, prefill, decoding, scoring.

`BatchRunner` decides which requests decode together. A forward is as wide as its widest query, a batch
samples in one way and its prompts share one prefix or none, so only requests of one decoder, one way of
sampling, one shared prefix and similar width go together.

`BatchAnswerer` answers one batch. Its requests share the prefill, and then some are decoded, some have
entities scored, and with `auto` both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeVar

from genret.decoding.cancellation import CancelToken, reason_to_stop
from genret.decoding.errors import DecodingCancelledError, InvalidLogitsError
from genret.decoding.language_model import DecodeSession, LanguageModel, PromptPrefix
from genret.decoding.trace import Trace
from genret.decoding.trie.title_trie import TitleTrie
from genret.retrieval.arguments import new_seed
from genret.retrieval.errors import GenretError, ModelError
from genret.retrieval.evidence.evidence import EvidenceQuery
from genret.retrieval.filters.entity_filter import EntityFilter, FilterStore
from genret.retrieval.index.reader import Index
from genret.retrieval.loaded_model import KvMeter, Limits, PrefixStore
from genret.retrieval.methods.decoded_methods import (
    Asked,
    Decoded,
    count_entities,
    decode_by_beam,
    decode_by_disc,
    nothing_allowed,
    or_abstain,
)
from genret.retrieval.methods.explainer import Explainer
from genret.retrieval.methods.scored_methods import (
    EntityScorer,
    FeatureTable,
    Proposed,
    Scored,
    Stopwatch,
    all_entities,
    entities_to_score,
    scored_answer,
)
from genret.retrieval.ranking.ranker import Ranker
from genret.retrieval.types import DEFAULT_SHORTLIST_SIZE, RetrievalResult, RetrieveRequest

# Logits of one decode step, float32: batches of wide requests are split to stay below it.
_MAX_LOGITS_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class _Kind:
    """The properties that requests have in common to decode together.

    Attributes:
        decoder: "beam", "disc", or None where nothing is decoded.
        width: Most branches of a request, rounded up to a power of two.
        drawing: `disc`: `top_m`, `adaptive` and prefixes per draw; None otherwise.
        exact: Whether sessions keep what they have written.
        explained: Whether traces are recorded, for which the host waits at every step.
        shared: Token ids of their shared prefix; empty for none.
    """

    decoder: str | None
    width: int
    drawing: tuple[int | None, bool, int] | None
    exact: bool
    explained: bool
    shared: tuple[int, ...]

    @classmethod
    def of(cls, request: RetrieveRequest, prefix: PromptPrefix | None) -> _Kind:
        drawing = None
        if request.decoding == "disc":
            drawing = (request.top_m, request.adaptive, request.prefixes)
        return cls(
            request.decoding,
            width=1 << (request.width - 1).bit_length(),
            drawing=drawing,
            exact=request.exact,
            explained=request.explain,
            shared=() if prefix is None else prefix.token_ids,
        )


class BatchRunner:
    """Answers jobs over one index with one model of `vocab_size` logits, in batches of one kind."""

    def __init__(
        self, answerer: BatchAnswerer, filters: FilterStore, prefixes: PrefixStore, vocab_size: int
    ) -> None:
        self._answerer = answerer
        self._filters = filters
        self._prefixes = prefixes
        self._vocab_size = vocab_size

    def run(self, jobs: Sequence[RetrieveJob]) -> list[Reply]:
        """Answer jobs with any mixture of options: per job its result, or its own error."""
        replies: dict[int, Reply] = {}
        groups: dict[_Kind, list[int]] = {}
        prefixes: dict[_Kind, PromptPrefix | None] = {}
        for i, job in enumerate(jobs):
            prefix = self._prefixes.before(job.prompt, job.num_shared)
            kind = _Kind.of(job.request, prefix)
            prefixes[kind] = prefix
            groups.setdefault(kind, []).append(i)
        for kind, members in groups.items():
            most = max(1, _MAX_LOGITS_BYTES // (kind.width * self._vocab_size * 4))
            restrictions = [jobs[i].request.restriction for i in members]
            rest = iter(members)
            for filters in self._filters.batches(restrictions, most, [jobs[i].cancel for i in members]):
                part = list(islice(rest, len(filters)))
                answers = self._answer([jobs[i] for i in part], filters, prefixes[kind])
                replies.update(zip(part, answers, strict=True))
        return [replies[i] for i in range(len(jobs))]

    def run_all(
        self, jobs: Sequence[RetrieveJob], names: Sequence[str], batch_size: int
    ) -> list[RetrievalResult]:
        """Answer uncancelled jobs, at most `batch_size` at a time; the first error is raised.

        Raises:
            ModelError: the model returned broken logits; begins with the job's entry of `names`.
        """
        # Neighbours in length share a batch: little of it is padding.
        order = sorted(range(len(jobs)), key=lambda i: len(jobs[i].prompt))
        results: dict[int, RetrievalResult] = {}
        for at in range(0, len(order), batch_size):
            batch = order[at : at + batch_size]
            for i, reply in zip(batch, self.run([jobs[i] for i in batch]), strict=True):
                if isinstance(reply, ModelError):
                    raise ModelError(f"{names[i]}: {reply}") from reply
                if not isinstance(reply, RetrievalResult):
                    raise reply
                results[i] = reply
        return [results[i] for i in range(len(jobs))]

    def _answer(
        self,
        jobs: Sequence[RetrieveJob],
        filters: Sequence[EntityFilter | DecodingCancelledError | None],
        prefix: PromptPrefix | None,
    ) -> list[Reply]:
        """Answer compatible jobs in one batch; the model is not asked where the reply is known."""
        replies: dict[int, Reply] = {}
        asked: list[int] = []
        allowed: list[EntityFilter | None] = []
        seeded = [replace(job, request=_seeded(job.request)) for job in jobs]
        for i, (job, made) in enumerate(zip(seeded, filters, strict=True)):
            stopped = reason_to_stop(job.cancel)  # while other groups were answered, or a filter was made
            if isinstance(made, DecodingCancelledError):
                replies[i] = made
            elif stopped is not None:
                replies[i] = stopped
            elif made is not None and not made.num_allowed:
                replies[i] = nothing_allowed(job.request)
            else:
                asked.append(i)
                allowed.append(made)
        if asked:
            answers = self._answerer.answer([seeded[i] for i in asked], allowed, prefix)
            replies.update(zip(asked, answers, strict=True))
        return [replies[i] for i in range(len(jobs))]


def _seeded(request: RetrieveRequest) -> RetrieveRequest:
    """Return the request with a seed where its method needs one."""
    if request.decoding != "disc" or request.seed is not None:
        return request
    return replace(request, seed=new_seed())


Reply = RetrievalResult | GenretError | DecodingCancelledError


@dataclass(frozen=True, slots=True)
class RetrieveJob:
    """One request on its way into a batch.

    Attributes:
        num_shared: Number of leading tokens that every prompt of its template has.
        cancel: Polled while its filter is made, between the searches of a batch and between decode steps.
    """

    request: RetrieveRequest
    prompt: list[int]
    num_shared: int = 0
    cancel: CancelToken | None = None


@dataclass(slots=True, eq=False)
class _Work(Asked):
    """A job in its batch.

    Attributes:
        prompt: Its prompt.
        proposed: The entities it scores whatever is decoded; None where it scores nothing.
        table: The features of these and of those decoded.
    """

    prompt: list[int] = field(default_factory=list)
    proposed: Proposed | None = None
    table: FeatureTable | None = None
    decoded: Decoded | None = None
    scored: Scored | None = None
    reply: Reply | None = None

    @property
    def is_decoded(self) -> bool:
        """Whether its decoder is asked: where all entities are scored, only for an explanation."""
        is_needed = self.proposed is None or not self.proposed.is_everything or self.request.explain
        return self.request.decoding is not None and is_needed


class BatchAnswerer:
    """Answers jobs of one kind, over one open index with one model; `trie` is on the model's device."""

    def __init__(
        self,
        index: Index,
        model: LanguageModel,
        trie: TitleTrie,
        limits: Limits,
        explainer: Explainer,
        ranker: Ranker,
    ) -> None:
        self._index = index
        self._model = model
        self._trie = trie
        self._limits = limits
        self._explainer = explainer
        self._ranker = ranker
        self._scorer = EntityScorer(index)

    def answer(
        self, jobs: Sequence[RetrieveJob], filters: Sequence[EntityFilter | None], prefix: PromptPrefix | None
    ) -> list[Reply]:
        """Answer jobs of one kind, with seeds where their decoder needs them, in one batch.

        Every filter allows at least one entity, None all; `prefix` is shared by all prompts.
        """
        batch = [
            _Work(job.request, allowed, self._limits.room(len(job.prompt)), job.cancel, prompt=job.prompt)
            for job, allowed in zip(jobs, filters, strict=True)
        ]
        try:
            self._run(batch, prefix)
        except InvalidLogitsError as error:
            if len(jobs) == 1:
                return [ModelError(str(error))]
            # One query's broken logits must not take the others down: answer each alone.
            pairs = zip(jobs, filters, strict=True)
            return [self.answer([job], [allowed], prefix)[0] for job, allowed in pairs]
        return [work.reply for work in batch if work.reply is not None]

    def _run(self, batch: Sequence[_Work], prefix: PromptPrefix | None) -> None:
        clock = Stopwatch()
        self._propose(batch)
        for work in batch:
            # Searches of a large batch take long: prompts of cancelled requests are not computed.
            work.reply = work.reply or reason_to_stop(work.cancel)
        asked = [work for work in batch if work.reply is None]
        is_scored = any(work.proposed is not None for work in asked)
        if is_scored:
            clock.stop("shortlist_ms")
        if not asked:
            return
        meter = KvMeter(self._model.prefill([work.prompt for work in asked], prefix), len(asked))
        clock.stop("prefill_ms")
        if any(work.is_decoded for work in asked):
            self._decode(meter.session, asked)
            clock.stop("decode_ms")
        if is_scored:
            self._score(meter.session, asked)
            clock.stop("score_ms")
        answers = {}
        for query, work in enumerate(asked):
            if is_scored and work.reply is None:
                work.reply = reason_to_stop(work.cancel)  # describing what was decoded takes long, too
            if work.reply is None:
                answers[query] = self._answer_of(work)
        if is_scored:
            clock.stop("shortlist_ms")  # features of what was not proposed
        timings = clock.timings()
        for query, answer in answers.items():
            work = asked[query]
            answer = replace(answer, timings=timings, kv=meter.share(query))
            if work.trace is not None:
                why = self._explainer.explain(work.trace, answer, work.allowed)
                answer = replace(answer, explanation=why)
            work.reply = answer

    def _propose(self, batch: Sequence[_Work]) -> None:
        """Find the entities that are scored whatever is decoded; the evidence is asked once for all."""
        wanting = [work for work in batch if work.request.proposals]
        asked: Sequence[EvidenceQuery | GenretError | None] = [None] * len(wanting)
        if wanting and self._ranker.can_propose:
            asked = self._ranker.ask([work.request.evidence_text for work in wanting])
        for work, found in zip(wanting, asked, strict=True):
            request, query = work.request, found if isinstance(found, EvidenceQuery) else None
            few = request.shortlist_size or DEFAULT_SHORTLIST_SIZE
            if count_entities(self._index, work.allowed) <= few:
                work.proposed = Proposed(all_entities(self._index, work.allowed), query)
            elif query is not None:
                work.reply = reason_to_stop(work.cancel)
                if work.reply is None:
                    allowed = None if work.allowed is None else work.allowed.allowed
                    proposals = self._ranker.propose(query, request.proposals, allowed)
                    work.proposed = Proposed(tuple(proposals.best.tolist()), query, proposals)
            elif request.decoding is None:
                work.reply = found if isinstance(found, GenretError) else self._refusal()

    def _refusal(self) -> GenretError | None:
        """Return the error that says why no evidence proposes entities; None where some does."""
        try:
            self._ranker.require(self._index)
        except GenretError as error:
            return error
        return None

    def _decode(self, session: DecodeSession, batch: Sequence[_Work]) -> None:
        chosen = [query for query, work in enumerate(batch) if work.is_decoded]
        part = [batch[query] for query in chosen]
        if len(chosen) < len(batch):
            session = session.select(chosen)
        for work in part:
            work.trace = Trace() if work.request.explain else None
        decode = decode_by_disc if part[0].request.decoding == "disc" else decode_by_beam
        found = decode(session, self._trie, self._index, part)
        for work, outcome in zip(part, found, strict=True):
            if isinstance(outcome, Decoded):
                work.decoded = outcome
            else:
                work.reply = outcome

    def _score(self, session: DecodeSession, batch: Sequence[_Work]) -> None:
        """Score proposed and decoded entities: forms that no beam found, in one token tree per request."""
        chosen = [
            query for query, work in enumerate(batch) if work.proposed is not None and work.reply is None
        ]
        if not chosen:
            return
        part = [batch[query] for query in chosen]
        outcomes = self._scorer.score(
            session if len(chosen) == len(batch) else session.select(chosen),
            part,
            [self._to_score(work) for work in part],
            [{} if work.decoded is None else work.decoded.rows for work in part],
        )
        for work, outcome in zip(part, outcomes, strict=True):
            if isinstance(outcome, Scored):
                work.scored = outcome
            else:
                work.reply = outcome

    def _to_score(self, work: _Work) -> tuple[int, ...]:
        """Return the entities to score, once a request is decoded."""
        if work.proposed is None:
            return ()
        table, ranking = self._table_of(work, work.proposed), self._ranker.ranking
        return entities_to_score(work.request, work.proposed, work.decoded, table, ranking)

    def _table_of(self, work: _Work, proposed: Proposed) -> FeatureTable:
        if work.table is None:
            work.table = FeatureTable(self._ranker, proposed)
        return work.table

    def _answer_of(self, work: _Work) -> RetrievalResult:
        request = work.request
        if work.proposed is None or work.scored is None:
            if work.decoded is None:
                raise RuntimeError("a request was neither decoded nor scored")
            missing = self._ranker.missing(None) if request.proposals else ()
            return or_abstain(request, replace(work.decoded.answer, missing_evidence=missing))
        return scored_answer(
            self._index,
            request,
            work.allowed,
            work.proposed,
            work.decoded,
            work.scored,
            self._table_of(work, work.proposed),
            self._ranker,
        )


Request = TypeVar("Request")
Job = TypeVar("Job")
Answer = TypeVar("Answer")


def answer_prepared(
    requests: Sequence[Request],
    cancel: Sequence[CancelToken | None] | None,
    prepare: Callable[[Request, CancelToken | None], Job],
    run: Callable[[Sequence[Job]], list[Answer]],
) -> list[Answer | GenretError]:
    """Answer requests together: per request its answer, or the error that `prepare` raised."""
    tokens = list(cancel) if cancel is not None else [None] * len(requests)
    replies: dict[int, Answer | GenretError] = {}
    jobs: dict[int, Job] = {}
    for i, (request, token) in enumerate(zip(requests, tokens, strict=True)):
        try:
            jobs[i] = prepare(request, token)
        except GenretError as error:
            replies[i] = error
    replies.update(zip(jobs, run(list(jobs.values())), strict=True))
    return [replies[i] for i in range(len(requests))]
