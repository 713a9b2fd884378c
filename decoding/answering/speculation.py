"""A small model proposes what comes next, under the same grammar, for the large one to verify in one pass.

Tokens that are forced between two proposals are free for both models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from decoding.answering.answer import Answer, Steps
from decoding.answering.choice_points import Proposal
from decoding.answering.feed import Feed
from decoding.answering.suggesting import Suggestion, suggest
from decoding.language_model import LanguageModel

# Tokens that a pass may have; what is forced counts too.
LONGEST_PASS = 64
# Numbers drawn for proposals; the target draws its own.
_STREAM = 1


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
class Stretch:
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
    def behind(answer: Answer, is_wanted: bool) -> Stretch:
        """What may follow an answer in the pass that comes: nothing yet."""
        if not is_wanted or answer.over:
            return Stretch(answer.state, closed=True)
        return Stretch(answer.state, wanted=answer.drafts.next(), guesses=answer.guesses.next() > 0)

    @property
    def tokens(self) -> list[int]:
        """Its tokens."""
        return [token for token, _ in self.steps]

    def readable(self, end: int) -> list[int]:
        """Its tokens for the model to read: an end token, after state `end`, is chosen and never read."""
        return self.tokens[:-1] if self.steps and self.state == end else self.tokens


class Proposer(Protocol):
    """Proposes what may follow the answers of a batch."""

    def propose(self, answers: Sequence[Answer], wanted: Sequence[bool]) -> list[Stretch]:
        """Propose what may come next; nothing for answers that are over.

        Args:
            answers: Of all queries.
            wanted: For which of them something is to be proposed. Length Q.
        """

    def select(self, queries: Sequence[int]) -> Proposer:
        """A proposer for some of the queries, in that order."""


class Drafter:
    """The draft model over the prompts of one batch.

    Args:
        model: Of the same tokenizer as the target.
        prompts: As the target reads them. Length Q.
        vocab_size: Logits of the target, V.
    """

    def __init__(self, model: LanguageModel, prompts: Sequence[Sequence[int]], vocab_size: int) -> None:
        self._feed = Feed(model.prefill_chains(prompts), len(prompts))
        self._vocab_size = vocab_size
        limit = model.max_positions
        taken = [0 if model.is_encoder_decoder else len(prompt) for prompt in prompts]
        self._rooms = [math.inf if limit is None else limit - length for length in taken]

    def propose(self, answers: Sequence[Answer], wanted: Sequence[bool]) -> list[Stretch]:
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

    def _close_full(self, answers: Sequence[Answer], stretches: Sequence[Stretch]) -> None:
        """Close the stretches behind which nothing more is to be proposed."""
        for answer, stretch, room in zip(answers, stretches, self._rooms, strict=True):
            stretch.closed = (
                stretch.closed
                or not stretch.wanted
                or len(stretch.steps) >= LONGEST_PASS
                or len(answer.tokens) + len(stretch.steps) > room
            )

    def _propose_one(self, answers: Sequence[Answer], stretches: Sequence[Stretch]) -> None:
        """One more token for every stretch that is open."""
        texts = [
            None if stretch.closed else answer.tokens + stretch.tokens
            for answer, stretch in zip(answers, stretches, strict=True)
        ]
        rows = self._feed.run(texts, [len(text or ()) for text in texts])
        points = [
            answers[query].point(
                query, len(text) - rows.first[query], stretches[query].state, len(text), _STREAM
            )
            for query, text in enumerate(texts)
            if text is not None
        ]
        said = suggest(_as_wide(rows.logits, self._vocab_size), points)
        for point, suggestion in zip(points, said, strict=True):
            answer = answers[point.query]
            answer.draft_forwards += rows.ran[point.query]
            _take(answer, stretches[point.query], suggestion)


def expected(answers: Sequence[Answer], wanted: Sequence[bool]) -> list[Stretch]:
    """What can be expected to follow without a model.

    Args:
        answers: Of all queries; nothing is proposed for those that are over.
        wanted: For which of them something is to be proposed. Length Q.
    """
    stretches = [Stretch.behind(answer, want) for answer, want in zip(answers, wanted, strict=True)]
    for answer, stretch in zip(answers, stretches, strict=True):
        if not stretch.closed:
            _guess(answer, stretch)
    return stretches


def _guess(answer: Answer, stretch: Stretch) -> None:
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


def _take(answer: Answer, stretch: Stretch, suggestion: Suggestion) -> None:
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
