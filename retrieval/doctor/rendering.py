"""The findings of `genret doctor` as text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from textwrap import fill

from decoding.conformance.difference import Difference, Tolerance
from decoding.conformance.report import Examination, LayerResult, ModelFacts, Report
from retrieval.doctor.usage import Usage

_WIDTH = 100
_STANDING = {
    "verified": "verified: the tests of this library compare it with plain decoding",
    "checked when loaded": "not verified: a short check decides whenever it is loaded",
    "refused": "refused by name when it is loaded",
}


def render(place: str, report: Report, usage: Usage | str | None) -> str:
    """Everything that was found, the verdict, and how to use an exact model (or why nobody knows)."""
    found = report.examination
    blocks = [_facts(place, report.facts, found)]
    if found is not None:
        blocks.append(_scenarios(found))
        if found.layers:
            blocks.append(_layers(found))
        blocks += [_wrapped(f"Not covered: {what}.") for what in found.plan.uncovered]
        blocks += [_wrapped(note) for note in _notes(report.facts, found)]
    blocks.append(_wrapped(_verdict(report)))
    if usage is not None:
        blocks.append(_wrapped(f"Use: {usage}.") if isinstance(usage, str) else _usage(usage))
    return "\n\n".join(blocks)


def _facts(place: str, facts: ModelFacts, found: Examination | None) -> str:
    lines = [("model", place), ("architecture", facts.model_type), ("standing", _STANDING[facts.standing])]
    if facts.parameters is not None:
        lines.append(("parameters", f"{facts.parameters:,} in {facts.dtype} on {facts.device}"))
        kinds = Counter(facts.layers)
        layers = [f"{count} x {kind}" for kind, count in kinds.items()] or ["not found"]
        lines += [("layers" if not n else "", text) for n, text in enumerate(layers)]
        lines.append(("positions", facts.positions or "unknown"))
    if found is not None:
        options, plan = found.options, found.plan
        trees = "1 tree" if options.trees == 1 else f"{options.trees} trees"
        lines += [
            (
                "compared",
                f"{trees} of 4 queries, {plan.depth} levels of {options.beams} branches, "
                f"prompts up to {plan.prompt_tokens} tokens, seed {options.seed}",
            ),
            ("with", f"every path alone in a plain forward pass ({facts.own_attention} attention, no cache)"),
        ]
    return "\n".join(f"{name:<14}{text}" for name, text in lines)


def _scenarios(found: Examination) -> str:
    rows: list[tuple[str, ...]] = [
        ("token trees", "branches", "largest diff", "relative", "same first choice")
    ]
    rows += [_scenario_row(result.name, result.difference) for result in found.scenarios]
    rows.append(_scenario_row("all", found.overall))
    if found.rounding.branches:
        rows.append(_scenario_row("plain passes among themselves", found.rounding))
    return _table(rows, left={0})


def _scenario_row(name: str, difference: Difference) -> tuple[str, ...]:
    if not difference.branches:
        return (name, "0", "-", "-", "cannot be done")
    return (
        name,
        f"{difference.branches:,}",
        f"{difference.largest:.1e}",
        f"{difference.relative:.1e}",
        f"{difference.agreeing / difference.branches:.1%}",
    )


def _layers(found: Examination) -> str:
    """One line for every kind of layer."""
    by_kind: dict[str, list[LayerResult]] = {}
    for layer in found.layers:
        by_kind.setdefault(layer.kind, []).append(layer)
    rows: list[tuple[str, ...]] = [
        ("decoder layers read by the head", "count", "largest diff", "relative", "worst layer", "in")
    ]
    for kind, layers in by_kind.items():
        worst = _worst(found.tolerance, layers)
        rows.append(
            (
                kind,
                str(len(layers)),
                f"{worst.difference.largest:.1e}",
                f"{worst.difference.relative:.1e}",
                str(worst.number),
                worst.scenario,
            )
        )
    return _table(rows, left={0, 5})


def _worst(tolerance: Tolerance, layers: Sequence[LayerResult]) -> LayerResult:
    """The layer with the largest difference; a NaN is larger than anything."""
    broken = [layer for layer in layers if layer.difference.largest != layer.difference.largest]
    return broken[0] if broken else max(layers, key=lambda layer: tolerance.measure(layer.difference))


def _usage(usage: Usage) -> str:
    end = "none that its tokenizer names: name one with --end-token of genret build"
    lines = [
        ("prompt", usage.prompt),
        ("end token", end if usage.end_token is None else repr(usage.end_token)),
        ("dtype", f"{usage.dtype} ({usage.why_dtype})"),
        ("memory", f"{_size(usage.weights_bytes)} of weights, {_size(usage.kv_bytes_per_token)} a token"),
        ("a query", f"{usage.query_s:.2g} s in {usage.dtype} ({usage.query})"),
        *(("type" if not number else "", command) for number, command in enumerate(usage.commands)),
    ]
    return "\n".join(f"{name:<14}{text}" for name, text in lines)


def _size(num_bytes: int) -> str:
    if num_bytes < 10_000_000:
        return f"{num_bytes / 1e3:,.1f} kB"
    return f"{num_bytes / 1e6:,.0f} MB"


def _notes(facts: ModelFacts, found: Examination) -> list[str]:
    if not found.tolerance.is_relative:
        return []
    return [
        f"In {facts.dtype} the kernels round differently for different batch shapes, so single "
        "log-probabilities may differ visibly between any two ways of running the model, and close first "
        "choices may change places; 'plain passes among themselves' shows how far this model goes. "
        f"--dtype float32 (or float64) compares exactly."
    ]


def _verdict(report: Report) -> str:
    facts, found = report.facts, report.examination
    if found is None:
        return f"REFUSED: {facts.refusal}."
    if report.verdict == "failed":
        return f"FAILED: token-tree decoding cannot run this model. {found.failure}"
    if report.verdict == "differs":
        if math.isnan(found.rounding.largest):
            return "DIFFERS: the model's own plain passes answer NaN, so that nothing agrees with them."
        return f"DIFFERS: {_measured(found)} {_where(found)}"
    if report.verdict == "refused":
        return f"REFUSED all the same: {facts.refusal}. {_measured(found)}"
    partly = "as far as covered: " if found.plan.uncovered else ""
    word = "AGREES" if found.tolerance.is_relative else "EXACT"
    return f"{word}: {partly}{_measured(found)}"


def _measured(found: Examination) -> str:
    tolerance, overall = found.tolerance, found.overall
    what = "the relative difference is" if tolerance.is_relative else "log-probabilities differ by at most"
    relation = "below" if tolerance.holds(overall) else "not below"
    return (
        f"{what} {tolerance.measure(overall):.1e}, {relation} the {tolerance.bound(overall):.2g} of rounding."
    )


def _where(found: Examination) -> str:
    worst = max(
        found.scenarios,
        key=lambda result: (
            result.difference.largest != result.difference.largest,
            found.tolerance.measure(result.difference),
        ),
    )
    first = found.first_different
    if not found.layers:
        return f"Worst: {worst.name}."
    if first is None:
        return f"Worst: {worst.name}. All decoder layers agree: the difference begins behind them."
    return f"Worst: {worst.name}. It begins at decoder layer {first.number} ({first.kind})."


def _table(rows: Sequence[tuple[str, ...]], left: set[int]) -> str:
    """Columns as wide as their widest cell, under a rule."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]

    def line(row: tuple[str, ...]) -> str:
        cells = [
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return "\n".join(
        [line(rows[0]), "-" * len(line(tuple("x" * width for width in widths)))]
        + [line(row) for row in rows[1:]]
    )


def _wrapped(text: str) -> str:
    return fill(text, _WIDTH)
