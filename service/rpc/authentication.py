"""Callers of gRPC methods are known before anything of their request is read."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc

from service.errors import PermissionDeniedError, ServiceError, UnauthenticatedError
from service.rpc.call import call_of
from service.rpc.refusal import refuse
from service.security.authority import PRINCIPAL, Authority
from service.security.scopes import METHOD_SCOPES, Scope

_LOG = logging.getLogger(__name__)
_HEADER = "authorization"


class AuthenticationInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc is untyped
    """Refuses calls whose method asks for more than the caller may do.

    Args:
        authority: Decides.
    """

    def __init__(self, authority: Authority) -> None:
        self._authority = authority

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: Any,
    ) -> grpc.RpcMethodHandler | None:
        """Let one call through, or answer it with its refusal."""
        method = str(handler_call_details.method)
        try:
            known = self._admit(method, handler_call_details.invocation_metadata or ())
        except (UnauthenticatedError, PermissionDeniedError) as error:
            return _refusing(method, error)
        handler = await continuation(handler_call_details)
        if handler is not None and not known:
            return _refusing(method, PermissionDeniedError(f"no scope allows {method}"))
        return handler

    def _admit(self, method: str, metadata: Sequence[tuple[str, Any]]) -> bool:
        """Check the caller; return whether the method is one that scopes are known for."""
        known = method in METHOD_SCOPES or not self._authority.requires_tokens
        # Callers that nobody knows do not learn which other methods there are.
        scope = METHOD_SCOPES.get(method, Scope.READ)
        if scope is not None:
            PRINCIPAL.set(self._authority.authorize(_authorization(metadata), scope))
        return known


def _authorization(metadata: Sequence[tuple[str, Any]]) -> str | None:
    values = [value for key, value in metadata if key == _HEADER]
    if not values:
        return None
    # Several are malformed like bytes that are no text: which one counted would depend on who reads them.
    return values[0] if len(values) == 1 and isinstance(values[0], str) else ""


def _refusing(method: str, error: ServiceError) -> grpc.RpcMethodHandler:
    """Return a handler that ends a call of any kind without reading its request.

    To gRPC's server every method is a stream of messages either way; one that reads none fits all four kinds.
    """

    async def end(requests: AsyncIterator[bytes], context: Any) -> None:
        request_id = call_of(context, max_seconds=0.0).request_id
        _LOG.info("%s refused to %s: %s", method, context.peer(), error, extra={"request_id": request_id})
        await refuse(context, error, request_id)

    return grpc.stream_stream_rpc_method_handler(end)
