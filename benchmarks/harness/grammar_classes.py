"""First and later requests on classes of small schemas, engines in turn."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from harness.grammar_engines import Engine, Matcher, TokenizerFile
from harness.report import Spread
from harness.schema_classes import CLASSES, SchemaClass

_now = time.perf_counter_ns


def measure_classes(
    engines: Sequence[Engine], file: TokenizerFile, repeats: int, instances: int
) -> list[dict[str, Any]]:
    """Measure every class with every engine; one round before the others warms up and is left out.

    A first request compiles anew. Figures of a class and engine: milliseconds of whole first requests, over
    rounds the median instance; nanoseconds of masks and advances, of a first walk and of walks through
    documents that were walked before.
    """
    return [_measure(schema_class, engines, file, repeats, instances) for schema_class in CLASSES]


def _measure(
    schema_class: SchemaClass, engines: Sequence[Engine], file: TokenizerFile, repeats: int, instances: int
) -> dict[str, Any]:
    text = schema_class.text
    documents = [file.encode(json.dumps(value)) for value in schema_class.instances(instances)]
    whole: dict[str, list[float]] = {engine.name: [] for engine in engines}
    compiled: dict[str, list[float]] = {engine.name: [] for engine in engines}
    steps = {engine.name: _Steps() for engine in engines}
    for number in range(repeats + 1):
        for engine in engines:
            firsts, compiles = [], []
            for document in documents:
                begun = _now()
                start = engine.compile(text)
                compiles.append(_now() - begun)
                walk(start, document)
                firsts.append(_now() - begun)
            if number:
                whole[engine.name].append(float(np.median(firsts)) / 1e6)
                compiled[engine.name].append(float(np.median(compiles)) / 1e6)
                steps[engine.name].note(engine.compile(text), documents)
    return {
        "class": schema_class.name,
        "tokens": float(np.mean([len(document) for document in documents])),
        "engines": {
            engine.name: {
                "first_ms": Spread.of(whole[engine.name]),
                "compile_ms": Spread.of(compiled[engine.name]),
                **steps[engine.name].figures(),
            }
            for engine in engines
        },
    }


def walk(start: Callable[[], Matcher], document: Sequence[int]) -> None:
    """Walk one document, its masks made and looked at by nobody."""
    matcher = start()
    for token in document:
        matcher.mask()
        if not matcher.advance(token):
            raise ValueError("an instance of the class was refused")
    matcher.mask()
    if not matcher.is_complete():
        raise ValueError("an instance of the class is not complete at its end")


class _Steps:
    """Times of single masks and advances, nanoseconds."""

    def __init__(self) -> None:
        self._times: dict[str, list[int]] = {
            "cold_mask": [],
            "cold_advance": [],
            "warm_mask": [],
            "warm_advance": [],
        }

    def note(self, start: Callable[[], Matcher], documents: Sequence[Sequence[int]]) -> None:
        """Walk documents of a schema that was just compiled: the first time cold, the second warm."""
        for kind in ("cold", "warm"):
            masks, advances = self._times[f"{kind}_mask"], self._times[f"{kind}_advance"]
            for document in documents:
                matcher = start()
                for token in document:
                    begun = _now()
                    matcher.mask()
                    masked = _now()
                    matcher.advance(token)
                    advances.append(_now() - masked)
                    masks.append(masked - begun)

    def figures(self) -> dict[str, float]:
        """Percentiles in microseconds."""
        return {
            f"{name}_{label}_us": round(float(np.percentile(times, percent)) / 1e3, 3)
            for name, times in self._times.items()
            for label, percent in (("p50", 50), ("p99", 99), ("max", 100))
        }


def print_classes(rows: Sequence[dict[str, Any]]) -> None:
    """Print one table: whole first requests, then steps."""
    table = Table(title="nine classes: whole first request, ms; mask and advance, us (p50/p99)")
    for column in (
        "class",
        "engine",
        "first ms",
        "compile ms",
        "cold mask",
        "max",
        "warm mask",
        "warm advance",
    ):
        table.add_column(column)
    for row in rows:
        for name, found in row["engines"].items():
            table.add_row(
                row["class"],
                name,
                found["first_ms"].text(3),
                found["compile_ms"].text(3),
                f"{found['cold_mask_p50_us']:.1f}/{found['cold_mask_p99_us']:.1f}",
                f"{found['cold_mask_max_us']:.0f}",
                f"{found['warm_mask_p50_us']:.2f}/{found['warm_mask_p99_us']:.2f}",
                f"{found['warm_advance_p50_us']:.2f}/{found['warm_advance_p99_us']:.2f}",
            )
    Console(width=150).print(table)
