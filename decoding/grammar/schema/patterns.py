"""Regular expressions of schemas, compiled once."""

from __future__ import annotations

from decoding.grammar.budget import AutomatonLimitError
from decoding.grammar.errors import InvalidSchemaError, SchemaLimitError, UnsupportedSchemaError
from decoding.grammar.regular.dfa import Dfa
from decoding.grammar.regular.regex_compiler import compile_pattern
from decoding.grammar.regular.regex_errors import PatternError, UnsupportedPatternError
from decoding.grammar.regular.remembered import Remembered


def _compile(pattern: str, portable: bool) -> Dfa:
    return compile_pattern(pattern, portable=portable)


_compiled = Remembered(_compile, lambda dfa, pattern, portable: dfa.num_bytes + 4 * len(pattern))


def pattern_dfa(pattern: str, keyword: str, pointer: str, portable: bool = False) -> Dfa:
    """The texts that a regular expression finds something in; see `compile_pattern`.

    Raises:
        InvalidSchemaError: it is no regular expression.
        UnsupportedSchemaError: it uses what automata cannot do.
        SchemaLimitError: its automaton has too many states.
    """
    try:
        return _compiled(pattern, portable)
    except UnsupportedPatternError as error:
        raise UnsupportedSchemaError(keyword, pointer, str(error)) from None
    except PatternError as error:
        raise InvalidSchemaError(keyword, pointer, str(error)) from None
    except AutomatonLimitError as error:
        raise SchemaLimitError(keyword, pointer, str(error)) from None


def is_read_differently(pattern: str) -> bool:
    """Whether some texts match a pattern in one reading and not in another.

    A pattern that cannot be compiled is none of these: where it is used, it is refused.
    """
    try:
        return _compiled(pattern, False) != _compiled(pattern, True)
    except (PatternError, AutomatonLimitError):
        return False
