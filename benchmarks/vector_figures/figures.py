"""Times and hits of shortlists, in figures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from harness.report import Spread

from vector_figures.flat import FlatAnswer, IntArray
from vector_figures.proposing import PARTS, WHOLE, Asked
from vector_figures.queries import TitleQuery

DEPTHS = (1, 10, 100)
ALL = "all"


@dataclass(frozen=True, slots=True)
class PartTimes:
    """Of one part of a shortlist, over the queries of a round; the spread is that of rounds. Milliseconds.

    Attributes:
        p50_ms: Wall time.
        p95_ms: Wall time.
        cpu_ms: Mean processor time of a query, all threads together.
    """

    p50_ms: Spread
    p95_ms: Spread
    cpu_ms: Spread


@dataclass(frozen=True, slots=True)
class Quality:
    """Of the shortlists of some queries, beside Flat search. Shares of 1.

    Attributes:
        queries: How many.
        recall: Of Flat's entities, in order by exact similarities, those on the list.
        raw_share: Of Flat's entities, by their vectors alone, those among the candidates.
        hits: Queries whose title is among the first so many.
        flat_hits: The same with Flat search and exact similarities.
    """

    queries: int
    recall: float
    raw_share: float
    hits: dict[int, float]
    flat_hits: dict[int, float]


def part_times(rounds: Sequence[Sequence[Asked]]) -> dict[str, PartTimes]:
    """Return the times of every part of the shortlists asked for in some rounds."""
    figures = {}
    for part in PARTS:
        wall = [[1000 * asked.wall_s[part] for asked in one] for one in rounds]
        cpu = [[1000 * asked.cpu_s[part] for asked in one] for one in rounds]
        figures[part] = PartTimes(
            Spread.of([float(np.percentile(times, 50)) for times in wall]),
            Spread.of([float(np.percentile(times, 95)) for times in wall]),
            Spread.of([statistics.fmean(times) for times in cpu]),
        )
    return figures


def qualities(
    queries: Sequence[TitleQuery], answers: Sequence[Asked], flat: Sequence[FlatAnswer]
) -> dict[str, Quality]:
    """Return the quality of all shortlists, and of those of each kind of query."""
    kinds = {ALL: list(range(len(queries)))}
    for i, query in enumerate(queries):
        kinds.setdefault(query.kind, []).append(i)
    return {
        kind: _quality([queries[i] for i in at], [answers[i] for i in at], [flat[i] for i in at])
        for kind, at in kinds.items()
    }


def hits(queries: Sequence[TitleQuery], lists: Sequence[IntArray]) -> dict[int, float]:
    """Return the share of queries whose entity is among the first of its list, by how many count as first."""
    return {
        depth: statistics.fmean(
            float(query.entity in found[:depth]) for query, found in zip(queries, lists, strict=True)
        )
        for depth in DEPTHS
    }


def times_text(times: dict[str, PartTimes]) -> str:
    """Return the times of the whole, and the medians of its parts."""
    whole = times[WHOLE]
    parts = ", ".join(
        f"{part} {figure.p50_ms.median:,.2f} ({figure.cpu_ms.median:,.2f})"
        for part, figure in times.items()
        if part != WHOLE
    )
    return (
        f"p50 {whole.p50_ms.text()} ms, p95 {whole.p95_ms.text()} ms, CPU {whole.cpu_ms.text()} ms; "
        f"p50 (CPU) of {parts}"
    )


def quality_text(quality: Quality) -> str:
    """Return recall and hits."""
    return (
        f"recall@{DEPTHS[-1]} {quality.recall:.1%}, of Flat's raw {DEPTHS[-1]} among the candidates "
        f"{quality.raw_share:.1%}; {hits_text(quality.hits)} (Flat {shares_text(quality.flat_hits)})"
    )


def hits_text(found: dict[int, float]) -> str:
    """Return "hits@1/10/100" and the shares."""
    return f"hits@{'/'.join(map(str, found))} {shares_text(found)}"


def shares_text(found: dict[int, float]) -> str:
    """Return shares of hits in percent."""
    return " / ".join(f"{100 * share:.1f}" for share in found.values()) + " %"


def _quality(queries: Sequence[TitleQuery], answers: Sequence[Asked], flat: Sequence[FlatAnswer]) -> Quality:
    pairs = list(zip(answers, flat, strict=True))
    return Quality(
        len(queries),
        statistics.fmean(_share(asked.shortlist.entities, wanted.ordered) for asked, wanted in pairs),
        statistics.fmean(_share(asked.candidates, wanted.raw) for asked, wanted in pairs),
        hits(queries, [asked.shortlist.entities for asked in answers]),
        hits(queries, [wanted.ordered for wanted in flat]),
    )


def _share(found: IntArray, wanted: IntArray) -> float:
    """Return the share of the wanted that was found."""
    return len(np.intersect1d(found, wanted)) / len(wanted) if len(wanted) else 1.0
