"""What a report says in sentences: what was evaluated, and what came out, without saying more than that."""

from __future__ import annotations

import math
from collections.abc import Sequence

from retrieval.evaluation.reporting.comparison import MethodFigures, SetComparison, Settings
from retrieval.evaluation.reporting.wording import answers_once, looks_at_first

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
