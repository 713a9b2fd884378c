"""What is known of one answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AnswerCounts:
    """What one answer took.

    Attributes:
        forwards: Passes of the model that the query took part in, that over its prompt included.
        draft_forwards: The same of the draft model; 0 without one.
        sampled: Tokens of the answer that the model chose, its end token and accepted drafts included.
        forced: Tokens of the answer that were written without a choice.
        drafted: Tokens that the draft model proposed.
        accepted: Of these, the ones that are part of the answer.
        guessed: Chosen tokens that were expected without a draft model, as the usual ones for forced bytes.
    """

    forwards: int
    draft_forwards: int
    sampled: int
    forced: int
    drafted: int
    accepted: int
    guessed: int = 0


@dataclass(frozen=True, slots=True)
class AnswerText:
    """One answer.

    Attributes:
        token_ids: What was written, the end token included.
        text: The bytes of it.
        logprob: log P_L(tokens | prompt) under the model alone, forced tokens included; natural logarithm,
            temperature 1.
        constraint_logprob: The same of the tokens that were chosen, each step renormalised over the tokens
            that the grammar allows: forced tokens count nothing. What the token budget rules out is not left
            out of the normaliser.
        counts: What it took.
        token_logprobs: The terms of `logprob`, one for each token.
    """

    token_ids: tuple[int, ...]
    text: bytes
    logprob: float
    constraint_logprob: float
    counts: AnswerCounts
    token_logprobs: tuple[float, ...] = ()
