"""The subset construction for patterns with lookaheads and lookbehinds.

A *run* of the pattern is a state together with *pending lookaheads*: conditions on the rest of the text, as
states of the lookaheads' automata. Lookbehinds are followed from the beginning of the text, for all runs
alike. Dropped are lookaheads that nothing can break any more, runs with one that cannot be kept, and runs
that have all lookaheads of another run in the same state, and more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from genret.decoding.grammar.compile_options import current_budget
from genret.decoding.grammar.regular.dfa import Dfa
from genret.decoding.grammar.regular.minimise import Row, canonical, explored, symbols_by_target
from genret.decoding.grammar.regular.nfa import Condition, Nfa, Side, holds
from genret.decoding.grammar.regular.product import over_symbols
from genret.decoding.grammar.regular.ranges import SCALAR_VALUES, Ranges, atoms, contains
from genret.decoding.grammar.regular.regex_classes import WORD
from genret.decoding.grammar.regular.regex_parser import Assertion, Look, Node, any_part

# Conditions of steps from here on are indexes of the table of looks.
FIRST_LOOK = 16

# (number of an automaton, its state).
_PendingLookahead = tuple[int, int]
_Run = tuple[int, frozenset[_PendingLookahead]]
_NO_LOOKAHEADS: frozenset[_PendingLookahead] = frozenset()
# Runs, the side in front of the place, and the states of the lookbehinds' automata.
_Key = tuple[frozenset[_Run], int, tuple[int, ...]]


def determinise_with_looks(
    nfa: Nfa,
    start: int,
    looks: Sequence[Look],
    make: Callable[[Look, Side], Dfa],
    before: int,
    absorbing: int,
) -> tuple[list[Row], list[int]]:
    """Minimal rows and labels of a pattern with looks.

    Args:
        nfa: The pattern.
        start: State before the first symbol.
        looks: Looks in the order of their conditions.
        make: Function that makes the automaton of the rest of the text (ahead) or of the text so far (behind)
            by the side in front of the place that looks ahead.
        before: Side of the text's beginning.
        absorbing: A state that reads everything, -1 for none.
    """
    runs = _Runs(nfa, looks, make, absorbing)
    first = (frozenset([(start, _NO_LOOKAHEADS)]), before, runs.at_begin)
    rows, labels = canonical(*explored(first, runs.expand, lambda key: len(key[0])))
    return over_symbols(rows, runs.parts), labels


class _Runs:
    def __init__(
        self, nfa: Nfa, looks: Sequence[Look], make: Callable[[Look, Side], Dfa], absorbing: int
    ) -> None:
        self._nfa = nfa
        self._absorbing = absorbing
        numbers: dict[Dfa, int] = {}
        # Numbers of automata: by lookahead and the side in front of the place, and by lookbehind.
        self._ahead: dict[tuple[int, int], int] = {}
        self._behind: dict[int, int] = {}
        for index, look in enumerate(looks):
            if not look.ahead:
                self._behind[index] = numbers.setdefault(make(look, Side.EDGE), len(numbers))
                continue
            sides = tuple(Side) if any_part(look.part, _minds_what_is_before) else (Side.OTHER,)
            made = {side: make(look, side) for side in sides}
            for side in Side:
                dfa = made.get(side, made[Side.OTHER])
                self._ahead[index, side] = numbers.setdefault(dfa, len(numbers))
        self._automata = list(numbers)
        self._followed = sorted(set(self._behind.values()))
        self.at_begin = (0,) * len(self._followed)
        charsets: dict[Ranges, int] = dict(nfa.charsets)
        for charset in (SCALAR_VALUES, WORD):
            charsets.setdefault(charset, len(charsets))
        for dfa in self._automata:
            for row in dfa.rows:
                for ranges in symbols_by_target(row).values():
                    charsets.setdefault(ranges, len(charsets))
        self.parts, self._members = atoms(list(charsets))
        self._samples = [ranges[0][0] for ranges in self.parts]
        self._is_word = [contains(WORD, sample) for sample in self._samples]
        self._moves: dict[tuple[int, int, int], int] = {}

    def expand(self, key: _Key) -> tuple[int, list[tuple[int, int, _Key]]]:
        """The label of a state and its edges over classes of symbols, for `explored`."""
        runs, side, behind = key
        may_end = self._may_end(self._closure(runs, side, Side.EDGE, behind))
        edges: list[tuple[int, int, _Key]] = []
        for part, following in sorted(self._successors(runs, side, behind).items()):
            ahead = Side.WORD if self._is_word[part] else Side.OTHER
            now = tuple(
                [self._move(*followed, part) for followed in zip(self._followed, behind, strict=True)]
            )
            successor: _Key = (following, ahead, now)
            if (self._absorbing, _NO_LOOKAHEADS) in following:
                successor = (frozenset([(self._absorbing, _NO_LOOKAHEADS)]), Side.OTHER, self.at_begin)
            edges.append((part, part, successor))
        return 0 if may_end else -1, edges

    def _move(self, number: int, state: int, part: int) -> int:
        """The state of an automaton behind a symbol of a part, -1 for none."""
        if state < 0:
            return -1
        key = (number, state, part)
        known = self._moves.get(key)
        if known is None:
            known = self._moves[key] = self._automata[number].step(state, self._samples[part])
        return known

    def _closure(self, runs: Iterable[_Run], before: int, ahead: int, behind: tuple[int, ...]) -> set[_Run]:
        """All runs that steps without a symbol lead to."""
        seen = set(runs)
        stack = list(seen)
        check_time = current_budget().check_time
        while stack:
            state, pending = stack.pop()
            for target, condition in self._nfa.steps[state]:
                now: frozenset[_PendingLookahead] | None = pending
                if condition >= FIRST_LOOK:
                    now = self._with_look(condition - FIRST_LOOK, pending, before, behind)
                elif condition and not holds(condition, before, ahead):
                    now = None
                if now is not None and (target, now) not in seen:
                    seen.add((target, now))
                    stack.append((target, now))
            if not len(seen) & 1023:
                check_time()
        return seen

    def _with_look(
        self, index: int, pending: frozenset[_PendingLookahead], before: int, behind: tuple[int, ...]
    ) -> frozenset[_PendingLookahead] | None:
        """The pending lookaheads behind a step that looks; None if the look fails."""
        followed = self._behind.get(index)
        if followed is not None:
            state = behind[self._followed.index(followed)]
            return pending if state >= 0 and self._automata[followed].ends[state] >= 0 else None
        number = self._ahead[index, before]
        dfa = self._automata[number]
        if dfa.is_everything:
            return pending
        return None if dfa.is_empty else pending | {(number, 0)}

    def _may_end(self, runs: Iterable[_Run]) -> bool:
        return any(
            self._nfa.labels[state] >= 0
            and all(self._automata[number].ends[at] >= 0 for number, at in pending)
            for state, pending in runs
        )

    def _successors(
        self, runs: frozenset[_Run], before: int, behind: tuple[int, ...]
    ) -> dict[int, frozenset[_Run]]:
        """The runs behind one more symbol, by part of the symbols; parts without runs are left out."""
        found: dict[int, dict[int, set[frozenset[_PendingLookahead]]]] = {}
        for side in (Side.WORD, Side.OTHER):
            wants_word = side == Side.WORD
            for state, pending in self._closure(runs, before, side, behind):
                for charset, target in self._nfa.edges[state]:
                    for part in self._members[charset]:
                        if self._is_word[part] == wants_word:
                            found.setdefault(part, {}).setdefault(target, set()).add(pending)
        out: dict[int, frozenset[_Run]] = {}
        for part, by_target in found.items():
            kept = [
                (target, pending)
                for target, choices in by_target.items()
                for pending in self._least(choices, part)
            ]
            if kept:
                out[part] = frozenset(kept)
        return out

    def _least(
        self, choices: set[frozenset[_PendingLookahead]], part: int
    ) -> list[frozenset[_PendingLookahead]]:
        """Sets of pending lookaheads behind a symbol, without those that contain another set."""
        moved = {now for pending in choices if (now := self._kept(pending, part)) is not None}
        if _NO_LOOKAHEADS in moved:
            return [_NO_LOOKAHEADS]
        return [now for now in moved if not any(other < now for other in moved)]

    def _kept(self, pending: frozenset[_PendingLookahead], part: int) -> frozenset[_PendingLookahead] | None:
        """The lookaheads behind one more symbol; None if one cannot be kept."""
        out: set[_PendingLookahead] = set()
        for number, state in pending:
            target = self._move(number, state, part)
            if target < 0:
                return None
            if not self._automata[number].is_universal(target):
                out.add((number, target))
        return frozenset(out)


def _minds_what_is_before(node: Node) -> bool:
    """Whether a part may depend on what is in front of a place."""
    return isinstance(node, Assertion) and node.condition != Condition.AT_END
