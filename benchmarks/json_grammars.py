"""JSON grammars beside xgrammar and llguidance: first requests, warm masks, real schemas, the test suite.

    python benchmarks/json_grammars.py --json json_grammars.json
    python benchmarks/json_grammars.py --parts classes --tokenizer o200k_base.tokenizer.json
    python benchmarks/json_grammars.py --parts real --real-schemas 200 --seed 1

`classes` walks instances of nine small schemas token by token: a whole first request is compiling the schema,
starting a matcher, and every mask and advance of one instance, with nothing kept from another schema of the
class but what belongs to the tokenizer. `real` walks every instance of real schemas and compares with its
label, `suite` does so with the JSON Schema test suite; `cold` times the first mask of every state of the real
schemas, alone. Engines take turns on the same work in one process.
"""

from __future__ import annotations

import gc
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
from harness.grammar_engines import (
    Engine,
    Llguidance,
    Matcher,
    Ours,
    RefusedError,
    TokenizerFile,
    Xgrammar,
    admits,
)
from harness.report import Spread, benchmark, percentiles, shown
from harness.schema_classes import CLASSES
from harness.titles import DATA, json_lines

from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.errors import GrammarError
from genret.decoding.grammar.json_grammar import compile_schema
from genret.decoding.grammar.leaves.leaf_factory import Leaves

_PARTS = ("classes", "real", "cold", "suite")
_SLOW_US = 1000.0
_COLLECTED_EVERY = 20
_now = time.perf_counter_ns


@benchmark("numpy", "numba", "xgrammar", "llguidance", "jsonschema")
@DATA
@click.option("--parts", multiple=True, type=click.Choice(_PARTS), default=_PARTS, help="May be repeated.")
@click.option("--tokenizer", default="gpt2.tokenizer.json", help="File of the tokenizers/ folder.")
@click.option("--repeats", default=5, help="Rounds of `classes`.")
@click.option("--instances", default=20, help="Instances per class.")
@click.option("--real-schemas", default=0, help="Real schemas drawn at random; 0: all.")
@click.option("--seed", default=1, help="Seed of that draw.")
@click.option("--peers/--no-peers", default=True, help="Whether the peers run too.")
@click.option("--peer-seconds", default=30.0, help="Longest a peer may compile one real schema.")
def main(options: SimpleNamespace) -> dict[str, Any]:
    """Measure grammars of JSON Schemas."""
    schemas, parts = options.data / "schemas", options.parts
    file = TokenizerFile(options.data / "tokenizers" / options.tokenizer)
    ours = Ours(file)
    # As a server does once it has loaded what it keeps; of all sides' objects alike.
    gc.collect()
    gc.freeze()
    figures: dict[str, Any] = {}
    if "classes" in parts:
        engines: list[Engine] = [Ours(file, GrammarOptions(property_order="schema"), ours.leaves)]
        if options.peers:
            engines += [Xgrammar(file), Llguidance(file)]
        measured = measure_classes(engines, file, options.repeats, options.instances)
        figures["classes"] = shown("classes", measured)
    labelling: list[Engine] = [ours]
    if options.peers:
        labelling += [Xgrammar(file), Xgrammar(file, strict=False), Llguidance(file)]
    if "real" in parts:
        rows = list(json_lines(schemas / "real_world.dev.jsonl.gz"))
        if options.real_schemas:
            rows = random.Random(options.seed).sample(rows, options.real_schemas)
        measured = measure_labels(labelling, None, file, rows, options.peer_seconds)
        figures["real"] = shown("real schemas", measured)
    if "cold" in parts:
        rows = list(json_lines(schemas / "real_world.dev.jsonl.gz"))
        figures["cold"] = shown("cold masks", measure_cold_masks(Ours(file).leaves, file, rows))
    if "suite" in parts:
        rows = list(json_lines(schemas / "json_schema_test_suite.draft2020-12.jsonl.gz"))
        annotating = Ours(file, GrammarOptions(formats="annotate"), ours.leaves)
        measured = measure_labels(labelling, annotating, file, rows, options.peer_seconds)
        figures["suite"] = shown("test suite", measured)
    return figures


def measure_classes(
    engines: Sequence[Engine], file: TokenizerFile, repeats: int, instances: int
) -> list[dict[str, Any]]:
    """Measure every class with every engine; one round before the others warms up and is left out.

    A first request compiles anew. Figures of a class and engine: milliseconds of whole first requests, over
    rounds the median instance; microseconds of masks and advances, of a first walk and of walks through
    documents that were walked before.
    """
    figures = []
    for schema in CLASSES:
        documents = [file.encode(json.dumps(value)) for value in schema.instances(instances)]
        whole: dict[str, list[float]] = {engine.name: [] for engine in engines}
        compiled: dict[str, list[float]] = {engine.name: [] for engine in engines}
        steps: dict[str, dict[str, list[float]]] = {engine.name: {} for engine in engines}
        for number in range(repeats + 1):
            for engine in engines:
                firsts, compiles = [], []
                for document in documents:
                    begun = _now()
                    start = engine.compile(schema.text)
                    compiles.append(_now() - begun)
                    walk(start, document)
                    firsts.append(_now() - begun)
                if number:
                    whole[engine.name].append(float(np.median(firsts)) / 1e6)
                    compiled[engine.name].append(float(np.median(compiles)) / 1e6)
                    time_steps(engine.compile(schema.text), documents, steps[engine.name])
        found = {
            name: {
                "first_ms": Spread.of(whole[name]),
                "compile_ms": Spread.of(compiled[name]),
                **{f"{kind}_us": percentiles(times, 50, 99, 100) for kind, times in steps[name].items()},
            }
            for name in whole
        }
        tokens = float(np.mean([len(document) for document in documents]))
        figures.append({"class": schema.name, "tokens": tokens, "engines": found})
    return figures


def walk(start: Callable[[], Matcher], document: Sequence[int]) -> None:
    """Walk one document, making every mask and looking at none."""
    matcher = start()
    for token in document:
        matcher.mask()
        if not matcher.advance(token):
            raise ValueError("an instance of the class was refused")
    matcher.mask()
    if not matcher.is_complete():
        raise ValueError("an instance of the class is not complete at its end")


def time_steps(
    start: Callable[[], Matcher], documents: Sequence[Sequence[int]], times: dict[str, list[float]]
) -> None:
    """Walk documents of a schema just compiled, cold, then warm; add microseconds by kind to `times`."""
    for kind in ("cold", "warm"):
        masks, advances = times.setdefault(f"{kind}_mask", []), times.setdefault(f"{kind}_advance", [])
        for document in documents:
            admits(start(), document, masks, advances)


@dataclass
class _Score:
    """Counts and times of one engine on a set of schemas; pairs are counts of right ones and of all."""

    schemas: int = 0
    compiled: int = 0
    wholly_right: int = 0
    valid_admitted: list[int] = field(default_factory=lambda: [0, 0])
    invalid_refused: list[int] = field(default_factory=lambda: [0, 0])
    reasons: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    compile_ms: list[float] = field(default_factory=list)
    mask_us: list[float] = field(default_factory=list)
    advance_us: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        times = {name: getattr(self, name) for name in ("compile_ms", "mask_us", "advance_us")}
        summed = {name: percentiles(values, 50, 90, 95, 99, 99.9, 100) for name, values in times.items()}
        return vars(self) | summed | {"reasons": dict(self.reasons.most_common(40))}


def measure_labels(
    engines: Sequence[Engine],
    annotating: Engine | None,
    file: TokenizerFile,
    rows: Sequence[dict[str, Any]],
    peer_seconds: float,
) -> dict[str, Any]:
    """Compile schemas, and count whether exactly their valid instances are admitted.

    The first engine is ours. `annotating` is ours for groups of the test suite whose formats are annotations,
    all but those of optional/format; None: instances labelled invalid for their formats are to be refused.
    """
    scores = {engine.name: _Score() for engine in engines}
    gc.freeze()  # some hundred thousand objects of schemas and instances, which no engine holds
    for row in rows:
        group = row.get("file", "")
        asserts = group.startswith("optional/format/") or "format-assertion" in group
        name = row["name"] if annotating is None else f"{group}: {row['description']}"
        for engine in engines:
            is_annotated = annotating is not None and engine.name == annotating.name and not asserts
            used = annotating if is_annotated else engine
            _judge(scores[engine.name], used, file, name, row, peer_seconds)
    return {name: score.figures() for name, score in scores.items()}


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
        document = file.encode(_plainly(test["data"]))
        admitted = admits(start(), document, score.mask_us, score.advance_us)
        counts = score.valid_admitted if test["valid"] else score.invalid_refused
        counts[0] += admitted == test["valid"]
        counts[1] += 1
        if admitted != test["valid"]:
            right = False
            score.wrong.append(f"{name}: {'refused' if test['valid'] else 'admitted'}: {test['description']}")
    score.wholly_right += right


def _plainly(value: object) -> str:
    """The JSON of a value with whole numbers written out: numbers with bounds are read without exponents."""

    def number(text: str) -> float:
        exact = Decimal(text)
        return int(exact) if exact == exact.to_integral_value() and "e" in text else float(text)

    return json.dumps(json.loads(json.dumps(value), parse_float=number), ensure_ascii=False)


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


def measure_cold_masks(leaves: Leaves, file: TokenizerFile, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Walk every instance of every schema, and time the first mask of each state of its grammar.

    Times are those of the thread, without the collector.
    """
    options = GrammarOptions()
    times: list[float] = []
    worst: dict[str, list[float]] = {}
    gc.freeze()
    gc.disable()
    for number, row in enumerate(rows):
        if not number % _COLLECTED_EVERY:
            gc.collect()
        try:
            grammar = compile_schema(json.dumps(row["schema"]), leaves, options)
        except GrammarError:
            continue
        seen: set[int] = set()
        for test in row["tests"]:
            state = grammar.start
            for token in file.encode(json.dumps(test["data"], ensure_ascii=False)):
                begun = time.thread_time_ns()
                mask = grammar.mask(state)
                taken = (time.thread_time_ns() - begun) / 1e3
                if state not in seen:
                    seen.add(state)
                    times.append(taken)
                    if taken > _SLOW_US:
                        worst.setdefault(row["name"], []).append(taken)
                if not int(mask[token >> 5]) >> (token & 31) & 1:
                    break
                state = grammar.advance(state, token)
    gc.enable()
    slowest = sorted(worst.items(), key=lambda found: -max(found[1]))[:20]
    return {
        "masks": len(times),
        "mask_us": percentiles(times, 50, 90, 99, 99.9, 100),
        "above_1_ms": sum(map(len, worst.values())),
        "above_20_ms": sum(taken > 20_000 for found in worst.values() for taken in found),
        "slowest": {name: [len(found), round(max(found))] for name, found in slowest},
    }


if __name__ == "__main__":
    main()
