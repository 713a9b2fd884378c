"""A string that must be one of N titles: attaching it to a schema, its masks, and what peers make of an enum.

    python benchmarks/title_holes.py --sizes 10000 --sizes 100000 --json title_holes.json
    python benchmarks/title_holes.py --titles six_million.parquet --sizes 1000000 --sizes 6000000
    python benchmarks/title_holes.py --index six_million.index --sizes 6000000

The schema is an object of two strings, the first of which must be a title. Every round opens the index's
titles anew, compiles two schemas over them, has 50 titles written token by token and 10 near misses refused.
Peers get the titles as an `enum`, and llguidance also as a `pattern` with its limits raised; they take turns
with genret in every round. Only anonymous memory is counted: mapped files belong to the system.
"""

from __future__ import annotations

import ctypes
import gc
import json
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import click
import numpy as np
from harness.grammar_engines import (
    Llguidance,
    Matcher,
    Ours,
    RefusedError,
    TokenizerFile,
    Xgrammar,
    _OurMatcher,
    admits,
)
from harness.processes import memory_bytes
from harness.report import COUNT, FOLDER, Spread, benchmark, percentiles, shown
from harness.titles import batches, input_options, titles_file, tokenizer_file, write_tsv

from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.json_grammar import compile_schema
from genret.index_builder.build import build_index
from genret.index_builder.build_options import BuildOptions
from genret.retrieval.answers.title_holes import IndexSet, NamedIndex, TitleSlots
from genret.retrieval.filters.entity_filter import FilterStore
from genret.retrieval.index.reader import Index
from genret.retrieval.text import TextTokenizer

_SEED = 1
_TITLE, _REASON = "entity", "reason"
_NAME = "titles"


@benchmark("numpy", "numba", "pyarrow", "xgrammar", "llguidance")
@input_options
@click.option("--sizes", type=click.IntRange(min=100), multiple=True, default=(1_000, 10_000, 100_000))
@click.option("--index", type=FOLDER, help="An index that is there already, for the size it has.")
@click.option("--repeats", type=COUNT, default=5, help="Rounds.")
@click.option(
    "--peer-titles", type=click.IntRange(min=0), default=10_000, help="Most titles peers are given."
)
@click.option("--walks", type=COUNT, default=50, help="Titles written in each round.")
def main(options: SimpleNamespace) -> dict[str, Any]:
    """Measure titles inside JSON."""
    file = TokenizerFile(tokenizer_file(options))
    figures: dict[str, Any] = {}
    for size in options.sizes:
        with _index_of(size, options) as index:
            goals = walked_titles(index, options.walks)
            contest = Contest(file, goals, near_misses(index, goals[:10]))
            engines: list[Contestant] = [_Genret(file, index)]
            if index.num_entities <= options.peer_titles:
                engines += peer_forms(file, index)
            for _ in range(options.repeats):
                for engine in engines:
                    gc.collect()
                    contest.take_turn(engine)
            number = index.num_entities
            figures[f"{number}"] = shown(f"{number:,} titles", contest.figures())
    return figures


@contextmanager
def _index_of(size: int, options: SimpleNamespace) -> Iterator[Index]:
    """Yield an index of so many titles: the one that is given if it has as many, else one of a sample."""
    if options.index is not None:
        with Index.open(options.index) as index:
            if index.num_entities == size:
                yield index
                return
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        chosen, out = Path(folder) / "titles.tsv", Path(folder) / "it.index"
        sample_titles(titles_file(options), options.limit, size, chosen)
        begun = time.perf_counter()
        build_index(chosen, TextTokenizer.load(tokenizer_file(options)), BuildOptions(out=out))
        click.echo(f"{size:,} titles: index built in {time.perf_counter() - begun:.1f} s")
        with Index.open(out) as index:
            yield index


def sample_titles(source: Path, limit: int | None, size: int, out: Path) -> None:
    """Write a sample of a file's titles as TSV.

    Raises:
        click.ClickException: the file has too few.
    """
    number = sum(map(len, batches(source, limit)))
    if number < size:
        raise click.ClickException(f"{source}: expected {size} titles, got {number}")
    chosen = np.zeros(number, dtype=bool)
    chosen[np.random.default_rng(_SEED).choice(number, size, replace=False)] = True
    keep = iter(chosen)
    write_tsv(out, ([title for title in batch if next(keep)] for batch in batches(source, limit)))


def walked_titles(index: Index, count: int) -> list[str]:
    """Return some titles at random."""
    numbers = random.Random(_SEED).sample(range(index.num_entities), min(count, index.num_entities))
    return [index.entity(number).title for number in numbers]


def near_misses(index: Index, titles: list[str]) -> list[str]:
    """Return texts that differ from titles in a character and are none: cut, doubled, or another one."""
    rng = random.Random(_SEED)
    misses: list[str] = []
    for number, title in enumerate(titles):
        at = rng.randrange(len(title))
        forms = [title[:-1], title + title[-1], title[:at] + "~" + title[at + 1 :]]
        known = index.entities.numbers(forms)
        # Rotated, so that every kind of miss is among them.
        order = [(number + turn) % len(forms) for turn in range(len(forms))]
        misses.append(next(forms[i] for i in order if known[i] < 0 and forms[i]))
    return misses


class Contestant(Protocol):
    """An engine with its form of a set."""

    name: str

    def begin(self) -> dict[str, float]:
        """Make everything anew; returns milliseconds and bytes of what was made, by name."""

    def start(self) -> Matcher:
        """Begin an answer."""


class Contest:
    """Rounds of several engines over the same answers."""

    def __init__(self, file: TokenizerFile, titles: Sequence[str], misses: Sequence[str]) -> None:
        def answer(title: str) -> list[int]:
            return file.encode(json.dumps({_TITLE: title, _REASON: "x"}, ensure_ascii=False))

        self._titles, self._misses = list(map(answer, titles)), list(map(answer, misses))
        self._rounds: dict[str, dict[str, list[float]]] = {}
        self._told: dict[str, dict[str, Any]] = {}  # counts of answers, or why an engine refuses the titles

    def take_turn(self, engine: Contestant) -> None:
        """Let an engine begin anew, write everything, and refuse what is no title."""
        told = self._told.setdefault(engine.name, {})
        if "refused" in told:
            return
        try:
            found = engine.begin()
        except RefusedError as error:
            told["refused"] = str(error)
            return
        masks: list[float] = []
        advances: list[float] = []
        written = sum(admits(engine.start(), answer, masks, advances) for answer in self._titles)
        missed = sum(admits(engine.start(), answer, [], []) for answer in self._misses)
        told["written"] = [written, len(self._titles)]
        told["misses_refused"] = [len(self._misses) - missed, len(self._misses)]
        for name, times in (("mask", masks), ("advance", advances)):
            for label, value in percentiles(times, 50, 99, 100).items():
                found[f"{name}_{label}_us"] = value
        for name, value in found.items():
            self._rounds.setdefault(engine.name, {}).setdefault(name, []).append(value)

    def figures(self) -> dict[str, Any]:
        """Sum up the rounds."""
        return {
            name: told | {figure: Spread.of(values) for figure, values in self._rounds.get(name, {}).items()}
            for name, told in self._told.items()
        }


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
        _Peer("llguidance, pattern, limits raised", Llguidance(file, is_bounded=False), pattern),
    ]


class _Genret:
    """The index's titles, opened anew in every round; one vocabulary and its compiled loops for all."""

    name = "genret"

    def __init__(self, file: TokenizerFile, index: Index) -> None:
        self._leaves = Ours(file).leaves
        self._named = NamedIndex(_NAME, index, FilterStore(index, "cpu", 0))
        self._grammar: Any = None
        self._round = 0
        self._opened()  # compiles the loops, once per process

    def begin(self) -> dict[str, float]:
        """Open the titles; compile two schemas over them."""
        self._grammar = None
        slots, open_ms, open_bytes = _made(self._opened)
        indexes = IndexSet([self._named], lambda: slots)
        figures = {"open_ms": open_ms, "open_bytes": open_bytes, "counted_bytes": slots.num_bytes}
        for name, reason in (("attach", _REASON), ("second_schema", "why")):
            self._round += 1
            title = {"type": "string", "x-genret-index": _NAME, "description": f"{self._round}"}
            schema, options = _schema(title, reason), GrammarOptions.for_writing()
            grammar, figures[f"{name}_ms"], figures[f"{name}_bytes"] = _made(
                lambda schema=schema: compile_schema(schema, self._leaves, options, indexes)  # noqa: B023
            )
            self._grammar = self._grammar or grammar
        return figures

    def start(self) -> Matcher:
        """Begin an answer."""
        return _OurMatcher(self._grammar)

    def _opened(self) -> TitleSlots:
        slots = TitleSlots(self._leaves)
        slots.warm_up([self._named])
        return slots


class _Peer:
    """A peer that is given a schema with the titles in it."""

    def __init__(self, name: str, engine: Any, schema: str) -> None:
        self.name = name
        self._engine, self._schema = engine, schema
        self.start: Any = None  # begins an answer

    def begin(self) -> dict[str, float]:
        """Compile the schema."""
        self.start = None
        self.start, attach_ms, attach_bytes = _made(lambda: self._engine.compile(self._schema))
        return {"attach_ms": attach_ms, "attach_bytes": attach_bytes}


def _made(make: Callable[[], Any]) -> tuple[Any, float, int]:
    """Make something; return it, the milliseconds, and by how many bytes anonymous memory grew."""
    ctypes.CDLL(None).malloc_trim(0)  # freed memory is given back, so that what is taken next is seen
    before, begun = memory_bytes("RssAnon"), time.perf_counter()
    made = make()
    return made, 1e3 * (time.perf_counter() - begun), memory_bytes("RssAnon") - before


def _schema(title: dict[str, Any], reason: str = _REASON) -> str:
    properties = {_TITLE: title, reason: {"type": "string"}}
    document = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return json.dumps(document, ensure_ascii=False)


if __name__ == "__main__":
    main()
