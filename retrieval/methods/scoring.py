"""Scores entities by their forms, and any titles: P(e | q) = Σ_f P(f | q) · P(e | f).

`Tally` adds up what the rows found say about an entity. Under a filter only allowed entities share a form,
and only they are credited. `EntityScorer` finds the exact scores of entities: forms that no decoder found are
scored in one token tree. `TitleScorer` does the same for any texts.

`is_proven` tells when a list of entities is sure. A search bounds the score of every row it did not list by
one number, *unseen*. As P(e | f) <= 1, a bound on the probability of a form bounds its part of any entity.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from genret.decoding.cancellation import CancelToken, reason_to_stop
from genret.decoding.constraints import Hypothesis
from genret.decoding.errors import DecodingCancelledError, InvalidLogitsError
from genret.decoding.language_model import DecodeSession, LanguageModel, PromptPrefix
from genret.decoding.row_scores import RowScores, score_rows
from genret.retrieval.errors import GenretError, InputError, ModelError
from genret.retrieval.filters.entity_filter import EntityFilter, mask_of
from genret.retrieval.index.owners import EntityRows, FormOwners, Owners, best_first, log_or_nothing
from genret.retrieval.index.reader import Index
from genret.retrieval.kv_memory import KvMeter, PrefixStore
from genret.retrieval.loaded_model import Limits
from genret.retrieval.normalize import normalize
from genret.retrieval.score_types import ScoreRequest, ScoreResult, TitleScore
from genret.retrieval.text import TextTokenizer
from genret.retrieval.types import Candidate, RetrieveRequest, Timings


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


def all_entities(index: Index, allowed: EntityFilter | None) -> tuple[int, ...]:
    """Return the numbers of the entities allowed, in order."""
    if allowed is None:
        return tuple(range(index.num_entities))
    return tuple(np.flatnonzero(allowed.allowed).tolist())


def credit(tallies: dict[int, Tally], hypothesis: Hypothesis, owners: Owners) -> None:
    """Credit a row to its owners, each with its share."""
    for entity, share in zip(*owners, strict=True):
        tally = tallies.setdefault(entity, Tally())
        tally.forms[hypothesis.row] = OwnForm(hypothesis, log_or_nothing(share))


def owners_best_first(index: Index, owners: Owners) -> dict[int, float]:
    """Return P(e | f) of the owners of a form, in the order of `best_first`."""
    shares = dict(zip(*owners, strict=True))
    return {entity: shares[entity] for entity in best_first(index, shares, len(shares))}


def by_share(tallies: Mapping[int, Tally]) -> dict[int, tuple[float, float]]:
    """Return scores by which entities with more of the samples come first, of equal ones the likelier."""
    return {number: (tally.share, tally.logprob) for number, tally in tallies.items()}


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
    """The rule by which the forms of an entity make its score.

    Attributes:
        takes_best: The score is that of the best form; otherwise the log of the forms' probability.
        length_penalty: A form's score is logprob / length ** length_penalty; 0 unless `takes_best`.
    """

    takes_best: bool = False
    length_penalty: float = 0.0

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

    Args:
        index: Index with the number of forms per entity.
        tallies: The entities found.
        k: Entities wanted.
        score: Rule that makes a score of forms.
        unseen: Upper bound of the score of every row that was not found.
        num_entities: Number of entities allowed.
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


# Most forms of one query; beyond it some aliases of the entities with the most are left out. Two thousand
# entities of four forms each fit.
MAX_SCORED_FORMS = 8_192


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """The scores of the forms of a query's entities.

    Attributes:
        tallies: The forms of each entity, without those that are longer than the model has room for or that
            it cannot write, and without entities that have no other.
        logprob: Natural log of the probability of all distinct forms; -inf without any.
        num_forms: Number of distinct forms, whether a decoder had found them or not.
        num_nodes: Tokens the model computed behind the prompt.
        has_all_listed: Whether all forms were scored, no more than one query may have.
        is_complete: Whether, besides, none of them is longer than the model has room for.
    """

    tallies: dict[int, Tally]
    logprob: float = -math.inf
    num_forms: int = 0
    num_nodes: int = 0
    has_all_listed: bool = True
    is_complete: bool = True


class EntityScorer:
    """Scores entities of one open index."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._rows = EntityRows(index)

    def score(
        self,
        session: DecodeSession,
        requests: Sequence[RetrieveRequest],
        filters: Sequence[EntityFilter | None],
        entities: Sequence[Sequence[int]],
        found: Sequence[Mapping[int, Hypothesis]],
        cancel: Sequence[CancelToken | None],
        room: Sequence[int | None],
    ) -> list[Scored | DecodingCancelledError]:
        """Score the entities of every query of a session. All lists have one entry per query.

        Args:
            session: Session of the prompts; its state does not change.
            requests: Requests, for their weight of titles.
            filters: Filters: only allowed entities share a form.
            entities: Entity numbers, none of a query's twice.
            found: By rank, the rows whose log-probabilities are known: the model is not asked again.
            cancel: Polled between forwards.
            room: Most tokens that may follow each prompt.
        """
        wanted = [self._rows.of_all(mine, MAX_SCORED_FORMS) for mine in entities]
        every = [{rank for rows in mine for rank in rows} for mine, _ in wanted]
        # In rank order neighbours share the longest beginnings.
        ranks = [sorted(mine.difference(known)) for mine, known in zip(every, found, strict=True)]
        texts = [self._index.rows.token_ids_of(np.array(mine, dtype=np.int64)) for mine in ranks]
        outcomes: list[Scored | DecodingCancelledError] = []
        for query, scores in enumerate(score_rows(session, texts, cancel, room)):
            if isinstance(scores, DecodingCancelledError):
                outcomes.append(scores)
                continue
            forms = {rank: form for rank, form in found[query].items() if rank in every[query]}
            forms |= {
                rank: Hypothesis(row, rank, logprob)
                for rank, row, logprob in zip(ranks[query], texts[query], scores.logprobs, strict=True)
                if logprob is not None
            }
            rows, is_whole = wanted[query]
            owners = FormOwners(self._index, mask_of(filters[query]), requests[query].role_weight)
            tallies = _tallies(entities[query], rows, forms, owners)
            outcomes.append(
                Scored(
                    tallies=tallies,
                    logprob=log_sum([form.logprob for form in forms.values()]),
                    num_forms=len(forms),
                    num_nodes=scores.num_nodes,
                    has_all_listed=is_whole,
                    is_complete=is_whole and None not in scores.logprobs,
                )
            )
        return outcomes


def _tallies(
    entities: Sequence[int],
    rows: Sequence[Sequence[int]],
    forms: dict[int, Hypothesis],
    owners: FormOwners,
) -> dict[int, Tally]:
    owners_of = {rank: owners(rank) for rank, form in forms.items() if form.logprob > -math.inf}
    tallies = {}
    for entity, mine in zip(entities, rows, strict=True):
        written = {
            rank: OwnForm(forms[rank], owners_of[rank].log_share(entity))
            for rank in mine
            if rank in owners_of
        }
        if written:
            tallies[entity] = Tally(written)
    return tallies


ScoreReply = ScoreResult | GenretError | DecodingCancelledError


@dataclass(frozen=True, slots=True)
class ScoreJob:
    """One request on its way into a batch.

    Attributes:
        rows: The token row of every title, end token included.
        num_shared: Number of leading tokens that every prompt of its template has.
    """

    request: ScoreRequest
    prompt: list[int]
    rows: list[tuple[int, ...]]
    num_shared: int = 0
    cancel: CancelToken | None = None


class TitleScorer:
    """Scores titles with one model, rendered as those of one open index, in which it looks them up."""

    def __init__(
        self,
        index: Index,
        model: LanguageModel,
        tokenizer: TextTokenizer,
        limits: Limits,
        prefixes: PrefixStore,
        title_weight: float,
    ) -> None:
        self._index = index
        self._model = model
        self._tokenizer = tokenizer
        self._limits = limits
        self._prefixes = prefixes
        self._owners = FormOwners(index, None, title_weight)

    def rows(self, titles: Sequence[str]) -> list[tuple[int, ...]]:
        """Return the token rows of titles, under the text policy of catalogues: NFC, single spaces.

        Raises:
            InputError: a title cannot follow a prompt, or has an unknown token; its field is "titles[3]".
        """
        texts = list(dict.fromkeys(map(normalize, titles)))
        row_of = dict(zip(texts, self._tokenizer.encode_titles(texts, self._index.rendering), strict=True))
        rows = []
        for i, title in enumerate(titles):
            row = row_of[normalize(title)]
            if row is None:
                raise InputError(f"titles[{i}]", f"{title!r} merges with the prompt's last tokens")
            if max(row) >= self._model.vocab_size:
                raise InputError(
                    f"titles[{i}]",
                    f"holds token {max(row)}, which the model does not know "
                    f"(it has {self._model.vocab_size} tokens)",
                )
            rows.append(tuple(row))
        return rows

    def run(self, jobs: Sequence[ScoreJob]) -> list[ScoreReply]:
        """Score jobs, in groups of one shared prefix: per job its result, or the error that concerns it."""
        replies: dict[int, ScoreReply] = {}
        groups: dict[tuple[int, ...], list[int]] = {}
        prefixes: dict[tuple[int, ...], PromptPrefix | None] = {}
        for i, job in enumerate(jobs):
            prefix = self._prefixes.before(job.prompt, job.num_shared)
            key = () if prefix is None else prefix.token_ids
            prefixes[key] = prefix
            groups.setdefault(key, []).append(i)
        for key, members in groups.items():
            stopped = {i: reason_to_stop(jobs[i].cancel) for i in members}  # while others were scored
            replies.update({i: why for i, why in stopped.items() if why is not None})
            asked = [i for i in members if stopped[i] is None]
            if asked:
                answers = self._score([jobs[i] for i in asked], prefixes[key])
                replies.update(zip(asked, answers, strict=True))
        return [replies[i] for i in range(len(jobs))]

    def _score(self, jobs: Sequence[ScoreJob], prefix: PromptPrefix | None) -> list[ScoreReply]:
        started = time.perf_counter()
        try:
            meter = KvMeter(self._model.prefill([job.prompt for job in jobs], prefix), len(jobs))
            prefilled = time.perf_counter()
            outcomes = score_rows(
                meter.session,
                [job.rows for job in jobs],
                [job.cancel for job in jobs],
                [self._limits.room(len(job.prompt)) for job in jobs],
            )
        except InvalidLogitsError as error:
            if len(jobs) == 1:
                return [ModelError(str(error))]
            # One query's broken logits must not take the others down: score each alone.
            return [self._score([job], prefix)[0] for job in jobs]
        ended = time.perf_counter()
        timings = Timings(
            prefill_ms=(prefilled - started) * 1e3,
            score_ms=(ended - prefilled) * 1e3,
            total_ms=(ended - started) * 1e3,
        )
        return [
            ScoreResult(
                query=job.request.query,
                scores=self._title_scores(job, outcome),
                num_nodes=outcome.num_nodes,
                timings=timings,
                kv=meter.share(query),
            )
            if isinstance(outcome, RowScores)
            else outcome
            for query, (job, outcome) in enumerate(zip(jobs, outcomes, strict=True))
        ]

    def _title_scores(self, job: ScoreJob, scores: RowScores) -> tuple[TitleScore, ...]:
        logprob_of = dict(zip(job.rows, scores.logprobs, strict=True))
        total = log_sum([logprob for logprob in logprob_of.values() if logprob is not None])
        shares_of = {row: self._entity_shares(row) for row in logprob_of}
        return tuple(
            TitleScore(
                title=title,
                logprob=logprob_of[row],
                probability=_share(logprob_of[row], total),
                num_tokens=len(row),
                entity_ids=tuple(shares_of[row]),
                entity_shares=tuple(shares_of[row].values()),
            )
            for title, row in zip(job.request.titles, job.rows, strict=True)
        )

    def _entity_shares(self, row: tuple[int, ...]) -> dict[str, float]:
        rank = self._index.row_of(row)
        if rank < 0:
            return {}
        shares = owners_best_first(self._index, self._owners(rank))
        return {self._index.entity(number).entity_id: share for number, share in shares.items()}


def _share(logprob: float | None, total: float) -> float | None:
    if logprob is None:
        return None
    return math.exp(logprob - total) if total > -math.inf else 0.0
