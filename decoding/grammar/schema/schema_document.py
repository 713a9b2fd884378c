"""Parses the text of a schema: order kept, numbers exact, nothing said twice.

Parsed values are dict, list, str, int, Decimal, bool and None; an int is a number written without fraction
and exponent, a Decimal any other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from json.encoder import encode_basestring_ascii
from typing import Any
from urllib.parse import quote

from genret.decoding.grammar.compile_options import CompileLimits
from genret.decoding.grammar.errors import InvalidSchemaError, SchemaLimitError

Json = Any
"""A parsed JSON value."""

_SURROGATE = re.compile("[\ud800-\udfff]")

# Most characters of the pointers to all values of a schema: they are kept, and repeat the names above them.
_POINTER_CHARACTERS = 1 << 26
# No text of so many characters has more: a name of half of them, above values of the other half.
_ALL_POINTERS_FIT = 1 << 13


class _TwiceError(Exception): ...


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _TwiceError
    return made


def _refuse_constant(name: str) -> Json:
    raise InvalidSchemaError("", "#", f"the schema is not JSON: {name} is no JSON number")


_DECODER = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse_constant, object_pairs_hook=_object)


def escaped_step(name: str) -> str:
    """One step of a JSON pointer, without its slash (RFC 6901, section 3)."""
    return name.replace("~", "~0").replace("/", "~1")


def pointer_step(name: str) -> str:
    """One step of a JSON pointer in a URI fragment, without its slash."""
    if name.isalnum() and name.isascii():
        return name
    name = escaped_step(name)
    return quote(name, _UNESCAPED, errors="surrogatepass")


# Beside letters, digits and `_.-~`, which are never escaped.
_UNESCAPED = "!$&'()*+,;=:@?"


def parse_document(schema: str | bytes | Mapping[str, Any] | bool, limits: CompileLimits) -> Json:
    """Read a schema: its text (bytes are UTF-8), or an already parsed object or boolean.

    Returns:
        Any JSON value, so whether it is a schema has yet to be looked at.

    Raises:
        InvalidSchemaError: it is no JSON, has a key twice, or a lone surrogate in a string.
        SchemaLimitError: it is too long or nested too deeply.
    """
    if isinstance(schema, str | bytes):
        return _parse_text(schema, limits)
    if isinstance(schema, bool | Mapping):
        return _parse_text(_text_of(schema, limits), limits)
    raise InvalidSchemaError("", "#", f"a schema is an object or a boolean, not {type(schema).__name__}")


def _parse_text(schema: str | bytes, limits: CompileLimits) -> Json:
    if isinstance(schema, bytes):
        _check_size(len(schema), limits)
        try:
            text = schema.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidSchemaError("", "#", f"the schema is not UTF-8: byte {error.start}") from None
    else:
        text = schema
        _check_size(len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass")), limits)
    try:
        parsed = _DECODER.decode(text)
    except _TwiceError:
        raise _duplicate(text) from None
    except json.JSONDecodeError as error:
        where = f"in line {error.lineno}, column {error.colno}"
        where += "; expected the text of a schema, not a path" if text.endswith(".json") else ""
        raise InvalidSchemaError.at(None, f"the schema is not JSON: {error.msg} {where}") from None
    except (ValueError, InvalidOperation):
        raise _too_many_digits() from None
    except RecursionError:
        raise _too_deep(limits) from None
    if text.count("{") + text.count("[") > limits.depth:
        _check_depth(parsed, limits)
    if len(text) > _ALL_POINTERS_FIT:
        _check_pointers(parsed)
    if "\\u" in text or (not text.isascii() and _SURROGATE.search(text)):
        _check_surrogates(parsed)
    return parsed


def _check_size(size: int, limits: CompileLimits) -> None:
    if size > limits.schema_bytes:
        raise SchemaLimitError("", "#", f"the schema has {size:,} bytes; {limits.schema_bytes:,} are allowed")


def _check_depth(parsed: Json, limits: CompileLimits) -> None:
    level = [parsed]
    depth = 0
    while level:
        containers = [value for value in level if type(value) is dict or type(value) is list]
        depth += 1
        if containers and depth > limits.depth:
            raise _too_deep(limits)
        level = [
            inner for value in containers for inner in (value.values() if type(value) is dict else value)
        ]


def _check_pointers(parsed: Json) -> None:
    """Refuse long names above many values, whose pointers would take gigabytes."""
    total = 0
    waiting = [(parsed, 1)]
    while waiting:
        value, length = waiting.pop()
        total += length * len(value) if isinstance(value, list | dict) else 0
        if isinstance(value, dict):
            for key, inner in value.items():
                step = 1 + len(pointer_step(key))
                total += step
                if isinstance(inner, list | dict):
                    waiting.append((inner, length + step))
        elif isinstance(value, list):
            step = 1 + len(str(len(value)))
            total += step * len(value)
            waiting.extend((inner, length + step) for inner in value if isinstance(inner, list | dict))
        if total > _POINTER_CHARACTERS:
            reason = f"the pointers to its values take more than {_POINTER_CHARACTERS:,} characters"
            raise SchemaLimitError.at(None, reason)


def _too_deep(limits: CompileLimits) -> SchemaLimitError:
    return SchemaLimitError("", "#", f"the schema is nested deeper than {limits.depth} levels")


def _too_many_digits() -> SchemaLimitError:
    return SchemaLimitError("", "#", "a number of the schema has too many digits")


def _duplicate(text: str) -> InvalidSchemaError:
    """The error for a key that comes twice, with its place."""
    found: dict[int, tuple[dict[str, Json], str]] = {}

    def noting(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        made = dict(pairs)
        if len(made) != len(pairs):
            found[id(made)] = made, _first_repeated(pairs)
        return made

    parsed = json.loads(text, object_pairs_hook=noting)
    for place in _places(parsed):
        if id(place[0]) in found:
            key = found[id(place[0])][1]
            pointer = f"{_pointer(place)}/{pointer_step(key)}"
            return InvalidSchemaError(key, pointer, "the key comes twice in one object")
    return InvalidSchemaError.at(None, "a key comes twice in one object")


def _first_repeated(pairs: list[tuple[str, Json]]) -> str:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            return key
        seen.add(key)
    raise ValueError("no key comes twice")


def _check_surrogates(parsed: Json) -> None:
    for place in _places(parsed):
        value = place[0]
        texts = value if isinstance(value, dict) else (value,) if isinstance(value, str) else ()
        if any(_SURROGATE.search(text) for text in texts):
            reason = "a string holds half a surrogate pair, no character"
            raise InvalidSchemaError("", _pointer(place), reason)


# A value, its key or index in the value that holds it, and the place of that value.
_Place = tuple[Json, str, "_Place | None"]


def _places(parsed: Json) -> Iterator[_Place]:
    """All values, containers before what they hold; pointers are written only when they are asked for."""
    places: list[_Place] = [(parsed, "#", None)]
    for place in places:
        value = place[0]
        if isinstance(value, Mapping):
            places.extend((inner, key, place) for key, inner in value.items())
        elif isinstance(value, list | tuple):
            places.extend((inner, str(n), place) for n, inner in enumerate(value))
        yield place


def _pointer(place: _Place) -> str:
    steps: list[str] = []
    _, step, above = place
    while above is not None:
        steps.append(pointer_step(step))
        _, step, above = above
    return "/".join(["#", *reversed(steps)])


def _text_of(schema: Mapping[str, Any] | bool, limits: CompileLimits) -> str:
    """The JSON text of Python values."""
    try:
        return canonical_text(schema)
    except RecursionError:
        raise _too_deep(limits) from None
    except TypeError:
        place, fault = next((place, fault) for place in _places(schema) if (fault := _fault(place[0])))
        raise InvalidSchemaError("", _pointer(place), fault) from None
    except ValueError:
        raise _too_many_digits() from None


def _fault(value: object) -> str:
    """Why a value is no JSON, apart from what is in it; "" where it is."""
    if isinstance(value, Mapping):
        kinds = [type(key).__name__ for key in value if not isinstance(key, str)]
        return f"a key is a string, not {kinds[0]}" if kinds else ""
    if isinstance(value, float | Decimal):
        return "" if Decimal(value).is_finite() else f"{value} is no JSON number"
    is_json = value is None or isinstance(value, str | int | list | tuple)
    return "" if is_json else f"{type(value).__name__} is no JSON value"


def canonical_text(schema: Json) -> str:
    """Write a parsed schema so that equal texts mean the same schema to the compiler.

    The order of properties is kept, because it is the order in which they are written; blanks and the
    spelling of strings are not. Numbers stay as they were written, up to the spelling of exponents: `1` and
    `1.0` differ.
    """
    pieces: list[str] = []
    _write(schema, pieces.append)
    return "".join(pieces)


def _write(value: Json, put: Any) -> None:
    if isinstance(value, str):
        put(encode_basestring_ascii(value))
    elif value is None or value is True or value is False:
        put("null" if value is None else "true" if value else "false")
    elif isinstance(value, Mapping):
        separator = "{"
        for key, inner in value.items():
            put(separator + encode_basestring_ascii(key) + ":")
            _write(inner, put)
            separator = ","
        put("}" if value else "{}")
    elif isinstance(value, list | tuple):
        separator = "["
        for inner in value:
            put(separator)
            _write(inner, put)
            separator = ","
        put("]" if value else "[]")
    elif isinstance(value, int):
        put(str(int(value)))
    elif isinstance(value, float | Decimal) and Decimal(value).is_finite():
        put(str(value if isinstance(value, Decimal) else Decimal(repr(float(value)))))
    else:
        raise TypeError("no JSON")
