"""What the model makes of a stretch: proposals stand or fall, and behind them one token is chosen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from decoding.answering.answer import Answer
from decoding.answering.choice_points import ChoicePoint, Proposal
from decoding.answering.choosing import Choice, decide
from decoding.answering.speculation import Stretch

# Numbers drawn for tokens of the answer, and for those where the budget left none of the first.
_STREAM, _STREAM_WITHIN_BUDGET = 0, 2

Decided = Sequence[tuple[ChoicePoint, Choice]]


def points_of(answer: Answer, stretch: Stretch, query: int, first: int) -> list[ChoicePoint]:
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
    answer: Answer, stretch: Stretch, decided: Decided, known: Sequence[float], logits: Tensor
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
