"""The same answers written in four ways in turn: plainly, with forced spans, with drafts, with both."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from decoding.answering import AnswerParams, AnswerText, Speller, write_answers
from decoding.grammar.compiler import compile_schema
from decoding.grammar.grammar import Grammar
from decoding.grammar.leaves.factory import Leaves
from decoding.grammar.options import GrammarOptions
from decoding.language_model import LanguageModel
from harness.report import Spread
from harness.schema_classes import SchemaClass

# name -> whether spans are forced, whether tokens are drafted.
WAYS: dict[str, tuple[bool, bool]] = {
    "nothing": (False, False),
    "forced": (True, False),
    "drafted": (False, True),
    "both": (True, True),
}


def contest(
    target: LanguageModel,
    draft: LanguageModel,
    leaves: Leaves,
    speller: Speller,
    prompts: Sequence[Sequence[int]],
    schemas: Sequence[SchemaClass],
    whitespaces: Sequence[str],
    *,
    max_tokens: int,
    draft_tokens: int,
    rounds: int,
) -> list[dict[str, Any]]:
    """Measure every schema in every style.

    Greedy answers with and without drafts are compared: the line says whether all tokens are the same.
    """
    figures = []
    for one in schemas:
        for whitespace in whitespaces:
            options = GrammarOptions(
                whitespace=whitespace,  # type: ignore[arg-type]
                property_order="schema",
                extra_properties="declared",
            )
            grammar = compile_schema(one.text, leaves, options)
            budget = max(max_tokens, 2 * grammar.tokens_to_finish(grammar.start))
            answers: dict[str, list[AnswerText]] = {}
            seconds: dict[str, list[float]] = {way: [] for way in WAYS}
            for number in range(rounds + 1):
                for way in WAYS:
                    begun = time.perf_counter()
                    answers[way] = _write(
                        target, draft, grammar, speller, prompts, WAYS[way], budget, draft_tokens
                    )
                    if number:  # the round before the first warms up
                        seconds[way].append(time.perf_counter() - begun)
            figures.append(
                {
                    "schema": one.name,
                    "whitespace": whitespace,
                    "max_tokens": budget,
                    "drafts_change_nothing": all(
                        [answer.token_ids for answer in answers[plain]]
                        == [answer.token_ids for answer in answers[drafted]]
                        for plain, drafted in (("nothing", "drafted"), ("forced", "both"))
                    ),
                    "ways": {way: _figures(answers[way], seconds[way]) for way in WAYS},
                }
            )
    return figures


def _write(
    target: LanguageModel,
    draft: LanguageModel,
    grammar: Grammar,
    speller: Speller,
    prompts: Sequence[Sequence[int]],
    way: tuple[bool, bool],
    budget: int,
    draft_tokens: int,
) -> list[AnswerText]:
    forces, drafts = way
    params = AnswerParams(max_tokens=budget, forced_spans=forces, draft_tokens=draft_tokens)
    answers = write_answers(
        target,
        prompts,
        [grammar] * len(prompts),
        params,
        speller=speller,
        draft=draft if drafts else None,
    )
    written = []
    for answer in answers:
        if not isinstance(answer, AnswerText):
            raise click.ClickException(f"an answer was refused: {answer}")
        written.append(answer)
    return written


def _figures(answers: Sequence[AnswerText], seconds: Sequence[float]) -> dict[str, Any]:
    tokens = sum(len(answer.token_ids) for answer in answers)
    passes = sum(answer.counts.forwards for answer in answers)
    drafted = sum(answer.counts.drafted for answer in answers)
    return {
        "tokens": tokens,
        "forced_share": sum(answer.counts.forced for answer in answers) / tokens,
        "passes": passes,
        "passes_per_token": passes / tokens,
        "draft_passes": sum(answer.counts.draft_forwards for answer in answers),
        "drafted": drafted,
        "accepted_share": sum(answer.counts.accepted for answer in answers) / drafted if drafted else None,
        "milliseconds": Spread.of([1000 * second for second in seconds]),
    }
