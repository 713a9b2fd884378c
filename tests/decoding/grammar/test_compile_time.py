"""Whatever is read whole looks at the clock, and time may run out anywhere."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from genret.decoding.grammar import compile_options as budget
from genret.decoding.grammar.compile_options import CompileLimits, GrammarOptions, compile_budget
from genret.decoding.grammar.errors import CompileTimeoutError, SchemaLimitError
from genret.decoding.grammar.json_grammar import compile_schema
from genret.decoding.grammar.leaves.leaf_factory import MAX_SHORTEST, Leaves
from genret.decoding.grammar.regular import dfa_texts
from genret.decoding.grammar.regular.byte_dfa import ByteDfa
from genret.decoding.grammar.regular.dfa import Dfa
from genret.decoding.grammar.regular.json_spelling import spell_texts
from genret.decoding.grammar.regular.minimise import canonical, renumbered
from genret.decoding.grammar.regular.number_set import NumberSet
from genret.decoding.grammar.schema.formula import Place
from genret.decoding.grammar.schema.scalar_keywords import one_of
from tests.grammar_oracle import byte_vocabulary

LEAVES = Leaves(byte_vocabulary())
STATES = 10_000
ROWS = [((97, 97, n + 1), (98, 99, n + 1)) for n in range(STATES)] + [()]
ENDS = [False] * STATES + [True]
LABELS = [-1] * STATES + [0]
LONG = Dfa.from_rows(ROWS, LABELS)
LONG_SPELLED = spell_texts(LONG)
PLACE = Place("enum", "#/enum")
# By what is done, and how much of it is to be between two looks at most.
READ_WHOLE: dict[str, tuple[Callable[[], object], int]] = {
    "canonical": (lambda: canonical(ROWS, LABELS), 256),
    "renumbered": (lambda: renumbered(ROWS, LABELS), 256),
    "distances": (lambda: dfa_texts.distances(ROWS, ENDS), 256),
    "shortest": (lambda: dfa_texts.shortest_text(ROWS, ENDS, 0), 256),
    "longest": (lambda: dfa_texts.longest_length(ROWS), 256),
    "count": (lambda: dfa_texts.count_texts(ROWS, ENDS), 256),
    "spelled": (lambda: spell_texts(LONG), 256),
    "shortest spelled": (lambda: LONG_SPELLED.shortest(), 256),
    "from rows": (lambda: ByteDfa.from_minimal_rows(ROWS, LABELS), 1024),
    "texts": (lambda: Dfa.of_texts(f"{n:05}" for n in range(STATES)), 256),
    "literals": (lambda: ByteDfa.literals((b"%05d" % n, 0) for n in range(STATES)), 256),
    "numbers": (lambda: NumberSet.of_values(Decimal(n) for n in range(STATES)), 1024),
    "objects": (lambda: one_of([{"n": n} for n in range(STATES)], PLACE), 256),
}


class Clock:
    """Time stands still until it has been looked at so many times; then it is late."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, late_at: int | None = None) -> None:
        self.looks = 0
        self._late_at = late_at
        # Wall time flies: the thread's own time is looked at every time.
        clocks = SimpleNamespace(monotonic=map(float, count()).__next__, thread_time=self._look)
        monkeypatch.setattr(budget, "time", clocks)

    def _look(self) -> float:
        self.looks += 1
        return 1e9 if self._late_at is not None and self.looks > self._late_at else 0.0


@pytest.mark.parametrize("name", READ_WHOLE)
def test_reading_all_of_something_looks_at_the_clock(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    read, between = READ_WHOLE[name]
    clock = Clock(monkeypatch)
    with compile_budget(CompileLimits(automaton_states=100 * STATES)):
        begun = clock.looks
        read()
    assert clock.looks - begun >= STATES // between


def test_a_long_chain_that_ends_in_a_loop_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Round by round it would take 800 times as many steps."""
    length = 800
    chain = [((97, 97, state + 1),) for state in range(length)]
    loop = [((97, 97, length), (98, 98, length + 1)), ((98, 98, length),)]
    clock = Clock(monkeypatch)
    with compile_budget(CompileLimits()):
        small, _ = canonical(chain + loop, [-1] * length + [0, 0])
    assert clock.looks < 60
    assert len(small) == length + 2
    assert dfa_texts.bottom_up(small) is None


def _schemas(number: int) -> dict[str, Any]:
    """Schemas that nothing is remembered of, for different numbers."""
    return {
        "pattern": {"pattern": rf"^(?:\S+\s){{0,{number + 9}}}x$", "maxLength": 50 + number},
        "enum": {"enum": [f"{number} {n}" for n in range(300)]},
        "format": {"format": "email", "maxLength": 30 + number},
        "members": {"patternProperties": {f"a.{{3}}b{number}": {"multipleOf": 7}}, "minProperties": 2},
        "choice": {"oneOf": [{"properties": {f"k{n}": {"const": number}}} for n in range(4)]},
    }


@pytest.mark.parametrize("name", sorted(_schemas(0)))
def test_time_may_run_out_anywhere(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    compile_schema(_schemas(0)[name], LEAVES)  # formats and the like are made once
    clock = Clock(monkeypatch)
    compile_schema(_schemas(7)[name], LEAVES)
    most = clock.looks
    assert most > 2
    for number in range(1, 7):
        schema = _schemas(number)[name]
        Clock(monkeypatch, late_at=1 + (most - 2) * number // 7)
        with pytest.raises(CompileTimeoutError, match="took longer than 2 s"):
            compile_schema(schema, LEAVES)
        Clock(monkeypatch)
        assert compile_schema(schema, LEAVES).num_bytes > 0


def test_strings_that_nobody_could_write_are_refused() -> None:
    for schema in ({"minLength": 10**15}, {"not": {"maxLength": 10**15}}, {"minLength": MAX_SHORTEST + 1}):
        with pytest.raises(SchemaLimitError, match=r"more than 1,048,576 characters") as refused:
            compile_schema({"type": "string", **schema}, LEAVES)
        assert refused.value.pointer.startswith("#/")
    assert compile_schema({"minLength": 5000, "maxLength": 10**15}, LEAVES, GrammarOptions()).start == 0
