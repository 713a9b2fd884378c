"""Tracks one answer while it is written: tokens, grammar states, what may still be spent, what was counted.

An answer also decides how many tokens are worth proposing at a time. A proposal costs a pass of the draft
model and a row of the model's, and saves a pass of the model if it and all before it are accepted. What is
decided depends on nothing but what became of the answer's own earlier proposals: an answer stays the same in
every batch, and its law the model's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable
from weakref import ref

import numpy as np
import torch

from decoding.answering.speller import Speller
from decoding.answering.token_choice import Choice, ChoicePoint, PackedMask
from decoding.bounded_cache import BoundedCache
from decoding.cancellation import CancelToken
from decoding.errors import DecodingCancelledError, InvalidLogitsError
from decoding.grammar.constraint import TokenGrammar
from decoding.params import AnswerParams

# Pass of a draft model in passes of the model, where neither says how large it is.
USUAL_COST = 0.2
# No draft model is taken to be dearer: where one that is as large as the model is asked for, it is tried.
MOST_COST = 0.5
# One more row of a pass, in passes.
ROW_COST = 0.05
# What is assumed before anything is known, and how many proposals that counts for. High, so that a good draft
# is used from the start; a bad one is found out within a few passes.
_FIRST_SHARE, _FIRST_WEIGHT = 0.9, 3.0
# Weight of a proposal beside the one after it: fields of a document differ.
_FADING = 0.9
# Passes without a proposal before one is tried again, at first and at most.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 4, 64


@runtime_checkable
class HasWeight(Protocol):
    """A model that can be weighed."""

    @property
    def pretrained(self) -> torch.nn.Module:
        """The module that is run."""


def relative_cost(draft: object, model: object) -> float:
    """Pass of a draft model in passes of the model: by weights or by layers, whichever says more.

    Passes of few tokens take the time in which weights are read, or in which kernels are started, one layer
    after the other. Times are not measured: answers must not depend on them. At most `MOST_COST`.
    """
    if not (isinstance(draft, HasWeight) and isinstance(model, HasWeight)):
        return USUAL_COST
    (small, flat), (large, deep) = _size(draft.pretrained), _size(model.pretrained)
    return min(max(small / large, flat / deep), MOST_COST)


class DraftCostModel:
    """Of one answer and one way to propose.

    Args:
        most: Most tokens at a time.
        cost: What it takes to propose one, in passes of the model.
    """

    def __init__(self, most: int, cost: float) -> None:
        self._most = most
        self._cost = cost + ROW_COST
        self._accepted = _FIRST_SHARE * _FIRST_WEIGHT
        self._judged = _FIRST_WEIGHT
        self._pause = _SHORTEST_PAUSE
        self._rest = 0

    @property
    def share(self) -> float:
        """Estimated probability that a proposal is accepted if all before it are."""
        return self._accepted / self._judged

    def next(self) -> int:
        """How many tokens to propose in the pass that comes.

        To be asked once for each, before anything is proposed: an answer that depends on tokens which are
        proposed and fall would have another law.
        """
        if self._rest > 1:
            self._rest -= 1
            return 0
        if self._rest == 1:
            return min(1, self._most)  # until one is judged: there may be nothing to propose
        if self._best() == 0:
            self._rest, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
            return 0
        self._pause = _SHORTEST_PAUSE
        return self._best()

    def learn(self, accepted: bool) -> None:
        """Note what became of a proposal, all before which were accepted."""
        self._rest = 0
        self._accepted = _FADING * self._accepted + accepted
        self._judged = _FADING * self._judged + 1

    def _best(self) -> int:
        """The number that brings most tokens for what it costs."""
        best, most_per_cost = 0, 1.0
        tokens = reached = 1.0
        for number in range(1, self._most + 1):
            reached *= self.share
            tokens += reached
            if tokens / (1 + number * self._cost) > most_per_cost:
                best, most_per_cost = number, tokens / (1 + number * self._cost)
        return best


def _size(module: torch.nn.Module) -> tuple[int, int]:
    """Weights, and matrices as a measure of layers."""
    weights = [parameter for parameter in module.parameters() if parameter.ndim > 1]
    return sum(map(torch.numel, weights)), len(weights)


# Of the key, its parts and the array, beside the mask itself.
_ENTRY_BYTES = 400

_Key = tuple[ref[TokenGrammar], int, int]


class AffordableMasks:
    """Masks by grammar, state and tokens left. Safe to use from several threads.

    Budgets run out alike: of every answer that is too long, its text is closed with the fewest tokens that
    close it, and so are all texts behind it. Answers of a batch and of later requests ask for the same masks.

    Args:
        max_bytes: Masks that were not asked for lately are forgotten when all take more. One that takes more
            by itself is not kept.
    """

    def __init__(self, max_bytes: int) -> None:
        # A grammar that is gone equals no other; what is kept of it goes as anything does.
        self._kept: BoundedCache[_Key, PackedMask] = BoundedCache(
            max_bytes, lambda key, mask: mask.nbytes + _ENTRY_BYTES
        )

    @property
    def num_bytes(self) -> int:
        """Memory of all that is kept."""
        return self._kept.size

    def mask(self, grammar: TokenGrammar, state: int, left: int) -> PackedMask:
        """The allowed tokens behind which fewer than `left` tokens can finish; read-only.

        Args:
            grammar: Says which.
            state: One of its states.
            left: Tokens that may be written from there, the one that is asked for included.
        """

        def make() -> PackedMask:  # looks at every allowed token
            made = grammar.vocabulary.packed(grammar.fitting_tokens(state, left))
            made.flags.writeable = False
            return made

        return self._kept.get_or_make((ref(grammar), state, left), make)


# Tokens with the states behind them.
Steps = list[tuple[int, int]]

# A mask takes a bit for every token of the vocabulary: some thousands of 10^4, some hundreds of 10^5.
_AFFORDABLE = AffordableMasks(max_bytes=8 << 20)


class Answer:
    """One query's answer.

    Args:
        grammar: What may be written.
        params: How.
        budget: Most tokens, end token included; enough for the shortest answer.
        speller: Spells what is forced; None: nothing is.
        draft_cost: Pass of the draft model in passes of the model.

    Attributes:
        grammar: As given.
        params: As given.
        tokens: What is written.
        state: The grammar's state behind it.
        scored: How many of the tokens have their log-probabilities in the account.
        forwards: Passes of the model.
        draft_forwards: Passes of the draft model.
        drafted: Tokens proposed.
        accepted: Tokens accepted of these.
        guessed: Tokens proposed without a draft model that were accepted.
        drafts: How proposals of the draft model fare.
        guesses: How others fare.
    """

    def __init__(
        self,
        grammar: TokenGrammar,
        params: AnswerParams,
        budget: int,
        speller: Speller | None = None,
        draft_cost: float = USUAL_COST,
    ) -> None:
        self.grammar = grammar
        self.params = params
        self.tokens: list[int] = []
        self.state = grammar.start
        self.scored = 0
        self.forwards = self.draft_forwards = self.drafted = self.accepted = self.guessed = 0
        self.drafts = DraftCostModel(params.draft_tokens, draft_cost)
        self.guesses = DraftCostModel(1, 0.0)
        self._budget = budget
        self._speller = speller if params.forced_spans else None
        self._num_forced = 0
        self._error: InvalidLogitsError | DecodingCancelledError | None = None
        self._logprobs: list[float] = []
        self._constraint_logprobs: list[float] = []

    @property
    def over(self) -> bool:
        """Whether the end token is written, or the answer was given up."""
        return self._error is not None or self.state == self.grammar.finished

    def point(
        self, query: int, row: int, state: int, step: int, stream: int, mask: PackedMask | None = None
    ) -> ChoicePoint:
        """A place where this answer's next token is to be chosen; see `ChoicePoint`.

        Args:
            query: Row of the query in the pass.
            row: Which of its logits.
            state: The grammar's state there.
            step: Tokens before it.
            stream: What the drawn numbers are for.
            mask: The allowed tokens; None: all that the grammar allows.
        """
        mask = self.grammar.mask(state) if mask is None else mask
        return ChoicePoint(
            query=query,
            row=row,
            mask=mask,
            temperature=self.params.temperature,
            seed=self.params.seed,
            step=step,
            stream=stream,
            listed=ChoicePoint.listing(mask),
        )

    def follow(self, state: int, token: int, step: int) -> int | None:
        """The state behind a token, None where the answer could then not be closed within its budget.

        Args:
            state: Before it.
            token: One that the grammar allows.
            step: Tokens before it.
        """
        following = self.grammar.advance(state, token)
        assert following >= 0
        left = self._budget - step - 1
        return following if self.grammar.can_finish(following, left) else None

    def forced(self, tokens: Sequence[int], state: int) -> Steps:
        """What follows some tokens without a choice: where bytes are forced, and where one token is allowed.

        Args:
            tokens: The whole answer up to there.
            state: The grammar's state behind them.
        """
        steps: Steps = []
        if not self.params.forced_spans:
            return steps
        written = list(tokens)
        while state != self.grammar.finished:
            span = self._span(written, state) or self._only(state)
            followed = len(steps)
            for token in span:
                following = self.follow(state, token, len(written))
                if following is None:
                    return steps
                state = following
                written.append(token)
                steps.append((token, state))
            if len(steps) == followed:
                break
        return steps

    def likely(self, tokens: Sequence[int], state: int) -> Steps:
        """What is worth asking for at once where bytes are forced and their tokens are not certain.

        Args:
            tokens: The whole answer up to there.
            state: The grammar's state behind them.
        """
        steps: Steps = []
        if self._speller is None:
            return steps
        for token in self._speller.likely(self.grammar, state, tokens):
            allowed = int(self.grammar.mask(state)[token >> 5]) >> (token & 31) & 1
            following = self.follow(state, token, len(tokens) + len(steps)) if allowed else None
            if following is None:
                break
            state = following
            steps.append((token, state))
        return steps

    def _span(self, written: Sequence[int], state: int) -> tuple[int, ...]:
        if self._speller is None:
            return ()
        return self._speller.span(self.grammar, state, written)

    def _only(self, state: int) -> tuple[int, ...]:
        """The one token that is allowed, where that is so. The end token is always chosen."""
        mask = self.grammar.mask(state)
        (words,) = np.nonzero(mask)
        if len(words) != 1 or self.grammar.is_complete(state):
            return ()
        word = int(mask[words[0]])
        return () if word & (word - 1) else (int(words[0]) * 32 + word.bit_length() - 1,)

    def within_budget(self, state: int, step: int) -> PackedMask:
        """The allowed tokens from which the answer can be closed in time. Every one is looked at, once.

        Args:
            state: The grammar's state.
            step: Tokens before it.
        """
        return _AFFORDABLE.mask(self.grammar, state, self._budget - step)

    def write_forced(self) -> None:
        """Append what is forced."""
        steps = self.forced(self.tokens, self.state)
        self.commit(steps)
        self._num_forced += len(steps)

    def commit(self, steps: Steps) -> None:
        """Append tokens with the states behind them."""
        self.tokens += [token for token, _ in steps]
        if steps:
            self.state = steps[-1][1]

    def count_forced(self, number: int) -> None:
        """Note that some of the tokens were not chosen."""
        self._num_forced += number

    def score(self, logprobs: Sequence[float]) -> bool:
        """Take the log-probabilities of the tokens that are next in the account.

        Returns:
            Whether they are any; otherwise logits were NaN or +inf, and the answer is given up.
        """
        if any(map(math.isnan, logprobs)):
            self.give_up("the model returned NaN or infinite logits")
            return False
        self._logprobs += logprobs
        self.scored += len(logprobs)
        return True

    def has_mass(self, choice: Choice) -> bool:
        """Whether a token could be chosen; otherwise the answer is given up."""
        if math.isnan(choice.log_mass):
            self.give_up("the model returned NaN or infinite logits")
        elif choice.log_mass == -math.inf:
            self.give_up("the model gives no probability to any token that the grammar allows")
        return self._error is None

    def give_up(self, reason: str) -> None:
        """End the answer without a result."""
        self._error = InvalidLogitsError(f"{reason}, behind {len(self.tokens)} tokens of an answer")

    def poll(self, cancel: CancelToken) -> None:
        """Give the answer up if it is to be cancelled and not over."""
        try:
            cancel.check()
        except DecodingCancelledError as error:
            # Its frames hold the callers' frames, whose session holds the keys and values.
            self._error = self._error or (None if self.over else error.with_traceback(None))

    def note_choice(self, logprob: float, choice: Choice) -> None:
        """Take the log-probability that a chosen token has among the allowed ones."""
        self._constraint_logprobs.append(logprob - choice.log_mass)

    def result(self) -> AnswerText | InvalidLogitsError | DecodingCancelledError:
        """The answer, which is over, or why it was given up."""
        if self._error is not None:
            return self._error
        return AnswerText(
            token_ids=tuple(self.tokens),
            text=self.grammar.text(self.tokens),
            logprob=math.fsum(self._logprobs),
            constraint_logprob=math.fsum(self._constraint_logprobs),
            token_logprobs=tuple(self._logprobs),
            counts=AnswerCounts(
                forwards=self.forwards,
                draft_forwards=self.draft_forwards,
                sampled=len(self.tokens) - self._num_forced,
                forced=self._num_forced,
                drafted=self.drafted,
                accepted=self.accepted,
                guessed=self.guessed,
            ),
        )


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
