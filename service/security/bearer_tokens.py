"""Reads bearer tokens from their file and checks callers' tokens; lists the scope that each method needs.

Only digests are held, and a token is compared with all of them, each in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from genret.retrieval.errors import InputError
from genret.service.call import Priority
from genret.service.security.watched_files import WatchedFiles, read_file, warn_if_exposed


class Scope(Enum):
    """The rights of a token; ADMIN includes READ."""

    READ = "read"
    ADMIN = "admin"

    def allows(self, needed: Scope) -> bool:
        """Whether this scope suffices where `needed` is required."""
        return self is Scope.ADMIN or needed is Scope.READ


_PACKAGE = "genret.v1"
# By full names of methods, as in gRPC's paths. If tokens are needed, unlisted methods are refused: a new
# method must be given a scope. Health needs none.
METHOD_SCOPES: dict[str, Scope | None] = {
    f"/{_PACKAGE}.RetrievalService/Retrieve": Scope.READ,
    f"/{_PACKAGE}.RetrievalService/BatchRetrieve": Scope.READ,
    f"/{_PACKAGE}.RetrievalService/RetrieveStream": Scope.READ,
    f"/{_PACKAGE}.RetrievalService/Link": Scope.READ,
    f"/{_PACKAGE}.RetrievalService/Answer": Scope.READ,
    f"/{_PACKAGE}.RetrievalService/Score": Scope.READ,
    f"/{_PACKAGE}.RetrievalService/Complete": Scope.READ,
    f"/{_PACKAGE}.IndexService/ListIndexes": Scope.READ,
    f"/{_PACKAGE}.IndexService/GetIndex": Scope.READ,
    f"/{_PACKAGE}.IndexService/ReloadIndex": Scope.ADMIN,
    "/grpc.health.v1.Health/Check": None,
    "/grpc.health.v1.Health/List": None,
    "/grpc.health.v1.Health/Watch": None,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Scope.READ,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": Scope.READ,
}


FIELD = "auth.token_file"
MIN_CHARACTERS = 16
MAX_CHARACTERS = 512
MAX_LIVE = 1000  # each is compared with the one that is shown
_DIGEST_PREFIX = "sha256:"
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_RANDOM_BYTES = 32
_LOOK_EVERY_S = 1.0


class Token(NamedTuple):
    """A live token: its scope, its SHA-256 and the best priority of its calls. It is not held itself.

    A caller who shows none, where none is needed, has one with an empty digest.
    """

    scope: Scope
    digest: bytes = b""
    priority: Priority = Priority.INTERACTIVE

    @property
    def fingerprint(self) -> str:
        """An id of the token for logs that does not reveal it; empty without a digest."""
        return self.digest.hex()[:8]


class TokenSet(NamedTuple):
    """The live tokens."""

    tokens: tuple[Token, ...]

    def find(self, presented: str) -> Token | None:
        """Return the token equal to `presented`, or None, in a time that does not tell how much was right."""
        digest = digest_of(presented)
        found = None
        for token in self.tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token
        return found


def digest_of(token: str) -> bytes:
    """Return the SHA-256 of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def new_token() -> str:
    """Return a fresh token of 256 random bits."""
    return secrets.token_urlsafe(_RANDOM_BYTES)


def line_of(scope: Scope, token: str, priority: Priority = Priority.INTERACTIVE) -> str:
    """Return the line of a token file that makes `token` live, without the token itself."""
    named = "" if priority is Priority.INTERACTIVE else f" {priority.value}"
    return f"{scope.value}{named} {_DIGEST_PREFIX}{digest_of(token).hex()}"


def read_token_file(path: Path) -> TokenSet:
    """Read a file of lines `SCOPE [PRIORITY] TOKEN`; `#` begins a comment line.

    In place of a token `sha256:HEX` may stand.

    Raises:
        InputError: names the file and the line, and never shows its text.
    """
    try:
        text = read_file(FIELD, path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(FIELD, f"{path} is not UTF-8 text") from error
    tokens = parse_tokens(text.split("\n"), str(path))
    warn_if_exposed(FIELD, path)
    return tokens


def parse_tokens(lines: Iterable[str], source: str) -> TokenSet:
    """Read the lines of a token file; InputError names `source` and the line."""
    numbers: dict[Token, int] = {}
    for number, line in enumerate(lines, start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        try:
            token = _parse_line(stripped)
            _check_beside(token, numbers)
        except ValueError as error:
            text = f"{source}, line {number}: {error}"
            raise InputError(FIELD, text) from None  # the cause might show the token
        numbers[token] = number
    if not numbers:
        raise InputError(FIELD, f"{source} holds no token: nobody could call; `genret token new` makes one")
    return TokenSet(tuple(numbers))


def watch_token_file(path: Path) -> WatchedFiles[TokenSet]:
    """Return the tokens of a file, which is looked at again at most once a second; raises InputError."""
    return WatchedFiles("the token file", (path,), lambda: read_token_file(path), _LOOK_EVERY_S)


def _parse_line(line: str) -> Token:
    scope, *fields = line.split()
    names = " or ".join(scope.value for scope in Scope)
    # The text may be a token without a scope: it is not repeated.
    if scope not in {scope.value for scope in Scope}:
        raise ValueError(f"expected a scope first ({names}), then its token")
    priority = Priority.INTERACTIVE
    if len(fields) == 2 and fields[0] in {priority.value for priority in Priority}:
        priority = Priority(fields.pop(0))
    if len(fields) != 1:
        raise ValueError(
            "expected one token after the scope, without blanks, or a priority (interactive, bulk) and a "
            f"token; {len(fields)} fields are there"
        )
    return Token(Scope(scope), _parse_digest(fields[0]), priority)


def _parse_digest(text: str) -> bytes:
    if text.startswith(_DIGEST_PREFIX):
        digits = text.removeprefix(_DIGEST_PREFIX)
        if not _DIGEST.fullmatch(digits):
            raise ValueError(
                f"expected 64 hexadecimal digits after {_DIGEST_PREFIX}, got {len(digits)} signs"
            )
        return bytes.fromhex(digits)
    if not (text.isascii() and text.isprintable()):
        raise ValueError("a token must be of printable ASCII")
    if not MIN_CHARACTERS <= len(text) <= MAX_CHARACTERS:
        raise ValueError(
            f"a token must have {MIN_CHARACTERS} to {MAX_CHARACTERS} characters, this one has {len(text)}; "
            "`genret token new` makes one"
        )
    return digest_of(text)


def _check_beside(token: Token, numbers: dict[Token, int]) -> None:
    for other, number in numbers.items():
        if other.digest == token.digest:
            raise ValueError(f"the same token as in line {number}")
    if len(numbers) == MAX_LIVE:
        raise ValueError(f"expected at most {MAX_LIVE:,} tokens: remove those that are no longer used")
