"""What compiling one schema may cost, polled wherever the work can grow.

The budget travels in a context variable: automata are combined with operators, which have no room for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from decoding.grammar.errors import CompileTimeoutError, GrammarError
from decoding.grammar.options import CompileLimits


class AutomatonLimitError(GrammarError):
    """An automaton over texts would have more states than allowed; whoever knows the keyword says where."""


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
        """What is done meanwhile is not compiling, and has bounds of its own."""
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
def compile_budget(limits: CompileLimits) -> Iterator[CompileBudget]:
    """Compile under these limits."""
    token = _CURRENT.set(CompileBudget(limits))
    try:
        yield current_budget()
    finally:
        _CURRENT.reset(token)
