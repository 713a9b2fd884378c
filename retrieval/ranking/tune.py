"""Fitting a ranking to labelled and made queries, and measuring it on queries that were held out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from retrieval.errors import InputError
from retrieval.evaluation.intervals import Interval, percentiles
from retrieval.evidence.evidence import FEATURES, Evidence
from retrieval.evidence.making import EvidenceProgress
from retrieval.ranking.fitting import Example, fit
from retrieval.ranking.model import FloatArray, Provenance, Ranking
from retrieval.ranking.query_sets import QuerySet
from retrieval.ranking.tuning import Decode, Outcome, calibration_error, example_of, outcome_of

ALL = "all"
METRICS = ("hits@1", "hits@10", "loss", "calibration error", "nothing AUC")
_RESAMPLES = 1000
# Queries that a model is asked at once.
_BATCH = 16


@dataclass(frozen=True, slots=True)
class Figure:
    """A metric of one set, with 95 % bootstrap intervals over its queries.

    Attributes:
        before: By the ranking that there was.
        after: By rankings fitted to other queries than those they are measured on.
        difference: After minus before, over the same resamples.
    """

    before: Interval
    after: Interval
    difference: Interval


@dataclass(frozen=True, slots=True)
class SetReport:
    """How rankings do on the queries of one origin.

    Attributes:
        name: The set's name, or `ALL`.
        num_queries: How many.
        num_nothing: How many of them are for nothing in the index.
        num_found: How many of the others have their entity among the candidates.
        figures: By the names of `METRICS`; without those that have no meaning for these queries.
    """

    name: str
    num_queries: int
    num_nothing: int
    num_found: int
    figures: Mapping[str, Figure]


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a tuning found.

    Attributes:
        before: The ranking that there was.
        ranking: The one fitted to all queries.
        reports: Per set, and of all sets together.
    """

    before: Ranking
    ranking: Ranking
    reports: tuple[SetReport, ...]

    def to_json(self) -> dict[str, Any]:
        """Return everything as a JSON object."""
        weights = {
            str(feature): {"before": float(before), "after": float(after)}
            for feature, before, after in zip(
                FEATURES, self.before.weights, self.ranking.weights, strict=True
            )
            if before or after
        }
        return {
            "sets": [_rounded(asdict(report)) for report in self.reports],
            "weights": weights,
            "ranking": self.ranking.to_json(),
        }


def tune(
    sets: Sequence[QuerySet],
    evidence: Evidence,
    decode: Decode | None,
    before: Ranking,
    progress: EvidenceProgress,
    *,
    labelled_share: float = 0.5,
    folds: int = 5,
    seed: int = 0,
) -> Tuned:
    """Fit a ranking to queries, and measure it on each fifth of them with weights fitted to the others.

    Args:
        sets: The queries, those made from the catalogue last.
        evidence: Of the index.
        decode: Asks the model; None: there is none.
        before: The ranking to compare with.
        progress: Told about every step.
        labelled_share: What labelled queries count of all where there are made ones too, in (0, 1).
        folds: Parts that are held out in turn, at least 2.
        seed: Of the parts and of the bootstrap.

    Raises:
        InputError: there are too few queries to fit a ranking to and to hold some of them out, or an option
            is out of range.
        GenretError: the model or the encoder fails.
    """
    if not 0 < labelled_share < 1:
        raise InputError("labelled_share", f"must be above 0 and below 1, got {labelled_share}")
    if folds < 2:
        raise InputError("folds", f"must be at least 2, got {folds}")
    sets = [one for one in sets if one.queries]
    total = sum(len(one.queries) for one in sets)
    progress.phase("looking for candidates", total)
    weights = _weights(sets, labelled_share)
    pairs = zip(sets, weights, strict=True)
    queries = [replace(query, weight=weight) for one, weight in pairs for query in one.queries]
    examples: list[Example] = []
    for begin in range(0, total, _BATCH):
        batch = queries[begin : begin + _BATCH]
        scored = [None] * len(batch) if decode is None else decode([query.text for query in batch])
        examples += [example_of(query, evidence, one) for query, one in zip(batch, scored, strict=True)]
        progress.advance(len(examples), f"{len(examples):,} of {total:,} queries")
    progress.phase("fitting")
    told = Provenance("; ".join(map(_origin, sets)), total, evidence.kinds, seed)
    fitted = fit(examples, told)
    after = _held_out([query.text for query in queries], examples, told, folds, seed)
    progress.phase("measuring")
    told_before = [outcome_of(before, example) for example in examples]
    reports, begin = [], 0
    for one in sets:
        part = slice(begin, begin := begin + len(one.queries))
        reports.append(_report(one.name, examples[part], told_before[part], after[part], seed))
    if len(sets) > 1:
        reports.append(_report(ALL, examples, told_before, after, seed))
    metrics = {}
    for name, figure in reports[-1].figures.items():
        metrics[f"{name} before"] = round(figure.before.value, 4)
        metrics[f"{name} after"] = round(figure.after.value, 4)
    ranking = replace(fitted, provenance=replace(told, metrics=metrics))
    return Tuned(before, ranking, tuple(reports))


def _origin(one: QuerySet) -> str:
    return f"{len(one.queries):,} of {one.name}" + (f" (xxh3_128 {one.digest})" if one.digest else "")


def _weights(sets: Sequence[QuerySet], labelled_share: float) -> list[float]:
    """Return what every query of each set counts: 1 on average."""
    labelled = sum(len(one.queries) for one in sets if one.path is not None)
    made = sum(len(one.queries) for one in sets) - labelled
    if not labelled or not made:
        return [1.0] * len(sets)
    total = labelled + made
    each = {True: labelled_share * total / labelled, False: (1 - labelled_share) * total / made}
    return [each[one.path is not None] for one in sets]


def _held_out(
    texts: Sequence[str], examples: Sequence[Example], told: Provenance, folds: int, seed: int
) -> list[Outcome]:
    """Return what rankings make of queries that were held out, equal ones together."""
    different = sorted(set(texts))
    drawn = np.random.default_rng(seed).permutation(len(different)) % folds
    fold_of = dict(zip(different, drawn.tolist(), strict=True))
    outcomes: dict[int, Outcome] = {}
    for fold in range(folds):
        held = [at for at, text in enumerate(texts) if fold_of[text] == fold]
        seen = [example for example, text in zip(examples, texts, strict=True) if fold_of[text] != fold]
        try:
            ranking = fit(seen, told)
        except InputError as error:
            why = f"{error.message}, once one part of {folds} is held out: more queries are needed"
            raise InputError("queries", why) from error
        outcomes |= {at: outcome_of(ranking, examples[at]) for at in held}
    return [outcomes[at] for at in range(len(texts))]


def _report(
    name: str,
    examples: Sequence[Example],
    before: Sequence[Outcome],
    after: Sequence[Outcome],
    seed: int,
) -> SetReport:
    is_nothing = np.array([example.is_nothing for example in examples])
    tables = [_table(outcomes) for outcomes in (before, after)]
    every = np.arange(len(examples))
    values = np.stack([_metrics(table, is_nothing, every) for table in tables])
    rng = np.random.default_rng(seed)
    drawn = [rng.integers(0, len(examples), len(examples)) for _ in range(_RESAMPLES)]
    # Shape: (resamples, 2, metrics).
    resampled = np.array([[_metrics(table, is_nothing, some) for table in tables] for some in drawn])
    figures = {}
    for number, metric in enumerate(METRICS):
        first, second = values[:, number].tolist()
        if math.isnan(first) or math.isnan(second):
            continue
        parts = resampled[:, :, number]
        figures[metric] = Figure(
            Interval(first, *percentiles(parts[:, 0], 0.95)),
            Interval(second, *percentiles(parts[:, 1], 0.95)),
            Interval(second - first, *percentiles(parts[:, 1] - parts[:, 0], 0.95)),
        )
    found = sum(bool(example.right.any()) for example in examples)
    return SetReport(name, len(examples), int(is_nothing.sum()), found, figures)


def _table(outcomes: Sequence[Outcome]) -> FloatArray:
    """Return outcomes as columns: place, loss, sure, nothing, without. Shape: (5, n)."""
    rows = [(one.place, one.loss, one.sure, one.nothing, one.without) for one in outcomes]
    return np.array(rows, np.float64).T


def _metrics(
    table: FloatArray, is_nothing: npt.NDArray[np.bool_], chosen: npt.NDArray[np.int64]
) -> FloatArray:
    """Return the metrics of some queries, as in `METRICS`; NaN for those without a meaning."""
    place, loss, sure, nothing, without = table[:, chosen]
    is_nothing = is_nothing[chosen]
    place_of_answered = place[~is_nothing]
    hits = [math.nan, math.nan]
    if len(place_of_answered):
        hits = [float((place_of_answered < most).mean()) for most in (1, 10)]
    of_nothing, of_something = nothing[is_nothing], nothing[~is_nothing]
    if not len(of_nothing):  # the same queries, had their entity not been there
        has_answer = ~np.isnan(without)
        of_nothing, of_something = without[has_answer], nothing[has_answer]
    auc = _area(of_nothing, of_something)
    return np.array([*hits, loss.mean(), calibration_error(sure, place < 1), auc])


def _area(high: FloatArray, low: FloatArray) -> float:
    """Return how often a value of `high` is above one of `low`, equal ones counting half; NaN without any."""
    if not len(high) or not len(low):
        return math.nan
    ranks = rankdata(np.concatenate([high, low]))[: len(high)]
    return float((ranks.sum() - len(high) * (len(high) + 1) / 2) / (len(high) * len(low)))


def _rounded(value: Any) -> Any:
    """Round the numbers of a JSON value, and leave out what is None."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items() if item is not None}
    return round(value, 6) if isinstance(value, float) else value
