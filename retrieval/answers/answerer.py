"""Writes JSON answers under any schema, with titles of any number of indexes in them (`Answerer`).

One answerer has one model. Documents are written token by token, by beam search over documents, or as
samples (DISC).
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Unpack

from decoding.answering.answer import AnswerText
from decoding.answering.writer import write_answers
from decoding.beam_search import BeamResult, beam_search
from decoding.cancellation import CancelToken
from decoding.constraints import Hypothesis
from decoding.disc import DiscResult, disc
from decoding.errors import DecodingCancelledError, DecodingError, InvalidLogitsError
from decoding.grammar.constraint import GrammarConstraint
from decoding.grammar.errors import GrammarError
from decoding.grammar.grammar_cache import CacheStats
from decoding.grammar.json_grammar import TitleSlotValue
from decoding.language_model import DecodeSession, LanguageModel, PromptPrefix
from decoding.params import AnswerParams, BeamParams, DiscParams
from retrieval.answers.answer_types import AnswerEntity, AnswerOptions, AnswerRequest, AnswerResult, Schema
from retrieval.answers.schema_explanation import user_error
from retrieval.answers.schemas import AnswerEngine, CompiledSchema
from retrieval.answers.title_holes import Finder, IndexSet, ShortlistedSlots
from retrieval.answers.validation import InvalidAnswerError, SlowValidationError, standing
from retrieval.arguments import new_seed
from retrieval.errors import GenretError, InputError, ModelError
from retrieval.filters.entity_filter import FilterStore
from retrieval.index.owners import title_owners
from retrieval.index.reader import Index
from retrieval.kv_memory import ChainMeter, KvMeter, PrefixStore
from retrieval.loaded_model import DEFAULT_BATCH_SIZE, Limits, PromptEncoder
from retrieval.methods.scoring import owners_best_first
from retrieval.prompts import JSON_ANSWER, JSON_BRIEF, CheckpointConfig, PromptTemplate
from retrieval.text import TextTokenizer
from retrieval.types import KvShare, Timings

# A prompt must leave room for an answer: at most this much of the positions is kept for it.
_MIN_ROOM = 64

AnswerReply = AnswerResult | GenretError | DecodingCancelledError


@dataclass(frozen=True, slots=True)
class AnswerJob:
    """One request on its way into a batch.

    Attributes:
        request: What is asked; its budget fits the model.
        schema: Its schema, compiled.
        prompt: Its token ids.
        num_shared: How many of them, at the beginning, every prompt of its template has.
        compile_ms: What it took to find or compile the schema, milliseconds.
        titles: The index that its schema calls "titles".
        indexes: Those that its schema may name.
        cancel: Polled between decode steps.
    """

    request: AnswerRequest
    schema: CompiledSchema
    prompt: list[int]
    num_shared: int
    compile_ms: float
    titles: str
    indexes: IndexSet
    cancel: CancelToken | None = None


class Answerer:
    """Writes JSON answers. Requests are answered by one thread at a time; schemas are compiled by any.

    Args:
        model: The model behind the decoding protocol.
        tokenizer: The model's tokenizer.
        config: Prompt templates of the checkpoint.
        prefixes: Keeps what all prompts of a template begin with.
        engine: Vocabulary, holes and grammars.
        draft: Proposes tokens that the model verifies several at a time; None: no drafts.

    Attributes:
        engine: As given.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: TextTokenizer,
        config: CheckpointConfig,
        prefixes: PrefixStore,
        engine: AnswerEngine,
        draft: LanguageModel | None = None,
    ) -> None:
        self.engine = engine
        self._model = model
        self._config = config
        self._prefixes = prefixes
        self._draft = draft
        self._limits = Limits.of(model)
        self._prompts = PromptEncoder(tokenizer, model.vocab_size, self._limits.prompt_tokens(_MIN_ROOM))

    @property
    def stats(self) -> CacheStats:
        """What the cache of grammars did and holds."""
        return self.engine.schemas.stats

    def add_index(self, name: str, index: Index, filters: FilterStore, find: Finder) -> None:
        """Let schemas name an index. The first one is what "titles" means where nothing else is said."""
        self.engine.add_index(name, index, filters, find)

    def name_schema(self, name: str, schema: Schema) -> None:
        """Give a schema a name that requests may use, and compile it.

        Raises:
            InputError: the name is taken, or the schema cannot be used.
        """
        indexes = self.engine.indexes
        self.engine.schemas.name_schema(name, schema, indexes, indexes.first_name)

    def compile_named(self, indexes: IndexSet) -> None:
        """Compile the named schemas over indexes that requests will name, as far as they are not known.

        Raises:
            InputError: one cannot be used over these; its field is the name.
        """
        self.engine.schemas.prepare_named(indexes, indexes.first_name)

    def job(
        self,
        request: AnswerRequest,
        cancel: CancelToken | None = None,
        titles: str | None = None,
        indexes: IndexSet | None = None,
    ) -> AnswerJob:
        """Return a request that can be answered, its schema compiled.

        Args:
            request: What is asked.
            cancel: Polled between decode steps.
            titles: The index that the schema calls "titles"; None: the first.
            indexes: Those that the schema may name; None: those that it may name now.

        Raises:
            SchemaRejectedError: the schema cannot be used.
            InputError: the template is unknown, the query or the schema that it shows is too long, or the
                answer does not fit.
        """
        begun = time.perf_counter()
        indexes = self.engine.indexes if indexes is None else indexes
        titles = titles or indexes.first_name
        schema = self.engine.schemas.prepare(request, indexes, titles)
        compile_ms = (time.perf_counter() - begun) * 1e3
        template = self._template_of(request, schema.shown)
        prompt = self._prompts.encode(template, request.query)
        room = self._limits.room(len(prompt))
        budget = request.max_tokens if room is None else min(request.max_tokens, room)
        _check_budget(schema, budget, request.max_tokens)
        seeded = replace(request, max_tokens=budget)
        if request.method in ("sample", "disc") and request.seed is None:
            seeded = replace(seeded, seed=new_seed())
        shared = self._prompts.num_shared(template)
        return AnswerJob(seeded, schema, prompt, shared, compile_ms, titles, indexes, cancel)

    def _template_of(self, request: AnswerRequest, schema: str) -> PromptTemplate:
        """Return the template of a request; where nobody chose one, a long schema is not shown.

        Raises:
            InputError: the template is unknown.
        """
        template = self._config.answer_template(request.prompt).showing(schema)
        is_chosen = request.prompt is not None or template.name != JSON_ANSWER.name
        return template if is_chosen or self._prompts.leaves_half(template) else JSON_BRIEF

    def answer_all(
        self,
        queries: Sequence[str],
        schema: Schema | None = None,
        *,
        batch_size: int = DEFAULT_BATCH_SIZE,
        titles: str | None = None,
        **options: Unpack[AnswerOptions],
    ) -> list[AnswerResult]:
        """Answer queries under one schema, in their order.

        Args:
            queries: The query texts.
            schema: A JSON Schema, as text or as `json.loads` reads one.
            batch_size: Most queries that decode together.
            titles: The index that the schema calls "titles"; None: the first.
            **options: See `AnswerRequest`.

        Raises:
            SchemaRejectedError: the schema cannot be used; names keyword and JSON pointer.
            InputError: an option is out of range, a query is too long, or an answer does not fit.
            ModelError: the model returned broken logits.
        """
        if batch_size < 1:
            raise InputError("batch_size", f"must be at least 1, got {batch_size}")
        jobs = []
        for number, query in enumerate(queries):
            try:
                jobs.append(self.job(AnswerRequest(query, schema, **options), titles=titles))
            except InputError as error:
                if error.field != "query" or len(queries) == 1:
                    raise
                raise InputError(f"queries[{number}]", error.message) from None
        results: list[AnswerResult] = []
        for at in range(0, len(jobs), batch_size):
            for reply in self.run(jobs[at : at + batch_size]):
                if not isinstance(reply, AnswerResult):
                    raise reply
                results.append(reply)
        return results

    def run(self, jobs: Sequence[AnswerJob]) -> list[AnswerReply]:
        """Answer jobs with any mixture of options; what is compatible shares its forwards.

        Returns:
            Per job its result, or the error that concerns this job alone.
        """
        replies: dict[int, AnswerReply] = {}
        ready: dict[int, AnswerJob] = {}
        for number, job in enumerate(jobs):
            try:
                ready[number] = job if job.request.shortlist is None else self._narrowed(job)
            except (GenretError, DecodingCancelledError) as error:
                replies[number] = error
        groups: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        prefixes: dict[tuple[int, ...], PromptPrefix | None] = {}
        for number, job in ready.items():
            prefix = self._prefixes.before(job.prompt, job.num_shared)
            shared = () if prefix is None else prefix.token_ids
            prefixes[shared] = prefix
            kind = "chain" if job.request.method in ("greedy", "sample") else job.request.method
            groups.setdefault((kind, shared), []).append(number)
        for (_, shared), members in groups.items():
            answers = self._answer([ready[i] for i in members], prefixes[shared])
            replies.update(zip(members, answers, strict=True))
        return [replies[i] for i in range(len(jobs))]

    def _narrowed(self, job: AnswerJob) -> AnswerJob:
        """Return a job whose titles are those that a beam search finds for its query.

        Raises:
            GenretError: nothing is valid with these, or the budget is too small for them.
            DecodingCancelledError: the request was cancelled.
        """
        begun = time.perf_counter()
        request, engine = job.request, self.engine
        if job.cancel is not None:
            job.cancel.check()
        shortlist = ShortlistedSlots(
            request.query, request.shortlist or 1, job.indexes.finder, engine.searcher
        )
        schema = engine.schemas.narrowed(job.schema, request, job.titles, shortlist)
        _check_budget(schema, request.max_tokens, request.max_tokens)
        compile_ms = job.compile_ms + (time.perf_counter() - begun) * 1e3
        return replace(job, schema=schema, compile_ms=compile_ms)

    def _answer(self, jobs: Sequence[AnswerJob], prefix: PromptPrefix | None) -> list[AnswerReply]:
        begun = time.perf_counter()
        try:
            written = write(self._model, self._draft, self.engine, jobs, prefix)
        except InvalidLogitsError as error:
            if len(jobs) == 1:
                return [ModelError(str(error))]
            # One query's broken logits must not take the others down: answer each alone.
            return [self._answer([job], prefix)[0] for job in jobs]
        total_ms = (time.perf_counter() - begun) * 1e3
        replies: list[AnswerReply] = []
        for job, outcome in zip(jobs, written, strict=True):
            self.engine.schemas.settle(job.schema)
            if isinstance(outcome, WrittenDocument):
                replies.append(self._finish(job, outcome, total_ms))
            else:
                replies.append(outcome)
        return replies

    def _finish(self, job: AnswerJob, written: WrittenDocument, total_ms: float) -> AnswerReply:
        """Parse and validate a document, and find the entities behind its titles."""
        request = job.request
        try:
            text = written.text.decode()
            job.schema.validator.check(text)
            holes = standing(job.schema.grammar.holes(written.text), written.text)
        except SlowValidationError as error:
            return error
        except (UnicodeDecodeError, InvalidAnswerError, ValueError) as error:
            return error if isinstance(error, InvalidAnswerError) else InvalidAnswerError(str(error))
        return AnswerResult(
            query=request.query,
            method=request.method,
            text=text,
            entities=tuple(self._entity(job, written.text, value) for value in holes),
            logprob=written.logprob,
            num_tokens=written.num_tokens,
            num_forced=written.num_forced,
            num_drafted=written.num_drafted,
            num_accepted=written.num_accepted,
            num_forwards=written.num_forwards,
            seed=request.seed if request.method in ("sample", "disc") else None,
            schema_digest=job.schema.digest,
            compile_ms=job.compile_ms,
            mass=written.mass,
            mass_stderr=written.mass_stderr,
            timings=Timings(written.prefill_ms, total_ms - written.prefill_ms, total_ms),
            kv=written.kv,
        )

    def _entity(self, job: AnswerJob, text: bytes, value: TitleSlotValue) -> AnswerEntity:
        """Return the entities behind a title: all that the hole allows, a shortlist is one of titles."""
        index = job.indexes.index(value.name.index)
        spelled = text[value.first_byte : value.last_byte]
        members = value.members
        if job.request.shortlist is not None:
            leaf = job.indexes.holes(value.name)
            members = leaf.members(functools.reduce(leaf.step, spelled, 0))
        shares = owners_best_first(index, title_owners(index, members))
        return AnswerEntity(
            pointer=value.pointer,
            index=value.name.index,
            title=self.engine.title(spelled),
            entities=tuple(map(index.entity, shares)),
            shares=tuple(shares.values()),
        )


def _check_budget(schema: CompiledSchema, budget: int, asked: int) -> None:
    """Refuse a budget that no answer fits.

    Args:
        schema: Of the answer.
        budget: Tokens there are.
        asked: Tokens that were allowed.

    Raises:
        InputError: it is too small.
    """
    needed = schema.grammar.tokens_to_finish(schema.grammar.start)
    if needed > budget:
        limit = f"max_tokens is {asked}"
        if budget < asked:
            limit = f"the model has positions for {budget} tokens behind this prompt"
        raise InputError("max_tokens", f"the shortest answer to this schema takes {needed} tokens; {limit}")


@dataclass(frozen=True, slots=True)
class WrittenDocument:
    """A document, not yet looked at.

    Attributes:
        text: Its bytes.
        logprob: log P_L of its tokens.
        num_tokens: Its tokens, end token included.
        num_forced: Of them, those that were forced.
        num_drafted: Tokens proposed by the draft model.
        num_accepted: Of these, the ones kept.
        num_forwards: Forward passes behind the prompt.
        mass: `disc`: estimate of P_L(S).
        mass_stderr: Its standard error.
        prefill_ms: Wall time of the prompts, where it is known apart, milliseconds.
        kv: Key/value memory of the query.
    """

    text: bytes
    logprob: float
    num_tokens: int
    num_forced: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_forwards: int = 0
    mass: float | None = None
    mass_stderr: float | None = None
    prefill_ms: float = 0.0
    kv: KvShare = field(default_factory=KvShare)


Outcome = WrittenDocument | GenretError | DecodingCancelledError


def write(
    model: LanguageModel,
    draft: LanguageModel | None,
    engine: AnswerEngine,
    jobs: Sequence[AnswerJob],
    prefix: PromptPrefix | None,
) -> list[Outcome]:
    """Write the documents of compatible jobs: all by chains, all by beam search or all by DISC.

    Raises:
        InvalidLogitsError: the model returned broken logits for any of them.
    """
    if jobs[0].request.method in ("greedy", "sample"):
        return _write_chains(model, draft, engine, jobs, prefix)
    begun = time.perf_counter()
    meter = KvMeter(model.prefill([job.prompt for job in jobs], prefix), len(jobs))
    prefill_ms = (time.perf_counter() - begun) * 1e3
    constraint = GrammarConstraint(
        [job.schema.grammar for job in jobs], [job.request.max_tokens for job in jobs], model.device
    )
    run = _beam if jobs[0].request.method == "beam" else _disc
    requests, cancel = [job.request for job in jobs], [job.cancel for job in jobs]
    outcomes: list[Outcome] = []
    for number, found in enumerate(run(meter.session, constraint, requests, cancel)):
        if isinstance(found, DecodingCancelledError | ModelError):
            outcomes.append(found)
            continue
        hypothesis, num_steps, mass, stderr = found
        outcomes.append(
            WrittenDocument(
                text=jobs[number].schema.grammar.text(hypothesis.token_ids),
                logprob=hypothesis.logprob,
                num_tokens=len(hypothesis.token_ids),
                num_forwards=num_steps,
                mass=mass,
                mass_stderr=stderr,
                prefill_ms=prefill_ms,
                kv=meter.share(number),
            )
        )
    return outcomes


_Found = tuple[Hypothesis, int, float | None, float | None]


def _beam(
    session: DecodeSession,
    constraint: GrammarConstraint,
    requests: Sequence[AnswerRequest],
    cancel: Sequence[CancelToken | None],
) -> list[_Found | ModelError | DecodingCancelledError]:
    params = [BeamParams(k=1, beam_size=request.beam_size) for request in requests]
    found: list[_Found | ModelError | DecodingCancelledError] = []
    for result in beam_search(session, constraint, params, cancel):
        if isinstance(result, BeamResult):
            best = result.hypotheses[:1]
            found.append((best[0], result.num_steps, None, None) if best else _nothing())
        else:
            found.append(result)
    return found


def _disc(
    session: DecodeSession,
    constraint: GrammarConstraint,
    requests: Sequence[AnswerRequest],
    cancel: Sequence[CancelToken | None],
) -> list[_Found | ModelError | DecodingCancelledError]:
    params = [
        # Draws that go on to their ends give the mass by their weights.
        DiscParams(
            num_draws=request.num_draws,
            temperature=request.temperature,
            seed=request.seed or 0,
            reject_early=False,
        )
        for request in requests
    ]
    found: list[_Found | ModelError | DecodingCancelledError] = []
    for result in disc(session, constraint, params, cancel):
        if not isinstance(result, DiscResult):
            found.append(result)
        elif result.samples:
            stderr = None if math.isnan(result.mass_stderr) else result.mass_stderr
            found.append((result.samples[0].hypothesis, result.num_steps, result.mass, stderr))
        else:
            found.append(_nothing())
    return found


def _nothing() -> ModelError:
    return ModelError("the model gives no document that is valid under the schema any probability")


def _write_chains(
    model: LanguageModel,
    draft: LanguageModel | None,
    engine: AnswerEngine,
    jobs: Sequence[AnswerJob],
    prefix: PromptPrefix | None,
) -> list[Outcome]:
    params = [
        AnswerParams(
            max_tokens=job.request.max_tokens,
            temperature=0.0 if job.request.method == "greedy" else job.request.temperature,
            seed=job.request.seed or 0,
            forced_spans=job.request.forced_spans,
        )
        for job in jobs
    ]
    meter = ChainMeter(model)
    answers = write_answers(
        meter,
        [job.prompt for job in jobs],
        [job.schema.grammar for job in jobs],
        params,
        prefix=prefix,
        speller=engine.speller,
        draft=draft,
        cancel=[job.cancel for job in jobs],
    )
    return [_written(answer, meter) for answer in answers]


def _written(answer: AnswerText | DecodingError, meter: ChainMeter) -> Outcome:
    if isinstance(answer, DecodingCancelledError):
        return answer
    if isinstance(answer, GrammarError):
        return user_error(answer)
    if not isinstance(answer, AnswerText):
        return ModelError(str(answer))
    counts = answer.counts
    return WrittenDocument(
        text=answer.text,
        logprob=answer.logprob,
        num_tokens=len(answer.token_ids),
        num_forced=counts.forced,
        num_drafted=counts.drafted,
        num_accepted=counts.accepted,
        num_forwards=counts.forwards - 1,
        prefill_ms=meter.prefill_ms,
        kv=meter.share(),
    )
