"""The answers of one batch, written in rounds.

A round feeds the model what is written and what is proposed to follow, and commits what comes back.
"""

from __future__ import annotations

from collections.abc import Sequence

from decoding.answering.answer import Answer
from decoding.answering.choosing import decide
from decoding.answering.feed import Feed, Rows
from decoding.answering.speculation import LONGEST_PASS, Drafter, Proposer, Stretch, expected
from decoding.answering.verdict import commit, points_of


class AnswerBatch:
    """Answers that are being written. Nothing is proposed without a drafter.

    Args:
        answers: None of them begun.
        feed: The model behind the prompts, just run.
        drafter: Proposes tokens: the draft model, just run, or whatever knows what may come.
    """

    def __init__(self, answers: Sequence[Answer], feed: Feed, drafter: Proposer | None) -> None:
        self._answers = list(answers)
        self._feed = feed
        self._drafter = drafter
        for answer in answers:
            answer.forwards = 1
            answer.draft_forwards = int(isinstance(drafter, Drafter))
            answer.write_forced()

    @property
    def goes_on(self) -> bool:
        """Whether some answer is not over."""
        return not all(answer.over for answer in self._answers)

    def step(self) -> None:
        """One round. The model runs once; more often where much was forced at once."""
        self._catch_up()
        stretches = self._propose()
        texts = [
            None if answer.over else answer.tokens + stretch.readable(answer.grammar.finished)
            for answer, stretch in zip(self._answers, stretches, strict=True)
        ]
        rows = self._run(texts)
        points = [
            [] if answer.over else points_of(answer, stretch, row, rows.first[row])
            for row, (answer, stretch) in enumerate(zip(self._answers, stretches, strict=True))
        ]
        wholes = [
            answer.tokens + stretch.tokens for answer, stretch in zip(self._answers, stretches, strict=True)
        ]
        said = decide(
            rows.logits, _following(rows, texts, wholes), [point for own in points for point in own]
        )
        choices = iter(said.choices)
        for row, (answer, stretch, own) in enumerate(zip(self._answers, stretches, points, strict=True)):
            decided = [(point, next(choices)) for point in own]
            if decided:
                known = said.known[row][answer.scored - rows.first[row] :]
                commit(answer, stretch, decided, known, rows.logits)
        self._shrink()

    def _propose(self) -> list[Stretch]:
        # Right behind the prompt, where nothing is forced, the next token costs no pass.
        wanted = [bool(answer.tokens) for answer in self._answers]
        if self._drafter is not None:
            return self._drafter.propose(self._answers, wanted)
        return expected(self._answers, wanted)

    def _catch_up(self) -> None:
        """Feed what is written until what is left fits one pass."""
        while True:
            texts = [
                answer.tokens[: fed + LONGEST_PASS]
                if not answer.over and len(answer.tokens) - fed > LONGEST_PASS
                else None
                for answer, fed in zip(self._answers, self._feed.lengths(), strict=True)
            ]
            if not any(texts):
                return
            rows = self._run(texts)
            said = decide(
                rows.logits, _following(rows, texts, [answer.tokens for answer in self._answers]), []
            )
            for row, (answer, text) in enumerate(zip(self._answers, texts, strict=True)):
                if text is not None:
                    answer.score(said.known[row][answer.scored - rows.first[row] :])

    def _run(self, texts: Sequence[Sequence[int] | None]) -> Rows:
        rows = self._feed.run(texts, [answer.scored for answer in self._answers])
        for answer, ran in zip(self._answers, rows.ran, strict=True):
            answer.forwards += ran
        return rows

    def _shrink(self) -> None:
        """Leave out the answers that are over, once they are half of what is computed."""
        live = [row for row, answer in enumerate(self._answers) if not answer.over]
        if live and 2 * len(live) <= len(self._answers):
            self._answers = [self._answers[row] for row in live]
            self._feed = self._feed.select(live)
            self._drafter = None if self._drafter is None else self._drafter.select(live)


def _following(
    rows: Rows, texts: Sequence[Sequence[int] | None], wholes: Sequence[Sequence[int]]
) -> list[Sequence[int]]:
    """The tokens that the rows of every query speak of, as far as they are known."""
    return [
        whole[first : behind + 1] if text is not None else ()
        for text, whole, first, behind in zip(texts, wholes, rows.first, rows.behind, strict=True)
    ]
