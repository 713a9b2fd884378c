"""Answers by the methods `disc` and `beam`: from a decoder's rows to ranked catalogue entities.

`beam` lists the likeliest forms, `disc` samples them and an owner of each. `Tally` adds up what the rows
found say about an entity: P(e | q) = Σ_f P(f | q) · P(e | f). Under a filter the forms are those of rows that
name an allowed entity, and only allowed entities share a form and are credited.

`is_proven` tells when a list of entities is sure. A search bounds the score of every row it did not list by
one number, *unseen*. As P(e | f) <= 1, a bound on the probability of a form bounds its part of any entity.

A beam search lists rows, but one entity may own many rows, and rows that were not listed count for it too. So
an exact search ends when the entities are proven. Where forms of few entities crowd out the others, a query
is searched again for a longer list. Results of a query's searches are put together: the rows of each, and the
tightest bound on unseen rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from genret.decoding.beam_search import BeamResult, FinishedRows, beam_search
from genret.decoding.cancellation import CancelToken
from genret.decoding.constraints import Hypothesis
from genret.decoding.counter_rng import uniforms
from genret.decoding.disc import DiscResult, disc
from genret.decoding.disc.draws import OWNER
from genret.decoding.errors import DecodingCancelledError
from genret.decoding.language_model import DecodeSession
from genret.decoding.params import MAX_BEAM_SIZE, MAX_K, BeamParams, DiscParams
from genret.decoding.trace import Trace
from genret.decoding.trie.title_trie import TitleTrie
from genret.retrieval.explanation import Explanation
from genret.retrieval.filters.entity_filter import EntityFilter, constraint_of, mask_of
from genret.retrieval.index.owners import FormOwners, Owners, best_first, log_or_nothing
from genret.retrieval.index.reader import Index
from genret.retrieval.types import MAX_SHORTLIST_SIZE, Candidate, RetrievalResult, RetrieveRequest


def log_sum(logprobs: Sequence[float]) -> float:
    """Return the log of the sum of probabilities; -inf for none."""
    largest = max(logprobs, default=-math.inf)
    if largest == -math.inf:
        return -math.inf
    return largest + math.log(math.fsum(math.exp(v - largest) for v in logprobs))


@dataclass(frozen=True, slots=True)
class OwnForm:
    """A form of an entity: the row with log P(f | q), and log P(e | f), -inf without a share in it."""

    hypothesis: Hypothesis
    log_share: float = 0.0

    @property
    def logprob(self) -> float:
        """Log of P(f | q) · P(e | f)."""
        return self.hypothesis.logprob + self.log_share

    def score(self, length_penalty: float) -> float:
        """Return `logprob` with a length penalty on the form."""
        return self.hypothesis.score(length_penalty) + self.log_share


@dataclass(slots=True)
class Tally:
    """The forms of one entity that were found, by rank, and its share of the samples."""

    forms: dict[int, OwnForm] = field(default_factory=dict)
    share: float = 0.0

    @property
    def logprob(self) -> float:
        """Log P(e | q), from the distinct forms found."""
        return log_sum([form.logprob for form in self.forms.values()])

    def best(self, length_penalty: float = 0.0) -> OwnForm:
        """Return the form that says most for the entity; of equal ones the first in order."""
        return max(self.forms.values(), key=lambda form: (form.score(length_penalty), -form.hypothesis.row))


def count_entities(index: Index, allowed: EntityFilter | None) -> int:
    """Return the number of entities allowed."""
    return index.num_entities if allowed is None else allowed.num_allowed


def credit(tallies: dict[int, Tally], hypothesis: Hypothesis, owners: Owners) -> None:
    """Credit a row to its owners, each with its share."""
    for entity, share in zip(*owners, strict=True):
        tally = tallies.setdefault(entity, Tally())
        tally.forms[hypothesis.row] = OwnForm(hypothesis, log_or_nothing(share))


def owners_best_first(index: Index, owners: Owners) -> dict[int, float]:
    """Return P(e | f) of the owners of a form, in the order of `best_first`."""
    shares = dict(zip(*owners, strict=True))
    return {entity: shares[entity] for entity in best_first(index, shares, len(shares))}


def possible(scores: Mapping[int, float]) -> dict[int, float]:
    """Return the scores above -inf: only entities with some probability are answers."""
    return {entity: score for entity, score in scores.items() if score > -math.inf}


def candidate(
    index: Index,
    number: int,
    tally: Tally,
    form: OwnForm,
    score: float,
    probability: float | None,
    similarity: float | None = None,
) -> Candidate:
    """Return the candidate that stands for an entity under one of its forms."""
    entity = index.entity(number)
    return Candidate(
        entity_id=entity.entity_id,
        title=entity.title,
        surface=index.surface(form.hypothesis.row, number),
        logprob=tally.logprob,
        probability=probability,
        metadata=entity.metadata,
        score=score,
        similarity=similarity,
    )


@dataclass(frozen=True, slots=True)
class EntityScore:
    """The rule by which the forms of an entity make its score."""

    # The score is that of the best form; otherwise the log of the forms' probability
    takes_best: bool = False
    length_penalty: float = 0.0  # A form's score is logprob / length ** length_penalty; 0 unless `takes_best`

    def of(self, tally: Tally) -> float:
        """Return the score by the forms found: a lower bound of the entity's own."""
        if not self.takes_best:
            return tally.logprob
        return tally.best(self.length_penalty).score(self.length_penalty)

    def bound(self, known: float, num_missing: int, unseen: float) -> float:
        """Return an upper bound of an entity's score, if `num_missing` forms score at most `unseen` each.

        `known` is the score by the forms found, -inf without any.
        """
        if num_missing <= 0:
            return known
        if self.takes_best:
            return max(known, unseen)
        return float(np.logaddexp(known, unseen + math.log(num_missing)))


def is_proven(
    index: Index, tallies: dict[int, Tally], k: int, score: EntityScore, unseen: float, num_entities: int
) -> bool:
    """Whether the k best entities are known, in their order, counting every form.

    An entity keeps its place when its score, by the forms found, is at least that of any entity behind it,
    and more than the bound of one with a form that was not found: an equal score might belong in front of it,
    by weight or title (`best_first`). Forms not found only add to a score, so the entities in front need no
    bounds. The same holds under a filter: an allowed entity makes all of its rows allowed.

    `unseen` bounds the score of every row that was not found; `num_entities` entities are allowed.
    """
    if unseen == -math.inf:
        return True
    scores = {entity: score.of(tally) for entity, tally in tallies.items()}
    missing = {e: int(index.forms_per_entity[e]) - len(tally.forms) for e, tally in tallies.items()}
    # Of equal scores those that may still grow stand last, so that the others are compared with their bounds.
    order = sorted(scores, key=lambda entity: (-scores[entity], missing[entity] > 0))
    if len(order) < min(k, num_entities) or scores[order[min(k, len(order)) - 1]] == -math.inf:
        return False
    # Upper bound of all uncertain entities behind a position, from the end of the list upwards.
    behind = -math.inf
    if len(order) < num_entities:
        behind = score.bound(-math.inf, index.max_forms, unseen)
    for position in range(len(order) - 1, -1, -1):
        entity = order[position]
        if position < k and scores[entity] <= behind:
            return False
        if missing[entity] > 0:
            behind = max(behind, score.bound(scores[entity], missing[entity], unseen))
    return True


@dataclass(slots=True, eq=False)
class Asked:
    """A request in its batch, as decoders see it."""

    request: RetrieveRequest  # the request, with a seed where its decoder is `disc`
    allowed: EntityFilter | None = None  # the entities allowed; None: all
    room: int | None = None  # most tokens that may follow its prompt
    cancel: CancelToken | None = None  # polled between forwards
    # Takes in what its decoder walks through, all of its searches; None: nothing is recorded
    trace: Trace | None = None


def _traces(asked: Sequence[Asked]) -> list[Trace | None] | None:
    traces = [one.trace for one in asked]
    return traces if any(trace is not None for trace in traces) else None


def decode_by_disc(
    session: DecodeSession, trie: TitleTrie, index: Index, asked: Sequence[Asked]
) -> list[Decoded | DecodingCancelledError]:
    """Find entities by DISC. The requests have a seed each; nothing is withheld yet.

    All have one `top_m`, one `adaptive` and one number of prefixes per draw. A sample is a row and then one
    of its owners, with P(e | f): samples of entities follow P(e | q) / P_L(S). Under a filter S is the set of
    allowed rows.
    """
    params = [
        DiscParams(
            num_samples=r.samples,
            num_draws=r.num_draws,
            temperature=r.temperature,
            top_m=r.top_m,
            seed=r.seed or 0,
            # Draws that go on to their ends give the mass by their weights, a far better estimate than
            # a count of acceptances.
            reject_early=False,
            adaptive=r.adaptive,
            beam_size=r.prefixes,
        )
        for r in (one.request for one in asked)
    ]
    results = disc(
        session,
        constraint_of(trie, [one.allowed for one in asked]),
        params,
        [one.cancel for one in asked],
        [one.room for one in asked],
        _traces(asked),
    )
    return [
        result
        if isinstance(result, DecodingCancelledError)
        else _disc_found(index, one.request, result, one.allowed)
        for one, result in zip(asked, results, strict=True)
    ]


def _disc_found(
    index: Index, request: RetrieveRequest, result: DiscResult, allowed: EntityFilter | None
) -> Decoded:
    tallies: dict[int, Tally] = {}
    owners_of = FormOwners(index, mask_of(allowed), request.role_weight)
    owners = {row: owners_of(row) for row in {sample.hypothesis.row for sample in result.samples}}
    chances = uniforms(torch.tensor(request.seed or 0), OWNER, torch.arange(len(result.samples))).tolist()
    for sample, chance in zip(result.samples, chances, strict=True):
        mine = owners[sample.hypothesis.row]
        credit(tallies, sample.hypothesis, mine)
        tallies[_drawn(mine, chance)].share += 1.0 / len(result.samples)
    # Entities with more of the samples come first, of equal ones the likelier.
    shares = {number: (tally.share, tally.logprob) for number, tally in tallies.items()}
    entities = best_first(index, shares, len(tallies))
    answer = RetrievalResult(
        query=request.query,
        method="disc",
        candidates=tuple(
            candidate(index, e, tallies[e], tallies[e].best(), share, share)
            for e in entities[: request.k]
            if (share := tallies[e].share)
        ),
        mass=result.mass,
        mass_stderr=None if math.isnan(result.mass_stderr) else result.mass_stderr,
        mass_lower=result.mass_lower,
        mass_upper=result.mass_upper,
        num_draws=result.num_draws,
        num_accepted=sum(sample.accepted for sample in result.samples),
        num_nodes=result.num_nodes,
        num_steps=result.num_steps,
        seed=request.seed,
    )
    logprobs = {entity: tallies[entity].logprob for entity in entities}
    return Decoded(answer, tuple(entities), math.inf, logprobs)


def _drawn(owners: Owners, chance: float) -> int:
    """Return the owner that a uniform number in (0, 1) selects, with P(e | f)."""
    for entity, share in zip(*owners, strict=True):
        if (chance := chance - share) < 0:
            return entity
    return max(zip(owners.shares, owners.entities, strict=True))[1]  # rounding has left a little beyond all


def or_abstain(request: RetrieveRequest, answer: RetrievalResult) -> RetrievalResult:
    """Withhold the candidates of an answer whose mass is below what the request asks for."""
    mass = answer.bounded_mass
    if request.min_mass is None or mass is None or mass >= request.min_mass:
        return answer
    return replace(answer, candidates=(), abstained=True)


def nothing_allowed(request: RetrieveRequest) -> RetrievalResult:
    """Return the answer to a request whose filter allows no entity: known without asking the model."""
    is_disc = request.decoding == "disc"
    mass = 0.0 if is_disc else None
    answer = RetrievalResult(
        query=request.query,
        method=request.method,
        candidates=(),
        # `auto` and `shortlist` have scored all entities allowed, as there are none.
        certified=True if request.proposals or not is_disc else None,
        mass=mass,
        mass_stderr=mass,
        mass_lower=0.0 if is_disc or request.proposals else None,
        mass_upper=mass,
        seed=request.seed if is_disc else None,
        explanation=Explanation() if request.explain else None,
    )
    return or_abstain(request, answer)


# Number of further searches with more forms and beams, and the factor between them; forty beams cost about
# twice as much as one.
_MAX_WIDENINGS = 2
_FACTOR = 4
# Rows beyond k that an exact search keeps where entities have one form each. All that score the same as the
# k-th have to be found, as weight and title decide which of them is listed.
_SPARE_ROWS = 32


def decode_by_beam(
    session: DecodeSession, trie: TitleTrie, index: Index, asked: Sequence[Asked]
) -> list[Decoded | DecodingCancelledError]:
    """Find entities by trie beam search, for every query of the session."""
    queries = [_Query(index, one.request, one.allowed) for one in asked]
    wanted = {number: query.params for number, query in enumerate(queries)}
    part = session
    while wanted:
        searched = [asked[number] for number in wanted]
        results = beam_search(
            part,
            constraint_of(trie, [one.allowed for one in searched]),
            list(wanted.values()),
            [one.cancel for one in searched],
            [one.room for one in searched],
            [queries[number] if params.exact else None for number, params in wanted.items()],
            _traces(searched),
        )
        for number, result in zip(wanted, results, strict=True):
            queries[number].add(result)
        wanted = {number: params for number, query in enumerate(queries) if (params := query.next_search())}
        if wanted:
            part = session.select(list(wanted))
    return [query.found() for query in queries]


class _Query:
    """The state of one query's searches; the goal of an exact one (`certificate.Goal`): proven entities.

    Every further search lists more rows or keeps more beams than the one before, and both have a limit.
    """

    def __init__(self, index: Index, request: RetrieveRequest, allowed: EntityFilter | None) -> None:
        self._index = index
        self._request = request
        self._owners = FormOwners(index, mask_of(allowed), request.role_weight)
        self._score = EntityScore(request.aggregation == "max", request.length_penalty)
        self._num_entities = count_entities(index, allowed)
        self._tallies: dict[int, Tally] = {}
        self._rows: dict[int, Hypothesis] = {}
        self._unseen = math.inf  # no row that is not among `_rows` has a better score
        self._last: BeamResult | DecodingCancelledError | None = None
        self._num_widenings = 0
        self._num_steps = self._num_nodes = self._num_exact_nodes = 0
        listed = request.k
        if index.max_forms > 1:
            # Several forms may be one entity's. Forms listed beyond it cost next to nothing, complete
            # the entities' scores and tighten the bound on unseen ones.
            listed = min(MAX_K, max(2 * request.k, request.width))
        self.params = self._params(listed, request.width, request.budget)

    @property
    def num_rows(self) -> int:
        """Rows that an exact search keeps; k rows of one form each prove k entities but for equal scores."""
        return MAX_K if self._index.max_forms > 1 else min(MAX_K, self.params.k + _SPARE_ROWS)

    def reached(self, rows: FinishedRows, unseen: float) -> bool:
        """Whether the entities are proven, with the rows of an exact search that goes on."""
        places = ((place, row) for place, row in enumerate(rows.row.tolist()) if row not in self._rows)
        self._credit(
            Hypothesis(tuple(self._index.row_token_ids(row)), row, float(rows.logprob[place]))
            for place, row in places
        )
        return self._is_proven(unseen)

    def add(self, result: BeamResult | DecodingCancelledError) -> None:
        """Take in the result of the search by `params`."""
        self._last = result
        if isinstance(result, DecodingCancelledError):
            return
        self._credit(result.hypotheses)
        unseen = result.best_pruned_score
        most = self.num_rows if self.params.exact else self.params.k
        if len(result.hypotheses) >= most:  # rows may have fallen off the end of the list
            unseen = max(unseen, result.hypotheses[-1].score(self.params.length_penalty))
        self._unseen = min(self._unseen, unseen)
        self._num_steps += result.num_steps
        self._num_nodes += result.num_nodes
        self._num_exact_nodes += result.num_exact_nodes

    def next_search(self) -> BeamParams | None:
        """Return the next search, now in `params`; None: there is none."""
        if not isinstance(self._last, BeamResult) or self._is_proven(self._unseen):
            return None
        following = self._wider(self._last)
        if following is not None:
            self.params = following
        return following

    def found(self) -> Decoded | DecodingCancelledError:
        if isinstance(self._last, DecodingCancelledError):
            return self._last
        request, tallies = self._request, self._tallies
        scores = possible({entity: self._score.of(tally) for entity, tally in tallies.items()})
        entities = best_first(self._index, scores, MAX_SHORTLIST_SIZE + 1)
        answer = RetrievalResult(
            query=request.query,
            method="beam",
            candidates=tuple(
                candidate(
                    self._index, e, tallies[e], tallies[e].best(request.length_penalty), scores[e], None
                )
                for e in entities[: request.k]
            ),
            certified=self._is_proven(self._unseen),
            num_nodes=self._num_nodes,
            num_exact_nodes=self._num_exact_nodes,
            num_steps=self._num_steps,
        )
        logprobs = {entity: tallies[entity].logprob for entity in entities}
        return Decoded(answer, tuple(entities), self._unseen, logprobs, self._rows)

    def _wider(self, last: BeamResult) -> BeamParams | None:
        """Return the search with more rows and beams when forms of few entities crowded out the others.

        A beam size of the request stays. An exact search is widened only when its budget is spent, by one
        that is not exact.
        """
        if self._num_widenings == _MAX_WIDENINGS:
            return None
        if self.params.exact and len(last.hypotheses) >= MAX_K:  # no list is longer
            return None
        if len(self._tallies) >= min(self._request.k, self._num_entities):
            return None
        asked = self._request.beam_size
        lost = last.best_pruned_score > -math.inf and asked is None
        if len(last.hypotheses) < self.params.k and not lost:
            return None
        beam_size = asked or min(MAX_BEAM_SIZE, self.params.width * _FACTOR)
        wider = self._params(min(MAX_K, self.params.k * _FACTOR), beam_size, 0)
        if (wider.k, wider.width) == (self.params.k, self.params.width):
            return None
        self._num_widenings += 1
        return wider

    def _params(self, k: int, beam_size: int, budget: int) -> BeamParams:
        return BeamParams(
            k=k,
            beam_size=beam_size,
            length_penalty=self._request.length_penalty,
            exact=budget > 0,
            exact_budget=budget,
        )

    def _credit(self, hypotheses: Iterable[Hypothesis]) -> None:
        for hypothesis in hypotheses:
            if hypothesis.row not in self._rows:
                self._rows[hypothesis.row] = hypothesis
                credit(self._tallies, hypothesis, self._owners(hypothesis.row))

    def _is_proven(self, unseen: float) -> bool:
        """Whether the list is proven, if `unseen` bounds the scores of all rows that were not found."""
        return is_proven(self._index, self._tallies, self._request.k, self._score, unseen, self._num_entities)


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """The findings of a decoder."""

    answer: RetrievalResult  # the answer of the decoder alone
    # Numbers of the entities found, the best first: as a rule more than the answer lists, with `beam` at most
    # one more than `MAX_SHORTLIST_SIZE`
    entities: tuple[int, ...]
    unseen: float  # bound on the scores of all rows that were not found; inf where none is known
    # log P(e | q) of these entities, by the forms that were found
    logprobs: Mapping[int, float] = field(default_factory=dict)
    # By rank, the rows found with log P(f | q). Empty for `disc`, which may have another temperature.
    rows: Mapping[int, Hypothesis] = field(default_factory=dict)
