"""Engines that hold a string to a set of titles: what it costs to begin, and every mask of some answers."""

from __future__ import annotations

import ctypes
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from rich.console import Console
from rich.table import Table

from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.json_grammar import compile_schema
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from genret.retrieval.answers.title_holes import TitleSlots
from genret.retrieval.filters.entity_filter import FilterStore
from genret.retrieval.index.reader import Index
from harness.grammar_engines import (
    Llguidance,
    Matcher,
    Ours,
    RefusedError,
    TokenizerFile,
    Xgrammar,
    _LlguidanceMatcher,
    _OurMatcher,
)
from harness.report import Spread

_TITLE, _REASON = "entity", "reason"
_NAME = "titles"
_NO_LIMIT = 1 << 62
_MILLION = 1e6


class Contestant(Protocol):
    """An engine with its form of a set."""

    name: str

    def begin(self) -> dict[str, float]:
        """Make everything anew; returns milliseconds and bytes of what was made, by name."""

    def start(self) -> Matcher:
        """Begin an answer."""


class Contest:
    """Rounds of several engines over the same answers.

    Args:
        file: The tokenizer.
        titles: What must be written.
        misses: What must be refused.
    """

    def __init__(self, file: TokenizerFile, titles: Sequence[str], misses: Sequence[str]) -> None:
        self._titles = [_tokens(file, title) for title in titles]
        self._misses = [_tokens(file, title) for title in misses]
        self._rounds: dict[str, _Rounds] = {}

    def take_turn(self, engine: Contestant) -> None:
        """Let an engine begin anew, write everything, and refuse what is no title."""
        rounds = self._rounds.setdefault(engine.name, _Rounds())
        if rounds.refused:
            return
        try:
            begun = engine.begin()
        except RefusedError as error:
            rounds.refused = str(error)
            return
        for name, value in begun.items():
            rounds.begun.setdefault(name, []).append(value)
        masks: list[float] = []
        advances: list[float] = []
        rounds.written = [sum(_walk(engine.start(), answer, masks, advances) for answer in self._titles)]
        rounds.written.append(len(self._titles))
        missed = sum(_walk(engine.start(), answer, [], []) for answer in self._misses)
        rounds.misses_refused = [len(self._misses) - missed, len(self._misses)]
        rounds.masks_us.append(masks)
        rounds.advances_us.append(advances)

    def figures(self) -> dict[str, Any]:
        """Sum up, with ratios to the first engine by round."""
        found = {name: rounds.figures() for name, rounds in self._rounds.items()}
        first, *others = found
        for name in others:
            if not found[name].get("refused"):
                found[name]["ratio_to_" + first] = {
                    figure: Spread.of_ratios(found[name][figure].values, found[first][figure].values)
                    for figure in ("attach_ms", "mask_p50_us", "mask_p99_us", "mask_max_us")
                }
        return found


@dataclass
class _Rounds:
    """What one engine did."""

    refused: str = ""
    begun: dict[str, list[float]] = field(default_factory=dict)
    written: list[int] = field(default_factory=list)
    misses_refused: list[int] = field(default_factory=list)
    masks_us: list[list[float]] = field(default_factory=list)
    advances_us: list[list[float]] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        if self.refused:
            return {"refused": self.refused}
        found: dict[str, Any] = {name: Spread.of(values) for name, values in self.begun.items()}
        for name, rounds in (("mask", self.masks_us), ("advance", self.advances_us)):
            for label, share in (("p50", 50), ("p99", 99), ("max", 100)):
                values = [float(np.percentile(times, share)) for times in rounds]
                found[f"{name}_{label}_us"] = Spread.of(values)
        return found | {"written": self.written, "misses_refused": self.misses_refused}


def opened_by_genret(file: TokenizerFile, index: Index) -> Contestant:
    """Return genret over an index."""
    return _Genret(file, index)


def peer_forms(file: TokenizerFile, index: Index) -> list[Contestant]:
    """Return the peers, with the titles of an index as an enum and as a pattern."""
    titles = [index.entity(number).title for number in range(index.num_entities)]
    enum = _schema({"type": "string", "enum": titles})
    # Strings are compared as they stand in the pattern, so only what regular expressions take for syntax
    # is escaped.
    alternatives = "|".join(re.sub(r"([\\.^$*+?{}\[\]|()/])", r"\\\1", title) for title in titles)
    pattern = _schema({"type": "string", "pattern": f"^({alternatives})$"})
    return [
        _Peer("xgrammar, enum", Xgrammar(file), enum),
        _Peer("llguidance, enum", Llguidance(file), enum),
        _Peer("llguidance, pattern, limits raised", _BoundlessLlguidance(file), pattern),
    ]


class _Genret:
    """The index's titles, opened anew in every round; one vocabulary and its compiled loops for all."""

    name = "genret"

    def __init__(self, file: TokenizerFile, index: Index) -> None:
        self._leaves: Leaves = Ours(file).leaves
        self._index = index
        self._grammar: Any = None
        self._round = 0
        # Compiles the loops, once per process.
        self._opened().warm_up()

    def begin(self) -> dict[str, float]:
        """Open the titles; compile two schemas over them."""
        self._grammar = None
        _give_back()
        before, begun = anonymous_bytes(), time.perf_counter()
        holes = self._opened()
        holes.warm_up()
        opened, opened_bytes = time.perf_counter() - begun, anonymous_bytes() - before
        times, sizes = [], []
        for number in range(2):
            self._round += 1
            field = {"type": "string", "x-genret-index": _NAME, "description": f"{self._round}"}
            schema = _schema(field, (_REASON, "why")[number])
            _give_back()
            before, begun = anonymous_bytes(), time.perf_counter()
            grammar = compile_schema(schema, self._leaves, GrammarOptions.for_writing(), holes)
            times.append(1e3 * (time.perf_counter() - begun))
            sizes.append(anonymous_bytes() - before)
            if not number:
                self._grammar = grammar
        return {
            "open_ms": 1e3 * opened,
            "open_bytes": opened_bytes,
            "counted_bytes": holes.num_bytes,
            "attach_ms": times[0],
            "attach_bytes": sizes[0],
            "second_schema_ms": times[1],
            "second_schema_bytes": sizes[1],
        }

    def start(self) -> Matcher:
        """Begin an answer."""
        return _OurMatcher(self._grammar)

    def _opened(self) -> TitleSlots:
        holes = TitleSlots(self._leaves)
        holes.add(_NAME, self._index, FilterStore(self._index, "cpu", 0))
        return holes


class _Peer:
    """A peer that is given a schema with the titles in it."""

    def __init__(self, name: str, engine: Any, schema: str) -> None:
        self.name = name
        self._engine = engine
        self._schema = schema
        self._start: Callable[[], Matcher] | None = None

    def begin(self) -> dict[str, float]:
        """Compile the schema."""
        self._start = None
        _give_back()
        before, begun = anonymous_bytes(), time.perf_counter()
        self._start = self._engine.compile(self._schema)
        return {
            "attach_ms": 1e3 * (time.perf_counter() - begun),
            "attach_bytes": anonymous_bytes() - before,
        }

    def start(self) -> Matcher:
        """Begin an answer."""
        if self._start is None:
            raise RuntimeError("the schema is not compiled")
        return self._start()


class _BoundlessLlguidance(Llguidance):
    """llguidance without the bounds that make it refuse large sets."""

    def compile(self, schema: str) -> Callable[[], Matcher]:
        """Compile a schema; see `Engine`."""
        matcher_class, limits = self._module.LLMatcher, self._module.LLParserLimits
        try:
            grammar = matcher_class.grammar_from_json_schema(schema)
            bounds = ("max_items_in_row", "initial_lexer_fuel", "step_lexer_fuel", "step_max_items")
            raised = limits(**dict.fromkeys((*bounds, "max_lexer_states", "max_grammar_size"), _NO_LIMIT))
            made = matcher_class(self._tokenizer, grammar, log_level=0, limits=raised)
        except Exception as error:  # it raises whatever its Rust panics with
            raise RefusedError(f"{type(error).__name__}: {str(error)[:200]}") from error
        if made.is_error():
            raise RefusedError(str(made.get_error())[:200])
        return lambda: _LlguidanceMatcher(self._module, made, self._vocab_size)


def anonymous_bytes() -> int:
    """Return the resident memory of this process that no file stands behind."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0


def print_figures(number: int, figures: dict[str, Any]) -> None:
    """Print one table."""
    table = Table(title=f"{number:,} titles")
    columns = ("attach ms", "MB", "mask p50 us", "p99", "max", "advance p99", "written", "refused")
    table.add_column("engine")
    for column in columns:
        table.add_column(column, justify="right")
    for name, one in figures.items():
        if one.get("refused"):
            table.add_row(name, one["refused"][:40])
            continue
        table.add_row(
            name,
            one["attach_ms"].text(3),
            f"{one['attach_bytes'].max / 1e6:.2f}",
            *(one[figure].text(1) for figure in ("mask_p50_us", "mask_p99_us", "mask_max_us")),
            one["advance_p99_us"].text(1),
            "{} of {}".format(*one["written"]),
            "{} of {}".format(*one["misses_refused"]),
        )
    console = Console(width=160)
    console.print(table)
    ours = next(iter(figures.values()))
    opened, second = ours["open_bytes"].median / 1e6, ours["second_schema_bytes"].median / 1e6
    console.print(
        f"opening the titles, once per process: {ours['open_ms'].text(1)} ms, {opened:.2f} MB "
        f"(counted {ours['counted_bytes'].max / 1e6:.2f}); "
        f"a second schema: {ours['second_schema_ms'].text(3)} ms, {second:.2f} MB"
    )


def _schema(title: dict[str, Any], reason: str = _REASON) -> str:
    properties = {_TITLE: title, reason: {"type": "string"}}
    document = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return json.dumps(document, ensure_ascii=False)


def _tokens(file: TokenizerFile, title: str) -> list[int]:
    """Return the tokens of an answer up to what follows the title."""
    whole = json.dumps({_TITLE: title, _REASON: "x"}, ensure_ascii=False)
    return file.encode(whole)


def _walk(matcher: Matcher, tokens: Sequence[int], masks_us: list[float], advances_us: list[float]) -> bool:
    """Take tokens as long as the masks allow them; returns whether that made a whole answer."""
    for token in tokens:
        begun = time.perf_counter()
        matcher.mask()
        masks_us.append(_MILLION * (time.perf_counter() - begun))
        if not matcher.allows(token):
            return False
        begun = time.perf_counter()
        advanced = matcher.advance(token)
        advances_us.append(_MILLION * (time.perf_counter() - begun))
        if not advanced:
            return False
    return matcher.is_complete()


def _give_back() -> None:
    """Have freed memory given back, so that what is taken next is seen."""
    ctypes.CDLL(None).malloc_trim(0)
