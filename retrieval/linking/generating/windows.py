"""Cuts a text into windows, and has a model write each again with links: by chains, beam search or draws.

Every character is in exactly one window. The cuts depend on the text up to them and the few words behind.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from genret.decoding.answering.answer import AnswerText
from genret.decoding.answering.speculation import FedSession
from genret.decoding.answering.speller import Speller
from genret.decoding.answering.token_choice import decide
from genret.decoding.answering.writer import write_answers
from genret.decoding.beam_search import BeamResult, beam_search
from genret.decoding.disc import DiscResult, disc
from genret.decoding.errors import DecodingCancelledError, DecodingError, InvalidLogitsError
from genret.decoding.grammar.constraint import GrammarConstraint
from genret.decoding.language_model import LanguageModel, PromptPrefix
from genret.decoding.markup.annotation_grammar import AnnotationGrammar
from genret.decoding.markup.copying import CopyProposer
from genret.decoding.params import MAX_TOKENS, AnswerParams, BeamParams, DiscParams
from genret.retrieval.errors import ModelError
from genret.retrieval.linking.link_options import GenerateOptions

CountTokens = Callable[[Sequence[str]], Sequence[int]]

# Blanks stand with the word behind them, as most tokenizers cut.
_PIECE = re.compile(r"\s*\S+|\s+")
_PARAGRAPH_END = re.compile(r"(?:\r\n|\r|\n)[^\S\r\n]*(?:\r\n|\r|\n)|\u2029")
_SENTENCE_END = re.compile(r"[.!?\u2026\u3002\uff01\uff1f][\"'\u2019\u201d)\]]*$")
# Characters of a text that are looked at for one window, per token of it.
_CHARS_PER_TOKEN = 8
# A window is not cut at the end of a paragraph, or of a sentence, that leaves less than this share of it.
_LEAST_PARAGRAPH, _LEAST_SENTENCE = 0.5, 0.25


def cut_windows(
    text: str, begin: int, end: int, max_tokens: int, count_tokens: CountTokens
) -> Iterator[tuple[int, int]]:
    """Yield windows [begin, end) of a text, in order, one behind the other.

    A window ends with a paragraph or with a sentence where it would otherwise be cut among words, and within
    a word only where the word alone is longer than a window. `count_tokens` counts those of each of some
    pieces.
    """
    while begin < end:
        reach = min(end, begin + max_tokens * _CHARS_PER_TOKEN)
        pieces = [found.end() for found in _PIECE.finditer(text, begin, reach)]
        stop = _fitting(text, begin, pieces, max_tokens, count_tokens)
        if stop < end:
            stop = _better(text, begin, [piece for piece in pieces if piece <= stop], stop)
        yield begin, stop
        begin = stop


def halves(text: str, begin: int, end: int) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Cut a window in two, between words where it has two; None where it is one character."""
    middle = (begin + end) // 2
    if middle == begin:
        return None
    ends = [found.end() for found in _PIECE.finditer(text, begin, end)][:-1]
    cut = min(ends, key=lambda place: (abs(place - middle), place)) if ends else middle
    return (begin, cut), (cut, end)


def _fitting(text: str, begin: int, ends: Sequence[int], most: int, count_tokens: CountTokens) -> int:
    """Return the end of the last piece that fits; an end within the first one where that does not fit."""
    starts = [begin, *ends[:-1]]
    counts = count_tokens([text[start:stop] for start, stop in zip(starts, ends, strict=True)])
    taken, last = 0, begin
    for stop, count in zip(ends, counts, strict=True):
        taken += count
        if taken > most:
            break
        last = stop
    if last > begin:
        return last
    more = range(begin + 2, ends[0])  # a character alone is never cut
    return begin + 1 + bisect_right(more, most, key=lambda stop: count_tokens([text[begin:stop]])[0])


def _better(text: str, begin: int, ends: Sequence[int], stop: int) -> int:
    """Return the end of a paragraph or of a sentence that is near enough to the end of the window."""
    size = stop - begin
    # Blanks are the next piece's, so that a paragraph ends with a piece that a break begins.
    for least, is_end in ((_LEAST_PARAGRAPH, _ends_paragraph), (_LEAST_SENTENCE, _ends_sentence)):
        for place in reversed(ends):
            if place - begin < least * size:
                break
            if is_end(text, begin, place):
                return place
    return stop


def _ends_paragraph(text: str, begin: int, place: int) -> bool:
    blanks = re.compile(r"\s*").match(text, place)
    return blanks is not None and _PARAGRAPH_END.search(blanks.group()) is not None


def _ends_sentence(text: str, begin: int, place: int) -> bool:
    if not text[place : place + 1].isspace():
        return False
    return _SENTENCE_END.search(text, max(begin, place - 8), place) is not None


class WindowJob(NamedTuple):
    """One window that is to be written."""

    prompt: list[int]
    grammar: AnnotationGrammar
    max_tokens: int  # most tokens, end token included; enough for the window without links
    seed: int
    copy: tuple[int, ...] = ()  # tokens of the text itself, as it is spelled; none where that is not known


class WrittenWindow(NamedTuple):
    """The tokens written for a window, end token included, and their log-probabilities under the model."""

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
    """Write at least one window together; every prompt begins with `prefix`."""
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
    results: Sequence[BeamResult | DiscResult | DecodingError]
    if options.method == "beam":
        params = [BeamParams(k=1, beam_size=options.beam_size)] * len(jobs)
        results = beam_search(session, constraint, params)
    else:
        draws = [
            DiscParams(num_draws=options.num_draws, temperature=options.temperature, seed=job.seed)
            for job in jobs
        ]
        results = disc(session, constraint, draws)
    chosen = [_chosen(result) for result in results]
    found = [
        (job.prompt, tokens) for job, tokens in zip(jobs, chosen, strict=True) if isinstance(tokens, tuple)
    ]
    scored = iter(_scored(model, found, prefix))
    return [tokens if isinstance(tokens, ModelError) else next(scored) for tokens in chosen]


def _chosen(result: BeamResult | DiscResult | DecodingError) -> tuple[int, ...] | ModelError:
    """Return the tokens of the best annotation, or of the one drawn."""
    if isinstance(result, BeamResult) and result.hypotheses:
        return result.hypotheses[0].token_ids
    if isinstance(result, DiscResult) and result.samples:
        return result.samples[0].hypothesis.token_ids
    if isinstance(result, DecodingError | DecodingCancelledError):
        return ModelError(str(result))
    return ModelError("the model gives no annotation of the text any probability")


def _scored(
    model: LanguageModel, written: Sequence[tuple[list[int], tuple[int, ...]]], prefix: PromptPrefix | None
) -> list[WrittenWindow]:
    """Score the tokens of some texts, in one pass over them."""
    if not written:
        return []
    feed = FedSession(model.prefill_chains([prompt for prompt, _ in written], prefix), len(written))
    # An end token is never read.
    rows = feed.run([tokens[:-1] for _, tokens in written], [0] * len(written))
    said = decide(rows.logits, [tokens for _, tokens in written], [])
    return [
        WrittenWindow(tokens, tuple(known)) for (_, tokens), known in zip(written, said.known, strict=True)
    ]
