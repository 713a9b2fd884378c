"""Tracks one answer while it is written: tokens, grammar states, remaining budget, counts.

It also decides how many tokens to propose at a time. A proposal costs a pass of the draft model and a row of
the model's, and saves a pass of the model if it and all before it are accepted. The decision depends only on
the answer's own earlier proposals, so an answer is the same in every batch, and follows the model's law.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray

from genret.decoding.answering.speller import Speller
from genret.decoding.answering.token_choice import Choice, ChoicePoint, PackedMask
from genret.decoding.bounded_cache import BoundedCache
from genret.decoding.cancellation import CancelToken, reason_to_stop
from genret.decoding.errors import DecodingCancelledError, InvalidLogitsError
from genret.decoding.grammar.constraint import TokenGrammar
from genret.decoding.grammar.vocabulary import Vocabulary
from genret.decoding.params import AnswerParams

# Cost of a draft model's pass, in passes of the model, if their sizes are unknown.
USUAL_COST = 0.2
# Upper bound of that cost, so that even a draft model as large as the model is tried.
MOST_COST = 0.5
# Cost of one more row of a pass, in passes.
ROW_COST = 0.05
# Prior share of accepted proposals, and the number of proposals it counts for. High, so that a good draft is
# used from the start; a bad one is found out within a few passes.
_FIRST_SHARE, _FIRST_WEIGHT = 0.9, 3.0
# Decay of a proposal's weight with every later one: fields of a document differ.
_FADING = 0.9
# Passes without a proposal before one is tried again, at first and at most.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 4, 64


def relative_cost(draft: object, model: object) -> float:
    """Return the cost of a draft model's pass in passes of the model: by weights or by layers, whichever is
    larger.

    Passes of few tokens take the time to read weights, or to start kernels, one layer after the other. Times
    are not measured, because answers must not depend on them. At most `MOST_COST`.
    """
    modules = getattr(draft, "pretrained", None), getattr(model, "pretrained", None)
    if modules[0] is None or modules[1] is None:
        return USUAL_COST
    (small, flat), (large, deep) = _size(modules[0]), _size(modules[1])
    return min(max(small / large, flat / deep), MOST_COST)


class DraftCostModel:
    """Decides how many tokens to propose, `most` at a time, each at a cost in passes of the model."""

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
        """Return the number of tokens to propose in the next pass.

        Must be called once per pass, before anything is proposed: a number that depended on tokens which are
        proposed and refused would change the law of the answer.
        """
        if self._rest > 1:
            self._rest -= 1
            return 0
        if self._rest == 1:
            return min(1, self._most)  # until one is judged, since there may be nothing to propose
        if self._best() == 0:
            self._rest, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
            return 0
        self._pause = _SHORTEST_PAUSE
        return self._best()

    def learn(self, accepted: bool) -> None:
        """Note whether a proposal, all before which were accepted, was accepted."""
        self._rest = 0
        self._accepted = _FADING * self._accepted + accepted
        self._judged = _FADING * self._judged + 1

    def _best(self) -> int:
        """The number that brings most tokens for its cost."""
        best, most_per_cost = 0, 1.0
        tokens = reached = 1.0
        for number in range(1, self._most + 1):
            reached *= self.share
            tokens += reached
            if tokens / (1 + number * self._cost) > most_per_cost:
                best, most_per_cost = number, tokens / (1 + number * self._cost)
        return best


def _size(module: torch.nn.Module) -> tuple[int, int]:
    """Number of weights, and of matrices as a measure of layers."""
    weights = [parameter for parameter in module.parameters() if parameter.ndim > 1]
    return sum(map(torch.numel, weights)), len(weights)


# Bytes of the key, its parts and the array, beside the mask itself.
_ENTRY_BYTES = 400

_Key = tuple[ref[TokenGrammar], int, int]


# Masks of the tokens that a budget still allows, by grammar, state and tokens left. Budgets run out alike:
# answers that are too long are closed with the fewest tokens, so answers of a batch and of later requests ask
# for the same masks. The reference of a deleted grammar equals no other; its masks are dropped like any
# others. A mask has a bit for every token: room for thousands of masks of 10^4 tokens, hundreds of 10^5.
_AFFORDABLE: BoundedCache[_Key, PackedMask] = BoundedCache(
    8 << 20, lambda key, mask: mask.nbytes + _ENTRY_BYTES
)

# Tokens, each with the state behind it.
Steps = list[tuple[int, int]]

# Longest period of a repetition that is looked for, tokens.
_LONGEST_PERIOD = 64


def echo_period(tokens: Sequence[int], least: int) -> int:
    """Return the shortest period of the repetition that tokens end with, 0 for none.

    At least `least` tokens, and a whole period, are the same as those a period before; 0 finds nothing.
    """
    for period in range(1, min(_LONGEST_PERIOD, len(tokens) // 2) + 1 if least else 0):
        size = max(least, period)
        if tokens[-size:] == tokens[-size - period : -period] and len(tokens) >= size + period:
            return period
    return 0


@lru_cache(maxsize=8)
def _closing_tokens(vocabulary: Vocabulary) -> NDArray[np.int64]:
    """Return the tokens that may end a text: those with a quote, unless they begin with an escape."""
    texts = ((token, vocabulary.bytes_of(token) or b"") for token in range(vocabulary.vocab_size))
    return np.array([token for token, text in texts if b'"' in text and text[:1] != b"\\"], dtype=np.int64)


class Answer:
    """State of one query's answer; its counts so far are those of `AnswerCounts`.

    The budget counts the end token and suffices for the shortest answer. Without a speller no bytes are
    forced. `draft_cost` is that of a pass of the draft model in passes of the model.
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
        self.tokens: list[int] = []  # Written tokens
        self.state = grammar.start  # The grammar's state behind them
        self.scored = 0  # Number of tokens whose log-probabilities are known
        self.forwards = self.draft_forwards = self.drafted = self.accepted = self.guessed = 0
        self.drafts = DraftCostModel(params.draft_tokens, draft_cost)  # Of the draft model's proposals
        self.guesses = DraftCostModel(1, 0.0)  # Of those made without a draft model
        self._budget = budget
        self._speller = speller if params.forced_spans else None
        self.num_forced = 0
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
        """Return the choice point for this answer's next token; see `ChoicePoint`. `mask` None: all that the
        grammar allows.
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
        """Return the state behind an allowed token, None if the answer could then not be closed within its
        budget.

        `step` is the number of tokens before it.
        """
        following = self.grammar.advance(state, token)
        assert following >= 0
        left = self._budget - step - 1
        return following if self.grammar.can_finish(following, left) else None

    def forced(self, tokens: Sequence[int], state: int) -> Steps:
        """Return the tokens, behind `tokens` and `state`, that follow without a choice."""
        steps: Steps = []
        if not self.params.forced_spans:
            return steps
        written = list(tokens)
        while state != self.grammar.finished:
            span = self._speller.span(self.grammar, state, written) if self._speller is not None else ()
            followed = len(steps)
            for token in span or self._only(state):
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
        """Return the likely tokens of forced bytes whose tokens are not certain; arguments as in `forced`."""
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

    def _only(self, state: int) -> tuple[int, ...]:
        """The single allowed token, if there is just one. The end token is always chosen."""
        mask = self.grammar.mask(state)
        (words,) = np.nonzero(mask)
        if len(words) != 1 or self.grammar.is_complete(state):
            return ()
        word = int(mask[words[0]])
        return () if word & (word - 1) else (int(words[0]) * 32 + word.bit_length() - 1,)

    def within_budget(self, state: int, step: int) -> PackedMask:
        """Return the tokens allowed after `step` tokens from which the answer can be closed in time, checked
        once; read-only.
        """
        grammar, left = self.grammar, self._budget - step
        return _AFFORDABLE.get_or_make(
            (ref(grammar), state, left),
            lambda: grammar.vocabulary.packed(grammar.fitting_tokens(state, left)),  # looks at every token
        )

    def without_echo(self, written: Sequence[int], state: int) -> PackedMask | None:
        """Return the allowed tokens that do not go on with what repeats itself, None where nothing does.

        A text or number that repeats itself within is ended. Otherwise no list gets another item, nor an
        object another member, that it need not have.
        """
        period = 0 if self.params.temperature else echo_period(written, self.params.echo_tokens)
        if not period:
            return None
        grammar, vocabulary = self.grammar, self.grammar.vocabulary
        is_text = all(grammar.advance_bytes(state, sign) >= 0 for sign in (b"]", b"}", b":"))
        allowed = grammar.tokens(state)
        looked = (
            np.isin(allowed, _closing_tokens(vocabulary))
            if is_text
            else np.ones(len(allowed), dtype=np.bool_)
        )
        texts = {token: vocabulary.bytes_of(token) or b"" for token in allowed[looked].tolist()}
        said = grammar.text(written[-period:])
        ending = []
        if b'"' not in said and (is_text or b"," not in said):
            ending = [token for token, text in texts.items() if is_text or text.lstrip()[:1] in b",]}"]
        if not ending:
            kept = [token for token, text in texts.items() if not self._adds_item(state, text, is_text)]
            ending = [*kept, *allowed[~looked].tolist()]
        return vocabulary.packed(np.sort(ending)) if ending else None

    def _adds_item(self, state: int, text: bytes, is_text: bool) -> bool:
        """Whether a token writes a comma where a bracket may stand; `is_text`: `state` is within a text."""
        comma = text.find(b",", text.find(b'"') + 1 if is_text else 0)
        if comma < 0 or (not is_text and b'"' in text[:comma]):
            return False
        before = self.grammar.advance_bytes(state, text[:comma])
        return before >= 0 and any(self.grammar.advance_bytes(before, end) >= 0 for end in (b"]", b"}"))

    def write_forced(self) -> None:
        """Append the tokens that follow without a choice."""
        steps = self.forced(self.tokens, self.state)
        self.commit(steps)
        self.num_forced += len(steps)

    def commit(self, steps: Steps) -> None:
        """Append tokens with the states behind them."""
        self.tokens += [token for token, _ in steps]
        if steps:
            self.state = steps[-1][1]

    def score(self, logprobs: Sequence[float]) -> bool:
        """Take the log-probabilities of the next unscored tokens; False, giving up, if logits were NaN or
        +inf.
        """
        if any(map(math.isnan, logprobs)):
            self.give_up("the model returned NaN or infinite logits")
            return False
        self._logprobs += logprobs
        self.scored += len(logprobs)
        return True

    def has_mass(self, choice: Choice) -> bool:
        """Return whether a token could be chosen; otherwise the answer is given up."""
        if math.isnan(choice.log_mass):
            self.give_up("the model returned NaN or infinite logits")
        elif choice.log_mass == -math.inf:
            self.give_up("the model gives no probability to any token that the grammar allows")
        return self._error is None

    def give_up(self, reason: str) -> None:
        """End the answer without a result."""
        self._error = InvalidLogitsError(f"{reason}, behind {len(self.tokens)} tokens of an answer")

    def poll(self, cancel: CancelToken) -> None:
        """Give the answer up if it was cancelled and is not over."""
        if not self.over:
            self._error = reason_to_stop(cancel)

    def note_choice(self, logprob: float, choice: Choice) -> None:
        """Take the log-probability that a chosen token has among the allowed ones."""
        self._constraint_logprobs.append(logprob - choice.log_mass)

    def result(self) -> AnswerText | InvalidLogitsError | DecodingCancelledError:
        """Return the finished answer, or the error that ended it."""
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
                sampled=len(self.tokens) - self.num_forced,
                forced=self.num_forced,
                drafted=self.drafted,
                accepted=self.accepted,
                guessed=self.guessed,
            ),
        )


@dataclass(frozen=True, slots=True)
class AnswerCounts:
    """Cost of one answer."""

    forwards: int  # Passes of the model for the query, prefill included
    draft_forwards: int  # Passes of the draft model; 0 without one
    sampled: int  # Tokens that the model chose, its end token and accepted drafts included
    forced: int  # Tokens that were written without a choice
    drafted: int  # Tokens that the draft model proposed
    accepted: int  # Proposed tokens that are part of the answer
    # Chosen tokens that were proposed without a draft model, as usual tokens of forced bytes.
    guessed: int = 0


@dataclass(frozen=True, slots=True)
class AnswerText:
    """One answer."""

    token_ids: tuple[int, ...]  # Written tokens, the end token included
    text: bytes  # Their bytes
    # log P_L(tokens | prompt) under the model alone, forced tokens included; natural logarithm.
    logprob: float
    # The same for the chosen tokens only, each step renormalised over the tokens that the grammar allows;
    # tokens that the budget rules out stay in the normaliser.
    constraint_logprob: float
    counts: AnswerCounts
    token_logprobs: tuple[float, ...] = ()  # The terms of `logprob`, one for each token
