"""One answer while it is written: tokens, the grammar's states, what may still be spent, what was counted."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from decoding.answering.affordable import AffordableMasks
from decoding.answering.choice_points import ChoicePoint, PackedMask
from decoding.answering.choosing import Choice
from decoding.answering.pace import USUAL_COST, Pace
from decoding.answering.params import AnswerParams
from decoding.answering.results import AnswerCounts, AnswerText
from decoding.answering.speller import Speller
from decoding.cancellation import CancelToken
from decoding.errors import DecodingCancelledError, InvalidLogitsError
from decoding.grammar.token_grammar import TokenGrammar

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
        self.drafts = Pace(params.draft_tokens, draft_cost)
        self.guesses = Pace(1, 0.0)
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
