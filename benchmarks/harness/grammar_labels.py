"""Schemas with labelled instances: what compiles, and whether exactly the valid instances are admitted."""

from __future__ import annotations

import gc
import gzip
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from harness.grammar_engines import Engine, Matcher, RefusedError, TokenizerFile


@dataclass
class _Score:
    """What one engine did with a set of schemas."""

    schemas: int = 0
    compiled: int = 0
    right: int = 0
    valid: int = 0
    valid_admitted: int = 0
    invalid: int = 0
    invalid_refused: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    compile_ms: list[float] = field(default_factory=list)
    mask_us: list[float] = field(default_factory=list)
    advance_us: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        return {
            "schemas": self.schemas,
            "compiled": self.compiled,
            "wholly_right": self.right,
            "valid_admitted": [self.valid_admitted, self.valid],
            "invalid_refused": [self.invalid_refused, self.invalid],
            "compile_ms": _percentiles(self.compile_ms),
            "mask_us": _percentiles(self.mask_us),
            "advance_us": _percentiles(self.advance_us),
            "reasons": dict(self.reasons.most_common(40)),
            "wrong": self.wrong,
        }


def measure_real(
    engines: Sequence[Engine],
    file: TokenizerFile,
    rows: Path,
    count: int,
    seed: int,
    peer_seconds: float,
) -> dict[str, Any]:
    """Walk all instances of real schemas, those labelled invalid for their formats among them."""
    schemas = _read(rows)
    if count:
        schemas = random.Random(seed).sample(schemas, count)
    scores = {engine.name: _Score() for engine in engines}
    gc.freeze()  # some hundred thousand objects of schemas and instances, which no engine holds
    for row in schemas:
        for engine in engines:
            _judge(scores[engine.name], engine, file, row["name"], row, peer_seconds)
    return {name: score.figures() for name, score in scores.items()}


def measure_suite(
    engines: Sequence[Engine], annotating: Engine, file: TokenizerFile, rows: Path, peer_seconds: float
) -> dict[str, Any]:
    """Walk the groups of the test suite; our formats are annotations but in optional/format, as it says."""
    scores = {engine.name: _Score() for engine in engines}
    for row in _read(rows):
        asserts = row["file"].startswith("optional/format/") or "format-assertion" in row["file"]
        for engine in engines:
            used = annotating if engine.name == annotating.name and not asserts else engine
            name = f"{row['file']}: {row['description']}"
            _judge(scores[engine.name], used, file, name, row, peer_seconds)
    return {name: score.figures() for name, score in scores.items()}


def _read(rows: Path) -> list[dict[str, Any]]:
    with gzip.open(rows, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _judge(
    score: _Score, engine: Engine, file: TokenizerFile, name: str, row: dict[str, Any], seconds: float
) -> None:
    score.schemas += 1
    begun = time.perf_counter()
    try:
        with _limit(seconds):
            start = engine.compile(json.dumps(row["schema"]))
    except RefusedError as error:
        score.reasons[str(error)[:120]] += 1
        return
    except TimeoutError:
        score.reasons[f"more than {seconds:g} s"] += 1
        return
    finally:
        score.compile_ms.append((time.perf_counter() - begun) * 1e3)
    score.compiled += 1
    right = True
    for test in row["tests"]:
        admitted = _admits(score, start, file.encode(json.dumps(test["data"], ensure_ascii=False)))
        if test["valid"]:
            score.valid += 1
            score.valid_admitted += admitted
        else:
            score.invalid += 1
            score.invalid_refused += not admitted
        if admitted != test["valid"]:
            right = False
            score.wrong.append(f"{name}: {'refused' if test['valid'] else 'admitted'}: {test['description']}")
    score.right += right


def _admits(score: _Score, start: Callable[[], Matcher], document: Sequence[int]) -> bool:
    matcher = start()
    for token in document:
        begun = time.perf_counter_ns()
        matcher.mask()
        masked = time.perf_counter_ns()
        score.mask_us.append((masked - begun) / 1e3)
        if not matcher.allows(token):
            return False
        begun = time.perf_counter_ns()
        taken = matcher.advance(token)
        score.advance_us.append((time.perf_counter_ns() - begun) / 1e3)
        if not taken:
            return False
    return matcher.is_complete()


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError when the block takes longer; a peer inside C++ is stopped once it returns."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    labels = {"p50": 50, "p90": 90, "p95": 95, "p99": 99, "p99.9": 99.9, "max": 100}
    return {label: round(float(np.percentile(values, at)), 3) for label, at in labels.items()}


def print_labels(title: str, scores: dict[str, dict[str, Any]]) -> None:
    """Print one table."""
    table = Table(title=title)
    columns = ("engine", "compiled", "wholly right", "valid admitted", "invalid refused")
    for column in (*columns, "compile ms p50/p95/max", "mask us p50/p99/max", "advance us p50/p99"):
        table.add_column(column)
    for name, score in scores.items():
        compiling, masks, advances = score["compile_ms"], score["mask_us"], score["advance_us"]
        table.add_row(
            name,
            f"{score['compiled']}/{score['schemas']}",
            f"{score['wholly_right']}",
            "{}/{}".format(*score["valid_admitted"]),
            "{}/{}".format(*score["invalid_refused"]),
            "/".join(f"{compiling.get(p, 0):.2f}" for p in ("p50", "p95", "max")),
            "/".join(f"{masks.get(p, 0):.1f}" for p in ("p50", "p99", "max")),
            "/".join(f"{advances.get(p, 0):.1f}" for p in ("p50", "p99")),
        )
    Console(width=150).print(table)
