"""Decides who may do what: by the Authorization header, and by what a browser says of the page that asks.

Knows neither gRPC nor HTTP: headers in, a token or a refusal out. Pages of other sites must not act
through a user's browser. Browsers never send a token unasked, so a server with tokens is safe; one on
loopback without tokens trusts every program on this machine, browsers included.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from genret.service.call import MOST_URGENT, TOKEN
from genret.service.configuration.server_config import ServerConfig, is_loopback, numeric_address
from genret.service.errors import PermissionDeniedError, UnauthenticatedError
from genret.service.security.bearer_tokens import MAX_CHARACTERS, Scope, Token, watch_token_file

_LOG = logging.getLogger(__name__)
_SCHEME = "bearer"


def enter_as(token: Token) -> None:
    """Set the token of the running task's caller, for the rest of the task."""
    TOKEN.set(token.fingerprint if token.digest else "")
    MOST_URGENT.set(token.priority)


class Authority:
    """Decides by the tokens of a file or, without a file, by where the server listens.

    Without a file, `admin_without_token` gives every caller scope ADMIN; `here_only` tells that this is
    because only this machine can connect. InputError: the file cannot be used.
    """

    def __init__(
        self, token_file: Path | None, *, admin_without_token: bool = False, here_only: bool = False
    ) -> None:
        self._tokens = None if token_file is None else watch_token_file(token_file)
        self._admin_without_token = admin_without_token
        self._here_only = here_only

    @classmethod
    def of(cls, config: ServerConfig) -> Authority:
        """Return the authority of a server.

        Without a token file ADMIN is for callers on this machine, or with a client certificate.
        """
        hosts = [config.host, *([config.http.host] if config.http.port is not None else [])]
        here_only = all(is_loopback(host) for host in hosts)
        if config.token_file is not None and not here_only and not config.tls.enabled:
            _LOG.warning(
                "tokens are sent to this server unencrypted: who can listen on the network can use them; "
                "encrypt with tls.certificate and tls.key"
            )
        shows_certificate = config.tls.client_ca is not None
        return cls(
            config.token_file,
            admin_without_token=here_only or shows_certificate,
            here_only=here_only and not shows_certificate,
        )

    @property
    def trusts_this_machine(self) -> bool:
        """Whether ADMIN is granted only because a connection comes by loopback."""
        return self._tokens is None and self._here_only

    @property
    def requires_tokens(self) -> bool:
        """Whether callers need a token."""
        return self._tokens is not None

    def authorize(self, authorization: str | None, scope: Scope) -> Token:
        """Return the token of an Authorization header, if it may do what needs `scope`.

        Raises:
            UnauthenticatedError: no token, a malformed header or an unknown token.
            PermissionDeniedError: the token's scope does not suffice.
        """
        if self._tokens is None:
            return self._authorize_without_token(scope)
        token = self._tokens.current().find(_bearer_token(authorization))
        if token is None:
            raise UnauthenticatedError("the bearer token is not one of this server's")
        if not token.scope.allows(scope):
            raise PermissionDeniedError(
                f"this needs a token of scope {scope.value}; the one shown has scope {token.scope.value}"
            )
        return token

    def reload(self) -> bool:
        """Read the token file now; return whether it is usable. If not, the earlier tokens stay live."""
        return self._tokens is None or self._tokens.reload()

    def _authorize_without_token(self, scope: Scope) -> Token:
        if scope is Scope.ADMIN and not self._admin_without_token:
            raise PermissionDeniedError(
                "this needs scope admin, which nobody has here: the server can be reached from other "
                "machines and asks for neither tokens nor client certificates; start it with "
                "auth.token_file or tls.client_ca"
            )
        return Token(Scope.ADMIN if self._admin_without_token else Scope.READ)


def _bearer_token(authorization: str | None) -> str:
    if authorization is None:
        raise UnauthenticatedError("a bearer token is needed: send the header `authorization: Bearer TOKEN`")
    scheme, _, token = authorization.strip(" ").partition(" ")
    token = token.lstrip(" ")
    well_formed = (
        scheme.lower() == _SCHEME
        and 0 < len(token) <= MAX_CHARACTERS
        and token.isascii()
        and " " not in token
    )
    if not well_formed:
        raise UnauthenticatedError("the authorization header is malformed: expected `Bearer TOKEN`")
    return token


_HARMLESS = {"GET", "HEAD", "OPTIONS"}
_OWN = {"same-origin", "none"}  # none: a person typed it or followed a bookmark


def refuse_cross_site(method: str, headers: Mapping[str, str]) -> None:
    """Refuse, by PermissionDeniedError, what a page of another origin made a browser send.

    GET, HEAD and OPTIONS are allowed: they change nothing, and other origins cannot read the reply. Headers
    are by lower-case name.
    """
    if method in _HARMLESS:
        return
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is None and origin is None:
        return  # no browser
    host = headers.get("host", "")
    # sec-fetch-site is more reliable than host names, which proxies change.
    own = site in _OWN if site is not None else origin in (f"http://{host}", f"https://{host}")
    if not own:
        raise PermissionDeniedError("pages of another origin may not send this")


class HostNames(NamedTuple):
    """Names by which requests may address a server that cannot tell callers by a token or a certificate.

    A page of another site can make its own name resolve to this server (DNS rebinding), and then read
    replies. Such a name has a dot and is no address, so those are refused unless they are among `names`:
    lower case, `*.example.com` for all names below, `*` for any.
    """

    names: frozenset[str]

    @classmethod
    def of(cls, config: ServerConfig) -> HostNames:
        """Return the names in a server's settings, and this machine's."""
        own = [config.host, config.http.host, config.metrics.host, socket.gethostname()]
        allowed = (config.allowed_hosts or "").split(",")
        return cls(frozenset(name.strip().lower() for name in (*own, *allowed) if name.strip()))

    def allow(self, host: str) -> bool:
        """Whether a Host header may be served; without one no browser sent the request."""
        if (named := _named(host)) is None:
            return False
        name = named.removesuffix(".")
        if "." not in name or name in self.names or "*" in self.names or name.endswith(".localhost"):
            return True
        below = name.split(".")
        if any(".".join(["*", *below[start:]]) in self.names for start in range(1, len(below))):
            return True
        return numeric_address(name) is not None


def _named(host: str) -> str | None:
    """Return the name in a Host header, without its port; None for one that is malformed."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return None


def refuse_foreign_host(headers: Mapping[str, str]) -> None:
    """Refuse, by PermissionDeniedError, a request that does not name loopback, though it came by it.

    A local proxy passes on requests of others, and any name can be made to resolve to loopback.
    """
    if not is_loopback(_named(headers.get("host", "")) or ""):
        raise PermissionDeniedError(
            "without tokens this is for callers on this machine, by the name of localhost; "
            "start the server with auth.token_file to allow it to others"
        )
