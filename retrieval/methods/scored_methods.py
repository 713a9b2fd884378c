"""The methods `shortlist` and `auto`: entities that were proposed or decoded, every one scored exactly.

`shortlist` scores what the evidence proposes; `auto` scores that and what a decoder found, in the order of
the index's ranking. Candidates have their share in all of their forms, so all of them can be compared.
`EntityScorer` scores the forms that no decoder found in one token tree; `TitleScorer` does so for any texts.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from genret.decoding.cancellation import CancelToken, reason_to_stop
from genret.decoding.constraints import Hypothesis
from genret.decoding.errors import DecodingCancelledError, InvalidLogitsError
from genret.decoding.language_model import DecodeSession, LanguageModel, PromptPrefix
from genret.decoding.row_scores import RowScores, score_rows
from genret.retrieval.errors import GenretError, InputError, ModelError
from genret.retrieval.evidence.evidence import FEATURE_NUMBER, LEAST_LOGPROB, VECTORS, Evidence, EvidenceQuery
from genret.retrieval.filters.entity_filter import EntityFilter, mask_of
from genret.retrieval.index.owners import EntityRows, FormOwners, best_first
from genret.retrieval.index.reader import Index
from genret.retrieval.loaded_model import KvMeter, Limits, PrefixStore, check_length
from genret.retrieval.methods.decoded_methods import (
    Asked,
    Decoded,
    EntityScore,
    OwnForm,
    Tally,
    candidate,
    count_entities,
    is_proven,
    log_sum,
    or_abstain,
    owners_best_first,
    possible,
)
from genret.retrieval.normalize import normalize
from genret.retrieval.ranking.ranker import Proposals, Ranker
from genret.retrieval.ranking.rankings import MODEL_PRIOR, Ranking
from genret.retrieval.score_types import ScoreRequest, ScoreResult, TitleScore
from genret.retrieval.text import TextTokenizer
from genret.retrieval.types import (
    DEFAULT_NUM_RANKED,
    MAX_SHORTLIST_SIZE,
    RetrievalResult,
    RetrieveRequest,
    Timings,
)

_SIMILARITY = FEATURE_NUMBER["vectors.similarity"]


class Proposed:
    """The entities that a query is to score, before its decoder has found any; tells the features of all.

    Args:
        entities: The entities; without `proposals` all that are allowed.
        evidence: Computes the features of what was not proposed, when they are asked for.
        asked: The query as the evidence sees it, if there is any.
        proposals: Entities that the evidence proposed, with their features.
    """

    def __init__(
        self,
        entities: tuple[int, ...],
        evidence: Evidence,
        asked: EvidenceQuery | None,
        proposals: Proposals | None = None,
    ) -> None:
        self.entities, self.asked = entities, asked
        self.is_everything = proposals is None  # whether no other entities can be found
        self._evidence = evidence
        self._rows: dict[int, npt.NDArray[np.float32]] = {}
        if proposals is not None:
            self._rows.update(zip(proposals.entities.tolist(), proposals.features, strict=True))

    @property
    def has_similarities(self) -> bool:
        """Whether the query was compared with vectors."""
        return self.asked is not None and VECTORS in self._evidence.kinds and self.asked.vector is not None

    def features(self, entities: list[int]) -> npt.NDArray[np.float32]:
        """Return the features of some entities. Shape: (len(entities), number of features)."""
        missing = [entity for entity in entities if entity not in self._rows]
        if missing and self.asked is not None:
            features = self._evidence.features(self.asked, np.array(missing, np.int64))
            self._rows.update(zip(missing, features, strict=True))
        width = len(FEATURE_NUMBER)
        return np.array([self._rows[entity] for entity in entities], np.float32).reshape(len(entities), width)


def entities_to_score(
    request: RetrieveRequest, proposed: Proposed, decoded: Decoded | None, ranking: Ranking
) -> tuple[int, ...]:
    """Return the entities worth scoring: those proposed, then the best of those decoded.

    Where the ranking makes the order, these are the first of it by what the decoder found of each so far. An
    entity that it did not find counts as the worst that it did, or as its prior if that is less.
    """
    if decoded is None or proposed.is_everything:
        return proposed.entities
    every = list(dict.fromkeys([*proposed.entities, *decoded.entities[:MAX_SHORTLIST_SIZE]]))
    most = max(request.k, request.shortlist_size or DEFAULT_NUM_RANKED)
    if not request.is_ranked or len(every) <= most:
        return tuple(every)
    worst = min(decoded.logprobs.values(), default=LEAST_LOGPROB)
    features = proposed.features(every)
    # Without a prior the feature is 0, which is never the lower one.
    guesses = np.minimum(worst, -features[:, MODEL_PRIOR].astype(np.float64))
    known = [decoded.logprobs.get(entity, guess) for entity, guess in zip(every, guesses, strict=True)]
    scores = ranking.scores(features, known)
    return tuple(every[i] for i in np.argsort(-scores, kind="stable")[:most].tolist())


def scored_answer(
    index: Index,
    request: RetrieveRequest,
    allowed: EntityFilter | None,
    proposed: Proposed,
    decoded: Decoded | None,
    scored: Scored,
    ranker: Ranker,
) -> RetrievalResult:
    """Return the answer to a request for `shortlist` or `auto` whose entities were scored.

    `scored` has the scores of `entities_to_score`; `decoded` is None where no decoder was asked.
    """
    entity_score = EntityScore(request.aggregation == "max", request.length_penalty)
    scores = possible({number: entity_score.of(tally) for number, tally in scored.tallies.items()})
    weight = request.similarity_weight
    is_ranked = request.is_ranked and proposed.asked is not None
    ranked, place = None, {number: i for i, number in enumerate(scores)}
    if is_ranked:
        logprobs = [scored.tallies[number].logprob for number in scores]
        ranked = ranker.ranking.rank(proposed.features(list(scores)), logprobs)
        scores = dict(zip(scores, ranked.scores.tolist(), strict=True))
    elif weight and proposed.has_similarities:
        similarities = proposed.features(list(scores))[:, _SIMILARITY].tolist()
        scores = {n: score + weight * s for (n, score), s in zip(scores.items(), similarities, strict=True)}
    order = best_first(index, scores, request.k)
    similarity = None
    if proposed.has_similarities and order:
        similarity = proposed.features(order)[:, _SIMILARITY].tolist()
    candidates = []
    for i, number in enumerate(order):
        tally = scored.tallies[number]
        probability = math.exp(min(0.0, tally.logprob - scored.logprob))
        shares: dict[str, float] = {}
        if ranked is not None:
            probability = float(ranked.probabilities[place[number]])
            shares = ranked.shares_of(place[number])
        form = tally.best(request.length_penalty)
        like = None if similarity is None else similarity[i]
        found = candidate(index, number, tally, form, scores[number], probability, like)
        candidates.append(replace(found, shares=shares))
    answer = replace(
        _decoded_part(request, proposed, decoded, scored),
        method=request.method,
        candidates=tuple(candidates),
        num_nodes=scored.num_nodes + (0 if decoded is None else decoded.answer.num_nodes),
        num_scored=scored.num_forms,
        shortlist_size=len(proposed.entities),
        nothing_fits=None if ranked is None else ranked.nothing,
        missing_evidence=ranker.missing(proposed.asked),
    )
    if is_ranked:
        return or_abstain(request, replace(answer, certified=None))
    if proposed.is_everything:
        return or_abstain(request, replace(answer, certified=scored.is_complete))
    if decoded is None or request.decoding == "disc":
        return or_abstain(request, replace(answer, certified=None))
    if weight or not scored.has_all_listed or len(decoded.entities) > MAX_SHORTLIST_SIZE:
        return replace(answer, certified=False)  # rows outside the decoder's bound were not scored
    num_entities = count_entities(index, allowed)
    proven = is_proven(index, scored.tallies, request.k, entity_score, decoded.unseen, num_entities)
    return replace(answer, certified=proven)


def _decoded_part(
    request: RetrieveRequest, proposed: Proposed, decoded: Decoded | None, scored: Scored
) -> RetrievalResult:
    """Return the decoder's part of an answer, with the known bounds of P_L(S)."""
    probability = math.exp(min(0.0, scored.logprob))
    if proposed.is_everything or decoded is None:
        answer = RetrievalResult(request.query, request.method, (), mass_lower=probability)
        if decoded is not None:
            answer = replace(answer, num_steps=decoded.answer.num_steps)
        if request.decoding != "disc":
            return answer
        # All of S was scored, but for rows longer than the model has room for.
        return replace(
            answer,
            mass=probability,
            mass_stderr=0.0 if scored.is_complete else None,
            mass_upper=probability if scored.is_complete else 1.0,
            seed=request.seed,
        )
    if request.temperature != 1 and request.decoding == "disc":
        return decoded.answer  # its masses are those of another distribution
    # Both bounds are rounded, by different forwards: of a catalogue that has all of the mass they meet.
    upper = 1.0 if decoded.answer.mass_upper is None else decoded.answer.mass_upper
    lower = min(max(decoded.answer.mass_lower or 0.0, probability), upper)
    return replace(decoded.answer, mass_lower=lower)


def all_entities(index: Index, allowed: EntityFilter | None) -> tuple[int, ...]:
    """Return the numbers of the entities allowed, in order."""
    if allowed is None:
        return tuple(range(index.num_entities))
    return tuple(np.flatnonzero(allowed.allowed).tolist())


# Most forms of one query; beyond it some aliases of the entities with the most are left out. Two thousand
# entities of four forms each fit.
MAX_SCORED_FORMS = 8_192


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """The scores of the forms of a query's entities."""

    # The forms of each entity, without those that are longer than the model has room for or that it cannot
    # write, and without entities that have no other
    tallies: dict[int, Tally]
    logprob: float = -math.inf  # natural log of the probability of all distinct forms; -inf without any
    num_forms: int = 0  # number of distinct forms, whether a decoder had found them or not
    num_nodes: int = 0  # tokens the model computed behind the prompt
    has_all_listed: bool = True  # whether all forms were scored, no more than one query may have
    is_complete: bool = True  # whether, besides, none of them is longer than the model has room for


class EntityScorer:
    """Scores entities of one open index."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._rows = EntityRows(index)

    def score(
        self,
        session: DecodeSession,
        asked: Sequence[Asked],
        entities: Sequence[Sequence[int]],
        found: Sequence[Mapping[int, Hypothesis]],
    ) -> list[Scored | DecodingCancelledError]:
        """Score the entities of every query of a session. All lists have one entry per query.

        Args:
            session: Session of the prompts; its state does not change.
            asked: The requests; of their entities only those allowed share a form.
            entities: Entity numbers, none of a query's twice.
            found: By rank, the rows whose log-probabilities are known: the model is not asked again.
        """
        wanted = [self._rows.of_all(mine, MAX_SCORED_FORMS) for mine in entities]
        every = [{rank for rows in mine for rank in rows} for mine, _ in wanted]
        # In rank order neighbours share the longest beginnings.
        ranks = [sorted(mine.difference(known)) for mine, known in zip(every, found, strict=True)]
        texts = [self._index.rows.token_ids_of(np.array(mine, dtype=np.int64)) for mine in ranks]
        outcomes: list[Scored | DecodingCancelledError] = []
        cancel, room = [one.cancel for one in asked], [one.room for one in asked]
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
            owners = FormOwners(self._index, mask_of(asked[query].allowed), asked[query].request.role_weight)
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


class Stopwatch:
    """Adds up the milliseconds of every part of a batch; parts are named as in `Timings`."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self._parts: defaultdict[str, float] = defaultdict(float)

    def stop(self, part: str) -> None:
        """Count the time since the last stop, or the beginning, to a part."""
        now = time.perf_counter()
        self._parts[part] += (now - self._last) * 1e3
        self._last = now

    def timings(self) -> Timings:
        """Return the times of all parts."""
        return Timings(**self._parts, total_ms=sum(self._parts.values()))


ScoreReply = ScoreResult | GenretError | DecodingCancelledError


@dataclass(slots=True, eq=False)
class ScoreJob:
    """One request on its way through its batch, to its reply."""

    request: ScoreRequest
    prompt: list[int]
    rows: list[tuple[int, ...]]  # the token row of every title, end token included
    num_shared: int = 0  # number of leading tokens that every prompt of its template has
    cancel: CancelToken | None = None
    reply: ScoreReply | None = None


# Characters that are tokenised before it is asked again whether somebody waits for them.
_BLOCK_CHARACTERS = 64 * 1024

_Item = TypeVar("_Item")


def limited_runs(items: Iterable[_Item], size_of: Callable[[_Item], int], most: int) -> Iterator[list[_Item]]:
    """Divide items into runs of at most `most` size together, or of one item."""
    run: list[_Item] = []
    size = 0
    for item in items:
        if run and size + size_of(item) > most:
            yield run
            run, size = [], 0
        run.append(item)
        size += size_of(item)
    if run:
        yield run


@dataclass(frozen=True, slots=True, eq=False)
class TitleScorer:
    """Scores titles with one model, rendered as those of one open index, in which it looks them up."""

    index: Index
    model: LanguageModel
    tokenizer: TextTokenizer
    limits: Limits
    prefixes: PrefixStore
    owners: FormOwners  # of all entities

    def rows(self, titles: Sequence[str], cancel: CancelToken | None = None) -> list[tuple[int, ...]]:
        """Return the token rows of titles, composed like those of catalogues; InputError names a title."""
        for i, title in enumerate(titles):
            check_length(f"titles[{i}]", title, self.tokenizer, self.limits.positions)
        texts = list(dict.fromkeys(map(normalize, titles)))
        row_of: dict[str, list[int] | None] = {}
        for texts_of_block in limited_runs(texts, len, _BLOCK_CHARACTERS):
            if cancel is not None:
                cancel.check()
            encoded = self.tokenizer.encode_titles(texts_of_block, self.index.rendering)
            row_of.update(zip(texts_of_block, encoded, strict=True))
        rows = []
        for i, title in enumerate(titles):
            row = row_of[normalize(title)]
            if row is None:
                raise InputError(f"titles[{i}]", f"{title!r} merges with the prompt's last tokens")
            if max(row) >= self.model.vocab_size:
                raise InputError(
                    f"titles[{i}]",
                    f"holds token {max(row)}, which the model does not know "
                    f"(it has {self.model.vocab_size} tokens)",
                )
            rows.append(tuple(row))
        return rows

    def run(self, jobs: Sequence[ScoreJob]) -> list[ScoreReply]:
        """Score jobs, in groups of one shared prefix: per job its result, or the error that concerns it."""
        for prefix, places in self.prefixes.grouped(jobs, [None] * len(jobs)):
            for i in places:
                jobs[i].reply = reason_to_stop(jobs[i].cancel)  # while others were scored
            self._score([jobs[i] for i in places if jobs[i].reply is None], prefix)
        return [job.reply for job in jobs if job.reply is not None]

    def _score(self, jobs: Sequence[ScoreJob], prefix: PromptPrefix | None) -> None:
        if not jobs:
            return
        clock = Stopwatch()
        try:
            meter = KvMeter(self.model.prefill([job.prompt for job in jobs], prefix), len(jobs))
            clock.stop("prefill_ms")
            outcomes = score_rows(
                meter.session,
                [job.rows for job in jobs],
                [job.cancel for job in jobs],
                [self.limits.room(len(job.prompt)) for job in jobs],
            )
        except InvalidLogitsError as error:
            if len(jobs) == 1:
                jobs[0].reply = ModelError(str(error))
            else:  # One query's broken logits must not take the others down: score each alone.
                for job in jobs:
                    self._score([job], prefix)
            return
        clock.stop("score_ms")
        timings = clock.timings()
        for query, (job, outcome) in enumerate(zip(jobs, outcomes, strict=True)):
            if isinstance(outcome, DecodingCancelledError):
                job.reply = outcome
                continue
            job.reply = ScoreResult(
                query=job.request.query,
                scores=self._title_scores(job, outcome),
                num_nodes=outcome.num_nodes,
                timings=timings,
                kv=meter.share(query),
            )

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
        rank = self.index.row_of(row)
        if rank < 0:
            return {}
        shares = owners_best_first(self.index, self.owners(rank))
        return {self.index.entity(number).entity_id: share for number, share in shares.items()}


def _share(logprob: float | None, total: float) -> float | None:
    if logprob is None:
        return None
    return math.exp(logprob - total) if total > -math.inf else 0.0
