"""Figures of ordered candidates: hits, nDCG and reciprocal ranks, and the settings that are best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retrieval.evaluation.intervals import Interval, paired_bootstrap
from retrieval.evaluation.metrics import MetricValues, measure
from retrieval.evaluation.types import LabelledSet, MethodRun, RankedEntity, Ranking
from shortlist_figures.candidates import Candidates
from shortlist_figures.fusions import Fusion

METRICS = ("Success@1", "Success@10", "nDCG@10", "RR@10")
SHOWN = ("hits@1", "hits@10", "nDCG@10", "MRR@10")
CHOSEN_BY = "nDCG@10"
_K = 10

Figures = Mapping[str, MetricValues]


@dataclass(frozen=True, slots=True)
class TunedSet:
    """A labelled set with the candidates of its queries."""

    labelled: LabelledSet
    candidates: Sequence[Candidates]


def figures_of(labelled: LabelledSet, run: MethodRun) -> Figures:
    """Return the metrics of a run by name."""
    return {values.name: values for values in measure(labelled, run, METRICS)}


def run_of(tuned: TunedSet, fusion: Fusion) -> MethodRun:
    """Return the ten best candidates of every query as a run."""
    rankings = []
    for candidates in tuned.candidates:
        scores = fusion.scores(candidates)
        rankings.append(
            Ranking(
                candidates.query_id,
                tuple(
                    RankedEntity(candidates.entity_ids[i], candidates.titles[i], float(scores[i]))
                    for i in fusion.ranked(candidates)[:_K]
                ),
            )
        )
    return MethodRun(fusion.name, tuned.labelled.name, tuple(rankings), 0.0, None, True)


def curve(tuned: Sequence[TunedSet], fusions: Sequence[Fusion]) -> dict[str, dict[str, float]]:
    """Return the means over sets of every metric, by the name of the fusion."""
    found = {}
    for fusion in fusions:
        each = [figures_of(one.labelled, run_of(one, fusion)) for one in tuned]
        found[fusion.name] = {m: sum(f[m].value for f in each) / len(each) for m in METRICS}
    return found


def best(means: Mapping[str, Mapping[str, float]], fusions: Sequence[Fusion]) -> Fusion:
    """Return the fusion with the best nDCG@10 of a curve; of equal ones the first."""
    return max(fusions, key=lambda fusion: means[fusion.name][CHOSEN_BY])


def difference(labelled: LabelledSet, ours: MetricValues, theirs: MetricValues, resamples: int) -> Interval:
    """Return the paired difference of a metric with its 95 % interval, by document where there are any."""
    documents = [query.document for query in labelled.queries]
    groups = None if None in documents else [str(document) for document in documents]
    return paired_bootstrap(ours, theirs, groups, num_resamples=resamples)
