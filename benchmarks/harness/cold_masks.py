"""First masks of the states of real schemas, alone: in thread time and without the collector."""

from __future__ import annotations

import gc
import gzip
import json
from pathlib import Path
from time import thread_time_ns
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.errors import GrammarError
from genret.decoding.grammar.json_grammar import compile_schema
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from harness.grammar_engines import TokenizerFile

_SLOW_US = 1000.0
_COLLECTED_EVERY = 20


def measure_cold_masks(leaves: Leaves, file: TokenizerFile, rows: Path) -> dict[str, Any]:
    """Walk every instance of every schema, and time the first mask of each state of its grammar.

    Args:
        leaves: Warmed up; what schemas share is kept between them, as in a server.
        file: Its tokenizer.
        rows: The schemas, a JSON object each line.
    """
    options = GrammarOptions()
    times: list[float] = []
    worst: dict[str, list[float]] = {}
    with gzip.open(rows, "rt", encoding="utf-8") as lines:
        schemas = [json.loads(line) for line in lines]
    gc.freeze()
    gc.disable()
    for number, row in enumerate(schemas):
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
                begun = thread_time_ns()
                mask = grammar.mask(state)
                taken = (thread_time_ns() - begun) / 1e3
                if state not in seen:
                    seen.add(state)
                    times.append(taken)
                    if taken > _SLOW_US:
                        worst.setdefault(row["name"], []).append(taken)
                if not int(mask[token >> 5]) >> (token & 31) & 1:
                    break
                state = grammar.advance(state, token)
    gc.enable()
    labels = {"p50": 50, "p90": 90, "p99": 99, "p99.9": 99.9, "max": 100}
    slowest = sorted(worst.items(), key=lambda found: -max(found[1]))[:20]
    return {
        "masks": len(times),
        "mask_us": {label: round(float(np.percentile(times, at)), 1) for label, at in labels.items()},
        "above_1_ms": sum(map(len, worst.values())),
        "above_20_ms": sum(taken > 20_000 for found in worst.values() for taken in found),
        "slowest": {name: [len(found), round(max(found))] for name, found in slowest},
    }


def print_cold_masks(figures: dict[str, Any]) -> None:
    """Print one line, and the schemas with the slowest masks."""
    console = Console(width=150)
    console.print(f"cold masks: {figures['masks']}, us: {figures['mask_us']}")
    console.print(f"above 1 ms: {figures['above_1_ms']}, above 20 ms: {figures['above_20_ms']}")
    table = Table("schema", "masks above 1 ms", "largest, us")
    for name, (count, largest) in figures["slowest"].items():
        table.add_row(name, str(count), str(largest))
    console.print(table)
