r"""Regular expressions of JSON Schema's `pattern` as automata.

The meaning is that of ECMA-262 with the flag `u`: a pattern is searched for, `^` and `$` are the ends of the
text, `\d` and `\w` are ASCII, `\s` is ECMA's white space, `.` is all but LF, CR, U+2028 and U+2029. Real
schemas are met halfway: an unescaped `]`, `{`, `}` or `-` stands for itself where it can mean nothing else,
any punctuation may be escaped, and `(?i)` and `(?s)` at the beginning, `(?i:...)`, `(?P<name>...)`, comments,
`\A`, `\Z` and `\z` mean what they mean in Python, where `\Z` is the very end. Lazy quantifiers have the
language of greedy ones. What is ahead or behind may be looked for anywhere, with a few limits on the latter.

Refused: back-references; possessive quantifiers, atomic groups and conditionals; flags in the middle; octal
escapes; properties other than those of `regex_unicode`; and what is read one way here and another there, such
as `[]a]`, `{,3}` and `\a`.

Python's `re`, with which many validators work, differs: its `$` also matches in front of a last line feed;
its `\d`, `\w` and `\b` know all of Unicode; its `\s` also has U+001C to U+001F and U+0085 and lacks U+FEFF;
its `.` has all but LF; its `\B` does not match in an empty text (before Python 3.14); `(?i)` differs for a
few letters; two escapes of surrogates are two characters; and `\p{...}`, `\cX` and `\u{...}` are errors. With
`portable=True` all texts match under both readings, as far as Python can read the pattern. That costs the
texts in which the readings differ, and, where a pattern minds word boundaries, all with letters or digits
beyond ASCII and the empty text.
"""

from __future__ import annotations

from decoding.grammar.regular.dfa import Dfa
from decoding.grammar.regular.nfa import Condition
from decoding.grammar.regular.ranges import complement, intersection
from decoding.grammar.regular.regex_classes import WORD, python_word
from decoding.grammar.regular.regex_language import language
from decoding.grammar.regular.regex_parser import parse_pattern
from decoding.grammar.regular.regex_syntax import Assertion, Node, any_part


def compile_pattern(pattern: str, *, portable: bool = False) -> Dfa:
    """The texts in which a pattern is found.

    Args:
        pattern: A regular expression.
        portable: Whether only texts are wanted that match under Python's reading, too.

    Raises:
        PatternError: it is not a regular expression; says where.
        UnsupportedPatternError: it uses what is not regular, not clear or not supported; says where.
        AutomatonLimitError: its automaton has too many states.
    """
    node = parse_pattern(pattern, portable=portable)
    found = language(node)
    if portable and any_part(node, _minds_words):
        ambiguous = intersection(python_word(), complement(WORD))
        found = found & Dfa.of_chars(complement(ambiguous)).repeated(1)
    return found


def _minds_words(node: Node) -> bool:
    """Whether a part is a condition on word boundaries."""
    return isinstance(node, Assertion) and node.condition in (
        Condition.AT_WORD_BOUNDARY,
        Condition.INSIDE_OR_OUTSIDE_WORD,
    )
