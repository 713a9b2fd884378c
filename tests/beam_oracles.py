"""Beam search worked out by hand: random catalogues, tables of logits, exhaustive scores, a textbook search.

A row's score is its log-probability divided by length ** length_penalty, the end token included. What a
prefix could still become is bounded by its own log-probability over the kindest length it may yet reach.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from decoding.beam_search import BeamResult, beam_search
from decoding.cancellation import CancelToken
from decoding.errors import DecodingCancelledError
from decoding.kv_usage import KvUsage
from decoding.params import BeamParams
from decoding.row_filter import FilteredTrie, RowFilter
from decoding.title_trie import TitleTrie

Row = tuple[int, ...]

END = 0
VOCAB = 9
NUM_CONTEXTS = 211
TOLERANCE = 1e-4  # absolute; sums of a dozen logarithms out of float32 logits of up to a hundred

_PRIME = 2_147_483_647
_FACTOR = 1_000_003


def score(logprob: float, length: int, length_penalty: float) -> float:
    return logprob / length**length_penalty


def optimistic_score(logprob: float, depth: int, max_depth: int, length_penalty: float) -> float:
    """The best score that any continuation of a prefix could have, were all its further tokens certain."""
    return max(score(logprob, length, length_penalty) for length in range(depth + 1, max_depth + 1))


def close(left: float, right: float) -> bool:
    return math.isclose(left, right, rel_tol=1e-5, abs_tol=TOLERANCE)


def at_most(low: float, high: float) -> bool:
    return low <= high or close(low, high)


# ---- catalogues ----


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


CATALOGUE_SHAPES: tuple[Callable[[random.Random], Iterable[Row]], ...] = (
    _skewed,
    _shared_prefixes,
    _single,
    _one_length,
    _mixed_lengths,
    _few,
)


def random_catalogue(rng: random.Random) -> list[Row]:
    """Distinct rows closed by the end token, sorted: a row's place is its rank."""
    return sorted({(*title, END) for title in rng.choice(CATALOGUE_SHAPES)(rng)})


def inner_prefixes(rows: Iterable[Row]) -> set[Row]:
    """Prefixes that a model has to be run on: neither empty nor a whole row."""
    return {row[:depth] for row in rows for depth in range(1, len(row))}


# ---- models ----


def _normal(scale: float) -> Callable[[torch.Generator, int], Tensor]:
    def draw(generator: torch.Generator, vocab_size: int) -> Tensor:
        return torch.randn(NUM_CONTEXTS, vocab_size, generator=generator) * scale

    return draw


def _tied(generator: torch.Generator, vocab_size: int) -> Tensor:
    """Few different logits, so that many rows have the very same probability."""
    return torch.randint(0, 3, (NUM_CONTEXTS, vocab_size), generator=generator).float()


def _flat(_: torch.Generator, vocab_size: int) -> Tensor:
    return torch.zeros(NUM_CONTEXTS, vocab_size)


def _falling(generator: torch.Generator, vocab_size: int) -> Tensor:
    """Likely are the end and the letters that the catalogues use most."""
    return _normal(2.0)(generator, vocab_size) - 1.5 * torch.arange(vocab_size)


def _with_impossible_tokens(generator: torch.Generator, vocab_size: int) -> Tensor:
    logits = _normal(2.0)(generator, vocab_size)
    impossible = torch.rand(logits.shape, generator=generator) < 0.3
    impossible[torch.arange(NUM_CONTEXTS), logits.argmax(1)] = False
    return logits.masked_fill(impossible, -math.inf)


# name -> a table of logits by context. Shape: (NUM_CONTEXTS, vocab_size), float32.
LOGITS: dict[str, Callable[[torch.Generator, int], Tensor]] = {
    "usual": _normal(1.5),
    "nearly flat": _normal(1e-3),
    "flat": _flat,
    "likely rows": _falling,
    "peaked": _normal(12.0),
    "certain": _normal(40.0),
    "tied": _tied,
    "impossible tokens": _with_impossible_tokens,
}


def follow(key, token):
    """Hash of a text that goes on; for integers and tensors."""
    return (key * _FACTOR + token + 1) % _PRIME


class TablesModel:
    """Logits that are looked up by a hash of the text, in a table of each query's own.

    Args:
        tables: Shape: (Q, K, V), float32.
        roots: Hash of every prompt. Length Q.
    """

    def __init__(self, tables: Tensor, roots: Sequence[int]) -> None:
        self.tables = tables
        self.roots = list(roots)

    @classmethod
    def random(cls, seed: int, kinds: Sequence[str], vocab_size: int = VOCAB) -> TablesModel:
        """One query per kind of logits."""
        generator = torch.Generator().manual_seed(seed)
        tables = torch.stack([LOGITS[kind](generator, vocab_size) for kind in kinds])
        roots = torch.randint(0, _PRIME, (len(kinds),), generator=generator).tolist()
        return cls(tables, roots)

    def to(self, device: torch.device | str) -> TablesModel:
        return TablesModel(self.tables.to(device), self.roots)

    def only(self, queries: Sequence[int]) -> TablesModel:
        return TablesModel(self.tables[list(queries)], [self.roots[query] for query in queries])

    def prefill(self, meter: Meter | None = None) -> TablesSession:
        return TablesSession(self, meter)

    def key(self, query: int, prefix: Row) -> int:
        """Hash of a prefix behind the query's prompt."""
        key = self.roots[query]
        for token in prefix:
            key = follow(key, token)
        return key

    def next_logprobs(self, query: int, prefix: Row) -> list[float]:
        """log P(token | prefix) in float64."""
        logits = self.tables[query, self.key(query, prefix) % self.tables.shape[1]].double()
        return torch.log_softmax(logits, -1).tolist()

    def logprobs(self, rows: Sequence[Row]) -> Tensor:
        """log P_L of rows under every query, by the chain rule. Shape: (Q, N), float64, on the CPU."""
        tables = torch.log_softmax(self.tables.cpu().double(), -1)
        longest = max(map(len, rows), default=0)
        padded = torch.tensor([[*row, *[-1] * (longest - len(row))] for row in rows], dtype=torch.int64)
        keys = torch.tensor(self.roots).unsqueeze(1).expand(-1, len(rows))
        total = torch.zeros(keys.shape, dtype=torch.float64)
        query = torch.arange(len(self.roots)).unsqueeze(1)
        for depth in range(longest):
            token = padded[:, depth].expand(len(self.roots), -1)
            logprob = tables[query, keys % tables.shape[1], token.clamp(min=0)]
            total += torch.where(token >= 0, logprob, 0.0)
            keys = follow(keys, token)
        return total


@dataclass(slots=True)
class Meter:
    """What the sessions of one batch were asked to do.

    Attributes:
        nodes: Branches written per query of the batch, padding left out.
        forwards: Steps of all sessions.
        on_forward: Called after every step with their number so far.
        keys: Hashes of the prefixes written, per query of the batch, where they are asked for.
    """

    nodes: list[int]
    forwards: int = 0
    on_forward: Callable[[int], None] = field(default=lambda number: None)
    keys: list[set[int]] | None = None


class TablesSession:
    """Branches are hashes of what they wrote (`decoding.language_model.DecodeSession`), strictly checked.

    Padding has logits that would lead any search astray; a branch below padding is refused.
    """

    def __init__(self, model: TablesModel, meter: Meter | None = None, numbers: Sequence[int] = ()) -> None:
        self._model = model
        device = model.tables.device
        self._roots = torch.tensor(model.roots, dtype=torch.int64, device=device)
        self._numbers = list(numbers) or list(range(len(model.roots)))  # of the queries, in the batch
        self.meter = meter or Meter([0] * len(model.roots))
        self._keeps_levels = False
        self._levels: list[Tensor] = []  # hashes per depth, -1 for padding: (Q, branches)

    @property
    def root_logits(self) -> Tensor:
        return self._logits(self._roots.unsqueeze(1)).squeeze(1)

    def keep_levels(self) -> None:
        assert self._keeps_levels or not self._levels
        self._keeps_levels = True

    def step(self, parents: Tensor, token_ids: Tensor, depth: int | None = None) -> Tensor:
        deepest = len(self._levels)
        depth = deepest + 1 if depth is None else depth
        assert 1 <= depth <= deepest + 1
        assert depth == deepest + 1 or self._keeps_levels
        assert parents.shape == token_ids.shape
        assert parents.shape[1] > 0
        live = parents >= 0
        assert bool((token_ids >= 0).all())
        assert bool((token_ids < self._model.tables.shape[2]).all())
        if depth == 1:
            above = self._roots.unsqueeze(1).expand(parents.shape)
        else:
            level = self._levels[depth - 2]
            assert bool((parents < level.shape[1]).all())
            above = level.gather(1, parents.clamp(min=0))
        assert bool(((above >= 0) | ~live).all()), "a branch below padding"
        keys = torch.where(live, follow(above, token_ids), -1)
        if depth > deepest:
            self._levels.append(keys)
        else:
            self._levels[depth - 1] = torch.cat([self._levels[depth - 1], keys], dim=1)
        for number, count in zip(self._numbers, live.sum(1).tolist(), strict=True):
            self.meter.nodes[number] += count
        if self.meter.keys is not None:
            for number, written in zip(self._numbers, keys.tolist(), strict=True):
                self.meter.keys[number].update(key for key in written if key >= 0)
        self.meter.forwards += 1
        self.meter.on_forward(self.meter.forwards)
        return self._logits(keys)

    def _logits(self, keys: Tensor) -> Tensor:
        tables = self._model.tables
        query = torch.arange(len(keys), device=keys.device).unsqueeze(1)
        logits = tables[query, keys.clamp(min=0) % tables.shape[1]]
        misleading = torch.linspace(1e4, 0.0, tables.shape[2], device=keys.device)
        return torch.where((keys >= 0).unsqueeze(2), logits, misleading)

    def select(self, queries: Sequence[int], branches: bool = False) -> TablesSession:
        chosen = list(queries)
        assert chosen
        numbers = [self._numbers[query] for query in chosen]
        other = TablesSession(self._model.only(chosen), self.meter, numbers)
        if branches:
            other._keeps_levels = self._keeps_levels
            other._levels = [level[chosen] for level in self._levels]
        return other

    @property
    def usage(self) -> KvUsage:
        return KvUsage()


# ---- the textbook ----


@dataclass(frozen=True, slots=True)
class Listed:
    """One row of a list."""

    score: float
    row: Row


@dataclass(frozen=True, slots=True)
class TextbookResult:
    """What a beam search has to say.

    Attributes:
        found: Best first.
        certified: Whether nothing dropped can beat the k-th.
        best_pruned_score: The best optimistic score of what was dropped.
        num_nodes: Prefixes the model was run on.
        smallest_gap: The closest call among all comparisons: below some tolerance, rounding may decide.
    """

    found: tuple[Listed, ...]
    certified: bool
    best_pruned_score: float
    num_nodes: int
    smallest_gap: float


class _Textbook:
    def __init__(self, rows: Iterable[Row], next_logprobs: Callable[[Row], list[float]]) -> None:
        self.rows = set(rows)
        self.next_logprobs = next_logprobs
        self.allowed: defaultdict[Row, set[int]] = defaultdict(set)
        for row in self.rows:
            for depth, token in enumerate(row):
                self.allowed[row[:depth]].add(token)

    def continuations(self, live: Iterable[tuple[float, Row]]) -> list[tuple[float, Row]]:
        found = []
        for logprob, prefix in live:
            following = self.next_logprobs(prefix)
            found += [(logprob + following[token], (*prefix, token)) for token in self.allowed[prefix]]
        return sorted((entry for entry in found if entry[0] > -math.inf), reverse=True)


def textbook_beam_search(
    rows: Iterable[Row],
    next_logprobs: Callable[[Row], list[float]],
    params: BeamParams,
    max_depth: int,
    room: int | None = None,
) -> TextbookResult:
    """Beam search one prefix at a time, as one would write it on paper.

    Args:
        rows: What may be written.
        next_logprobs: log P(token | prefix) by token.
        params: Without `exact`.
        max_depth: Length of the longest row of the constraint.
        room: Most tokens that may be written.
    """
    book = _Textbook(rows, next_logprobs)
    penalty, k, width = params.length_penalty, params.k, params.width

    def bound(entry: tuple[float, Row]) -> float:
        return optimistic_score(entry[0], len(entry[1]), max_depth, penalty)

    live: list[tuple[float, Row]] = [(0.0, ())]
    pool: list[Listed] = []
    pruned, num_nodes, gaps = -math.inf, 0, [math.inf]
    while live:
        if room is not None and len(live[0][1]) >= room:
            pruned = max(pruned, max(map(bound, live)))
            break
        candidates = book.continuations(live)
        pool += [Listed(score(lp, len(row), penalty), row) for lp, row in candidates if row in book.rows]
        pool = sorted(pool, key=lambda listed: (-listed.score, listed.row))[: k + 1]
        gaps += [high.score - low.score for high, low in itertools.pairwise(pool)]
        pool = pool[:k]
        unfinished = [entry for entry in candidates if entry[1] not in book.rows]
        gaps += [high[0] - low[0] for high, low in itertools.pairwise(unfinished[: width + 1])]
        live, dropped = unfinished[:width], unfinished[width:]
        pruned = max([pruned, *map(bound, dropped)])
        if live and len(pool) == k:
            best = max(map(bound, live))
            gaps.append(abs(pool[-1].score - best))
            if pool[-1].score >= best:
                break
        num_nodes += len(live)
    kth = pool[-1].score if len(pool) == k else -math.inf
    if math.isfinite(kth) and math.isfinite(pruned):
        gaps.append(abs(kth - pruned))
    certified = pruned == -math.inf or pruned <= kth
    return TextbookResult(tuple(pool), certified, pruned, num_nodes, min(gaps))


# ---- checks ----


@dataclass(frozen=True, slots=True)
class Truth:
    """Everything there is to know of one query: rows of positive probability with their log-probabilities."""

    logprob: dict[Row, float]
    rows: Sequence[Row]  # of the constraint, by rank; empty where it has no ranks

    def ranking(self, length_penalty: float) -> list[Listed]:
        listed = (Listed(score(lp, len(row), length_penalty), row) for row, lp in self.logprob.items())
        return sorted(listed, key=lambda entry: entry.score, reverse=True)


def truth_of(rows: Sequence[Row], logprobs: Tensor, allowed: Iterable[int] | None = None) -> Truth:
    """Of one query. `logprobs` shape: (N,); `allowed`: ranks, None for all of them."""
    values = logprobs.tolist()
    ranks = range(len(rows)) if allowed is None else allowed
    return Truth({rows[rank]: values[rank] for rank in ranks if values[rank] > -math.inf}, rows)


def scores_of(result: BeamResult, length_penalty: float) -> list[float]:
    return [hypothesis.score(length_penalty) for hypothesis in result.hypotheses]


def kth_score(result: BeamResult, params: BeamParams) -> float:
    """Score of the k-th row, -inf while there are fewer."""
    found = scores_of(result, params.length_penalty)
    return found[params.k - 1] if len(found) >= params.k else -math.inf


def check_list(result: BeamResult, truth: Truth, params: BeamParams) -> None:
    """At most k rows of positive probability, no duplicate, right scores, best first."""
    found = [hypothesis.token_ids for hypothesis in result.hypotheses]
    assert len(set(found)) == len(found) <= params.k
    for hypothesis in result.hypotheses:
        assert hypothesis.token_ids in truth.logprob
        assert close(hypothesis.logprob, truth.logprob[hypothesis.token_ids])
        if truth.rows:
            assert truth.rows[hypothesis.row] == hypothesis.token_ids
        else:
            assert hypothesis.row == -1
    for high, low in itertools.pairwise(scores_of(result, params.length_penalty)):
        assert high >= low or math.isclose(high, low, rel_tol=1e-12)


def is_true_top_k(result: BeamResult, truth: Truth, params: BeamParams) -> bool:
    """Whether the list is the exact top-k; rows whose scores tie may stand for one another."""
    expected = truth.ranking(params.length_penalty)[: params.k]
    found = scores_of(result, params.length_penalty)
    return len(found) == len(expected) and all(
        close(mine, theirs.score) for mine, theirs in zip(found, expected, strict=True)
    )


def check_certificate(result: BeamResult, truth: Truth, params: BeamParams) -> None:
    """The list is valid, the bound covers every row that is not listed, and a certificate is the truth."""
    check_list(result, truth, params)
    kth = kth_score(result, params)
    found = {hypothesis.token_ids for hypothesis in result.hypotheses}
    for entry in truth.ranking(params.length_penalty):
        if entry.row not in found:
            assert at_most(entry.score, max(result.best_pruned_score, kth)), "a row above the bound"
    if result.certified:
        assert at_most(result.best_pruned_score, kth)
        assert is_true_top_k(result, truth, params)
    else:
        assert result.best_pruned_score > kth or close(result.best_pruned_score, kth)


# ---- batches of random cases ----

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
            params=[_random_params(rng, exact_share) for _ in range(num_queries)],
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
        for prefix in inner_prefixes(self.allowed(query)):
            logprob = self._prefix_logprob(query, prefix)
            if logprob > -math.inf:
                bound = optimistic_score(logprob, len(prefix), self.max_depth, params.length_penalty)
                if not at_most(bound, kth):
                    needed.add(prefix)
        return needed

    def _prefix_logprob(self, query: int, prefix: Row) -> float:
        return math.fsum(
            self.model.next_logprobs(query, prefix[:depth])[token] for depth, token in enumerate(prefix)
        )

    def only(self, queries: Sequence[int], **options: object) -> Batch:
        """Some of the queries; their parameters with options changed."""
        return Batch(
            self.rows,
            [self.filters[query] for query in queries],
            [self.kinds[query] for query in queries],
            self.model.only(queries),
            [dataclasses.replace(self.params[query], **options) for query in queries],
            [self.room[query] for query in queries],
        )

    def search(
        self,
        device: torch.device | str = "cpu",
        cancel: Sequence[CancelToken | None] | None = None,
        meter: Meter | None = None,
    ) -> Searched:
        session = self.model.to(device).prefill(meter)
        results = beam_search(session, self.constraint(device), self.params, cancel, self.room)
        return Searched(results, session.meter)


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


def _random_params(rng: random.Random, exact_share: float) -> BeamParams:
    return BeamParams(
        k=rng.choice([1, 1, 1, 2, 3, 5, 10, 70]),
        beam_size=rng.choice([1, 1, 2, 2, 3, 4, 6, 10, 16, None]),
        length_penalty=rng.choice(LENGTH_PENALTIES),
        exact=rng.random() < exact_share,
        exact_budget=rng.choice([0, 1, 2, 5, 20, 1000]),
    )
