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
from genret.retrieval.filters.entity_filter import EntityFilter, FilterStore, mask_of
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
    """The properties that requests have in common to decode together."""

    decoder: str | None  # "beam", "disc", or None where nothing is decoded
    width: int  # most branches of a request, rounded up to a power of two
    # `disc`: `top_m`, `adaptive` and prefixes per draw; None otherwise
    drawing: tuple[int | None, bool, int] | None
    exact: bool  # whether sessions keep what they have written
    explained: bool  # whether traces are recorded, for which the host waits at every step

    @classmethod
    def of(cls, request: RetrieveRequest) -> _Kind:
        drawing = None
        if request.decoding == "disc":
            drawing = (request.top_m, request.adaptive, request.prefixes)
        return cls(
            request.decoding,
            width=1 << (request.width - 1).bit_length(),
            drawing=drawing,
            exact=request.exact,
            explained=request.explain,
        )


@dataclass(frozen=True, slots=True, eq=False)
class BatchRunner:
    """Answers jobs over one index with one model, in batches of one kind."""

    answerer: BatchAnswerer
    filters: FilterStore
    prefixes: PrefixStore

    def run(self, jobs: Sequence[RetrieveJob]) -> list[Reply]:
        """Answer jobs with any mixture of options: per job its result, or its own error."""
        kinds, vocab_size = [_Kind.of(job.request) for job in jobs], self.answerer.model.vocab_size
        for prefix, places in self.prefixes.grouped(jobs, kinds):
            members = [jobs[i] for i in places]
            most = max(1, _MAX_LOGITS_BYTES // (kinds[places[0]].width * vocab_size * 4))
            restrictions, rest = [job.request.restriction for job in members], iter(members)
            for filters in self.filters.batches(restrictions, most, [job.cancel for job in members]):
                self._answer(list(islice(rest, len(filters))), filters, prefix)
        return [job.reply for job in jobs if job.reply is not None]

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
    ) -> None:
        """Answer compatible jobs in one batch; the model is not asked where the reply is known."""
        for job, made in zip(jobs, filters, strict=True):
            job.request = _seeded(job.request)
            if isinstance(made, DecodingCancelledError):
                job.reply = made
                continue
            job.allowed = made
            job.reply = reason_to_stop(job.cancel)  # while other groups were answered, or a filter was made
            if job.reply is None and made is not None and not made.num_allowed:
                job.reply = nothing_allowed(job.request)
        self.answerer.answer([job for job in jobs if job.reply is None], prefix)


def _seeded(request: RetrieveRequest) -> RetrieveRequest:
    """Return the request with a seed where its method needs one."""
    if request.decoding != "disc" or request.seed is not None:
        return request
    return replace(request, seed=new_seed())


Reply = RetrievalResult | GenretError | DecodingCancelledError


@dataclass(slots=True, eq=False)
class RetrieveJob(Asked):
    """A request on its way through its batch, to its reply."""

    prompt: list[int] = field(default_factory=list)  # its prompt
    num_shared: int = 0  # number of leading tokens that every prompt of its template has
    # The entities it scores whatever is decoded; None where it scores nothing
    proposed: Proposed | None = None
    decoded: Decoded | None = None
    scored: Scored | None = None
    reply: Reply | None = None

    @property
    def is_decoded(self) -> bool:
        """Whether its decoder is asked: where all entities are scored, only for an explanation."""
        is_needed = self.proposed is None or not self.proposed.is_everything or self.request.explain
        return self.request.decoding is not None and is_needed


@dataclass(frozen=True, slots=True, eq=False)
class BatchAnswerer:
    """Answers jobs of one kind, over one open index with one model; `trie` is on the model's device."""

    index: Index
    model: LanguageModel
    trie: TitleTrie
    limits: Limits
    explainer: Explainer
    scorer: EntityScorer
    ranker: Ranker

    def answer(self, batch: Sequence[RetrieveJob], prefix: PromptPrefix | None) -> None:
        """Give jobs of one kind their replies; they have seeds where their decoder needs them.

        Every filter allows at least one entity; `prefix` is shared by all prompts.
        """
        for job in batch:
            job.room = self.limits.room(len(job.prompt))
        try:
            self._run(batch, prefix)
        except InvalidLogitsError as error:
            if len(batch) == 1:
                batch[0].reply = ModelError(str(error))
            else:  # One query's broken logits must not take the others down: answer each alone.
                for job in batch:
                    alone = RetrieveJob(job.request, job.allowed, cancel=job.cancel, prompt=job.prompt)
                    self.answer([alone], prefix)
                    job.reply = alone.reply
        for job in batch:  # of many jobs only the replies stay in memory
            job.allowed = job.trace = job.proposed = job.decoded = job.scored = None

    def _run(self, batch: Sequence[RetrieveJob], prefix: PromptPrefix | None) -> None:
        clock = Stopwatch()
        self._propose(batch)
        for job in batch:
            # Searches of a large batch take long: prompts of cancelled requests are not computed.
            job.reply = job.reply or reason_to_stop(job.cancel)
        asked = [job for job in batch if job.reply is None]
        is_scored = any(job.proposed is not None for job in asked)
        if is_scored:
            clock.stop("shortlist_ms")
        if not asked:
            return
        meter = KvMeter(self.model.prefill([job.prompt for job in asked], prefix), len(asked))
        clock.stop("prefill_ms")
        if any(job.is_decoded for job in asked):
            self._decode(meter.session, asked)
            clock.stop("decode_ms")
        if is_scored:
            self._score(meter.session, asked)
            clock.stop("score_ms")
        answers = {}
        for query, job in enumerate(asked):
            if is_scored and job.reply is None:
                job.reply = reason_to_stop(job.cancel)  # describing what was decoded takes long, too
            if job.reply is None:
                answers[query] = self._answer_of(job)
        if is_scored:
            clock.stop("shortlist_ms")  # features of what was not proposed
        timings = clock.timings()
        for query, answer in answers.items():
            job = asked[query]
            answer = replace(answer, timings=timings, kv=meter.share(query))
            if job.trace is not None:
                why = self.explainer.explain(job.trace, answer, job.allowed)
                answer = replace(answer, explanation=why)
            job.reply = answer

    def _propose(self, batch: Sequence[RetrieveJob]) -> None:
        """Find the entities that are scored whatever is decoded; the evidence is asked once for all."""
        wanting, evidence = [job for job in batch if job.request.proposals], self.ranker.evidence
        asked: Sequence[EvidenceQuery | GenretError | None] = [None] * len(wanting)
        if wanting and self.ranker.can_propose:
            asked = self.ranker.ask([job.request.evidence_text for job in wanting])
        for job, found in zip(wanting, asked, strict=True):
            request, query = job.request, found if isinstance(found, EvidenceQuery) else None
            few = request.shortlist_size or DEFAULT_SHORTLIST_SIZE
            if count_entities(self.index, job.allowed) <= few:
                job.proposed = Proposed(all_entities(self.index, job.allowed), evidence, query)
            elif query is not None:
                job.reply = reason_to_stop(job.cancel)
                if job.reply is None:
                    proposals = self.ranker.propose(query, request.proposals, mask_of(job.allowed))
                    job.proposed = Proposed(tuple(proposals.best.tolist()), evidence, query, proposals)
            elif request.decoding is None:
                job.reply = found if isinstance(found, GenretError) else self._refusal()

    def _refusal(self) -> GenretError | None:
        """Return the error that says why no evidence proposes entities; None where some does."""
        try:
            self.ranker.require(self.index)
        except GenretError as error:
            return error
        return None

    def _decode(self, session: DecodeSession, batch: Sequence[RetrieveJob]) -> None:
        chosen = [query for query, job in enumerate(batch) if job.is_decoded]
        part = [batch[query] for query in chosen]
        if len(chosen) < len(batch):
            session = session.select(chosen)
        for job in part:
            job.trace = Trace() if job.request.explain else None
        decode = decode_by_disc if part[0].request.decoding == "disc" else decode_by_beam
        found = decode(session, self.trie, self.index, part)
        for job, outcome in zip(part, found, strict=True):
            if isinstance(outcome, Decoded):
                job.decoded = outcome
            else:
                job.reply = outcome

    def _score(self, session: DecodeSession, batch: Sequence[RetrieveJob]) -> None:
        """Score proposed and decoded entities: forms that no beam found, in one token tree per request."""
        chosen = [query for query, job in enumerate(batch) if job.proposed is not None and job.reply is None]
        if not chosen:
            return
        part = [batch[query] for query in chosen]
        outcomes = self.scorer.score(
            session if len(chosen) == len(batch) else session.select(chosen),
            part,
            [self._to_score(job) for job in part],
            [{} if job.decoded is None else job.decoded.rows for job in part],
        )
        for job, outcome in zip(part, outcomes, strict=True):
            if isinstance(outcome, Scored):
                job.scored = outcome
            else:
                job.reply = outcome

    def _to_score(self, job: RetrieveJob) -> tuple[int, ...]:
        """Return the entities to score, once a request is decoded."""
        if job.proposed is None:
            return ()
        return entities_to_score(job.request, job.proposed, job.decoded, self.ranker.ranking)

    def _answer_of(self, job: RetrieveJob) -> RetrievalResult:
        request = job.request
        if job.proposed is None or job.scored is None:
            if job.decoded is None:
                raise RuntimeError("a request was neither decoded nor scored")
            missing = self.ranker.missing(None) if request.proposals else ()
            return or_abstain(request, replace(job.decoded.answer, missing_evidence=missing))
        return scored_answer(
            self.index, request, job.allowed, job.proposed, job.decoded, job.scored, self.ranker
        )


Request = TypeVar("Request")
Job = TypeVar("Job")
Answer = TypeVar("Answer")


def answer_prepared(
    requests: Sequence[Request],
    cancel: Sequence[CancelToken | None] | None,
    prepare: Callable[[Request, CancelToken | None], Job],
    run: Callable[[Sequence[Job]], list[Answer]],
) -> list[Answer | GenretError | DecodingCancelledError]:
    """Answer requests together: per request its answer, or the error that `prepare` raised."""
    tokens = list(cancel) if cancel is not None else [None] * len(requests)
    replies: dict[int, Answer | GenretError | DecodingCancelledError] = {}
    jobs: dict[int, Job] = {}
    for i, (request, token) in enumerate(zip(requests, tokens, strict=True)):
        try:
            jobs[i] = prepare(request, token)
        except (GenretError, DecodingCancelledError) as error:
            replies[i] = error
    replies.update(zip(jobs, run(list(jobs.values())), strict=True))
    return [replies[i] for i in range(len(requests))]
