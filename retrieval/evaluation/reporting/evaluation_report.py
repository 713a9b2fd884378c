"""Composes the report of an evaluation from tables, sentences and drawings, and its figures as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from genret.retrieval.evaluation.reporting.comparison import (
    Figure,
    MethodFigures,
    Overview,
    OverviewRow,
    SetComparison,
    Settings,
    Times,
)
from genret.retrieval.evaluation.reporting.report_pages import (
    Block,
    Cell,
    Code,
    Drawing,
    Heading,
    Paragraph,
    Table,
    TermList,
)
from genret.retrieval.evaluation.reporting.wording import (
    ABOUT_LISTS,
    COLUMNS,
    answers_once,
    describe_methods,
    describe_metric,
    looks_at_first,
)
from genret.retrieval.tables import plain

_NOTHING = Cell("–")


@dataclass(frozen=True, slots=True)
class Facts:
    """The parts of a report that are no figures."""

    title: str  # title of the report
    batch_size: int  # queries answered together
    about: tuple[tuple[str, str], ...]  # names and values that say what was evaluated, and where
    command: str  # command that repeats it


def make_document(
    facts: Facts,
    settings: Settings,
    comparisons: Sequence[SetComparison],
    overview: Overview | None,
    drawings: Sequence[Drawing],
) -> list[Block]:
    """Return the report as blocks; drawings are called "overview" and "set-" with the name of a set."""
    drawn = {drawing.name: drawing for drawing in drawings}
    blocks: list[Block] = [Heading(1, facts.title), Paragraph(lead(comparisons))]
    blocks += [Paragraph(finding(comparison, settings)) for comparison in comparisons]
    if overview is not None:
        blocks += [Heading(2, "All sets"), _overview_table(overview)]
        blocks += [drawn["overview"]] if "overview" in drawn else []
    for comparison in comparisons:
        name = comparison.labelled.name
        blocks += [
            Heading(2, f"Set {name}"),
            Paragraph(about_set(comparison)),
            _set_table(comparison, settings),
        ]
        blocks += [drawn[f"set-{name}"]] if f"set-{name}" in drawn else []
    methods = dict.fromkeys(m.method for c in comparisons for m in c.methods)
    metrics = dict.fromkeys(name for c in comparisons for name in c.metrics)
    blocks += [Heading(2, "The methods"), Paragraph(ABOUT_LISTS), TermList(describe_methods(list(methods)))]
    blocks += [
        Heading(2, "The columns"),
        TermList(tuple((name, describe_metric(name)) for name in metrics)),
        TermList(tuple((name, _filled(text, facts, settings)) for name, text in COLUMNS)),
    ]
    return [
        *blocks,
        Heading(2, "How it was measured"),
        TermList(facts.about),
        Heading(3, "To repeat it"),
        Code(facts.command),
    ]


def _filled(text: str, facts: Facts, settings: Settings) -> str:
    return text.format(
        confidence=_spaced(f"{settings.confidence:.0%}"),
        num_resamples=settings.num_resamples,
        baseline=settings.baseline,
        batch_size=facts.batch_size,
        least_p=f"{2 / (settings.num_resamples + 1):.2g}",
    )


def _set_table(comparison: SetComparison, settings: Settings) -> Table:
    has_difference = any(m.difference is not None for m in comparison.methods)
    primary, *others = comparison.metrics
    rates = ["invalid", "NO_MATCH"]
    if any(m.rates["errors"] for m in comparison.methods):
        rates.append("errors")
    best = {
        name: max(known(m.figures[name].interval.value) for m in comparison.methods)
        for name in comparison.metrics
    }

    def row(method: MethodFigures) -> tuple[Cell, ...]:
        return (
            Cell(f"`{method.method}`"),
            _figure_cell(method.figures[primary], best[primary]),
            *(_difference_cells(method) if has_difference else ()),
            *(_figure_cell(method.figures[name], best[name]) for name in others),
            *(Cell(_share(method.rates[name])) for name in rates),
            *_time_cells(method.times),
        )

    compared = [f"Δ to {settings.baseline}", "p"] if has_difference else []
    confidence = _spaced(f"{settings.confidence:.0%}")
    return Table(
        f"{comparison.labelled.name}: methods by metric, with {confidence} intervals",
        ("method", primary, *compared, *others, *rates, "ms per query", "queries/s"),
        tuple(row(method) for method in comparison.methods),
    )


def _overview_table(overview: Overview) -> Table:
    best = {n: max(known(row.figures[n]) for row in overview.rows) for n in overview.set_names}
    best_mean = max(known(row.mean) for row in overview.rows)

    def cells(row: OverviewRow) -> tuple[Cell, ...]:
        ends = "" if math.isnan(row.mean_low) else f"[{row.mean_low:.3f}, {row.mean_high:.3f}]"
        return (
            Cell(f"`{row.method}`"),
            *(Cell(_number(v), is_best=v == best[n]) for n, v in row.figures.items()),
            Cell(_number(row.mean), ends, is_best=row.mean == best_mean),
            _gain_cell(row),
            Cell(_share(row.invalid)),
            _NOTHING if row.milliseconds is None else Cell(_milliseconds(row.milliseconds)),
            _NOTHING if row.seconds is None else Cell(f"{row.seconds:,.1f}"),
        )

    named = [f"{n} ({m})" for n, m in zip(overview.set_names, overview.metrics, strict=True)]
    gain = f"mean against {overview.baseline}"
    return Table(
        "The leading metric of every set, its mean over the sets, and what it costs",
        ("method", *named, "mean", gain, "invalid", "ms per query", "seconds in all"),
        tuple(cells(row) for row in overview.rows),
    )


def _gain_cell(row: OverviewRow) -> Cell:
    if row.gain is None:
        return _NOTHING
    gain, *ends = (
        _minus(_spaced(f"{g:+.1%}")) for g in (row.gain, row.gain_low, row.gain_high) if g is not None
    )
    return Cell(gain, f"[{', '.join(ends)}]" if ends else "")


def _figure_cell(figure: Figure, best: float) -> Cell:
    interval = figure.interval
    if math.isnan(interval.value):
        return _NOTHING
    note = f"[{interval.low:.3f}, {interval.high:.3f}]"
    if figure.spread is not None:
        note += f"\n±{figure.spread:.3f}"
    return Cell(_number(interval.value), note, is_best=interval.value == best)


def _difference_cells(method: MethodFigures) -> tuple[Cell, Cell]:
    difference, p = method.difference, method.adjusted_p
    if difference is None:
        cell = Cell("baseline")
    elif math.isnan(difference.value):
        cell = _NOTHING
    else:
        ends = f"[{difference.low:+.3f}, {difference.high:+.3f}]"
        cell = Cell(_minus(f"{difference.value:+.3f}"), _minus(ends))
    return cell, _NOTHING if p is None else Cell("<0.001" if p < 0.001 else f"{p:.3f}")


def _time_cells(times: Times | None) -> tuple[Cell, Cell]:
    if times is None:
        return _NOTHING, _NOTHING
    slow = f"p95 {_milliseconds(times.p95_ms)}, p99 {_milliseconds(times.p99_ms)}"
    return Cell(_milliseconds(times.p50_ms), slow), Cell(f"{times.queries_per_s:,.1f}")


def _milliseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _share(value: float) -> str:
    return "0" if value == 0 else _spaced(f"{value:.1%}") if value >= 0.001 else "<0.1 %"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def _spaced(percentage: str) -> str:
    return percentage.replace("%", " %")


def _minus(number: str) -> str:
    return number.replace("-", "−")


_SIGNIFICANT = 0.05
_FEW = 30  # percentile intervals of so few are narrower than they say


def lead(comparisons: Sequence[SetComparison]) -> str:
    """Return the first paragraph: what the report is of, and how its tables are read."""
    num_queries = sum(len(c.labelled.queries) for c in comparisons)
    num_methods = len({m.method for c in comparisons for m in c.methods})
    sets = "1 set" if len(comparisons) == 1 else f"{len(comparisons)} sets"
    methods = "1 method" if num_methods == 1 else f"{num_methods} methods"
    return (
        f"{methods} answered {num_queries:,} labelled queries of {sets} over one index. In every table a "
        "row is a method, higher figures are better unless they are times or shares of failures, and the "
        "best of a column is marked. What the methods and the columns are is said below the tables."
    )


def finding(comparison: SetComparison, settings: Settings) -> str:
    """Return a sentence or two on what a set shows."""
    primary = comparison.primary
    top = max(known(m.figures[primary].interval.value) for m in comparison.methods)
    if top == -math.inf:
        return f"On {comparison.labelled.name}, {primary} has no meaning for any query."
    best = [m for m in comparison.methods if m.figures[primary].interval.value == top]
    value = best[0].figures[primary].interval
    verb = "has" if len(best) == 1 else "have"
    text = (
        f"On {comparison.labelled.name}, {_listed(best)} {verb} the highest {primary}, {value.value:.3f} "
        f"[{value.low:.3f}, {value.high:.3f}]."
    )
    text += _unlike_lists(comparison)
    compared = [(m, m.difference.value, m.adjusted_p) for m in comparison.methods if m.difference]
    if all(p is None for _, _, p in compared):
        return text
    different = [(m, value) for m, value, p in compared if p is not None and p < _SIGNIFICANT]
    better = _listed([m for m, value in different if value > 0])
    worse = _listed([m for m, value in different if value < 0])
    return (
        f"{text} Higher than `{settings.baseline}` with an adjusted p below {_SIGNIFICANT}: {better}; "
        f"lower: {worse}."
    )


def _unlike_lists(comparison: SetComparison) -> str:
    """Return a sentence on the methods that answer with one title, if the metric favours lists."""
    single = [m for m in comparison.methods if answers_once(m.method)]
    if looks_at_first(comparison.primary) or not single or len(single) == len(comparison.methods):
        return ""
    return (
        f" {comparison.primary} looks beyond the first answer, and {_listed(single)} "
        f"{'gives' if len(single) == 1 else 'give'} no more than one title per query: beside the others, "
        "look at Success@1."
    )


def _listed(methods: Sequence[MethodFigures]) -> str:
    return ", ".join(f"`{m.method}`" for m in methods) or "none"


def about_set(comparison: SetComparison) -> str:
    """Return what a set consists of, and what its intervals rest on."""
    labelled = comparison.labelled
    kinds = {
        "queries": "queries",
        "kilt": "queries with sets of evidence",
        "mentions": "mentions in their context",
    }
    text = f"{len(labelled.queries):,} {kinds[labelled.kind]}; the leading metric is {comparison.primary}."
    units = "documents" if comparison.by_document else "queries"
    text += f" Intervals rest on {comparison.num_resampled:,} {units}"
    if comparison.num_resampled < _FEW:
        text += f": with fewer than {_FEW} they come out too narrow and p too small, "
        text += "and should be taken for rough"
    text += "."
    if labelled.missing:
        text += (
            f" {len(labelled.missing):,} relevant answers are not in the index; they count as never found, "
            "where the metric does not leave them out."
        )
    if labelled.num_unjudged:
        text += f" {labelled.num_unjudged:,} queries of the files have no judged answer and are left out."
    return text


def known(value: float) -> float:
    """Return a figure for comparisons: NaN is below all others."""
    return -math.inf if math.isnan(value) else value


FORMAT = 1


def to_json(
    facts: Facts, settings: Settings, comparisons: Sequence[SetComparison], overview: Overview | None
) -> dict[str, Any]:
    """Return the content of `results.json`; figures that have no meaning are null."""
    told: dict[str, Any] = plain(
        {
            "format": FORMAT,
            "about": dict(facts.about),
            "command": facts.command,
            "batch_size": facts.batch_size,
            "settings": settings,
            "sets": [_set(comparison) for comparison in comparisons],
            "overview": overview,
        }
    )
    return told


def _set(comparison: SetComparison) -> dict[str, Any]:
    labelled = comparison.labelled
    return {
        "name": labelled.name,
        "kind": labelled.kind,
        "digest": labelled.digest,
        "num_queries": len(labelled.queries),
        "num_missing": len(labelled.missing),
        "num_unjudged": labelled.num_unjudged,
        "primary": comparison.primary,
        "num_resampled": comparison.num_resampled,
        "by_document": comparison.by_document,
        "methods": [_method(method) for method in comparison.methods],
    }


def _method(method: MethodFigures) -> dict[str, Any]:
    return {
        "method": method.method,
        "is_constrained": method.is_constrained,
        "seeds": method.seeds,
        "metrics": {
            name: {
                **{end: getattr(figure.interval, end) for end in ("value", "low", "high")},
                "spread": figure.spread,
            }
            for name, figure in method.figures.items()
        },
        "rates": method.rates,
        "times": method.times,
        "difference": method.difference,
        "adjusted_p": method.adjusted_p,
    }
