"""Compiles regular expressions of JSON Schema's `pattern` to automata.

The meaning is that of ECMA-262 with the flag `u`: a pattern is searched for, `^` and `$` are the ends of the
text, the escapes for digits and word characters are ASCII, that for white space is ECMA's, and `.` is all but
LF, CR, U+2028 and U+2029. Real schemas are met halfway: an unescaped `]`, `{`, `}` or `-` stands for itself
where it can mean nothing else, any punctuation may be escaped, and `(?i)` and `(?s)` at the beginning,
`(?i:...)`, `(?P<name>...)`, comments and the escapes A, Z and z mean what they mean in Python, where Z is the
very end. Lazy quantifiers have the language of greedy ones. Lookaheads and lookbehinds may stand anywhere,
with a few limits on the latter.

Refused: back-references; possessive quantifiers, atomic groups and conditionals; flags in the middle; octal
escapes; Unicode properties that `property_ranges` does not know; and what dialects read differently, such as
`[]a]`, `{,3}` and the escape a.

Python's `re`, with which many validators work, differs: its `$` also matches in front of a last line feed;
its escapes d, w and b know all of Unicode; its escape s also has U+001C to U+001F and U+0085 and lacks
U+FEFF; its `.` has all but LF; its escape B does not match in an empty text (before Python 3.14); `(?i)`
differs for a few letters; two escapes of surrogates are two characters; and the escapes `p{...}`, `cX` and
`u{...}` are errors. With `portable=True` all texts match under both readings, as far as Python can read the
pattern. That excludes texts in which the readings differ and, if the pattern has word boundaries, the empty
text and all texts with letters or digits beyond ASCII.

A pattern with lookaheads and lookbehinds has a subset construction of its own. A *run* of it is a state
together with *pending lookaheads*: conditions on the rest of the text, as states of the lookaheads' automata.
Lookbehinds are followed from the beginning of the text, for all runs alike. Dropped are lookaheads that
nothing can break any more, runs with one that cannot be kept, and runs that have all lookaheads of another
run in the same state, and more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from genret.decoding.grammar.compile_options import current_budget
from genret.decoding.grammar.regular.dfa import Dfa
from genret.decoding.grammar.regular.minimise import canonical, explored, symbols_by_target
from genret.decoding.grammar.regular.nfa import Condition, Nfa, Side, holds
from genret.decoding.grammar.regular.product import over_symbols
from genret.decoding.grammar.regular.ranges import (
    SCALAR_VALUES,
    Ranges,
    atoms,
    complement,
    contains,
    intersection,
)
from genret.decoding.grammar.regular.regex_classes import WORD, exactly, python_word
from genret.decoding.grammar.regular.regex_parser import (
    Alternation,
    Assertion,
    Chars,
    Concatenation,
    Look,
    Node,
    Repetition,
    any_part,
    parse_pattern,
)


def compile_pattern(pattern: str, *, portable: bool = False) -> Dfa:
    """The texts in which a pattern is found; with `portable`, only those that match in Python's reading, too.

    Raises:
        PatternError: The text is not a regular expression; the error says where.
        UnsupportedPatternError: It uses what is not regular, not clear or not supported; the error says
            where.
        AutomatonLimitError: Its automaton has too many states.
    """
    node = parse_pattern(pattern, portable=portable)
    found = language(node)
    if portable and any_part(node, _minds_words):
        ambiguous = intersection(python_word(), complement(WORD))
        clear = Repetition(Chars(exactly(complement(ambiguous))), 1, None)
        found = found & language(clear, found_later=False, goes_on=False)
    return found


def _minds_words(node: Node) -> bool:
    """Whether a part is a condition on word boundaries."""
    return isinstance(node, Assertion) and node.condition in (
        Condition.AT_WORD_BOUNDARY,
        Condition.INSIDE_OR_OUTSIDE_WORD,
    )


_LINE_FEED = Chars(exactly(((0x0A, 0x0A),)))


def language(
    node: Node, *, before: Side = Side.EDGE, found_later: bool = True, goes_on: bool = True, sure: bool = True
) -> Dfa:
    """The texts in which a pattern is found.

    Args:
        node: The pattern.
        before: Kind of character in front of the text.
        found_later: Whether the match may begin behind the first place of the text.
        goes_on: Whether the text may go on behind the match.
        sure: Whether classes have only their sure characters, or all possible ones.

    Raises AutomatonLimitError for too many states.
    """
    current_budget().check_states(_size(node))
    if found_later and before == Side.EDGE:
        stripped = _without_anchor(node, Condition.AT_BEGIN)
        if stripped is not None:
            node, found_later = stripped, False
    if goes_on and (sure or not any_part(node, lambda part: isinstance(part, Assertion) and part.loose)):
        stripped = _without_anchor(node, Condition.AT_END)
        if stripped is not None:
            node, goes_on = stripped, False
    builder = _Builder(sure)
    nfa = builder.nfa
    start = nfa.state()
    if found_later:
        nfa.edge(start, SCALAR_VALUES, start)
        begin = nfa.state()
        nfa.step(start, begin)
    else:
        begin = start
    end = builder.add(node, begin)
    accepting = nfa.state(0)
    nfa.step(end, accepting)
    if goes_on:
        nfa.edge(accepting, SCALAR_VALUES, accepting)
    absorbing = accepting if goes_on else -1
    if not builder.looks:
        return Dfa(*nfa.determinise(start, WORD, before, absorbing))
    runs = _Runs(nfa, builder.looks, sure, absorbing)
    first: _Key = (frozenset([(start, _NO_LOOKAHEADS)]), before, runs.at_begin)
    rows, labels = canonical(*explored(first, runs.expand, lambda key: len(key[0])))
    return Dfa(over_symbols(rows, runs.parts), labels)


def _look_language(look: Look, before: Side, sure: bool) -> Dfa:
    """The rest of the text that a lookahead allows, or the whole text so far that a lookbehind allows.

    `before` is the side in front of the place that looks ahead.
    """
    wants_sure = sure != look.negative
    if look.ahead:
        found = language(look.part, before=before, found_later=False, sure=wants_sure)
    else:
        found = language(look.part, goes_on=False, sure=wants_sure)
    return ~found if look.negative else found


class _Builder:
    def __init__(self, sure: bool) -> None:
        self.nfa = Nfa()
        self.looks: list[Look] = []
        self._sure = sure

    def add(self, node: Node, start: int) -> int:
        """Add the node's texts behind a state. Returns the state behind them.

        Nothing leads back to `start`, and only the node's own texts lead to the returned state.
        """
        nfa = self.nfa
        if isinstance(node, Chars):
            end = nfa.state()
            nfa.edge(start, node.chars.sure if self._sure else node.chars.possible, end)
            return end
        if isinstance(node, Concatenation):
            for item in node.items:
                start = self.add(item, start)
            return start
        if isinstance(node, Alternation):
            end = nfa.state()
            for option in node.options:
                nfa.step(self.add(option, start), end)
            return end
        if isinstance(node, Repetition):
            return self._repetition(node, start)
        end = nfa.state()
        if isinstance(node, Assertion):
            nfa.step(start, end, node.condition)
            if node.loose and not self._sure:
                ahead = Concatenation((_LINE_FEED, Assertion(Condition.AT_END)))
                nfa.step(start, end, self._look(Look(ahead, ahead=True, negative=False)))
            return end
        nfa.step(start, end, self._look(node))
        return end

    def _look(self, look: Look) -> int:
        """The condition of a step that looks ahead or behind."""
        self.looks.append(look)
        return FIRST_LOOK + len(self.looks) - 1

    def _repetition(self, node: Repetition, start: int) -> int:
        nfa = self.nfa
        for _ in range(node.least):
            start = self.add(node.item, start)
        if node.most is None:
            loop = nfa.state()
            nfa.step(start, loop)
            nfa.step(self.add(node.item, loop), loop)
            end = nfa.state()
            nfa.step(loop, end)
            return end
        if node.most == node.least:
            return start
        end = nfa.state()
        for _ in range(node.most - node.least):
            nfa.step(start, end)
            start = self.add(node.item, start)
        nfa.step(start, end)
        return end


def _size(node: Node) -> int:
    """The least number of states of a tree."""
    if isinstance(node, Concatenation):
        return sum(map(_size, node.items))
    if isinstance(node, Alternation):
        return sum(map(_size, node.options)) + 1
    if isinstance(node, Repetition):
        times = node.least + 1 if node.most is None else node.most
        return times * _size(node.item)
    if isinstance(node, Look):
        return _size(node.part)
    return 1


def _without_anchor(node: Node, anchor: Condition) -> Node | None:
    """The pattern without the anchor that all its options begin or end with; None if an option has none."""
    if isinstance(node, Assertion):
        return Concatenation() if node.condition == anchor else None
    if isinstance(node, Alternation):
        options = [_without_anchor(option, anchor) for option in node.options]
        kept = tuple(option for option in options if option is not None)
        return Alternation(kept) if len(kept) == len(options) else None
    if isinstance(node, Concatenation) and node.items:
        at = 0 if anchor == Condition.AT_BEGIN else len(node.items) - 1
        stripped = _without_anchor(node.items[at], anchor)
        if stripped is not None:
            return Concatenation((*node.items[:at], stripped, *node.items[at + 1 :]))
    return None


# Conditions of steps from here on are indexes of the table of looks.
FIRST_LOOK = 16

# (number of an automaton, its state).
_PendingLookahead = tuple[int, int]
_Run = tuple[int, frozenset[_PendingLookahead]]
_NO_LOOKAHEADS: frozenset[_PendingLookahead] = frozenset()
# Runs, the side in front of the place, and the states of the lookbehinds' automata.
_Key = tuple[frozenset[_Run], int, tuple[int, ...]]


class _Runs:
    """Sets of runs as states over classes of symbols; `looks` are in the order of their conditions."""

    def __init__(self, nfa: Nfa, looks: Sequence[Look], sure: bool, absorbing: int) -> None:
        self._nfa = nfa
        self._absorbing = absorbing
        numbers: dict[Dfa, int] = {}
        # Numbers of automata: by lookahead and the side in front of the place, and by lookbehind.
        self._ahead: dict[tuple[int, int], int] = {}
        self._behind: dict[int, int] = {}
        for index, look in enumerate(looks):
            if not look.ahead:
                self._behind[index] = numbers.setdefault(_look_language(look, Side.EDGE, sure), len(numbers))
                continue
            sides = tuple(Side) if any_part(look.part, _minds_what_is_before) else (Side.OTHER,)
            made = {side: _look_language(look, side, sure) for side in sides}
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
