"""What answers must be, by enumeration: the likeliest row step by step, and the law of sampled rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from genret.decoding.answering import AnswerParams, AnswerText, write_answers
from tests.fakes import TableModel, chi_square, tokens_after
from tests.text_grammar import TextGrammar, rows_of

Row = tuple[int, ...]

ALPHA = 1e-4  # seeds are fixed: a test fails always or never
ROUND = 250


def greedy_row(model: TableModel, prompt: Sequence[int], rows: Sequence[Row]) -> Row:
    """The row that is written by taking the likeliest token that continues one of the rows."""
    allowed, row = tokens_after(rows), ()
    while row not in rows:
        logits = model.logits(tuple(prompt), row)
        row = (*row, max(allowed[row], key=lambda token: float(logits[token])))
    return row


def row_law(
    model: TableModel, prompt: Sequence[int], rows: Sequence[Row], temperature: float = 1.0
) -> dict[Row, float]:
    """The law of rows whose every token is drawn among those that continue one of the rows."""
    allowed = tokens_after(rows)
    law = {}
    for row in rows:
        logprob = 0.0
        for depth, token in enumerate(row):
            logits = model.logits(tuple(prompt), row[:depth]).double() / temperature
            logprob += float(logits[token] - logits[sorted(allowed[row[:depth]])].logsumexp(0))
        law[row] = math.exp(logprob)
    return law


def constraint_logprob(
    model: TableModel, prompt: Sequence[int], grammar: TextGrammar, row: Row, forced: Sequence[int] = ()
) -> float:
    """Log-probability of the tokens that were chosen, among those that the grammar allows."""
    total, state = 0.0, grammar.start
    for depth, token in enumerate(row):
        logits = model.logits(tuple(prompt), row[:depth]).double()
        if depth not in forced:
            total += float(logits[token] - logits[list(grammar.allowed(state))].logsumexp(0))
        state = grammar.advance(state, token)
    return total


def check_law(model: TableModel, grammar: TextGrammar, num: int, **options: Any) -> None:
    """Hold `num` sampled rows to the law of their steps, within `max_tokens` where that is given."""
    counts, _ = count_rows(model, grammar, num, **options)
    rows = rows_of(grammar, options.get("max_tokens", 99))
    law = row_law(model, [7], rows, options.get("temperature", 1.0))
    assert set(counts) <= set(law)
    assert chi_square(counts, law) > ALPHA


def count_rows(
    model: TableModel, grammar: TextGrammar, num: int, **options: Any
) -> tuple[Counter[Row], Counter[str]]:
    """Rows of answers under seeds 0, 1, ..., and the sums of their counts.

    Args:
        model: The model that answers.
        grammar: The texts that may be written.
        num: Number of answers; several are written in one batch.
        options: Fields of `AnswerParams` (the temperature is 1 where nothing is said); draft and speller.
    """
    rows: Counter[Row] = Counter()
    sums: Counter[str] = Counter()
    helpers = {name: options.pop(name) for name in ("draft", "speller") if name in options}
    for first in range(0, num, ROUND):
        seeds = range(first, min(first + ROUND, num))
        params = [AnswerParams(**{"temperature": 1.0, **options}, seed=seed) for seed in seeds]
        many = len(params)
        for answer in write_answers(model, [[7]] * many, [grammar] * many, params, **helpers):
            assert isinstance(answer, AnswerText)
            rows[answer.token_ids] += 1
            sums.update(asdict(answer.counts))
    return rows, sums
