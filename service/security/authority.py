"""Who may do what. Knows neither gRPC nor HTTP: an Authorization header in, a principal or a refusal out."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from dataclasses import dataclass

from service.configuration.config import ServerConfig, is_loopback
from service.configuration.sections import AuthConfig
from service.errors import PermissionDeniedError, UnauthenticatedError
from service.security.scopes import Scope
from service.security.tokens import MAX_CHARACTERS, watch_token_file

_LOG = logging.getLogger(__name__)
_SCHEME = "bearer"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls.

    Attributes:
        scope: What it may do.
        fingerprint: Tells callers apart in logs, without a secret; empty for one that showed no token.
    """

    scope: Scope
    fingerprint: str = ""


# Who calls, in the task that serves the call; None before it is known.
PRINCIPAL: ContextVar[Principal | None] = ContextVar("genret_principal", default=None)


class Authority:
    """Decides on the tokens of a file; without a file, on where the server listens.

    Args:
        auth: Where the tokens are.
        admin_without_token: Without a token file: whether anybody who can connect may do what asks for ADMIN.
        here_only: Whether that is because only this machine can connect.

    Raises:
        InputError: the token file cannot be used.
    """

    def __init__(
        self, auth: AuthConfig, *, admin_without_token: bool = False, here_only: bool = False
    ) -> None:
        self._tokens = None if auth.token_file is None else watch_token_file(auth.token_file)
        self._admin_without_token = admin_without_token
        self._here_only = here_only

    @classmethod
    def of(cls, config: ServerConfig) -> Authority:
        """Return the authority of a server.

        Without a token file ADMIN is for those who are on this machine, or show a certificate of the
        configured authority.
        """
        hosts = [config.host, *([config.http.host] if config.http.port is not None else [])]
        here_only = all(is_loopback(host) for host in hosts)
        if config.auth.token_file is not None and not here_only and not config.tls.enabled:
            _LOG.warning(
                "tokens are sent to this server unencrypted: who can listen on the network can use them; "
                "encrypt with tls.certificate and tls.key"
            )
        shows_certificate = config.tls.client_ca is not None
        return cls(
            config.auth,
            admin_without_token=here_only or shows_certificate,
            here_only=here_only and not shows_certificate,
        )

    @property
    def trusts_this_machine(self) -> bool:
        """Whether nothing but a connection by loopback says who may do what asks for ADMIN."""
        return self._tokens is None and self._here_only

    @property
    def requires_tokens(self) -> bool:
        """Whether callers need a token."""
        return self._tokens is not None

    def authorize(self, authorization: str | None, scope: Scope) -> Principal:
        """Return who calls, if it may do what asks for `scope`.

        Args:
            authorization: Value of the Authorization header, None if there is none.
            scope: What the method asks for.

        Raises:
            UnauthenticatedError: no token, a malformed header or an unknown token.
            PermissionDeniedError: the token is known and does not allow it.
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
        return Principal(token.scope, token.fingerprint)

    def reload(self) -> bool:
        """Read the token file now.

        Returns:
            Whether it is usable; if not, that was logged and the earlier tokens stay live.
        """
        return self._tokens is None or self._tokens.reload()

    def _authorize_without_token(self, scope: Scope) -> Principal:
        held = Scope.ADMIN if self._admin_without_token else Scope.READ
        if not held.allows(scope):
            raise PermissionDeniedError(
                "this needs scope admin, which nobody has here: the server can be reached from other "
                "machines and asks for neither tokens nor client certificates; start it with "
                "auth.token_file or tls.client_ca"
            )
        return Principal(held)


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
