"""Proposes that the text goes on as it is, for the model to check several tokens in one pass.

Most of an annotated text is a copy, so the tokens of the text itself are a good draft that costs no model.
The result is what the model would have written token by token.
"""

from __future__ import annotations

from collections.abc import Sequence

from genret.decoding.answering.answer import Answer
from genret.decoding.answering.speculation import LONGEST_PASS, ProposedPlace, ProposedSpan
from genret.decoding.answering.token_choice import Proposal
from genret.decoding.markup.annotation_grammar import AnnotationGrammar

# Tokens proposed at a time; a link ends the accepted ones.
_PROPOSED = 8


class CopyProposer:
    """Proposes the texts' own tokens outside of links, if the likeliest token is taken (`SpanProposer`).

    `tokens` are those of each text as it is spelled; none to propose nothing. Length Q, as of `grammars`.
    """

    def __init__(self, grammars: Sequence[AnnotationGrammar], tokens: Sequence[Sequence[int]]) -> None:
        self._grammars = list(grammars)
        self._tokens = [_by_place(grammar, text) for grammar, text in zip(grammars, tokens, strict=True)]

    def propose(self, answers: Sequence[Answer], wanted: Sequence[bool]) -> list[ProposedSpan]:
        """Propose the next tokens of each text."""
        stretches = []
        for number, (answer, want) in enumerate(zip(answers, wanted, strict=True)):
            stretch = ProposedSpan(answer.state, closed=True)
            if want and not answer.over and answer.params.temperature == 0:
                self._extend(answer, stretch, number)
            stretches.append(stretch)
        return stretches

    def select(self, queries: Sequence[int]) -> CopyProposer:
        """A proposer of some of the queries, in that order."""
        other = CopyProposer([], [])
        other._grammars = [self._grammars[query] for query in queries]
        other._tokens = [self._tokens[query] for query in queries]
        return other

    def _extend(self, answer: Answer, stretch: ProposedSpan, number: int) -> None:
        grammar, tokens = self._grammars[number], self._tokens[number]
        while len(stretch.places) < _PROPOSED and len(stretch.steps) < LONGEST_PASS:
            place = grammar.copied(stretch.state)
            token = None if place is None else tokens.get(place)
            if token is None:
                return
            following = answer.follow(stretch.state, token, len(answer.tokens) + len(stretch.steps))
            if following is None:
                return
            stretch.places.append(ProposedPlace(len(stretch.steps), stretch.state, Proposal(token, None)))
            answer.drafted += 1
            stretch.steps.append((token, following))
            stretch.steps += answer.forced(answer.tokens + stretch.tokens, following)
            stretch.state = stretch.steps[-1][1]


def _by_place(grammar: AnnotationGrammar, tokens: Sequence[int]) -> dict[int, int]:
    """The token that begins at each place of the text; empty if the tokens write something else."""
    if grammar.text(tokens) != grammar.copy:
        return {}
    found, place = {}, 0
    for token in tokens:
        found[place] = token
        place += len(grammar.vocabulary.written(token))
    return found
