"""Everything an evaluation found, for programs: the content of `results.json`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from retrieval.evaluation.reporting.comparison import MethodFigures, SetComparison, Settings
from retrieval.evaluation.reporting.document import Facts
from retrieval.evaluation.reporting.overview import Overview

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
