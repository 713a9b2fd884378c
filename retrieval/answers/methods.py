"""How answers are written: token by token, by beam search over documents, or as samples (DISC)."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from decoding.answering.params import AnswerParams
from decoding.answering.results import AnswerText
from decoding.answering.writer import write_answers
from decoding.beam_search import BeamResult, beam_search
from decoding.cancellation import CancelToken
from decoding.disc import DiscResult, disc
from decoding.errors import DecodingCancelledError, DecodingError
from decoding.grammar.constraint import GrammarConstraint
from decoding.grammar.errors import GrammarError
from decoding.language_model import DecodeSession, LanguageModel, PromptPrefix
from decoding.params import BeamParams, DiscParams
from decoding.types import Hypothesis
from retrieval.answers.chain_meter import ChainMeter
from retrieval.answers.engine import AnswerEngine
from retrieval.answers.errors import user_error
from retrieval.answers.types import AnswerRequest
from retrieval.errors import GenretError, ModelError
from retrieval.kv_meter import KvMeter
from retrieval.types import KvShare

if TYPE_CHECKING:
    from retrieval.answers.answerer import AnswerJob


@dataclass(frozen=True, slots=True)
class Written:
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


Outcome = Written | GenretError | DecodingCancelledError


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
            Written(
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
    return Written(
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
