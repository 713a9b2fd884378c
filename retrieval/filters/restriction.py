"""Describes what a request restricts its answers to: a predicate, allowed ids, denied ids."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.filters.predicate import Predicate, canonical

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
    allow_ids: tuple[str, ...] | None = None  # None: all, empty: none
    deny_ids: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether nothing is restricted."""
        return self.predicate is None and self.allow_ids is None and not self.deny_ids

    def key(self) -> FilterKey:
        """Return the key under which the restriction's filter is cached."""
        return FilterKey(
            predicate="" if self.predicate is None else canonical(self.predicate),
            allow="" if self.allow_ids is None else _digest(self.allow_ids),
            deny=_digest(self.deny_ids) if self.deny_ids else "",
        )


def checked_ids(field: str, ids: object) -> IdList:
    """Return a list of ids, checked; an `IdList` is returned as it is.

    Raises:
        InputError: it is no sequence of at most `MAX_IDS` valid texts; names the item.
    """
    if isinstance(ids, IdList):
        return ids
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise InputError(field, f"must be a sequence of ids, got {type(ids).__name__}")
    items = IdList(ids)
    if len(items) > MAX_IDS:
        raise InputError(field, f"at most {MAX_IDS:,} ids, got {len(items):,}")
    for number, item in enumerate(items):
        if not isinstance(item, str):
            raise InputError(f"{field}[{number}]", f"must be text, got {type(item).__name__}")
    try:
        "".join(items).encode()
    except UnicodeEncodeError:
        number = next(n for n, item in enumerate(items) if _is_broken(item))
        raise InputError(f"{field}[{number}]", "not valid Unicode: half a surrogate pair") from None
    return items


def _is_broken(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _digest(ids: tuple[str, ...]) -> str:
    return (ids if isinstance(ids, IdList) else IdList(ids)).digest


# Larger files cannot be lists of ids.

_MAX_FILE_BYTES = 64 * 2**20


def read_ids(path: str | Path) -> tuple[str, ...]:
    """Read a file of ids; blank lines are skipped, blanks around an id are not part of it.

    Raises:
        SourceError: the file cannot be read, is not UTF-8, or holds more than `MAX_IDS` ids; names the line.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > _MAX_FILE_BYTES:
        raise SourceError(f"{path}: larger than {_MAX_FILE_BYTES // 2**20} MiB, which is no list of ids")
    ids = []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            text = line.decode().strip()
        except UnicodeDecodeError:
            raise SourceError(f"{path}, line {number}: not valid UTF-8") from None
        if text:
            ids.append(text)
        if len(ids) > MAX_IDS:
            raise SourceError(f"{path}, line {number}: more than {MAX_IDS:,} ids")
    return tuple(ids)
