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
"""

from __future__ import annotations

from genret.decoding.grammar.compile_options import current_budget
from genret.decoding.grammar.regular.dfa import Dfa
from genret.decoding.grammar.regular.nfa import Condition, Nfa, Side
from genret.decoding.grammar.regular.ranges import SCALAR_VALUES, complement, intersection
from genret.decoding.grammar.regular.regex_classes import WORD, exactly, python_word
from genret.decoding.grammar.regular.regex_lookaround import FIRST_LOOK, determinise_with_looks
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

    def make(look: Look, side: Side) -> Dfa:
        return _look_language(look, side, sure)

    return Dfa(*determinise_with_looks(nfa, start, builder.looks, make, before, absorbing))


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
                nfa.step(start, end, self._look(Look(ahead, ahead=True, negative=False, position=0)))
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
