"""Writes JSON answers under any schema, with titles of any number of indexes in them (`Answerer`)."""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Unpack

from genret.decoding.answering.answer import AnswerText
from genret.decoding.answering.writer import write_answers
from genret.decoding.beam_search import BeamResult, beam_search
from genret.decoding.cancellation import CancelToken
from genret.decoding.disc import DiscResult, disc
from genret.decoding.errors import DecodingCancelledError, DecodingError, InvalidLogitsError
from genret.decoding.grammar.automaton.title_slot_values import TitleSlotValue
from genret.decoding.grammar.constraint import GrammarConstraint
from genret.decoding.grammar.errors import GrammarError
from genret.decoding.language_model import LanguageModel, PromptPrefix
from genret.decoding.params import AnswerParams, BeamParams, DiscParams
from genret.retrieval.answers.answer_types import (
    AnswerEntity,
    AnswerOptions,
    AnswerRequest,
    AnswerResult,
    PreparedAnswer,
    Schema,
)
from genret.retrieval.answers.schema_explanation import user_error
from genret.retrieval.answers.schemas import AnswerEngine, CompiledSchema
from genret.retrieval.answers.title_holes import IndexSet, ShortlistedSlots
from genret.retrieval.answers.validation import InvalidAnswerError, SlowValidationError
from genret.retrieval.arguments import check_count, check_known, named, new_seed
from genret.retrieval.errors import GenretError, InputError, ModelError
from genret.retrieval.index.owners import title_owners
from genret.retrieval.loaded_model import (
    DEFAULT_BATCH_SIZE,
    ChainMeter,
    KvMeter,
    Limits,
    PrefixStore,
    PromptEncoder,
)
from genret.retrieval.methods.decoded_methods import owners_best_first
from genret.retrieval.prompts import JSON_ANSWER, JSON_BRIEF, CheckpointConfig, PromptTemplate
from genret.retrieval.text import TextTokenizer
from genret.retrieval.types import Timings

# A prompt must leave room for an answer: at most this much of the positions is kept for it.
_MIN_ROOM = 64
# Tokens that an answer may write again before it is taken for one that would do so up to its budget.
_ECHO_TOKENS = 12
# Methods that write one document, token by token; their requests go together.
_CHAINS = ("greedy", "sample")

AnswerReply = AnswerResult | GenretError | DecodingCancelledError


@dataclass(frozen=True, slots=True)
class AnswerJob:
    """One request, its budget within the model's positions, on its way into a batch.

    Attributes:
        num_shared: Number of leading tokens that every prompt of its template has.
        compile_ms: CPU time of finding or compiling the schema, milliseconds.
        titles: Name of the index that its schema calls "titles".
        shortlist: Size of the shortlists that its titles are chosen from; None: among all titles.
    """

    request: AnswerRequest
    schema: CompiledSchema
    prompt: list[int]
    num_shared: int
    compile_ms: float
    titles: str
    indexes: IndexSet
    cancel: CancelToken | None = None
    shortlist: int | None = None


class Answerer:
    """Writes JSON answers. Requests are answered by one thread at a time; schemas are compiled by any.

    With `shortlists`, requests that say nothing of a shortlist have that of their schema.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: TextTokenizer,
        config: CheckpointConfig,
        prefixes: PrefixStore,
        engine: AnswerEngine,
        draft: LanguageModel | None = None,
        shortlists: bool = False,
    ) -> None:
        self.engine = engine
        self._shortlists = shortlists
        self._model = model
        self._config = config
        self._prefixes = prefixes
        self._draft = draft
        self._limits = Limits.of(model)
        self._prompts = PromptEncoder(tokenizer, model.vocab_size, self._limits.prompt_tokens(_MIN_ROOM))

    def name_schema(self, name: str, schema: Schema) -> None:
        """Give a schema a name for requests, and compile it. InputError if either cannot be used."""
        self.engine.schemas.name_schema(name, schema, self.engine.indexes)

    def job(
        self,
        request: AnswerRequest,
        cancel: CancelToken | None = None,
        titles: str | None = None,
        indexes: IndexSet | None = None,
    ) -> AnswerJob:
        """Check a request, compile its schema unless that was done before, and encode its prompt.

        Args:
            request: The request.
            cancel: Polled between decode steps.
            titles: Name of the index that the schema calls "titles"; None: the first.
            indexes: Indexes that the schema may name; None: those of the engine now.

        Raises:
            SchemaRejectedError: the schema cannot be used.
            InputError: the template is unknown, or query, schema or answer do not fit into the model.
        """
        begun = time.thread_time()
        self._prompts.check_length("query", request.query)
        indexes = self.engine.indexes if indexes is None else indexes
        titles = titles or indexes.first_name
        if isinstance(request, PreparedAnswer) and request.compiled is not None:
            schema, compile_ms = request.compiled, request.compile_ms
        else:
            schema = self.engine.schemas.prepare(request, indexes, titles)
            compile_ms = (time.thread_time() - begun) * 1e3
        template = self._template_of(request, schema.shown)
        prompt = self._prompts.encode(template, request.query)
        room = self._limits.room(len(prompt))
        budget = request.max_tokens if room is None else min(request.max_tokens, room)
        _check_budget(schema, budget, request.max_tokens)
        seeded = replace(request, max_tokens=budget)
        if request.method in ("sample", "disc") and request.seed is None:
            seeded = replace(seeded, seed=new_seed())
        shared = self._prompts.num_shared(template)
        size = schema.shortlist if request.shortlist is None and self._shortlists else request.shortlist
        return AnswerJob(seeded, schema, prompt, shared, compile_ms, titles, indexes, cancel, size or None)

    def _template_of(self, request: AnswerRequest, schema: str) -> PromptTemplate:
        """Return the template of a request; where none was chosen, a long schema is not shown."""
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
        """Answer queries under one schema, in their order, at most `batch_size` together.

        Args:
            queries: The query texts.
            schema: A JSON Schema, as text or as `json.loads` reads one.
            batch_size: Most queries that decode together.
            titles: Name of the index that the schema calls "titles"; None: the first.
            **options: See `AnswerRequest`.

        Raises SchemaRejectedError, which names keyword and JSON pointer, and InputError and ModelError as
        `Retriever.answer`.
        """
        check_known(options, AnswerRequest)
        check_count("batch_size", batch_size, 1)
        jobs = []
        for number, query in enumerate(queries):
            with named("query", "query" if len(queries) == 1 else f"queries[{number}]"):
                jobs.append(self.job(AnswerRequest(query, schema, **options), titles=titles))
        results: list[AnswerResult] = []
        for at in range(0, len(jobs), batch_size):
            for reply in self.run(jobs[at : at + batch_size]):
                if not isinstance(reply, AnswerResult):
                    raise reply
                results.append(reply)
        return results

    def run(self, jobs: Sequence[AnswerJob]) -> list[AnswerReply]:
        """Answer jobs with any mixture of options: per job its result, or its own error."""
        replies: dict[int, AnswerReply] = {}
        ready: dict[int, AnswerJob] = {}
        for number, job in enumerate(jobs):
            try:
                ready[number] = job if job.shortlist is None else self._narrowed(job)
            except (GenretError, DecodingCancelledError) as error:
                replies[number] = error
        numbers, methods = list(ready), [job.request.method for job in ready.values()]
        kinds = ["chain" if method in _CHAINS else method for method in methods]
        for prefix, places in self._prefixes.grouped(list(ready.values()), kinds):
            members = [numbers[i] for i in places]
            answers = self._answer([ready[i] for i in members], prefix)
            replies.update(zip(members, answers, strict=True))
        return [replies[i] for i in range(len(jobs))]

    def _narrowed(self, job: AnswerJob) -> AnswerJob:
        """Return a job restricted to the titles that a search finds for its query.

        Without a shortlist in the request the job stays as it is where the found titles do not do.
        """
        request, engine = job.request, self.engine
        if job.cancel is not None:
            job.cancel.check()
        shortlist = ShortlistedSlots(request.query, job.shortlist or 1, job.indexes.finder, engine.searcher)
        try:
            schema, compile_ms = engine.schemas.narrowed(job.schema, request, job.titles, shortlist)
            _check_budget(schema, request.max_tokens, request.max_tokens)
        except InputError:
            if request.shortlist is not None:
                raise
            return replace(job, shortlist=None)
        return replace(job, schema=schema, compile_ms=job.compile_ms + compile_ms)

    def _answer(self, jobs: Sequence[AnswerJob], prefix: PromptPrefix | None) -> list[AnswerReply]:
        begun = time.perf_counter()
        try:
            written = self._write(jobs, prefix)
        except InvalidLogitsError as error:
            if len(jobs) == 1:
                return [ModelError(str(error))]
            # One query's broken logits must not take the others down: answer each alone.
            return [self._answer([job], prefix)[0] for job in jobs]
        total_ms = (time.perf_counter() - begun) * 1e3
        replies: list[AnswerReply] = []
        for job, outcome in zip(jobs, written, strict=True):
            self.engine.schemas.settle(job.schema)
            if isinstance(outcome, tuple):
                replies.append(self._finish(job, *outcome, total_ms))
            else:
                replies.append(outcome)
        return replies

    def _write(self, jobs: Sequence[AnswerJob], prefix: PromptPrefix | None) -> list[_Written]:
        """Write the documents of compatible jobs: all by chains, all by beam search or all by DISC."""
        requests, cancel = [job.request for job in jobs], [job.cancel for job in jobs]
        method = requests[0].method
        if method in _CHAINS:
            return self._write_chains(jobs, prefix)
        begun = time.perf_counter()
        meter = KvMeter(self._model.prefill([job.prompt for job in jobs], prefix), len(jobs))
        timings = Timings(prefill_ms=(time.perf_counter() - begun) * 1e3)
        constraint = GrammarConstraint(
            [job.schema.grammar for job in jobs],
            [request.max_tokens for request in requests],
            self._model.device,
        )
        results: Sequence[BeamResult | DiscResult | DecodingCancelledError]
        if method == "beam":
            searches = [BeamParams(k=1, beam_size=request.beam_size) for request in requests]
            results = beam_search(meter.session, constraint, searches, cancel)
        else:
            # Draws that go on to their ends give the mass by their weights.
            draws = [
                DiscParams(
                    num_draws=r.num_draws, temperature=r.temperature, seed=r.seed or 0, reject_early=False
                )
                for r in requests
            ]
            results = disc(meter.session, constraint, draws, cancel)
        written: list[_Written] = []
        for number, (job, result) in enumerate(zip(jobs, results, strict=True)):
            if isinstance(result, DecodingCancelledError):
                written.append(result)
                continue
            mass = stderr = None
            if isinstance(result, DiscResult):
                found = [sample.hypothesis for sample in result.samples]
                mass = result.mass
                stderr = None if math.isnan(result.mass_stderr) else result.mass_stderr
            else:
                found = list(result.hypotheses)
            if not found:
                nothing = "the model gives no document that is valid under the schema any probability"
                written.append(ModelError(nothing))
                continue
            facts = AnswerResult(
                query=job.request.query,
                method=method,
                text="",
                entities=(),
                logprob=found[0].logprob,
                num_tokens=len(found[0].token_ids),
                num_forwards=result.num_steps,
                mass=mass,
                mass_stderr=stderr,
                timings=timings,
                kv=meter.share(number),
            )
            written.append((job.schema.grammar.text(found[0].token_ids), facts))
        return written

    def _write_chains(self, jobs: Sequence[AnswerJob], prefix: PromptPrefix | None) -> list[_Written]:
        params = [
            AnswerParams(
                max_tokens=job.request.max_tokens,
                temperature=0.0 if job.request.method == "greedy" else job.request.temperature,
                seed=job.request.seed or 0,
                forced_spans=job.request.forced_spans,
                echo_tokens=_ECHO_TOKENS if job.request.end_repetition else 0,
            )
            for job in jobs
        ]
        meter = ChainMeter(self._model)
        answers = write_answers(
            meter,
            [job.prompt for job in jobs],
            [job.schema.grammar for job in jobs],
            params,
            prefix=prefix,
            speller=self.engine.speller,
            draft=self._draft,
            cancel=[job.cancel for job in jobs],
        )
        return [_of_chain(job.request, answer, meter) for job, answer in zip(jobs, answers, strict=True)]

    def _finish(self, job: AnswerJob, document: bytes, facts: AnswerResult, total_ms: float) -> AnswerReply:
        """Validate a document, and find the entities behind its titles."""
        try:
            text = document.decode()
            job.schema.validator.check(text)
            holes = job.schema.grammar.holes(document)
        except SlowValidationError as error:
            return error
        except (UnicodeDecodeError, InvalidAnswerError, ValueError) as error:
            return error if isinstance(error, InvalidAnswerError) else InvalidAnswerError(str(error))
        prefill_ms = facts.timings.prefill_ms
        return replace(
            facts,
            text=text,
            entities=tuple(self._entity(job, document, value) for value in holes),
            seed=job.request.seed if job.request.method in ("sample", "disc") else None,
            schema_digest=job.schema.digest,
            compile_ms=job.compile_ms,
            timings=Timings(prefill_ms, total_ms - prefill_ms, total_ms),
        )

    def _entity(self, job: AnswerJob, text: bytes, value: TitleSlotValue) -> AnswerEntity:
        """Return the entities behind a title: all that the title slot allows, whatever the shortlist."""
        index = job.indexes.index(value.name.index)
        spelled = text[value.first_byte : value.last_byte]
        members = value.members
        if job.shortlist is not None:
            leaf = job.indexes(value.name)
            members = leaf.members(functools.reduce(leaf.step, spelled, 0))
        shares = owners_best_first(index, title_owners(index, members))
        return AnswerEntity(
            pointer=value.pointer,
            index=value.name.index,
            title=json.loads(spelled),
            entities=tuple(map(index.entity, shares)),
            shares=tuple(shares.values()),
        )


def _check_budget(schema: CompiledSchema, budget: int, asked: int) -> None:
    """Raise InputError for a budget below the shortest answer; `asked` is the request's own budget."""
    needed = schema.grammar.tokens_to_finish(schema.grammar.start)
    if needed > budget:
        limit = f"max_tokens is {asked}"
        if budget < asked:
            limit = f"the model has positions for {budget} tokens behind this prompt"
        raise InputError("max_tokens", f"the shortest answer to this schema takes {needed} tokens; {limit}")


# A document, and the facts of it that are known before it is validated; or why there is none.
_Written = tuple[bytes, AnswerResult] | GenretError | DecodingCancelledError


def _of_chain(request: AnswerRequest, answer: AnswerText | DecodingError, meter: ChainMeter) -> _Written:
    if isinstance(answer, DecodingCancelledError):
        return answer
    if isinstance(answer, GrammarError):
        return user_error(answer)
    if not isinstance(answer, AnswerText):
        return ModelError(str(answer))
    counts = answer.counts
    facts = AnswerResult(
        query=request.query,
        method=request.method,
        text="",
        entities=(),
        logprob=answer.logprob,
        num_tokens=len(answer.token_ids),
        num_forced=counts.forced,
        num_drafted=counts.drafted,
        num_accepted=counts.accepted,
        num_forwards=counts.forwards - 1,
        timings=Timings(prefill_ms=meter.prefill_ms),
        kv=meter.share(),
    )
    return answer.text, facts
