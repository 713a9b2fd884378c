"""Decodes speculatively: a small model proposes the next tokens, the large one verifies them in one pass.

Both write under the same grammar. Forced tokens between two proposals cost neither model anything. Behind the
accepted proposals one token is chosen. A `FedSession` keeps a model in step with texts that grow and are
taken back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from genret.decoding.answering.answer import Answer, Steps
from genret.decoding.answering.token_choice import Choice, ChoicePoint, Proposal, Suggestion, decide, suggest
from genret.decoding.language_model import ChainSession, LanguageModel

# Most tokens of a pass, forced ones included.
LONGEST_PASS = 64
# Stream of random numbers for proposals; the target has its own.
_DRAFT_STREAM = 1


@dataclass(frozen=True, slots=True, eq=False)
class ProposedPlace:
    """A place of a span at which a token is proposed."""

    index: int  # Number of the token in the span
    state: int  # The grammar's state before it
    proposal: Proposal
    drafted: bool = True  # Whether the draft model proposed it


@dataclass(slots=True, eq=False)
class ProposedSpan:
    """Tokens that may follow an answer: proposed ones, and forced ones behind each of them."""

    state: int  # The grammar's state behind it
    # Its tokens with the states behind them. A proposal that the budget rules out is the last of `places` and
    # not here; it must still be verified, or the law of the answer would change.
    steps: Steps = field(default_factory=list)
    places: list[ProposedPlace] = field(default_factory=list)  # Places of proposed tokens
    closed: bool = False  # Whether to propose nothing more
    wanted: int = 0  # Number of tokens that the draft model is still to propose
    guesses: bool = False  # Whether to propose likely tokens of forced bytes

    @staticmethod
    def behind(answer: Answer, is_wanted: bool) -> ProposedSpan:
        """Return the empty span behind an answer for the next pass."""
        if not is_wanted or answer.over:
            return ProposedSpan(answer.state, closed=True)
        return ProposedSpan(answer.state, wanted=answer.drafts.next(), guesses=answer.guesses.next() > 0)

    @property
    def tokens(self) -> list[int]:
        """Its tokens."""
        return [token for token, _ in self.steps]

    def readable(self, end: int) -> list[int]:
        """Tokens for the model to read: an end token, after state `end`, is chosen and never read."""
        return self.tokens[:-1] if self.steps and self.state == end else self.tokens


class SpanProposer(Protocol):
    """Proposes tokens that may follow the answers of a batch."""

    def propose(self, answers: Sequence[Answer], wanted: Sequence[bool]) -> list[ProposedSpan]:
        """Propose the next tokens, by query; nothing where none are wanted, or for answers that are over."""

    def select(self, queries: Sequence[int]) -> SpanProposer:
        """Return a proposer for some of the queries, in that order."""


class Drafter:
    """The draft model over the prompts of one batch, its logits padded to the target's `vocab_size`."""

    def __init__(self, model: LanguageModel, prompts: Sequence[Sequence[int]], vocab_size: int) -> None:
        self._feed = FedSession(model.prefill_chains(prompts), len(prompts))
        self._vocab_size = vocab_size
        limit = model.max_positions
        taken = [0 if model.is_encoder_decoder else len(prompt) for prompt in prompts]
        self._rooms = [math.inf if limit is None else limit - length for length in taken]

    def propose(self, answers: Sequence[Answer], wanted: Sequence[bool]) -> list[ProposedSpan]:
        """Propose the next tokens; see `SpanProposer.propose`."""
        stretches = expected(answers, wanted)
        self._close_full(answers, stretches)
        while not all(stretch.closed for stretch in stretches):
            self._propose_one(answers, stretches)
            self._close_full(answers, stretches)
        return stretches

    def select(self, queries: Sequence[int]) -> Drafter:
        """Return a drafter for some of the queries, in that order."""
        other = Drafter.__new__(Drafter)
        other._feed = self._feed.select(queries)
        other._vocab_size = self._vocab_size
        other._rooms = [self._rooms[query] for query in queries]
        return other

    def _close_full(self, answers: Sequence[Answer], stretches: Sequence[ProposedSpan]) -> None:
        """Close the spans to which nothing more is to be added."""
        for answer, stretch, room in zip(answers, stretches, self._rooms, strict=True):
            stretch.closed = (
                stretch.closed
                or not stretch.wanted
                or len(stretch.steps) >= LONGEST_PASS
                or len(answer.tokens) + len(stretch.steps) > room
            )

    def _propose_one(self, answers: Sequence[Answer], stretches: Sequence[ProposedSpan]) -> None:
        """Propose one more token for every open span."""
        texts = [
            None if stretch.closed else answer.tokens + stretch.tokens
            for answer, stretch in zip(answers, stretches, strict=True)
        ]
        rows = self._feed.run(texts, [len(text or ()) for text in texts])
        points = [
            answers[query].point(
                query, len(text) - rows.first[query], stretches[query].state, len(text), _DRAFT_STREAM
            )
            for query, text in enumerate(texts)
            if text is not None
        ]
        said = suggest(_as_wide(rows.logits, self._vocab_size), points)
        for point, suggestion in zip(points, said, strict=True):
            answer = answers[point.query]
            answer.draft_forwards += rows.ran[point.query]
            _take(answer, stretches[point.query], suggestion)


def expected(answers: Sequence[Answer], wanted: Sequence[bool]) -> list[ProposedSpan]:
    """Return spans of the tokens that are likely without a model; see `SpanProposer.propose`."""
    stretches = [ProposedSpan.behind(answer, want) for answer, want in zip(answers, wanted, strict=True)]
    for answer, stretch in zip(answers, stretches, strict=True):
        if not stretch.closed:
            _guess(answer, stretch)
    return stretches


def _guess(answer: Answer, stretch: ProposedSpan) -> None:
    """Append the usual tokens of the bytes that are forced behind a span.

    They are not certain, since another token may spell these bytes and more. Proposing them takes no pass of
    any model.
    """
    if not stretch.guesses:
        return
    for token, following in answer.likely(answer.tokens + stretch.tokens, stretch.state):
        place = ProposedPlace(len(stretch.steps), stretch.state, Proposal(token, None), drafted=False)
        stretch.places.append(place)
        stretch.steps.append((token, following))
        stretch.state = following


def _take(answer: Answer, stretch: ProposedSpan, suggestion: Suggestion) -> None:
    """Append the draft model's choice to a span, and the tokens expected behind it."""
    if suggestion.broken:
        answer.give_up("the draft model returned NaN or infinite logits")
    step = len(answer.tokens) + len(stretch.steps)
    index = len(stretch.steps)
    # The likeliest token that the budget allows is the best guess; a drawn token must not be replaced.
    for token in () if suggestion.broken else suggestion.tokens:
        following = answer.follow(stretch.state, token, step)
        if following is not None or suggestion.probabilities is not None:
            proposal = Proposal(token, suggestion.probabilities)
            stretch.places.append(ProposedPlace(index, stretch.state, proposal))
            stretch.wanted -= 1
            answer.drafted += 1
        if following is not None:
            stretch.steps.append((token, following))
            stretch.steps += answer.forced(answer.tokens + stretch.tokens, following)
            stretch.state = stretch.steps[-1][1]
            stretch.closed = stretch.state == answer.grammar.finished
            if not stretch.closed:
                _guess(answer, stretch)
            return
    stretch.closed = True  # the draft model gives no allowed token


def _as_wide(logits: Tensor, vocab_size: int) -> Tensor:
    """Pad or cut logits to the target's width: models of one tokenizer are padded differently."""
    missing = vocab_size - logits.shape[-1]
    if missing <= 0:
        return logits[..., :vocab_size]
    return torch.nn.functional.pad(logits, (0, missing), value=-math.inf)


# Streams of random numbers for tokens of the answer, and for redraws when the budget rules out all of those.
_STREAM, _STREAM_WITHIN_BUDGET = 0, 2

Decided = Sequence[tuple[ChoicePoint, Choice]]


def points_of(answer: Answer, stretch: ProposedSpan, query: int, first: int) -> list[ChoicePoint]:
    """Return the choice points of a span: every proposal, and the place behind the span unless it ends the
    answer.

    `query` is its row in the pass, `first` the number of the token that the first of its logits predicts.
    """
    begin = len(answer.tokens)
    text = answer.tokens + stretch.tokens
    places: list[tuple[int, int, Proposal | None]] = [
        (place.index, place.state, place.proposal) for place in stretch.places
    ]
    behind = len(stretch.steps)
    if stretch.state != answer.grammar.finished and not (places and places[-1][0] == behind):
        places.append((behind, stretch.state, None))
    points = []
    for index, state, proposal in places:
        step = begin + index
        mask = answer.without_echo(text[:step], state)
        point = answer.point(query, step - first, state, step, _STREAM, mask)
        is_open = (
            proposal is None or mask is None or int(mask[proposal.token >> 5]) >> (proposal.token & 31) & 1
        )
        points.append(replace(point, proposal=proposal if is_open else None))
    return points


def commit(
    answer: Answer, stretch: ProposedSpan, decided: Decided, known: Sequence[float], logits: Tensor
) -> None:
    """Write the accepted tokens, and the token that the model chose behind them; give up if logits cannot be
    used.

    `decided` are the points of `points_of` with their choices, `known` the log-probabilities of the answer's
    unscored tokens and then of the span's.
    """
    owed = len(answer.tokens) - answer.scored
    if not answer.score(known[:owed]):
        return
    known = known[owed:]
    begin = len(answer.tokens)
    ends = [place.index for place in stretch.places[1:]] + [len(stretch.steps)]
    written = 0
    for place, (point, choice), end in zip(stretch.places, decided, ends, strict=False):
        index = point.step - begin
        (answer.drafts if place.drafted else answer.guesses).learn(choice.accepted)
        if not (choice.accepted and answer.has_mass(choice) and index < len(stretch.steps)):
            break
        answer.accepted += place.drafted
        answer.guessed += not place.drafted
        answer.num_forced += end - index - 1
        answer.note_choice(known[index], choice)
        answer.commit(stretch.steps[index:end])
        if not answer.score(known[index:end]):
            return
        written = end
    if not answer.over:
        point, choice = next(pair for pair in decided if pair[0].step == begin + written)
        _write_chosen(answer, point, choice, logits)


def _write_chosen(answer: Answer, point: ChoicePoint, choice: Choice, logits: Tensor) -> None:
    """Write the token that was chosen behind the accepted ones, and forced tokens behind it."""
    if not answer.has_mass(choice):
        return
    for token, logprob in _candidates(answer, point, choice, logits):
        following = answer.follow(answer.state, token, point.step) if logprob > -math.inf else None
        if following is not None:
            answer.commit([(token, following)])
            answer.note_choice(logprob, choice)
            if answer.score([logprob]):
                answer.write_forced()
            return
    answer.give_up("the model gives no probability to any token that can still be afforded")


def _candidates(
    answer: Answer, point: ChoicePoint, choice: Choice, logits: Tensor
) -> Iterator[tuple[int, float]]:
    """Yield tokens with log-probabilities in the order to try them, until the budget allows one.

    A proposal that was accepted although the budget rules it out was drawn first and fails. All others are
    draws from p, so the token taken is a draw from p among the tokens that the budget allows.
    """
    if not choice.accepted:
        yield choice.token, choice.logprob
    yield from zip(choice.spare_tokens, choice.spare_logprobs, strict=True)
    mask = answer.within_budget(answer.state, point.step)
    last = answer.point(point.query, point.row, answer.state, point.step, _STREAM_WITHIN_BUDGET, mask)
    (again,) = decide(logits, [()] * len(logits), [last]).choices
    yield again.token, again.logprob


@dataclass(frozen=True, slots=True, eq=False)
class PassLogits:
    """Logits of one pass."""

    logits: Tensor  # Shape: (Q, R, V)
    first: tuple[int, ...]  # Number of the token that row 0 of each query predicts. Length Q
    behind: tuple[int, ...]  # Number of the last token that a row of each query predicts. Length Q
    ran: tuple[bool, ...]  # Whether a query had tokens in the pass. Length Q


class FedSession:
    """A session and the tokens that its queries have been fed."""

    def __init__(self, session: ChainSession, num_queries: int) -> None:
        self._session = session
        self._fed: list[list[int]] = [[] for _ in range(num_queries)]

    def lengths(self) -> list[int]:
        """Return the tokens that every query has been fed."""
        return [len(fed) for fed in self._fed]

    def run(self, texts: Sequence[Sequence[int] | None], wanted: Sequence[int]) -> PassLogits:
        """Feed every query the new tokens of its text, in one pass, or in none if nothing is new.

        Fed tokens that the text has lost are taken back, and so are tokens behind which logits are wanted:
        `wanted` is the number of the first token that the rows must predict. A text of None leaves its query
        as it is.
        """
        starts = not all(self._fed)
        chunks: list[list[int]] = []
        for query, text in enumerate(texts):
            if text is None:
                chunks.append([])
                continue
            fed = self._fed[query]
            del fed[max(min(_common(fed, text), wanted[query] - 1), 0) :]
            chunks.append(list(text[len(fed) :]))
        self._session.rewind([len(fed) for fed in self._fed])
        kept = self.lengths()
        logits = self._session.root_logits[:, None]
        if any(chunks):
            further = self._session.extend(chunks)
            logits = torch.cat([logits, further], dim=1) if starts else further
        else:
            starts = True
        for fed, chunk in zip(self._fed, chunks, strict=True):
            fed += chunk
        return PassLogits(
            logits=logits,
            first=tuple(length + (not starts) for length in kept),
            behind=tuple(self.lengths()),
            ran=tuple(map(bool, chunks)),
        )

    def select(self, queries: Sequence[int]) -> FedSession:
        """Return a session over some of the queries, in that order."""
        other = FedSession(self._session.select(queries), 0)
        other._fed = [list(self._fed[query]) for query in queries]
        return other


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common beginning of two texts."""
    differing = (place for place, (left, right) in enumerate(zip(one, other, strict=False)) if left != right)
    return next(differing, min(len(one), len(other)))
