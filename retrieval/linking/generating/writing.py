"""Writing the windows of a batch: by chains, by beam search or as draws, with what every token cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decoding.answering.choosing import decide
from decoding.answering.feed import Feed
from decoding.answering.params import MAX_TOKENS, AnswerParams
from decoding.answering.results import AnswerText
from decoding.answering.speller import Speller
from decoding.answering.writer import write_answers
from decoding.beam_search import BeamResult, beam_search
from decoding.disc import DiscResult, disc
from decoding.errors import DecodingCancelledError, DecodingError, InvalidLogitsError
from decoding.grammar.constraint import GrammarConstraint
from decoding.language_model import LanguageModel, PromptPrefix
from decoding.markup.copying import CopyProposer
from decoding.markup.grammar import AnnotationGrammar
from decoding.params import BeamParams, DiscParams
from retrieval.errors import ModelError
from retrieval.linking.generating.options import GenerateOptions


@dataclass(frozen=True, slots=True)
class WindowJob:
    """One window that is to be written.

    Attributes:
        prompt: Its token ids.
        grammar: What may be written.
        max_tokens: Most tokens, end token included; enough for the window without links.
        seed: Of this window.
        copy: Tokens of the text itself, as it is spelled; none where that is not known.
    """

    prompt: list[int]
    grammar: AnnotationGrammar
    max_tokens: int
    seed: int
    copy: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WrittenWindow:
    """What was written.

    Attributes:
        token_ids: The tokens, end token included.
        logprobs: Their log-probabilities under the model alone, each given all before it.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


Outcome = WrittenWindow | ModelError


def write_windows(
    model: LanguageModel,
    jobs: Sequence[WindowJob],
    options: GenerateOptions,
    prefix: PromptPrefix | None,
    speller: Speller,
) -> list[Outcome]:
    """Write windows together.

    Args:
        model: Writes.
        jobs: At least one.
        options: How.
        prefix: What every prompt begins with.
        speller: Spells what is forced.
    """
    try:
        if options.method in ("greedy", "sample"):
            return _write_chains(model, jobs, options, prefix, speller)
        return _write_searched(model, jobs, options, prefix)
    except InvalidLogitsError as error:
        if len(jobs) == 1:
            return [ModelError(str(error))]
        # One window's broken logits must not take the others down: each is written alone.
        return [write_windows(model, [job], options, prefix, speller)[0] for job in jobs]


def _write_chains(
    model: LanguageModel,
    jobs: Sequence[WindowJob],
    options: GenerateOptions,
    prefix: PromptPrefix | None,
    speller: Speller,
) -> list[Outcome]:
    temperature = 0.0 if options.method == "greedy" else options.temperature
    params = [
        AnswerParams(max_tokens=min(job.max_tokens, MAX_TOKENS), temperature=temperature, seed=job.seed)
        for job in jobs
    ]
    prompts, grammars = [job.prompt for job in jobs], [job.grammar for job in jobs]
    proposer = CopyProposer(grammars, [job.copy for job in jobs]) if options.method == "greedy" else None
    answers = write_answers(
        model, prompts, grammars, params, prefix=prefix, speller=speller, proposer=proposer
    )
    return [
        WrittenWindow(answer.token_ids, answer.token_logprobs)
        if isinstance(answer, AnswerText)
        else ModelError(str(answer))
        for answer in answers
    ]


def _write_searched(
    model: LanguageModel, jobs: Sequence[WindowJob], options: GenerateOptions, prefix: PromptPrefix | None
) -> list[Outcome]:
    session = model.prefill([job.prompt for job in jobs], prefix)
    budgets = [job.max_tokens for job in jobs]
    constraint = GrammarConstraint([job.grammar for job in jobs], budgets, model.device)
    found: dict[int, tuple[int, ...]] = {}
    errors: dict[int, ModelError] = {}
    if options.method == "beam":
        params = [BeamParams(k=1, beam_size=options.beam_size)] * len(jobs)
        for number, result in enumerate(beam_search(session, constraint, params)):
            if isinstance(result, BeamResult) and result.hypotheses:
                found[number] = result.hypotheses[0].token_ids
            else:
                errors[number] = _nothing(result)
    else:
        draws = [
            DiscParams(num_draws=options.num_draws, temperature=options.temperature, seed=job.seed)
            for job in jobs
        ]
        for number, drawn in enumerate(disc(session, constraint, draws)):
            if isinstance(drawn, DiscResult) and drawn.samples:
                found[number] = drawn.samples[0].hypothesis.token_ids
            else:
                errors[number] = _nothing(drawn)
    scored = _scored(model, [(jobs[number].prompt, tokens) for number, tokens in found.items()], prefix)
    outcomes: dict[int, Outcome] = {**errors, **dict(zip(found, scored, strict=True))}
    return [outcomes[number] for number in range(len(jobs))]


def _nothing(result: BeamResult | DiscResult | DecodingError) -> ModelError:
    if isinstance(result, DecodingError | DecodingCancelledError):
        return ModelError(str(result))
    return ModelError("the model gives no annotation of the text any probability")


def _scored(
    model: LanguageModel,
    written: Sequence[tuple[list[int], tuple[int, ...]]],
    prefix: PromptPrefix | None,
) -> list[WrittenWindow]:
    """What every token of some texts costs, in one pass over them."""
    if not written:
        return []
    feed = Feed(model.prefill_chains([prompt for prompt, _ in written], prefix), len(written))
    # An end token is never read.
    rows = feed.run([tokens[:-1] for _, tokens in written], [0] * len(written))
    said = decide(rows.logits, [tokens for _, tokens in written], [])
    return [
        WrittenWindow(tokens, tuple(known)) for (_, tokens), known in zip(written, said.known, strict=True)
    ]
