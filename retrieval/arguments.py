"""Checks arguments (text, numbers, sequences, ids); declares the options and restrictions of requests.

An option is declared with its field: `k: int = option(10, "Candidates wanted.", (1, 9))`. The checks of
requests, the flags of commands, the conversion to the wire and the ranges in the OpenAPI document are made of
these declarations.
"""

from __future__ import annotations

import hashlib
import inspect
import operator
import os
import re
import secrets
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property, wraps
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, TypeVar, cast, get_args, get_origin, get_type_hints

from genret.retrieval.errors import InputError, SourceError, did_you_mean, instead_of
from genret.retrieval.filters.predicate import FIELD, Predicate, canonical

Item = TypeVar("Item")
_F = TypeVar("_F", bound=Callable[..., Any])


@contextmanager
def named(field: str, name: str) -> Iterator[None]:
    """Let an error about `field` in the block name the item of a sequence."""
    try:
        yield
    except InputError as error:
        if error.field != field:
            raise
        raise InputError(name, error.message) from None


def sequence(field: str, value: Item | Iterable[Item], kind: type[Item]) -> list[Item]:
    """Return one item, or a sequence of items, as a list; InputError names an item of another type."""
    if isinstance(value, kind):
        return [value]
    is_table = isinstance(value, Mapping) or hasattr(value, "columns")  # which iterate over names
    if is_table or not isinstance(value, Iterable) or isinstance(value, str | bytes):
        raise wrong_type(field, value, kind, " or a list of them")
    items = list(value)
    for i, item in enumerate(items):
        if not isinstance(item, kind):
            raise wrong_type(f"{field}[{i}]", item, kind)
    return items


def wrong_type(field: str, value: object, kind: type, many: str = "", further: str = "") -> InputError:
    """Return the error for a value of another type; of text it says how to write it as that type."""
    name = kind.__name__
    how = f"; write {name}({value[:40]!r}{further})" if isinstance(value, str) else ""
    article = "an" if name[0] in "AEIOU" else "a"
    return InputError(field, f"must be {article} {name}{many}, got {type(value).__name__}{how}")


def check_text(field_name: str, value: object) -> None:
    """Raise InputError for a value that is no text, or has half a surrogate pair, as JSON can."""
    if not isinstance(value, str):
        such = " such as kind = 'film'" if field_name == FIELD else ""  # often taken for a dict
        raise InputError(field_name, f"must be text{such}, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            field_name, f"not valid Unicode: half a surrogate pair at character {error.start + 1}"
        ) from None


def check_path(field_name: str, value: object, expected: str = "the path of an index directory") -> None:
    """Raise InputError for a value that is no path, or an empty one."""
    if not isinstance(value, str | os.PathLike) or not str(value):
        got = repr(value) if isinstance(value, str) else type(value).__name__
        raise InputError(field_name, f"must be {expected}, got {got}")


def check_filled(field_name: str, value: object) -> None:
    """Raise InputError as `check_text` does, and for text that is empty or all white space."""
    check_text(field_name, value)
    if not str(value).strip():
        raise InputError(field_name, "must not be empty")


def integer(field_name: str, value: object, low: int, high: int, when: str = "") -> int:
    """Return an integer in [low, high]; InputError otherwise. `when`: the range's condition, " with ..."."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InputError(field_name, f"must be an integer, got {value!r}")
    found = operator.index(value)  # NumPy's integers too
    if not low <= found <= high:
        raise InputError(field_name, f"must be in [{low}, {high}]{when}, got {found}")
    return found


def check_count(field_name: str, value: object, least: int = 0) -> None:
    """Raise InputError for a value that is no integer of at least `least`."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or operator.index(value) < least:
        raise InputError(field_name, f"must be an integer of at least {least}, got {value!r}")


def check_least(options: object, **least: int) -> None:
    """Check fields as `check_count` does; None passes."""
    for name, number in least.items():
        if (value := getattr(options, name)) is not None:
            check_count(name, value, number)


def check_words(options: object, **known: Sequence[str]) -> None:
    """Raise InputError for a field whose value is none of the known words."""
    for name, words in known.items():
        if getattr(options, name) not in words:
            raise not_among(name, getattr(options, name), words)


def not_among(field_name: str, value: object, known: Iterable[str], must: str = "must") -> InputError:
    """Return the error for a value that is none of the known words, with the one most like it."""
    hint = did_you_mean(value, known) if isinstance(value, str) else ""
    return InputError(field_name, f"{must} be one of {', '.join(known)}; got {value!r:.100}{hint}")


def number(field_name: str, value: object, low: float, high: float) -> float:
    """Return a number in [low, high]; InputError otherwise, for NaN too."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(field_name, f"must be a number, got {value!r}")
    if not low <= (found := float(value)) <= high:  # also refuses NaN
        raise InputError(field_name, f"must be in [{low:g}, {high:g}], got {value}")
    return found


# Seeds that are chosen here survive JSON readers whose only numbers are doubles.
_SEED_BITS = 53


def new_seed() -> int:
    """Return a seed that nobody can guess."""
    return secrets.randbits(_SEED_BITS)


INT64 = (-(2**63), 2**63 - 1)


@dataclass(frozen=True, slots=True)
class RequestOption:
    """One option of a request."""

    default: Any  # value where none is given
    help: str  # one sentence, for the help of commands
    range: tuple[float, float] = INT64  # least and greatest value of a number
    choices: tuple[str, ...] = ()  # words that it may be; empty: any text
    methods: tuple[str, ...] = ()  # methods that take it, others refuse any value but the default; empty: all
    disc_high: int | None = None  # greatest value with `disc`; None: that of `range`
    unset: str = ""  # meaning of having no value, in the help; empty: there is always one
    wire: str = ""  # path of the field in messages
    is_filled: bool = False  # whether a text must hold something besides white space
    name: str = ""  # name of the field
    type: Any = str  # type without None: `int`, `float`, `bool`, `str`, or `tuple` for a list of ids
    is_optional: bool = False  # whether it may be None

    @property
    def told(self) -> str:
        """The help for those who call from Python: with the range or the words, and the default."""
        text = re.sub(r"--[a-z-]+", lambda flag: flag[0][2:].replace("-", "_"), self.help.rstrip(".")) + "."
        if self.choices:
            text += f" One of {', '.join(self.choices)}."
        elif self.type in (int, float) and self.range != INT64:
            low, high = (f"{bound:,}" if isinstance(bound, int) else f"{bound:g}" for bound in self.range)
            text += f" In [{low}, {high}]."
        default = re.sub(r"--([a-z]+)-", r"\1_", self.unset) or self.default
        return f"{text} Default: {default}."

    def checked(self, value: Any, decoder: str | None = None) -> Any:
        """Return a value as requests keep it, with the decoder in force; InputError names the option."""
        if value is None and self.is_optional:
            return None
        if self.choices:
            if value not in self.choices:
                raise not_among(self.name, value, self.choices)
        elif self.type is int:
            low, high = map(int, self.range)
            if decoder == "disc" and self.disc_high is not None:
                return integer(self.name, value, low, self.disc_high, " with the method disc")
            return integer(self.name, value, low, high)
        elif self.type is float:
            return number(self.name, value, *self.range)
        elif self.type is tuple:
            return checked_ids(self.name, value)
        elif self.type is not bool:
            (check_filled if self.is_filled else check_text)(self.name, value)
        elif not isinstance(value, bool):
            raise InputError(self.name, f"must be True or False, got {value!r}")
        return value


def option(default: Any, help: str, range: tuple[float, float] = INT64, **more: Any) -> Any:
    """Return a field of a dataclass that is an option of a request; arguments as of `RequestOption`."""
    return declared(RequestOption(default, help, range, **more))


def declared(option: RequestOption) -> Any:
    """Return a field of a dataclass for an option that several requests have."""
    return field(default=option.default, metadata={"option": option})


PROMPT = RequestOption(
    None,
    "Name of the prompt template; an unknown one lists those there are.",
    unset="the checkpoint's",
    wire="prompt_template",
    name="prompt",
)
FILTER = RequestOption(
    None, "Only entities for which this is true: kind = 'film' and year >= 1990", unset="all entities"
)
ALLOW_IDS = RequestOption(
    None, "Only these ids, unknown ones ignored.", unset="all entities", wire="allow_entity_ids.ids"
)
DENY_IDS = RequestOption((), "Not these ids, unknown ones ignored.", unset="none", wire="deny_entity_ids")


@cache
def options_of(request: Any) -> Mapping[str, RequestOption]:
    """Return the options that a dataclass of requests declares, by name, in the order of its fields."""
    hints = get_type_hints(request)
    found = {}
    for one in fields(request):
        if "option" in one.metadata:
            declared: RequestOption = one.metadata["option"]
            kinds = [kind for kind in get_args(hints[one.name]) if kind is not type(None)]
            is_optional = type(None) in get_args(hints[one.name])
            kind = kinds[0] if is_optional else hints[one.name]
            found[one.name] = replace(
                declared,
                name=one.name,
                type=get_origin(kind) or kind,
                is_optional=is_optional,
                wire=declared.wire or one.name,
            )
    return MappingProxyType(found)


def checked_options(request: Any, decoder: str | None = None) -> dict[str, Any]:
    """Return the options of a request that are not at their defaults, as it keeps them.

    Raises:
        InputError: a value is out of range; names the option.
    """
    kind: Any = type(request)
    given = ((one, getattr(request, name)) for name, one in options_of(kind).items())
    return {one.name: one.checked(value, decoder) for one, value in given if value is not one.default}


def check_known(given: Iterable[str], known: Any, told: str = "there is no such option") -> None:
    """Raise InputError for a name that a dataclass of requests or a list lacks, with those there are."""
    known = [one.name for one in fields(known) if one.init] if isinstance(known, type) else list(known)
    for name in given:
        if name not in known:
            raise InputError(name, told + instead_of(name, known))


def check_keywords(function: _F) -> _F:
    """Let a function, or a class when it is made, refuse a keyword that it lacks as `check_known` does."""
    if isinstance(function, type):
        function.__init__ = check_keywords(function.__init__)  # type: ignore[misc]
        return function
    known = [name for name in inspect.signature(function).parameters if name not in ("cls", "self")]

    @wraps(function)
    def checked(*arguments: Any, **options: Any) -> Any:
        check_known(options, known)
        return function(*arguments, **options)

    return cast(_F, checked)


def documents_options(request: Any, skipped: tuple[str, ...] = ()) -> Callable[[_F], _F]:
    """Return a decorator for functions that take a request's options as `**options`.

    It appends the options to the docstring and puts them into the signature that `help` and notebooks show;
    `skipped` names those that the function does not take.
    """

    def add(function: _F) -> _F:
        signature = inspect.signature(function)
        own = {name: one for name, one in signature.parameters.items() if one.kind is not one.VAR_KEYWORD}
        taken = [
            replace(one, default=own[name].default) if name in own else one
            for name, one in options_of(request).items()
            if name not in skipped
        ]
        lines = [f"{one.name}: {one.told}" for one in taken]
        told = [textwrap.fill(one, 100, initial_indent="    ", subsequent_indent=" " * 8) for one in lines]
        function.__doc__ = "\n".join([inspect.cleandoc(function.__doc__ or ""), "", "Options:", *told])
        hints = request.__annotations__
        further = [
            inspect.Parameter(
                one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=hints[one.name]
            )
            for one in taken
            if one.name not in own
        ]
        shown = signature.replace(parameters=[*own.values(), *further])
        function.__signature__ = shown  # type: ignore[attr-defined]
        return function

    return add


MAX_IDS = 100_000


class IdList(tuple[str, ...]):
    """Checked ids. Requests that share a list check and digest it once."""

    @cached_property
    def digest(self) -> str:
        """Digest of the set of ids; order and repetitions make no difference."""
        # Cryptographic, so that nobody can choose ids that hit the filter of another list.
        hasher = hashlib.blake2b(digest_size=32)
        for encoded in sorted(entity_id.encode() for entity_id in set(self)):
            hasher.update(len(encoded).to_bytes(8, "little"))
            hasher.update(encoded)
        return hasher.hexdigest()


@dataclass(frozen=True, slots=True)
class FilterKey:
    """Key of a restriction's filter: the canonical predicate and digests of the ids; "" for none."""

    predicate: str
    allow: str
    deny: str


@dataclass(frozen=True, slots=True)
class Restriction:
    """A predicate and two lists of ids; an answer must pass all three."""

    predicate: Predicate | None = None  # None: every entity passes
    allow_ids: IdList | None = None  # None: all, empty: none
    deny_ids: IdList = field(default_factory=IdList)

    @property
    def is_open(self) -> bool:
        """Whether nothing is restricted."""
        return self.predicate is None and self.allow_ids is None and not self.deny_ids

    def key(self) -> FilterKey:
        """Return the key under which the restriction's filter is cached."""
        return FilterKey(
            predicate="" if self.predicate is None else canonical(self.predicate),
            allow="" if self.allow_ids is None else self.allow_ids.digest,
            deny=self.deny_ids.digest if self.deny_ids else "",
        )


def checked_ids(field: str, ids: object) -> IdList:
    """Return ids as a checked list, an `IdList` as it is; InputError names the field or the item."""
    if isinstance(ids, IdList):
        return ids
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise InputError(field, f"must be a sequence of ids, got {type(ids).__name__}")
    items = IdList(ids)
    if len(items) > MAX_IDS:
        raise InputError(field, f"at most {MAX_IDS:,} ids, got {len(items):,}")
    try:
        "".join(items).encode()  # all at once: there may be many
    except (TypeError, UnicodeEncodeError):
        for number, item in enumerate(items):
            check_text(f"{field}[{number}]", item)
    return items


_MOST_ID_BYTES = 64 << 20  # larger files cannot be lists of ids


def read_ids(path: str | Path) -> tuple[str, ...]:
    """Read a file of ids, one a line, without blanks around it; SourceError names file and line."""
    ids = []
    for number, text in enumerate(small_lines(path, str(path), _MOST_ID_BYTES), start=1):
        if text:
            ids.append(text)
        if len(ids) > MAX_IDS:
            raise SourceError(f"{path}, line {number}: more than {MAX_IDS:,} ids")
    return tuple(ids)


def small_lines(source: str | Path | BinaryIO, name: str, most_bytes: int) -> list[str]:
    """Return the lines of a UTF-8 file without blanks around them; a SourceError begins with `name`."""
    try:
        with Path(source).open("rb") if isinstance(source, str | Path) else nullcontext(source) as file:
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise SourceError(f"{name}: cannot be read: {error.strerror}") from error
    if len(data) > most_bytes:
        raise SourceError(f"{name}: expected at most {most_bytes >> 20} MiB, got more")
    lines = []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            lines.append(line.decode().strip())
        except UnicodeDecodeError:
            raise SourceError(f"{name}, line {number}: not valid UTF-8") from None
    return lines
