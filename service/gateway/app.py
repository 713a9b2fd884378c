"""The API as JSON over HTTP: routes, who may take them, and what they answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc import StatusCode
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from retrieval.errors import InputError
from service.configuration.config import ServerConfig
from service.errors import NotReadyError
from service.gateway.calls import JSON_TYPE, attended, begin_call, read_message, with_deadline, write_message
from service.gateway.endpoints import ENDPOINTS, Endpoint
from service.gateway.errors import HttpError, error_response
from service.gateway.static_files import STATIC_DIRECTORY, page_routes, read_files
from service.methods.call import REQUEST_ID_KEY, Call
from service.methods.indexes import IndexMethods
from service.methods.retrieval import RetrievalMethods
from service.security.scopes import Scope
from service.serving.readiness import Readiness, State

Method = Callable[[Any, Call], Awaitable[Message]]
Handler = Callable[[Request], Awaitable[Response]]


class Authorizer(Protocol):
    """Who may call; `security.authority.Authority` is one."""

    def authorize(self, authorization: str | None, scope: Scope) -> object:
        """Return who calls, or raise UnauthenticatedError or PermissionDeniedError."""


class Rendered(Protocol):
    """What /metrics shows; `observability.metrics.Metrics` is one."""

    def render(self) -> tuple[bytes, str]:
        """Return the text and its content type."""


@dataclass(frozen=True, slots=True)
class _Gate:
    """What every request passes."""

    authority: Authorizer | None
    max_seconds: float
    max_bytes: int

    def authorize(self, request: Request, scope: Scope | None) -> None:
        """Refuse who may not do what asks for `scope`."""
        if self.authority is not None and scope is not None:
            self.authority.authorize(request.headers.get("authorization"), scope)


def make_app(
    retrieval: RetrievalMethods,
    indexes: IndexMethods,
    readiness: Readiness,
    authority: Authorizer | None,
    metrics: Rendered | None,
    config: ServerConfig,
) -> Starlette:
    """Return the application that serves the API over HTTP.

    Args:
        retrieval: The methods of RetrievalService.
        indexes: The methods of IndexService.
        readiness: What /readyz says.
        authority: Who may call; None: everybody.
        metrics: What /metrics shows; None: there is no such path.
        config: Limits, and whether the explorer page is served.
    """
    gate = _Gate(authority, config.max_request_seconds, config.max_request_bytes)
    services: dict[str, Any] = {"RetrievalService": retrieval, "IndexService": indexes}
    routes = [
        Route(
            endpoint.path.replace("{name}", "{name:path}"),
            _api(endpoint, _method(services[endpoint.service], endpoint), gate),
            methods=[endpoint.verb],
        )
        for endpoint in ENDPOINTS
        if hasattr(services[endpoint.service], _snake(endpoint.method))
    ]
    routes += [Route("/livez", _livez), Route("/readyz", _readyz(readiness))]
    if metrics is not None:
        routes.append(Route("/metrics", _metrics(metrics, gate)))
    if config.http.explorer:
        routes += page_routes(read_files(STATIC_DIRECTORY))
    return Starlette(routes=routes, exception_handlers={HTTPException: _refused})


def _method(methods: object, endpoint: Endpoint) -> Method:
    found: Method = getattr(methods, _snake(endpoint.method))
    return found


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).removeprefix("_")


def _api(endpoint: Endpoint, method: Method, gate: _Gate) -> Handler:
    """Return the handler of one method of the API."""
    message_type = GetMessageClass(endpoint.descriptor.input_type)

    async def message_of(request: Request) -> Message:
        message: Message = message_type()
        if endpoint.has_body:
            in_path = bool(request.path_params)
            message = await read_message(request, message, gate.max_bytes, may_be_empty=in_path)
        for name, value in request.path_params.items():
            if getattr(message, name):
                raise InputError(name, "stands in the path, and must not be in the body")
            setattr(message, name, value)
        return message

    async def serve(request: Request) -> Response:
        call = begin_call(request, gate.max_seconds)
        try:
            call = with_deadline(call, request)
            gate.authorize(request, endpoint.scope)
            message = await message_of(request)
            reply = await attended(request, _run(method, message, call), call.deadline)
            response = Response(await write_message(reply), media_type=JSON_TYPE)
        except Exception as error:
            response, _ = error_response(error, call.request_id)
        except asyncio.CancelledError:  # the server stops and does not wait any longer
            stopping = NotReadyError(State.DRAINING.value, retry_after_s=1.0)
            response, _ = error_response(stopping, call.request_id)
        response.headers[REQUEST_ID_KEY] = call.request_id
        response.headers["cache-control"] = "no-store"
        response.headers["x-content-type-options"] = "nosniff"
        return response

    return serve


async def _run(method: Method, message: Message, call: Call) -> Message:
    return await method(message, call)


async def _livez(request: Request) -> Response:
    return Response("ok\n", media_type="text/plain")


def _readyz(readiness: Readiness) -> Handler:
    async def serve(request: Request) -> Response:
        ready = readiness.state is State.READY
        return Response(f"{readiness.state.value}\n", 200 if ready else 503, media_type="text/plain")

    return serve


def _metrics(metrics: Rendered, gate: _Gate) -> Handler:
    async def serve(request: Request) -> Response:
        try:
            gate.authorize(request, Scope.READ)
        except Exception as error:
            return error_response(error, begin_call(request, gate.max_seconds).request_id)[0]
        body, kind = metrics.render()
        return Response(body, headers={"content-type": kind})

    return serve


async def _refused(request: Request, error: Exception) -> Response:
    """Answer what no route takes."""
    if not isinstance(error, HTTPException):
        raise error
    if error.status_code == 405:
        text = f"{request.method} is not what {request.url.path} takes"
        refusal = HttpError(405, StatusCode.UNIMPLEMENTED, text, error.headers)
    else:
        refusal = HttpError(404, StatusCode.NOT_FOUND, f"there is nothing at {request.url.path}")
    call = begin_call(request, 1.0)
    response, _ = error_response(refusal, call.request_id)
    response.headers[REQUEST_ID_KEY] = call.request_id
    return response
