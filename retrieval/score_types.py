"""Defines the request and the result of scoring any titles."""

from __future__ import annotations

from dataclasses import dataclass, field

from genret.retrieval.arguments import (
    PROMPT,
    check_filled,
    check_keywords,
    checked_options,
    declared,
    sequence,
)
from genret.retrieval.errors import InputError
from genret.retrieval.tables import Shown, Tabular, wire_name
from genret.retrieval.types import KvShare, Timings

MAX_SCORED_TITLES = 10_000


@check_keywords
@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """A query, and titles to be scored behind it.

    Attributes:
        query: The query text; must hold something besides white space.
        titles: Any texts, in the catalogue or not, from 1 to 10,000; equal ones are scored once. Any iterable
            is read once.
        prompt: Name of the prompt template; None: the checkpoint's default.

    Raises:
        InputError: a field cannot be used; names it, and which of the titles.
    """

    query: str
    titles: tuple[str, ...]
    prompt: str | None = declared(PROMPT)

    def __post_init__(self) -> None:
        check_filled("query", self.query)
        checked_options(self)
        if isinstance(self.titles, str):
            raise InputError("titles", "must be a list of texts, got one text")
        read = sequence("titles", self.titles, str)
        if not 1 <= len(read) <= MAX_SCORED_TITLES:
            raise InputError("titles", f"must be 1 to {MAX_SCORED_TITLES}, got {len(read)}")
        for i, title in enumerate(read):
            check_filled(f"titles[{i}]", title)
        object.__setattr__(self, "titles", tuple(read))


@dataclass(frozen=True, slots=True, repr=False)
class TitleScore(Shown):
    """The model's score of one title.

    Attributes:
        title: The title as it was given.
        logprob: Natural log of the model's probability of the title, its end included; None where it is
            longer than the model has room for behind the prompt.
        probability: The title's share of the probability of the distinct titles of the request; None without
            a `logprob`.
        num_tokens: Number of tokens, end included.
        entity_ids: The entities of the index that own this form, those with the greatest share first.
        entity_shares: P(e | f) of each of them, which sum to 1.
    """

    title: str
    logprob: float | None
    probability: float | None
    num_tokens: int
    entity_ids: tuple[str, ...] = ()
    entity_shares: tuple[float, ...] = ()

    _told = ("title", "logprob", "probability", "entity_ids")


@dataclass(frozen=True, slots=True, repr=False)
class ScoreResult(Tabular):
    """The scores of the titles of one request.

    Attributes:
        query: The query text.
        scores: One per title, in the order given.
        num_nodes: Tokens the model computed behind the prompt: beginnings that titles share once.
        timings: Wall times.
        kv: Key/value memory.
    """

    query: str
    scores: tuple[TitleScore, ...]
    num_nodes: int = 0
    timings: Timings = field(default_factory=Timings)
    kv: KvShare = field(default_factory=KvShare, metadata=wire_name("kv_usage"))

    _told, _rows = ("query",), "scores"
