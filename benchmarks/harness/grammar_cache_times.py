"""The cache of grammars: what a hit costs, how often a schema is compiled that many ask for, what is held."""

from __future__ import annotations

import json
import threading
import time
from functools import partial
from typing import Any

import numpy as np

from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.grammar_cache import GrammarCache
from genret.decoding.grammar.json_grammar import Grammar, compile_schema
from genret.decoding.grammar.schema.schema_document import canonical_text, parse_document
from harness.grammar_engines import Ours, TokenizerFile
from harness.schema_classes import CLASSES

_FIELDS = 60
_THREADS = 32
_HITS = 2000


def large_schema(tag: str = "") -> str:
    """A schema of sixty fields and some 27 kB, most of it descriptions; another one for another tag."""
    fields: dict[str, Any] = {}
    for number in range(_FIELDS):
        description = f"What is known of part {number}{tag}. " * 12
        kind = ({"type": "string"}, {"type": "integer"}, {"enum": ["low", "normal", "high"]})[number % 3]
        fields[f"field_{number:02d}"] = {"description": description[:400], **kind}
    return json.dumps({"type": "object", "properties": fields, "required": list(fields)})


def measure_cache(file: TokenizerFile, ours: Ours) -> dict[str, Any]:
    """Ask for one large schema again and again, from many threads at once, and for more than fits."""
    options = GrammarOptions.for_writing()
    cache: GrammarCache[Grammar] = GrammarCache(256 << 20)
    text = large_schema()

    def get(schema: str, kept: GrammarCache[Grammar] = cache) -> Grammar:
        def key() -> tuple[Any, int]:
            canonical = canonical_text(parse_document(schema, options.limits))
            return (canonical, options), len(canonical)

        return kept.get(
            (schema, options), len(schema), key, partial(compile_schema, schema, ours.leaves, options)
        )

    begun = time.perf_counter()
    grammar = get(text)
    compile_ms = (time.perf_counter() - begun) * 1e3
    hits = []
    for _ in range(_HITS):
        copy = text[:1] + text[1:]  # as a request brings it: an equal text that was never hashed
        begun_ns = time.perf_counter_ns()
        found = get(copy)
        hits.append((time.perf_counter_ns() - begun_ns) / 1e3)
        if found is not grammar:
            raise ValueError("a hit gave another grammar")
    return {
        "schema_bytes": len(text),
        "compile_ms": round(compile_ms, 2),
        "hit_us": {
            label: round(float(np.percentile(hits, at)), 2) for label, at in (("p50", 50), ("p99", 99))
        },
        "threads": _ask_at_once(get),
        "bounded": _fill(ours, file, options),
    }


def _ask_at_once(get: Any) -> dict[str, Any]:
    """Let many threads ask for one new schema at the same moment."""
    text = large_schema(" (new)")
    gate = threading.Barrier(_THREADS)
    found: list[Grammar] = []
    before = _compilations(get)

    def ask() -> None:
        gate.wait()
        found.append(get(text))

    threads = [threading.Thread(target=ask) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "threads": _THREADS,
        "objects": len(set(map(id, found))),
        "compilations": _compilations(get) - before,
    }


def _compilations(get: Any) -> int:
    cache: GrammarCache[Grammar] = get.__defaults__[0]
    return cache.stats.compilations


def _fill(ours: Ours, file: TokenizerFile, options: GrammarOptions) -> dict[str, Any]:
    """Compile more than fits, walk a document under each so that masks grow, and see that the bound holds."""
    bound = 3 << 20
    cache: GrammarCache[Grammar] = GrammarCache(bound)
    most = 0
    for number in range(60):
        chosen = CLASSES[number % len(CLASSES)]
        schema = json.dumps({**chosen.schema, "description": f"number {number}"})
        grammar = cache.get(
            schema, len(schema), lambda schema=schema: ((schema,), len(schema)),
            partial(compile_schema, schema, ours.leaves, options),
        )  # fmt: skip
        state = grammar.start
        for token in file.encode(json.dumps(chosen.instances(1)[0])):
            grammar.mask(state)
            state = grammar.advance(state, token)
        cache.settle(grammar)
        most = max(most, cache.stats.held_bytes)
    return {"bound_bytes": bound, "most_held_bytes": most, "evictions": cache.stats.evictions}
