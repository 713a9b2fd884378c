"""Validates every answer by `jsonschema` before it leaves.

Numbers are read as decimals, as the grammar counts in decimals: `multipleOf: 0.01` would mean something else
in binary fractions.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from decimal import Context, Decimal, InvalidOperation, localcontext
from typing import Any, cast

from jsonschema import Draft4Validator, Draft7Validator, Draft202012Validator, validators
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from referencing.exceptions import Unresolvable

from genret.decoding.grammar.compile_options import Formats
from genret.retrieval.errors import GenretError, InputError

# Digits of the longest number that is validated: remainders of longer ones are refused, not rounded.
_EXACT = Context(prec=2000)


class InvalidAnswerError(GenretError):
    """An answer is not valid under its schema: a bug, whose output must not leave the library."""


class SlowValidationError(InputError):
    """Validating an answer takes too long: a schema may ask the same thing of it 2^40 times."""

    def __init__(self) -> None:
        super().__init__(
            "schema", f"an answer cannot be validated within {_SECONDS:g} s; a simpler schema may do"
        )


# CPU time of the thread that validates.
_SECONDS = 2.0
_running = threading.local()


def _timed(keyword: Callable[..., Iterator[Any] | None]) -> Callable[..., Iterator[Any] | None]:
    """Make a keyword's check give up once the time is up."""

    def check(*arguments: Any) -> Iterator[Any] | None:
        if time.thread_time() > getattr(_running, "deadline", float("inf")):
            raise SlowValidationError
        return keyword(*arguments)

    return check


def _is_integer(_checker: object, instance: object) -> bool:
    if isinstance(instance, Decimal):
        return instance == instance.to_integral_value()
    return isinstance(instance, int) and not isinstance(instance, bool)


class AnswerValidator:
    """Validates documents under one compiled schema; formats that `jsonschema` knows with "assert" only."""

    def __init__(self, schema: str, formats: Formats = "assert") -> None:
        document = json.loads(schema, parse_float=Decimal)
        known = _dialect(document)
        if isinstance(document, dict):
            # References back to the root would be handed to the stock validator of the dialect.
            document.pop("$schema", None)
        checker = known.TYPE_CHECKER.redefine("integer", _is_integer)
        extend = cast("Any", validators.extend)  # untyped in the stubs
        timed = {name: _timed(check) for name, check in known.VALIDATORS.items()}
        kind = extend(known, validators=timed, type_checker=checker)
        self._validator: Validator = kind(
            document, format_checker=known.FORMAT_CHECKER if formats == "assert" else None
        )

    def check(self, text: str) -> None:
        """Parse and validate one document.

        Raises:
            InvalidAnswerError: it is no JSON, or not valid; says where and why, without quoting the document.
            SlowValidationError: it takes too long.
        """
        try:
            value = json.loads(text, parse_float=Decimal, parse_constant=_refuse)
        except InvalidOperation as error:
            raise InvalidAnswerError(
                "a number of the answer has too large an exponent to validate"
            ) from error
        except (ValueError, RecursionError) as error:
            raise InvalidAnswerError(f"the answer is no JSON: {error}") from error
        _running.deadline = time.thread_time() + _SECONDS
        try:
            with localcontext(_EXACT):
                self._validator.validate(value)
        except ValidationError as error:
            raise InvalidAnswerError(
                f"the answer is not valid: {error.json_path} breaks {error.validator!r} "
                f"at #/{'/'.join(map(str, error.absolute_schema_path))}"
            ) from error
        except (Unresolvable, RecursionError, InvalidOperation) as error:
            raise InvalidAnswerError(f"the answer could not be validated: {error}") from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")


def _dialect(schema: Any) -> Any:
    """Return the validator of a schema's dialect; without `$schema` legacy keywords tell."""
    default: Any = Draft202012Validator
    if isinstance(schema, Mapping) and "$schema" not in schema:
        default = _legacy_dialect(schema) or default
    return validators.validator_for(schema, default=default)


def _legacy_dialect(schema: Mapping[str, Any]) -> Any:
    waiting: list[Any] = [schema]
    found: Any = None
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            if isinstance(value.get("exclusiveMinimum", value.get("exclusiveMaximum")), bool):
                return Draft4Validator
            if isinstance(value.get("items"), list) or "dependencies" in value or "additionalItems" in value:
                found = Draft7Validator
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return found
