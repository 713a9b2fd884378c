"""The report of an evaluation: what is said, in which order, before it is Markdown or HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from retrieval.evaluation.intervals import Interval
from retrieval.evaluation.reporting.blocks import (
    Block,
    Cell,
    Code,
    Drawing,
    Heading,
    Paragraph,
    Table,
    Terms,
)
from retrieval.evaluation.reporting.comparison import Figure, MethodFigures, SetComparison, Settings
from retrieval.evaluation.reporting.findings import about_set, finding, known, lead
from retrieval.evaluation.reporting.overview import Overview, OverviewRow
from retrieval.evaluation.reporting.wording import (
    ABOUT_LISTS,
    COLUMNS,
    describe_methods,
    describe_metric,
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
    blocks += [Heading(2, "The methods"), Paragraph(ABOUT_LISTS), Terms(describe_methods(list(methods)))]
    blocks += [
        Heading(2, "The columns"),
        Terms(tuple((name, describe_metric(name)) for name in metrics)),
        Terms(tuple((name, _filled(text, facts, settings)) for name, text in COLUMNS)),
    ]
    return [
        *blocks,
        Heading(2, "How it was measured"),
        Terms(facts.about),
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
