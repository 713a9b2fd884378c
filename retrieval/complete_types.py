"""Defines the request and the result of completing a prefix."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TypedDict

from genret.retrieval.arguments import (
    ALLOW_IDS,
    DENY_IDS,
    FILTER,
    PROMPT,
    Restriction,
    check_keywords,
    check_text,
    checked_options,
    declared,
    option,
)
from genret.retrieval.errors import InputError
from genret.retrieval.filters.predicate import parse
from genret.retrieval.score_types import ScoreRequest, ScoreResult
from genret.retrieval.tables import Shown, Tabular, wire_name
from genret.retrieval.types import KvShare, Timings

MAX_PREFIX = 200
MAX_COMPLETIONS = 100
ORDERS = ("weight", "model")
# Entities that the model scores, the first ones by weight; at least k.
NUM_SCORED = 50


class CompleteOptions(TypedDict, total=False):
    """The keyword options of `Index.complete`; `CompleteRequest` says what they mean."""

    filter: str | None
    allow_ids: tuple[str, ...] | None
    deny_ids: tuple[str, ...]


class ModelCompleteOptions(CompleteOptions, total=False):
    """The keyword options of `Retriever.complete`."""

    order: str
    prompt: str | None


@check_keywords
@dataclass(frozen=True, slots=True)
class CompleteRequest:
    """A prefix typed so far, and the entities wanted for it.

    Attributes:
        prefix: The text, at most 200 characters; an empty one asks for the entities of the greatest weight.
        restriction: `filter`, `allow_ids` and `deny_ids`, read once.

    Raises:
        InputError: a field cannot be used; it is named.
    """

    prefix: str
    k: int = option(10, "Entities wanted, at most 100.", (1, MAX_COMPLETIONS))
    order: str = option(
        "weight",
        "weight: the greatest weight first; model: the first 50 of these, the likeliest by the model first.",
        choices=ORDERS,
    )
    prompt: str | None = declared(PROMPT)
    filter: str | None = declared(FILTER)
    allow_ids: tuple[str, ...] | None = declared(ALLOW_IDS)
    deny_ids: tuple[str, ...] = declared(DENY_IDS)
    restriction: Restriction = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_text("prefix", self.prefix)
        if len(self.prefix) > MAX_PREFIX:
            raise InputError("prefix", f"must have at most {MAX_PREFIX} characters, got {len(self.prefix)}")
        checked = checked_options(self)
        predicate = None if self.filter is None else parse(self.filter)
        restriction = Restriction(predicate, checked.get("allow_ids"), checked.get("deny_ids", ()))
        for name, value in {**checked, "restriction": restriction}.items():
            object.__setattr__(self, name, value)

    @property
    def num_found(self) -> int:
        """The number of entities to be found before the model orders them; k where it does not."""
        return self.k if self.order == "weight" else max(self.k, NUM_SCORED)


@dataclass(frozen=True, slots=True)
class MatchedSpan:
    """Characters [begin, end) of a form that stand for typed words."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True, repr=False)
class Completion(Shown):
    """An entity that the prefix may go on to.

    Attributes:
        entity_id: The entity.
        title: Its title.
        form: Its name that matched: the title or an alias.
        spans: Matched parts of the form, in its order: the typed letters, or the whole of a mistyped word.
        errors: Typing errors, of all words together.
        weight: The entity's weight; 1 in an index without weights.
        logprob: With the order `model`: log P(form | prefix) + log P(entity | form), natural; None: not asked
            for, or the form is too long for the model.
    """

    entity_id: str
    title: str
    form: str
    spans: tuple[MatchedSpan, ...] = ()
    errors: int = 0
    weight: float = 1.0
    logprob: float | None = None

    _told = ("entity_id", "title", "form", "errors", "weight", "logprob")


@dataclass(frozen=True, slots=True, repr=False)
class CompleteResult(Tabular):
    """The completions of a prefix, best first; with the order `model`, times and memory of the scoring."""

    prefix: str
    completions: tuple[Completion, ...] = ()
    timings: Timings = field(default_factory=Timings)
    kv: KvShare = field(default_factory=KvShare, metadata=wire_name("kv_usage"))

    _told, _rows, _has_ranks, _shared = ("prefix",), "completions", True, ("prefix",)


def score_request(request: CompleteRequest, found: CompleteResult) -> ScoreRequest | None:
    """Return what the model is to score of the completions by weight; None: nothing."""
    forms = tuple(one.form for one in found.completions)
    if request.order == "weight" or not forms or not request.prefix.strip():
        return None
    return ScoreRequest(request.prefix, forms, request.prompt)


def ordered_by_model(request: CompleteRequest, found: CompleteResult, scores: ScoreResult) -> CompleteResult:
    """Return the k likeliest completions, in this order; equal ones, and those too long, as they were."""
    scored = []
    for one, score in zip(found.completions, scores.scores, strict=True):
        share = dict(zip(score.entity_ids, score.entity_shares, strict=True)).get(one.entity_id, 0.0)
        if score.logprob is not None and share > 0:
            one = replace(one, logprob=score.logprob + math.log(share))
        scored.append(one)
    scored.sort(key=lambda one: -math.inf if one.logprob is None else one.logprob, reverse=True)
    completions = tuple(scored[: request.k])
    return replace(found, completions=completions, timings=scores.timings, kv=scores.kv)
