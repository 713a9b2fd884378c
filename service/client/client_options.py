"""Options of a client's connection and of its calls."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from genret.retrieval.arguments import check_keywords, check_words, integer
from genret.retrieval.errors import InputError
from genret.service.call import PRIORITY_KEY, REQUEST_ID_KEY, Priority
from genret.service.configuration.server_config import check_address, is_loopback

# A reply to 256 queries with 1,000 candidates each passes gRPC's default of 4 MiB by far.
_MAX_REPLY_BYTES = 256 * 2**20
# Servers of gRPC close connections that are pinged more often than they allow; ours allows this.
MIN_KEEPALIVE_S = 10.0
_METADATA_NAME = re.compile(r"[a-z0-9._-]+")
_OWN_METADATA = ("authorization", REQUEST_ID_KEY, PRIORITY_KEY)


@check_keywords
@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Options of a client's connection.

    Attributes:
        timeout_s: Default deadline of a call, seconds; a stream has none by default.
        tls: Whether to encrypt, trusting gRPC's own authorities. Any of the next four implies it.
        tls_ca: PEM file with the authorities to trust instead.
        tls_certificate: PEM file with the client's own certificate chain, for a server that asks for one.
        tls_key: PEM file with its private key.
        tls_server_name: Name that the server's certificate must have, if not that of the address.
        token: Bearer token that is sent with every call.
        insecure: Whether the token may be sent in plaintext beyond loopback.
        priority: `interactive` or `bulk`; calls of the second kind give way to others.
        gzip: Whether to compress requests; only servers with `limits.accept_gzip` take them.
        keepalive_s: Silence after which the connection is pinged, seconds, at least 10; None: never.
        max_reply_bytes: Largest reply accepted, bytes.
        metadata: Further names and values sent with every call: a proxy of Ray Serve finds the application
            by `application`.

    Raises:
        InputError: an option is out of range, or does not fit another.
    """

    timeout_s: float = 60.0
    tls: bool = False
    tls_ca: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_server_name: str | None = None
    token: str | None = field(default=None, repr=False)
    insecure: bool = False
    priority: str = Priority.INTERACTIVE.value
    gzip: bool = False
    keepalive_s: float | None = None
    max_reply_bytes: int = _MAX_REPLY_BYTES
    metadata: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.timeout_s) and self.timeout_s > 0):
            raise InputError("timeout_s", f"must be a positive number of seconds, got {self.timeout_s!r}")
        if (self.tls_certificate is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_certificate"
            raise InputError(missing, "must be given: a certificate and its key go together")
        if self.tls_server_name == "":
            raise InputError("tls_server_name", "must not be empty")
        token = self.token
        if token is not None and not (token and token.isascii() and token.isprintable() and " " not in token):
            raise InputError("token", "must be printable ASCII without blanks, and not empty")
        check_words(self, priority=[priority.value for priority in Priority])
        keepalive = self.keepalive_s
        if keepalive is not None and not (math.isfinite(keepalive) and keepalive >= MIN_KEEPALIVE_S):
            raise InputError("keepalive_s", f"must be at least {MIN_KEEPALIVE_S:g} s, got {keepalive!r}")
        integer("max_reply_bytes", self.max_reply_bytes, 1024, 2**31 - 1)
        for name, value in self.metadata:
            _check_metadata(name, value)

    @property
    def encrypted(self) -> bool:
        """Whether the connection is encrypted."""
        own = (self.tls_ca, self.tls_certificate, self.tls_server_name)
        return self.tls or any(option is not None for option in own)

    def check(self, address: str) -> None:
        """Refuse an address that cannot be called, or not with these options, by InputError."""
        check_address(address)
        host = address.rpartition(":")[0].strip("[]")
        if self.token is not None and not (self.encrypted or self.insecure or is_loopback(host)):
            raise InputError(
                "token",
                f"{host!r} is another machine and the connection is not encrypted: anybody on the way could "
                "read the token; use TLS, or allow it with insecure",
            )


def _check_metadata(name: str, value: str) -> None:
    if _METADATA_NAME.fullmatch(name) is None or name.startswith("grpc-") or name.endswith("-bin"):
        raise InputError(
            "metadata",
            "a name is made of a-z 0-9 . _ -, does not begin with grpc- and does not end with -bin, "
            f"got {name!r}",
        )
    if name in _OWN_METADATA:
        raise InputError("metadata", f"{name!r} is sent by the client itself")
    if not (value.isascii() and value.isprintable() and value == value.strip()):
        raise InputError("metadata", f"the value of {name!r} must be printable ASCII without outer blanks")


class OptionChanges(TypedDict, total=False):
    """Attributes of `ClientOptions`."""

    timeout_s: float
    tls: bool
    tls_ca: Path | None
    tls_certificate: Path | None
    tls_key: Path | None
    tls_server_name: str | None
    token: str | None
    insecure: bool
    priority: str
    gzip: bool
    keepalive_s: float | None
    max_reply_bytes: int
    metadata: tuple[tuple[str, str], ...]


class CallOptions(TypedDict, total=False):
    """Options of a single call.

    timeout_s: Deadline, seconds; None or left out: the client's.
    request_id: Name in the server's log, 1 to 128 of A-Z a-z 0-9 . _ : / -; left out: a new one.
    """

    timeout_s: float | None
    request_id: str
