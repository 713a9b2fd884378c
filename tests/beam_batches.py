"""Random batches for beam search: catalogues, filters, models and options of every kind, mixed."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from genret.decoding.beam_search import BeamResult, beam_search
from genret.decoding.cancellation import CancelToken
from genret.decoding.errors import DecodingCancelledError
from genret.decoding.params import BeamParams
from genret.decoding.trie.row_filter import FilteredTrie, RowFilter
from genret.decoding.trie.title_trie import TitleTrie
from tests.beam_oracles import Row, Truth, ValidTokens, at_most, inner_prefixes, optimistic_score, truth_of
from tests.tables_model import LOGITS, VOCAB, Meter, TablesModel

END = 0


def _letters(rng: random.Random, skew: float, length: int) -> Row:
    weights = [1.0 / (place + 1) ** skew for place in range(VOCAB - 1)]
    return tuple(rng.choices(range(1, VOCAB), weights, k=length))


def _skewed(rng: random.Random) -> Iterable[Row]:
    return (_letters(rng, 2.0, rng.randint(1, 6)) for _ in range(rng.randint(10, 60)))


def _shared_prefixes(rng: random.Random) -> Iterable[Row]:
    stems = [_letters(rng, 0.0, rng.randint(1, 6)) for _ in range(4)]
    return (rng.choice(stems) + _letters(rng, 0.5, rng.randint(0, 3)) for _ in range(rng.randint(5, 50)))


def _single(rng: random.Random) -> Iterable[Row]:
    return [_letters(rng, 0.0, rng.randint(0, 7))]


def _one_length(rng: random.Random) -> Iterable[Row]:
    length = rng.randint(1, 5)
    return (_letters(rng, 0.7, length) for _ in range(rng.randint(3, 60)))


def _mixed_lengths(rng: random.Random) -> Iterable[Row]:
    """Titles that are prefixes of others, the empty title among them."""
    longest = _letters(rng, 0.0, 10)
    chain = [longest[:length] for length in range(11)]
    return [*chain, *(_letters(rng, 1.0, rng.choice([1, 2, 9])) for _ in range(rng.randint(0, 30)))]


def _few(rng: random.Random) -> Iterable[Row]:
    return [_letters(rng, 0.0, rng.randint(0, 3)) for _ in range(rng.randint(1, 4))]


CATALOGUE_SHAPES = (_skewed, _shared_prefixes, _single, _one_length, _mixed_lengths, _few)


def random_catalogue(rng: random.Random) -> list[Row]:
    """Distinct rows closed by the end token, sorted: a row's place is its rank."""
    return sorted({(*title, END) for title in rng.choice(CATALOGUE_SHAPES)(rng)})


LENGTH_PENALTIES = (-1.0, 0.0, 0.5, 1.0, 2.0)
NUM_PER_BATCH = 50


@dataclass(frozen=True, slots=True)
class Batch:
    """Queries over one catalogue, each with a model, a filter and options of its own.

    Attributes:
        rows: Of the catalogue, sorted.
        filters: Ranks allowed per query, None for all.
        kinds: Of the logits, names in `LOGITS`.
    """

    rows: list[Row]
    filters: list[frozenset[int] | None]
    kinds: list[str]
    model: TablesModel
    params: list[BeamParams]
    room: list[int | None]

    @classmethod
    def random(cls, seed: int, num_queries: int = NUM_PER_BATCH, exact_share: float = 0.4) -> Batch:
        rng = random.Random(seed)
        rows = random_catalogue(rng)
        kinds = [rng.choice(list(LOGITS)) for _ in range(num_queries)]
        return cls(
            rows=rows,
            filters=[_random_filter(rng, len(rows)) for _ in range(num_queries)],
            kinds=kinds,
            model=TablesModel.random(seed, kinds),
            params=random_params(rng, num_queries, exact_share),
            room=[rng.choice([None, None, None, None, rng.randint(0, 8)]) for _ in range(num_queries)],
        )

    @property
    def max_depth(self) -> int:
        return max(map(len, self.rows))

    def constraint(self, device: torch.device | str = "cpu", kernels: str = "auto") -> FilteredTrie:
        trie = TitleTrie.from_rows(self.rows, VOCAB, device, kernels)
        made = {chosen: self._row_filter(chosen, device) for chosen in self.filters}
        return FilteredTrie(trie, [made[chosen] for chosen in self.filters])

    def _row_filter(self, chosen: frozenset[int] | None, device: torch.device | str) -> RowFilter | None:
        if chosen is None:
            return None
        return RowFilter.from_mask(np.isin(np.arange(len(self.rows)), sorted(chosen)), device)

    def allowed(self, query: int) -> list[Row]:
        chosen = self.filters[query]
        return [row for rank, row in enumerate(self.rows) if chosen is None or rank in chosen]

    def tokens(self, query: int) -> ValidTokens:
        """Titles that the query may write, as its model has them."""
        return ValidTokens(self.allowed(query), partial(self.model.next_logprobs, query))

    def truths(self) -> list[Truth]:
        logprobs = self.model.logprobs(self.rows)
        return [
            truth_of(self.rows, mine, chosen) for mine, chosen in zip(logprobs, self.filters, strict=True)
        ]

    def needed_prefixes(self, query: int, truth: Truth) -> set[Row]:
        """Prefixes that any proof of the top-k has to look behind: what they may become beats the k-th."""
        params = self.params[query]
        ranking = truth.ranking(params.length_penalty)
        kth = ranking[params.k - 1].score if len(ranking) >= params.k else -math.inf
        needed = set()
        tokens = self.tokens(query)
        for prefix in inner_prefixes(tokens.rows):
            logprob = tokens.logprob(prefix)
            if logprob > -math.inf:
                bound = optimistic_score(logprob, len(prefix), self.max_depth, params.length_penalty)
                if not at_most(bound, kth):
                    needed.add(prefix)
        return needed

    def only(self, queries: Sequence[int] | None = None, **options: object) -> Batch:
        """Some of the queries, None for all; their parameters with options changed."""
        chosen = range(len(self.params)) if queries is None else queries
        return Batch(
            self.rows,
            [self.filters[query] for query in chosen],
            [self.kinds[query] for query in chosen],
            self.model.only(chosen),
            [dataclasses.replace(self.params[query], **options) for query in chosen],
            [self.room[query] for query in chosen],
        )

    def unbounded(self) -> Batch:
        """The same without bounds on what may be written."""
        return dataclasses.replace(self, room=[None] * len(self.room))

    def plain(self) -> list[BeamResult]:
        """Results of the beam search alone."""
        return self.only(exact=False).search().results

    def search(
        self,
        device: torch.device | str = "cpu",
        cancel: Sequence[CancelToken | None] | None = None,
        meter: Meter | None = None,
        **options: Any,
    ) -> Searched:
        """Search all queries; `options` are goals and traces."""
        session = self.model.to(device).prefill(meter)
        constraint = self.constraint(device)
        return Searched(
            beam_search(session, constraint, self.params, cancel, self.room, **options), session.meter
        )


@dataclass(frozen=True, slots=True)
class Searched:
    """What a search of a batch answered, and what it asked of the model."""

    answers: list[BeamResult | DecodingCancelledError]
    meter: Meter

    @property
    def results(self) -> list[BeamResult]:
        """The answers, none of which is an error."""
        for answer in self.answers:
            assert isinstance(answer, BeamResult)
        return self.answers


def _random_filter(rng: random.Random, num_rows: int) -> frozenset[int] | None:
    kind = rng.random()
    if kind < 0.4:
        return None
    if kind < 0.45:
        return frozenset()
    share = rng.choice([0.1, 0.5, 0.9])
    return frozenset(rank for rank in range(num_rows) if rng.random() < share)


def random_params(rng: random.Random, num_queries: int, exact_share: float) -> list[BeamParams]:
    return [
        BeamParams(
            k=rng.choice([1, 1, 1, 2, 3, 5, 10, 70]),
            beam_size=rng.choice([1, 1, 2, 2, 3, 4, 6, 10, 16, None]),
            length_penalty=rng.choice(LENGTH_PENALTIES),
            exact=rng.random() < exact_share,
            exact_budget=rng.choice([0, 1, 2, 5, 20, 1000]),
        )
        for _ in range(num_queries)
    ]
