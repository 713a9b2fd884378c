"""The same answers written in four ways in turn: plainly, with forced spans, with drafts, with both."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from genret.decoding.answering import AnswerParams, AnswerText, Speller, write_answers
from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.json_grammar import Grammar, compile_schema
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from genret.decoding.language_model import LanguageModel
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
    names: Sequence[str],
    *,
    max_tokens: int,
    draft_tokens: Sequence[int],
    temperature: float,
    rounds: int,
) -> list[dict[str, Any]]:
    """Measure every schema in every style, in some of the ways; plainly always.

    Greedy answers with and without drafts are compared: the line says whether all tokens are the same. Ways
    with drafts are taken once for every number of tokens at a time; if there are several, as `drafted 4`.
    """
    ways = {
        f"{name} {number}" if drafts and len(draft_tokens) > 1 else name: (forces, number)
        for name, (forces, drafts) in WAYS.items()
        if name in {"nothing", *names}
        for number in (draft_tokens if drafts else (0,))
    }
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
            times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
            for number in range(rounds + 1):
                for way, chosen in ways.items():
                    begun = time.perf_counter(), time.thread_time()
                    answers[way] = _write(
                        target, draft, grammar, speller, prompts, chosen, budget, temperature
                    )
                    spent = time.perf_counter() - begun[0], time.thread_time() - begun[1]
                    if number:  # the round before the first warms up
                        times[way].append(spent)
            figures.append(
                {
                    "schema": one.name,
                    "whitespace": whitespace,
                    "max_tokens": budget,
                    "drafts_change_nothing": all(
                        [answer.token_ids for answer in answers[plain]]
                        == [answer.token_ids for answer in answers[way]]
                        for plain, drafted in (("nothing", "drafted"), ("forced", "both"))
                        for way in ways
                        if plain in ways and way.startswith(drafted)
                    ),
                    "ways": {way: _figures(answers[way], times[way], times["nothing"]) for way in ways},
                }
            )
    return figures


def _write(
    target: LanguageModel,
    draft: LanguageModel,
    grammar: Grammar,
    speller: Speller,
    prompts: Sequence[Sequence[int]],
    way: tuple[bool, int],
    budget: int,
    temperature: float,
) -> list[AnswerText]:
    forces, drafts = way
    params = AnswerParams(
        max_tokens=budget, forced_spans=forces, draft_tokens=drafts, temperature=temperature, seed=17
    )
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


def _figures(
    answers: Sequence[AnswerText],
    times: Sequence[tuple[float, float]],
    plain: Sequence[tuple[float, float]],
) -> dict[str, Any]:
    tokens = sum(len(answer.token_ids) for answer in answers)
    passes = sum(answer.counts.forwards for answer in answers)
    drafted = sum(answer.counts.drafted for answer in answers)
    return {
        "tokens": tokens,
        "guessed_share": sum(answer.counts.guessed for answer in answers) / tokens,
        "forced_share": sum(answer.counts.forced for answer in answers) / tokens,
        "passes": passes,
        "passes_per_token": passes / tokens,
        "draft_passes": sum(answer.counts.draft_forwards for answer in answers),
        "drafted": drafted,
        "accepted_share": sum(answer.counts.accepted for answer in answers) / drafted if drafted else None,
        "milliseconds": Spread.of([1000 * wall for wall, _ in times]),
        "of_plain_time": Spread.of_ratios([wall for wall, _ in times], [wall for wall, _ in plain]),
        "of_plain_cpu_time": Spread.of_ratios([cpu for _, cpu in times], [cpu for _, cpu in plain]),
    }
