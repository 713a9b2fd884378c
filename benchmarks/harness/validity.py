"""Answers in every method, style, temperature and budget, each of them validated."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from genret.retrieval.answers.answer_types import AnswerOptions, AnswerRequest, AnswerResult
from genret.retrieval.answers.answerer import Answerer
from genret.retrieval.answers.validation import AnswerValidator, InvalidAnswerError
from harness.answer_schemas import AnswerSchema

# name -> options of a request.
METHODS: dict[str, AnswerOptions] = {
    "greedy": {},
    "greedy, nothing forced": {"forced_spans": False, "whitespace": "compact"},
    "sample": {"method": "sample"},
    "sample, cold": {"method": "sample", "temperature": 0.3, "extra_properties": "allowed"},
    "sample, hot": {
        "method": "sample",
        "temperature": 5.0,
        "whitespace": "flexible",
        "property_order": "any",
    },
    "beam": {"method": "beam", "beam_size": 2},
    "disc": {"method": "disc", "num_draws": 2},
}
# Tokens beyond those of the shortest document.
SPARE = (0, 1, 8, 40)


@dataclass
class Tally:
    """What came of some requests.

    Attributes:
        answers: Requests that were answered.
        valid: Answers that are valid, their titles included.
        invalid: What is wrong with the others, and how often.
        refused: Requests that were not answered, by what was said.
        tokens: Of all answers, end tokens included.
        forced: Of them, those that were forced.
        forwards: Passes that answers took part in, behind their prompts.
        smallest: Answers under the smallest budget there is.
    """

    answers: int = 0
    valid: int = 0
    invalid: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    forced: int = 0
    forwards: int = 0
    smallest: int = 0

    def figures(self) -> dict[str, Any]:
        """As JSON has them."""
        return {
            "answers": self.answers,
            "valid": self.valid,
            "invalid": dict(self.invalid),
            "refused": dict(self.refused),
            "smallest_budget": self.smallest,
            "tokens": self.tokens,
            "forwards": self.forwards,
            "forced_share": self.forced / self.tokens if self.tokens else 0.0,
        }


class ValidityRun:
    """Answers requests in batches and checks every answer.

    Args:
        answerer: Writes; knows an index called "titles".
        schemas: Taken in turn.
        titles: All titles of that index.
        queries: Texts, taken in turn.
    """

    def __init__(
        self,
        answerer: Answerer,
        schemas: Sequence[AnswerSchema],
        titles: frozenset[str],
        queries: Sequence[str],
    ) -> None:
        self._answerer = answerer
        self._schemas = schemas
        self._titles = titles
        self._queries = queries
        self._validators = {one.name: AnswerValidator(one.text) for one in schemas}
        self._needed: dict[tuple[str, str], int] = {}
        self.by_method: dict[str, Tally] = {name: Tally() for name in METHODS}
        self.seconds = 0.0

    def run(self, number: int, batch_size: int, on_answers: Callable[[int], None]) -> None:
        """Answer so many requests, and say after every batch how many it had."""
        waiting = self._requests(number)
        while batch := [asked for _, asked in zip(range(batch_size), waiting, strict=False)]:
            begun = time.perf_counter()
            jobs = [self._answerer.job(request) for _, _, _, request in batch]
            replies = self._answerer.run(jobs)
            self.seconds += time.perf_counter() - begun
            for (schema, method, is_smallest, _), reply in zip(batch, replies, strict=True):
                self._count(schema, self.by_method[method], is_smallest, reply)
            on_answers(len(batch))

    def figures(self) -> dict[str, Any]:
        """What came of it all, by method and together."""
        total = Tally()
        for tally in self.by_method.values():
            total.answers += tally.answers
            total.valid += tally.valid
            total.invalid += tally.invalid
            total.refused += tally.refused
            total.tokens += tally.tokens
            total.forced += tally.forced
            total.forwards += tally.forwards
            total.smallest += tally.smallest
        return {
            **total.figures(),
            "seconds": self.seconds,
            "answers_per_second": total.answers / self.seconds if self.seconds else 0.0,
            "methods": {name: tally.figures() for name, tally in self.by_method.items()},
        }

    def _requests(self, number: int) -> Iterator[tuple[AnswerSchema, str, bool, AnswerRequest]]:
        """Every schema under every method and budget in turn."""
        methods = list(METHODS)
        for asked in range(number):
            schema = self._schemas[asked % len(self._schemas)]
            turn = asked // len(self._schemas) + asked
            method = methods[turn % len(methods)]
            spare = SPARE[turn // len(methods) % len(SPARE)]
            query = self._queries[asked % len(self._queries)]
            request = AnswerRequest(query, schema.text, seed=asked, **METHODS[method])
            key = (schema.name, method)
            if key not in self._needed:
                grammar = self._answerer.job(request).schema.grammar
                self._needed[key] = grammar.tokens_to_finish(grammar.start)
            yield schema, method, spare == 0, replace(request, max_tokens=self._needed[key] + spare)

    def _count(self, schema: AnswerSchema, tally: Tally, is_smallest: bool, reply: object) -> None:
        if isinstance(reply, InvalidAnswerError):
            tally.answers += 1
            tally.invalid[f"{schema.name}: {reply}"] += 1
            return
        if not isinstance(reply, AnswerResult):
            tally.refused[f"{schema.name}: {reply}"] += 1
            return
        tally.answers += 1
        tally.tokens += reply.num_tokens
        tally.forced += reply.num_forced
        tally.forwards += reply.num_forwards
        tally.smallest += is_smallest
        try:
            self._validators[schema.name].check(reply.text)
        except InvalidAnswerError as error:
            tally.invalid[f"{schema.name}: {error}"] += 1
            return
        unknown = [found.title for found in reply.entities if found.title not in self._titles]
        if unknown:
            tally.invalid[f"{schema.name}: no title: {unknown[0]!r}"] += 1
            return
        tally.valid += 1
