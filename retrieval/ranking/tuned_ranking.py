"""Tunes a ranking: reads labelled queries, fits to them and to made ones, and measures on held-out queries.

A model is weighed in the same way, with its own candidates and log P(e | q).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from genret.retrieval.checkpoints import folder_fingerprint
from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.evaluation.datasets.index_entities import IndexResolver
from genret.retrieval.evaluation.datasets.labels import FileQuery, SetSpec, find_answers
from genret.retrieval.evaluation.datasets.readers import read_query_file
from genret.retrieval.evaluation.intervals import Interval, percentiles
from genret.retrieval.evidence.evidence import FEATURES, Evidence
from genret.retrieval.index.reader import Index
from genret.retrieval.loaded_model import load_model
from genret.retrieval.progress import StepProgress
from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.ranking.fitting import (
    MADE_QUERIES,
    Decode,
    QueryOutcome,
    RankedExample,
    Scored,
    calibration_error,
    example_of,
    fit,
    outcome_of,
)
from genret.retrieval.ranking.made_queries import NUM_QUERIES, Labelled, make_queries
from genret.retrieval.ranking.ranker import Ranker
from genret.retrieval.ranking.rankings import NO_MODEL, FloatArray, Provenance, Ranking, Rankings
from genret.retrieval.retriever import Retriever
from genret.retrieval.sources.source_files import digest_file
from genret.retrieval.tables import Shown
from genret.retrieval.text import TextTokenizer

ALL = "all"
METRICS = ("hits@1", "hits@10", "loss", "calibration error", "nothing AUC")
_RESAMPLES = 1000
# Queries that a model is asked at once.
_BATCH = 16


@dataclass(frozen=True, slots=True)
class TunedFigure:
    """A metric of one set, with 95 % bootstrap intervals over its queries."""

    before: Interval  # with the previous ranking
    after: Interval  # with rankings fitted to other queries than those they are measured on
    difference: Interval  # after minus before, over the same resamples


@dataclass(frozen=True, slots=True)
class SetReport:
    """Metrics of the queries of one origin."""

    name: str  # name of the set, or `ALL`
    num_queries: int
    num_nothing: int  # number of queries for nothing in the index
    num_found: int  # number of the others whose entity is among the candidates
    # Figures by the names of `METRICS`, as far as they are defined for these queries.
    figures: Mapping[str, TunedFigure]


@dataclass(frozen=True, slots=True, repr=False)
class Tuned(Shown):
    """The result of a tuning: the ranking fitted to all queries, and reports per set and on all together."""

    before: Ranking
    ranking: Ranking
    reports: tuple[SetReport, ...]

    _rows = "reports"

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object."""
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
    progress: StepProgress,
    *,
    labelled_share: float = 0.5,
    folds: int = 5,
    seed: int = 0,
) -> Tuned:
    """Fit a ranking to queries, and measure it on each fold with weights fitted to the others.

    The queries made from the catalogue come last in `sets`. `decode` asks the model, if there is one. Beside
    made queries, labelled ones get the share `labelled_share` of all weight, in (0, 1). At least 2 folds.

    Raises:
        InputError: there are too few queries for fitting and holding out, or an option is out of range.
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
    examples: list[RankedExample] = []
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
    """Return the weight of the queries of each set: 1 on average."""
    labelled = sum(len(one.queries) for one in sets if one.path is not None)
    made = sum(len(one.queries) for one in sets) - labelled
    if not labelled or not made:
        return [1.0] * len(sets)
    total = labelled + made
    each = {True: labelled_share * total / labelled, False: (1 - labelled_share) * total / made}
    return [each[one.path is not None] for one in sets]


def _held_out(
    texts: Sequence[str], examples: Sequence[RankedExample], told: Provenance, folds: int, seed: int
) -> list[QueryOutcome]:
    """Return the outcomes of held-out queries; equal queries are held out together."""
    different = sorted(set(texts))
    drawn = np.random.default_rng(seed).permutation(len(different)) % folds
    fold_of = dict(zip(different, drawn.tolist(), strict=True))
    outcomes: dict[int, QueryOutcome] = {}
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
    examples: Sequence[RankedExample],
    before: Sequence[QueryOutcome],
    after: Sequence[QueryOutcome],
    seed: int,
) -> SetReport:
    is_nothing = np.array([example.is_nothing for example in examples])
    tables = [np.array(outcomes) for outcomes in (before, after)]
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
        figures[metric] = TunedFigure(
            Interval(first, *percentiles(parts[:, 0], 0.95)),
            Interval(second, *percentiles(parts[:, 1], 0.95)),
            Interval(second - first, *percentiles(parts[:, 1] - parts[:, 0], 0.95)),
        )
    found = sum(bool(example.right.any()) for example in examples)
    return SetReport(name, len(examples), int(is_nothing.sum()), found, figures)


def _metrics(
    table: FloatArray, is_nothing: npt.NDArray[np.bool_], chosen: npt.NDArray[np.int64]
) -> FloatArray:
    """Return the metrics of some queries, as in `METRICS`; NaN for undefined ones.

    `table` has the outcome of a query in a row. Shape: (n, 5).
    """
    place, loss, sure, nothing, without = table[chosen].T
    is_nothing = is_nothing[chosen]
    place_of_answered = place[~is_nothing]
    hits = [math.nan, math.nan]
    if len(place_of_answered):
        hits = [float((place_of_answered < most).mean()) for most in (1, 10)]
    of_nothing, of_something = nothing[is_nothing], nothing[~is_nothing]
    if not len(of_nothing):  # instead the same queries without their entity
        has_answer = ~np.isnan(without)
        of_nothing, of_something = without[has_answer], nothing[has_answer]
    auc = _area(of_nothing, of_something)
    return np.array([*hits, loss.mean(), calibration_error(sure, place < 1), auc])


def _area(high: FloatArray, low: FloatArray) -> float:
    """Return how often a value of `high` is above one of `low`, ties counting half; NaN without any."""
    if not len(high) or not len(low):
        return math.nan
    _, place, counts = np.unique(np.concatenate([high, low]), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place[: len(high)]]
    return float((ranks.sum() - len(high) * (len(high) + 1) / 2) / (len(high) * len(low)))


def _rounded(value: Any) -> Any:
    """Round the numbers of a JSON value, and drop None."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items() if item is not None}
    return round(value, 6) if isinstance(value, float) else value


# More queries of a file tell little about two dozen weights, and take their time.
DEFAULT_LIMIT = 2000


@dataclass(frozen=True, slots=True)
class QuerySet:
    """Queries of one origin."""

    name: str  # name of the file, and of the split
    queries: tuple[Labelled, ...]
    path: Path | None = None  # the file; None for queries made from the catalogue
    digest: str = ""  # of the file
    num_unknown: int = 0  # number of queries left out because the index lacks their entities


def read_query_sets(
    texts: Sequence[str], index: Index, max_unknown: int = 0, limit: int = DEFAULT_LIMIT, seed: int = 0
) -> list[QuerySet]:
    """Read files of labelled queries, FILE or FILE#SPLIT, for an index.

    They are TSV with a header or JSON Lines, as `genret evaluate` reads them. A line of TSV with neither
    entity_id nor title, or an empty list of gold, means that nothing of the index answers the query. Up to
    `max_unknown` queries with unknown entities are left out. More than `limit` queries of a file are sampled.

    Raises:
        InputError: no file or no split is named.
        SourceError: a file is missing or malformed, or more queries than allowed have unknown entities.
    """
    resolver = IndexResolver(index)
    sets, unknown = [], []
    for text in texts:
        try:
            spec = SetSpec.parse(f"queries:{text}")
        except InputError as error:
            raise InputError("queries", f"expected FILE or FILE#SPLIT, got {text!r}") from error
        read, _ = read_query_file(spec, has_nil=True)
        judged = [query for query in read if query.answers or query.is_nil]
        if len(judged) > limit:
            judged = [judged[at] for at in sorted(Random(seed).sample(range(len(judged)), limit))]
        queries, missing = _labelled(judged, index, resolver)
        unknown += [f"{spec.path}, line {query.line}: {_named(query)}" for query in missing]
        name = Path(spec.path).name + (f"#{spec.split}" if spec.split else "")
        path = Path(spec.path)
        sets.append(QuerySet(name, tuple(queries), path, digest_file(path).xxh3_128, len(missing)))
    if len(unknown) > max_unknown:
        raise SourceError(
            f"{len(unknown):,} queries are for entities that the index {index.path} lacks, at most "
            f"{max_unknown:,} may be:\n  " + "\n  ".join([*unknown[:5], *(["…"] if unknown[5:] else [])])
        )
    return sets


def made_set(index: Index, evidence: Evidence, count: int | None, seed: int) -> QuerySet:
    """Return at most `count` queries made from the catalogue of an index."""
    columns = () if index.evidence is None else index.evidence.columns
    return QuerySet(MADE_QUERIES, tuple(make_queries(index, evidence, columns, count, seed)))


def _labelled(
    judged: Sequence[FileQuery], index: Index, resolver: IndexResolver
) -> tuple[list[Labelled], list[FileQuery]]:
    """Return the queries with their entities' numbers, and those whose entities the index lacks."""
    found = find_answers(judged, resolver)
    wanted = [
        [entity for entity, grade in query.gold.items() if grade > 0]
        + [entity for entity, other in query.namesakes.items() if query.gold[other] > 0]
        for query in found
    ]
    ids = list(dict.fromkeys(entity for mine in wanted for entity in mine))
    number_of = dict(zip(ids, index.entities.numbers(ids).tolist(), strict=True)) if ids else {}
    queries, missing = [], []
    for query, one, mine in zip(judged, found, wanted, strict=True):
        numbers = tuple(number_of[entity] for entity in mine if number_of[entity] >= 0)
        if numbers or query.is_nil:
            queries.append(Labelled(one.text, numbers))
        elif mine:  # irrelevant entities alone teach nothing
            missing.append(query)
    return queries, missing


def _named(query: FileQuery) -> str:
    names = [repr(answer.entity_id or answer.title) for answer in query.answers]
    return f"{query.text!r} is for {', '.join(names[:3])}"


# A model is asked for as many entities as `auto` by default.
_BEAMS, _MOST = 10, 1000
# A build fits its ranking to queries made by seed 0; other queries measure both rankings fairly.
_SEED = 1


def decoder_of(retriever: Retriever) -> Decode:
    """Return a function that gives the candidates of `auto` with log P(e | q)."""
    entities = retriever.index.entities

    def decode(queries: Sequence[str]) -> list[Scored]:
        found = []
        for result in retriever.retrieve(queries, _MOST, "auto", beam_size=_BEAMS):
            numbers = entities.find([candidate.entity_id for candidate in result.candidates])
            logprobs = np.array([candidate.logprob for candidate in result.candidates], np.float64)
            found.append((numbers, logprobs))
        return found

    return decode


def weigh_model(
    index: Index,
    evidence: Evidence,
    rankings: Rankings,
    model: str | Path,
    num_threads: int,
    progress: StepProgress,
    prompt: str | None = None,
) -> tuple[str, Tuned]:
    """Fit a ranking for a model, a checkpoint directory or hub id, to queries made from the catalogue.

    The index stays open. The ranking without a model chooses the candidates that the model scores. Returns
    the model's fingerprint, and the result of the fit.

    Raises:
        InputError: too few queries find their entity.
        IndexMismatchError: the index was built for another tokenizer or rendering.
        ModelError: the model cannot be loaded, or the encoder of the vectors fails.
    """
    progress.phase("loading the model")
    tokenizer = TextTokenizer.load(model)
    folder = Path(tokenizer.source)  # for a hub id, the folder it was fetched to
    fingerprint = folder_fingerprint(folder)
    before, _ = rankings.of(fingerprint)
    alone, _ = rankings.of(NO_MODEL)
    config = CheckpointConfig.load(folder).with_prompt(prompt)
    loaded = load_model(model, "auto", "auto", num_threads, trust_remote_code=False)
    ranker = Ranker(evidence, before, alone)
    retriever = Retriever(index, loaded, tokenizer, config, ranker=ranker)
    made = made_set(index, evidence, NUM_QUERIES[0], _SEED)
    return fingerprint, tune([made], evidence, decoder_of(retriever), before, progress, seed=_SEED)
