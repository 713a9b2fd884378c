"""Options of reading a schema and of writing the JSON texts it allows, and the bounds on compiling it.

The budget of a compilation is polled wherever the work can grow. It travels in a context variable: automata
are combined with operators, which have no room for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
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
    """Bounds on compiling one schema; past any of them it is refused.

    Attributes:
        schema_bytes: Most bytes of the schema's text.
        depth: Deepest nesting of the schema's text.
        nodes: Most value nodes and shapes the schema may expand to.
        automaton_states: Most states of one automaton over texts.
        seconds: Longest time compiling may take.
    """

    schema_bytes: int = 1 << 20
    depth: int = 128
    nodes: int = 50_000
    automaton_states: int = 50_000
    seconds: float = 2.0


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


class CompileBudget:
    """Time and size of one compilation.

    Args:
        limits: The bounds.
    """

    __slots__ = ("_deadline", "limits")

    def __init__(self, limits: CompileLimits) -> None:
        self.limits = limits
        self._deadline = time.monotonic() + limits.seconds

    def check_time(self) -> None:
        """Raise CompileTimeoutError once the time is up."""
        if time.monotonic() > self._deadline:
            raise CompileTimeoutError(f"compiling the schema took longer than {self.limits.seconds:g} s")

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
        begun = time.monotonic()
        try:
            yield
        finally:
            self._deadline += time.monotonic() - begun


_CURRENT: ContextVar[CompileBudget | None] = ContextVar("compile_budget", default=None)


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
    """Compile under these limits."""
    token = _CURRENT.set(CompileBudget(limits))
    try:
        yield current_budget()
    finally:
        _CURRENT.reset(token)
