"""Composes the report of an evaluation: tables, sentences and drawings in order, and its figures as JSON.

Sentences say what was evaluated and what came out, and no more than that. The JSON is that of `results.json`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from retrieval.evaluation.intervals import Interval
from retrieval.evaluation.reporting.comparison import (
    Figure,
    MethodFigures,
    Overview,
    OverviewRow,
    SetComparison,
    Settings,
)
from retrieval.evaluation.reporting.report_pages import (
    Block,
    Cell,
    Code,
    Drawing,
    Heading,
    Paragraph,
    Table,
    TermList,
)
from retrieval.evaluation.reporting.wording import (
    ABOUT_LISTS,
    COLUMNS,
    answers_once,
    describe_methods,
    describe_metric,
    looks_at_first,
)

_NOTHING = Cell("–")


@dataclass(frozen=True, slots=True)
class Facts:
    """What a report says beside its figures.

    Attributes:
        title: Of the report.
        batch_size: Queries answered together.
        about: What was evaluated, and where: names and values.
        command: To repeat it.
    """

    title: str
    batch_size: int
    about: tuple[tuple[str, str], ...]
    command: str


def make_document(
    facts: Facts,
    settings: Settings,
    comparisons: Sequence[SetComparison],
    overview: Overview | None,
    drawings: Sequence[Drawing],
) -> list[Block]:
    """Return the report.

    Args:
        facts: What is not a figure.
        settings: How figures were made.
        comparisons: One per set.
        overview: Over several sets; None with one.
        drawings: Called "overview" and "set-" with the name of a set; there may be none.
    """
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
        confidence=f"{settings.confidence:.0%}".replace("%", " %"),
        num_resamples=settings.num_resamples,
        baseline=settings.baseline,
        batch_size=facts.batch_size,
        least_p=f"{2 / (settings.num_resamples + 1):.2g}",
    )


def _set_table(comparison: SetComparison, settings: Settings) -> Table:
    has_errors = any(m.rates["errors"] for m in comparison.methods)
    has_difference = any(m.difference is not None for m in comparison.methods)
    primary, *others = comparison.metrics
    rates = ["invalid", "NO_MATCH", *(["errors"] if has_errors else [])]
    best = {
        name: max(known(m.figures[name].interval.value) for m in comparison.methods)
        for name in comparison.metrics
    }

    def row(method: MethodFigures) -> tuple[Cell, ...]:
        compared = [_difference_cell(method), _p_cell(method)] if has_difference else []
        return (
            Cell(f"`{method.method}`"),
            _figure_cell(method.figures[primary], best[primary]),
            *compared,
            *(_figure_cell(method.figures[name], best[name]) for name in others),
            *(Cell(_share(method.rates[name])) for name in rates),
            *_time_cells(method),
        )

    header = [
        "method",
        primary,
        *([f"Δ to {settings.baseline}", "p"] if has_difference else []),
        *others,
        *rates,
        "ms per query",
        "queries/s",
    ]
    return Table(
        f"{comparison.labelled.name}: methods by metric, with {settings.confidence:.0%} intervals".replace(
            "%", " %"
        ),
        tuple(header),
        tuple(row(method) for method in comparison.methods),
    )


def _overview_table(overview: Overview) -> Table:
    best = {n: max(known(row.figures[n]) for row in overview.rows) for n in overview.set_names}
    best_mean = max(known(row.mean) for row in overview.rows)

    def cells(row: OverviewRow) -> tuple[Cell, ...]:
        figures = [Cell(_number(v), is_best=v == best[n]) for n, v in row.figures.items()]
        ends = "" if math.isnan(row.mean_low) else f"[{row.mean_low:.3f}, {row.mean_high:.3f}]"
        figures.append(Cell(_number(row.mean), ends, is_best=row.mean == best_mean))
        gain = _gain_cell(row)
        time = _NOTHING if row.milliseconds is None else Cell(_milliseconds(row.milliseconds))
        total = _NOTHING if row.seconds is None else Cell(f"{row.seconds:,.1f}")
        return (Cell(f"`{row.method}`"), *figures, gain, Cell(_share(row.invalid)), time, total)

    named = [f"{n} ({m})" for n, m in zip(overview.set_names, overview.metrics, strict=True)]
    return Table(
        "The leading metric of every set, its mean over the sets, and what it costs",
        (
            "method",
            *named,
            "mean",
            f"mean against {overview.baseline}",
            "invalid",
            "ms per query",
            "seconds in all",
        ),
        tuple(cells(row) for row in overview.rows),
    )


def _gain_cell(row: OverviewRow) -> Cell:
    if row.gain is None:
        return _NOTHING
    if row.gain_low is None or row.gain_high is None:
        return Cell(_percent(row.gain))
    return Cell(_percent(row.gain), f"[{_percent(row.gain_low)}, {_percent(row.gain_high)}]")


def _percent(value: float) -> str:
    return f"{value:+.1%}".replace("%", " %").replace("-", "−")


def _figure_cell(figure: Figure, best: float) -> Cell:
    interval = figure.interval
    if math.isnan(interval.value):
        return _NOTHING
    note = f"[{interval.low:.3f}, {interval.high:.3f}]"
    if figure.spread is not None:
        note += f"\n±{figure.spread:.3f}"
    return Cell(_number(interval.value), note, is_best=interval.value == best)


def _difference_cell(method: MethodFigures) -> Cell:
    difference = method.difference
    if difference is None:
        return Cell("baseline")
    if math.isnan(difference.value):
        return _NOTHING
    return Cell(f"{difference.value:+.3f}".replace("-", "−"), _signed(difference))


def _signed(interval: Interval) -> str:
    return f"[{interval.low:+.3f}, {interval.high:+.3f}]".replace("-", "−")


def _p_cell(method: MethodFigures) -> Cell:
    if method.adjusted_p is None:
        return _NOTHING
    return Cell("<0.001" if method.adjusted_p < 0.001 else f"{method.adjusted_p:.3f}")


def _time_cells(method: MethodFigures) -> tuple[Cell, ...]:
    times = method.times
    if times is None:
        return (_NOTHING, _NOTHING)
    slow = f"p95 {_milliseconds(times.p95_ms)}, p99 {_milliseconds(times.p99_ms)}"
    return (Cell(_milliseconds(times.p50_ms), slow), Cell(f"{times.queries_per_s:,.1f}"))


def _milliseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _share(value: float) -> str:
    return "0" if value == 0 else f"{value:.1%}".replace("%", " %") if value >= 0.001 else "<0.1 %"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


_SIGNIFICANT = 0.05
_FEW = 30  # percentile intervals of so few are narrower than they say


def lead(comparisons: Sequence[SetComparison]) -> str:
    """Return what the report is of, and how its tables are read."""
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
    """Return in a sentence or two what a set shows."""
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
    if all(m.adjusted_p is None for m in comparison.methods):
        return text
    different = [m for m in comparison.methods if _differs(m) and m.difference]
    better = _listed([m for m in different if m.difference and m.difference.value > 0])
    worse = _listed([m for m in different if m.difference and m.difference.value < 0])
    text += (
        f" Higher than `{settings.baseline}` with an adjusted p below {_SIGNIFICANT}: {better}; "
        f"lower: {worse}."
    )
    return text


def _unlike_lists(comparison: SetComparison) -> str:
    """Return in a sentence which methods cannot gain what lists can, where lists are favoured."""
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


def _differs(method: MethodFigures) -> bool:
    return method.adjusted_p is not None and method.adjusted_p < _SIGNIFICANT


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
    text += (
        f": with fewer than {_FEW} they come out too narrow and p too small, and should be taken for rough."
        if comparison.num_resampled < _FEW
        else "."
    )
    if labelled.num_missing:
        text += (
            f" {labelled.num_missing:,} relevant answers are not in the index; they count as never found, "
            "where the metric does not leave them out."
        )
    if labelled.num_unjudged:
        text += f" {labelled.num_unjudged:,} queries of the files have no judged answer and are left out."
    return text


def known(value: float) -> float:
    """Return a figure for comparisons: one without a meaning is below all others."""
    return -math.inf if math.isnan(value) else value


FORMAT = 1


def to_json(
    facts: Facts, settings: Settings, comparisons: Sequence[SetComparison], overview: Overview | None
) -> dict[str, Any]:
    """Return a JSON object; figures that have no meaning are null."""
    document = {
        "format": FORMAT,
        "about": dict(facts.about),
        "command": facts.command,
        "batch_size": facts.batch_size,
        "settings": asdict(settings),
        "sets": [_set(comparison) for comparison in comparisons],
        "overview": None if overview is None else asdict(overview),
    }
    cleaned: dict[str, Any] = _without_nan(document)
    return cleaned


def _set(comparison: SetComparison) -> dict[str, Any]:
    labelled = comparison.labelled
    return {
        "name": labelled.name,
        "kind": labelled.kind,
        "digest": labelled.digest,
        "num_queries": len(labelled.queries),
        "num_missing": labelled.num_missing,
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
        "seeds": list(method.seeds),
        "metrics": {
            name: {
                "value": figure.interval.value,
                "low": figure.interval.low,
                "high": figure.interval.high,
                "spread": figure.spread,
            }
            for name, figure in method.figures.items()
        },
        "rates": dict(method.rates),
        "times": None if method.times is None else asdict(method.times),
        "difference": None if method.difference is None else asdict(method.difference),
        "adjusted_p": method.adjusted_p,
    }


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
