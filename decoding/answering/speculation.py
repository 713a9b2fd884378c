"""Decodes speculatively: a small model proposes what comes next, the large one verifies it in one pass.

Both write under the same grammar. Tokens that are forced between two proposals are free for both models.
Proposals stand or fall, and behind them one token is chosen. A `FedSession` is a model that keeps up with
texts that grow and are taken back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from decoding.answering.answer import Answer, Steps
from decoding.answering.token_choice import Choice, ChoicePoint, Proposal, Suggestion, decide, suggest
from decoding.language_model import ChainSession, LanguageModel

# Tokens that a pass may have; what is forced counts too.
LONGEST_PASS = 64
# Numbers drawn for proposals; the target draws its own.
_DRAFT_STREAM = 1


@dataclass(frozen=True, slots=True, eq=False)
class ProposedPlace:
    """A place of a stretch where a token is proposed.

    Attributes:
        index: Number of the token in the stretch.
        state: The grammar's state before it.
        proposal: The token.
        drafted: Whether it cost something to propose it.
    """

    index: int
    state: int
    proposal: Proposal
    drafted: bool = True


@dataclass(slots=True, eq=False)
class ProposedSpan:
    """What may follow an answer: proposed tokens, and forced ones behind each of them.

    Attributes:
        state: The grammar's state behind it.
        steps: Its tokens with the states behind them. A proposal that the budget rules out is at the end of
            `places`, and its token is not here: whether it would be accepted still has to be asked, since it
            was drawn with the probability it was drawn with.
        places: Where tokens are proposed.
        closed: Whether nothing more is to be proposed.
        wanted: How many more tokens the draft model is to propose.
        guesses: Whether tokens are to be proposed that are likely without it.
    """

    state: int
    steps: Steps = field(default_factory=list)
    places: list[ProposedPlace] = field(default_factory=list)
    closed: bool = False
    wanted: int = 0
    guesses: bool = False

    @staticmethod
    def behind(answer: Answer, is_wanted: bool) -> ProposedSpan:
        """What may follow an answer in the pass that comes: nothing yet."""
        if not is_wanted or answer.over:
            return ProposedSpan(answer.state, closed=True)
        return ProposedSpan(answer.state, wanted=answer.drafts.next(), guesses=answer.guesses.next() > 0)

    @property
    def tokens(self) -> list[int]:
        """Its tokens."""
        return [token for token, _ in self.steps]

    def readable(self, end: int) -> list[int]:
        """Its tokens for the model to read: an end token, after state `end`, is chosen and never read."""
        return self.tokens[:-1] if self.steps and self.state == end else self.tokens


class SpanProposer(Protocol):
    """Proposes what may follow the answers of a batch."""

    def propose(self, answers: Sequence[Answer], wanted: Sequence[bool]) -> list[ProposedSpan]:
        """Propose what may come next; nothing for answers that are over.

        Args:
            answers: Of all queries.
            wanted: For which of them something is to be proposed. Length Q.
        """

    def select(self, queries: Sequence[int]) -> SpanProposer:
        """A proposer for some of the queries, in that order."""


class Drafter:
    """The draft model over the prompts of one batch.

    Args:
        model: Of the same tokenizer as the target.
        prompts: As the target reads them. Length Q.
        vocab_size: Logits of the target, V.
    """

    def __init__(self, model: LanguageModel, prompts: Sequence[Sequence[int]], vocab_size: int) -> None:
        self._feed = FedSession(model.prefill_chains(prompts), len(prompts))
        self._vocab_size = vocab_size
        limit = model.max_positions
        taken = [0 if model.is_encoder_decoder else len(prompt) for prompt in prompts]
        self._rooms = [math.inf if limit is None else limit - length for length in taken]

    def propose(self, answers: Sequence[Answer], wanted: Sequence[bool]) -> list[ProposedSpan]:
        """Propose what may come next.

        Args:
            answers: Of all queries; nothing is proposed for those that are over.
            wanted: For which of them something is to be proposed. Length Q.
        """
        stretches = expected(answers, wanted)
        self._close_full(answers, stretches)
        while not all(stretch.closed for stretch in stretches):
            self._propose_one(answers, stretches)
            self._close_full(answers, stretches)
        return stretches

    def select(self, queries: Sequence[int]) -> Drafter:
        """A drafter of some of the queries, in that order."""
        other = Drafter.__new__(Drafter)
        other._feed = self._feed.select(queries)
        other._vocab_size = self._vocab_size
        other._rooms = [self._rooms[query] for query in queries]
        return other

    def _close_full(self, answers: Sequence[Answer], stretches: Sequence[ProposedSpan]) -> None:
        """Close the stretches behind which nothing more is to be proposed."""
        for answer, stretch, room in zip(answers, stretches, self._rooms, strict=True):
            stretch.closed = (
                stretch.closed
                or not stretch.wanted
                or len(stretch.steps) >= LONGEST_PASS
                or len(answer.tokens) + len(stretch.steps) > room
            )

    def _propose_one(self, answers: Sequence[Answer], stretches: Sequence[ProposedSpan]) -> None:
        """One more token for every stretch that is open."""
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
    """What can be expected to follow without a model.

    Args:
        answers: Of all queries; nothing is proposed for those that are over.
        wanted: For which of them something is to be proposed. Length Q.
    """
    stretches = [ProposedSpan.behind(answer, want) for answer, want in zip(answers, wanted, strict=True)]
    for answer, stretch in zip(answers, stretches, strict=True):
        if not stretch.closed:
            _guess(answer, stretch)
    return stretches


def _guess(answer: Answer, stretch: ProposedSpan) -> None:
    """Put behind a stretch the tokens that usually spell the bytes which are forced there.

    They are not certain, since another token may spell these bytes and some of what follows. Asking for them
    takes no pass of any model.
    """
    if not stretch.guesses:
        return
    for token, following in answer.likely(answer.tokens + stretch.tokens, stretch.state):
        place = ProposedPlace(len(stretch.steps), stretch.state, Proposal(token, None), drafted=False)
        stretch.places.append(place)
        stretch.steps.append((token, following))
        stretch.state = following


def _take(answer: Answer, stretch: ProposedSpan, suggestion: Suggestion) -> None:
    """Put what the draft model chose behind a stretch, and what can be expected behind that."""
    if suggestion.broken:
        answer.give_up("the draft model returned NaN or infinite logits")
    step = len(answer.tokens) + len(stretch.steps)
    index = len(stretch.steps)
    # The likeliest token that the budget allows is the best guess; a drawn one must be what was drawn.
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
    stretch.closed = True  # it would choose nothing that is allowed


def _as_wide(logits: Tensor, vocab_size: int) -> Tensor:
    """Logits of the target's width: models of one tokenizer are padded differently."""
    missing = vocab_size - logits.shape[-1]
    if missing <= 0:
        return logits[..., :vocab_size]
    return torch.nn.functional.pad(logits, (0, missing), value=-math.inf)


# Numbers drawn for tokens of the answer, and for those where the budget left none of the first.
_STREAM, _STREAM_WITHIN_BUDGET = 0, 2

Decided = Sequence[tuple[ChoicePoint, Choice]]


def points_of(answer: Answer, stretch: ProposedSpan, query: int, first: int) -> list[ChoicePoint]:
    """Where the model has to decide: at every proposal, and behind the stretch if it does not end the answer.

    Args:
        answer: Which the stretch follows.
        stretch: What may follow.
        query: Row of the query in the pass.
        first: Number of the token that the first of its logits speaks of.
    """
    begin = len(answer.tokens)
    places: list[tuple[int, int, Proposal | None]] = [
        (place.index, place.state, place.proposal) for place in stretch.places
    ]
    behind = len(stretch.steps)
    if stretch.state != answer.grammar.finished and not (places and places[-1][0] == behind):
        places.append((behind, stretch.state, None))
    return [
        replace(answer.point(query, begin + index - first, state, begin + index, _STREAM), proposal=proposal)
        for index, state, proposal in places
    ]


def commit(
    answer: Answer, stretch: ProposedSpan, decided: Decided, known: Sequence[float], logits: Tensor
) -> None:
    """Write what stands, and the token that the model chose behind it.

    Args:
        answer: Which the stretch follows; given up where its logits cannot be used.
        stretch: What was proposed.
        decided: The points of `points_of` and what was decided there.
        known: Log-probabilities of the answer's tokens that are not scored, and of the stretch's.
        logits: Of the pass. Shape: (Q, R, V).
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
        answer.count_forced(end - index - 1)
        answer.note_choice(known[index], choice)
        answer.commit(stretch.steps[index:end])
        if not answer.score(known[index:end]):
            return
        written = end
    if not answer.over:
        point, choice = next(pair for pair in decided if pair[0].step == begin + written)
        _write_chosen(answer, point, choice, logits)


def _write_chosen(answer: Answer, point: ChoicePoint, choice: Choice, logits: Tensor) -> None:
    """Write the token that was chosen where no proposal stands, and what is forced behind it."""
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
    """Tokens in the order in which they are to be tried, until the budget allows one.

    A proposal that was accepted although the budget rules it out is tried first, and fails: what was drawn
    counts as drawn. All others are draws from p, so that what is taken in the end is a draw from p among the
    tokens that the budget allows.
    """
    if not choice.accepted:
        yield choice.token, choice.logprob
    yield from zip(choice.spare_tokens, choice.spare_logprobs, strict=True)
    mask = answer.within_budget(answer.state, point.step)
    last = replace(
        answer.point(point.query, point.row, answer.state, point.step, _STREAM_WITHIN_BUDGET, mask),
    )
    (again,) = decide(logits, [()] * len(logits), [last]).choices
    yield again.token, again.logprob


@dataclass(frozen=True, slots=True, eq=False)
class PassLogits:
    """Logits of one pass.

    Attributes:
        logits: Shape: (Q, R, V).
        first: For every query the number of the token that its row 0 speaks of, and which row 1 speaks of the
            next of. Length Q.
        behind: For every query the number of the last token that a row speaks of. Length Q.
        ran: Whether a query had tokens in the pass. Length Q.
    """

    logits: Tensor
    first: tuple[int, ...]
    behind: tuple[int, ...]
    ran: tuple[bool, ...]


class FedSession:
    """A session with what its queries have been fed.

    Args:
        session: Just made.
        num_queries: Q.
    """

    def __init__(self, session: ChainSession, num_queries: int) -> None:
        self._session = session
        self._fed: list[list[int]] = [[] for _ in range(num_queries)]

    def lengths(self) -> list[int]:
        """Tokens that every query has been fed."""
        return [len(fed) for fed in self._fed]

    def run(self, texts: Sequence[Sequence[int] | None], wanted: Sequence[int]) -> PassLogits:
        """Feed every query what is new in its text, in one pass, and none if nothing is.

        What was fed and is not in the text any more is taken back, and so is what logits are wanted behind.

        Args:
            texts: Whole texts; None for queries that are to stay as they are. Length Q.
            wanted: Number of the first token that the rows must speak of, at most the length of the text.
                Length Q.
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
        """A feed of some of the queries, in that order."""
        other = FedSession(self._session.select(queries), 0)
        other._fed = [list(self._fed[query]) for query in queries]
        return other


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that two texts begin with alike."""
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))
