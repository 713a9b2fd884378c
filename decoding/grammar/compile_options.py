"""Options of reading a schema and of writing the JSON texts it allows, and the bounds on compiling it.

The budget of a compilation is polled wherever the work can grow. It travels in a context variable: automata
are combined with operators, which have no room for it. Time is that of the compiling thread, so that a busy
machine refuses no schema.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

from genret.decoding.grammar.errors import CompileTimeoutError, GrammarError, SchemaLimitError

Whitespace = Literal["compact", "spaced", "flexible"]
PropertyOrder = Literal["schema", "any"]
Formats = Literal["assert", "annotate"]
ExtraProperties = Literal["allowed", "declared"]
Inexact = Literal["refuse", "narrow"]


@dataclass(frozen=True, slots=True)
class CompileLimits:
    """Bounds on compiling one schema; past any of them it is refused."""

    schema_bytes: int = 1 << 20  # Most bytes of the schema's text
    depth: int = 128  # Deepest nesting of the schema's text
    nodes: int = 50_000  # Most value nodes and shapes the schema may expand to
    automaton_states: int = 50_000  # Most states of one automaton over texts
    seconds: float = 2.0  # Longest time compiling may take, as CPU time of its thread


@dataclass(frozen=True, slots=True)
class GrammarOptions:
    """The texts of an allowed value that may be written. The default admits what a reader would.

    Attributes:
        whitespace: Between tokens of JSON. "compact": none; "spaced": one blank behind every `,` and `:`, as
            Python's `json.dumps` writes; "flexible": at every place nothing, one blank, or a line break and
            up to `max_indent` blanks, so that no text can grow by whitespace without end.
        max_indent: Most blanks behind a line break, where whitespace is "flexible".
        property_order: "schema": declared properties in the schema's order, others behind; "any": any order.
        formats: "assert": the formats known here are enforced; "annotate": `format` says nothing about
            validity, as the specification has it by default.
        extra_properties: "allowed": properties the schema does not mention, wherever it does not forbid them;
            "declared": only where it says `additionalProperties`, `patternProperties` or the like itself, or
            declares no properties at all.
        inexact: Treatment of sets of texts or numbers that are known in part only, or that validators read
            differently. "refuse": a format that is known in part is refused, patterns are those of ECMA-262,
            and values may be spelled in several ways (`NumberSet.spelled` says which numbers may);
            "narrow": only what all readers agree on, one spelling for each value, and no numbers that a
            double does not hold. Every text under "narrow" is allowed under "refuse".
        limits: Bounds on compiling.
    """

    whitespace: Whitespace = "flexible"
    max_indent: int = 16
    property_order: PropertyOrder = "any"
    formats: Formats = "assert"
    extra_properties: ExtraProperties = "allowed"
    inexact: Inexact = "refuse"
    limits: CompileLimits = CompileLimits()

    @staticmethod
    def for_writing(limits: CompileLimits | None = None) -> GrammarOptions:
        """The options for a model's answers: one text per value, as `json.dumps` writes it.

        More of the text is forced than by default, and there are fewer ways to say the same.
        """
        return GrammarOptions(
            whitespace="spaced",
            property_order="schema",
            extra_properties="declared",
            inexact="narrow",
            limits=limits or CompileLimits(),
        )


class AutomatonLimitError(GrammarError):
    """An automaton over texts would have too many states; `naming_limits` adds the keyword."""


# Wall time between two looks at the thread's own clock, which costs ten times as much to read.
_SLICE_S = 0.002


class CompileBudget:
    """Time and size of one compilation, which stays on the thread that makes the budget."""

    __slots__ = ("_deadline", "_looked", "_next_look", "_pause", "limits")

    def __init__(self, limits: CompileLimits) -> None:
        self.limits = limits
        self._looked = time.thread_time()
        self._deadline = self._looked + limits.seconds
        self._next_look = time.monotonic() + min(_SLICE_S, limits.seconds)
        self._pause = _PAUSE.get()

    @property
    def spent_s(self) -> float:
        """CPU time that counted so far, seconds."""
        return time.thread_time() - self._deadline + self.limits.seconds

    def check_time(self) -> None:
        """Raise CompileTimeoutError once the time is up."""
        if time.monotonic() >= self._next_look:
            self._look()

    def _look(self) -> None:
        now = time.thread_time()
        if now >= self._deadline:
            raise CompileTimeoutError(f"compiling the schema took longer than {self.limits.seconds:g} s")
        if self._pause is not None:
            self._pause(now - self._looked)
        self._looked = now
        self._next_look = time.monotonic() + min(_SLICE_S, self._deadline - now)

    def check_states(self, states: int) -> None:
        """Raise AutomatonLimitError for too many states, CompileTimeoutError if time is up."""
        if states > self.limits.automaton_states:
            raise AutomatonLimitError(
                f"it needs an automaton of more than {self.limits.automaton_states:,} states"
            )
        self.check_time()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the clock: what is done meanwhile is not compiling, and has bounds of its own."""
        begun = time.thread_time()
        try:
            yield
        finally:
            stopped_s = time.thread_time() - begun
            self._deadline += stopped_s
            self._looked += stopped_s


_CURRENT: ContextVar[CompileBudget | None] = ContextVar("compile_budget", default=None)
_PAUSE: ContextVar[Callable[[float], None] | None] = ContextVar("compile_pause", default=None)


def current_budget() -> CompileBudget:
    """The budget of the compilation that runs; outside of one, a fresh one with the default limits."""
    return _CURRENT.get() or CompileBudget(CompileLimits())


def check_time() -> None:
    """Raise CompileTimeoutError once the time of the compilation that runs is up; outside of one, never."""
    budget = _CURRENT.get()
    if budget is not None:
        budget.check_time()


@contextmanager
def naming_limits(keyword: str, pointer: str) -> Iterator[None]:
    """Turn AutomatonLimitError into a SchemaLimitError of this keyword."""
    try:
        yield
    except AutomatonLimitError as error:
        raise SchemaLimitError(keyword, pointer, str(error)) from None


@contextmanager
def compile_budget(limits: CompileLimits) -> Iterator[CompileBudget]:
    """Compile under these limits; the time of a budget that runs already is not extended."""
    running = _CURRENT.get()
    if running is not None and running.limits == limits:
        yield running
        return
    token = _CURRENT.set(CompileBudget(limits))
    try:
        yield current_budget()
    finally:
        _CURRENT.reset(token)


@contextmanager
def pausing(pause: Callable[[float], None]) -> Iterator[None]:
    """Have compilations call `pause` every few milliseconds, with the CPU time since the last call, seconds.

    It may sleep, or raise to end the compilation.
    """
    token = _PAUSE.set(pause)
    try:
        yield
    finally:
        _PAUSE.reset(token)
