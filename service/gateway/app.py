"""The API as JSON over HTTP, its description, and the explorer page: what stands under which path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpc import StatusCode
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from service.configuration.config import ServerConfig
from service.gateway.calls import begin_call
from service.gateway.endpoints import ENDPOINTS, Endpoint
from service.gateway.errors import HttpError, error_response
from service.gateway.handlers import Gate, Handler, finished, unary
from service.gateway.parting import Parting
from service.gateway.static_files import STATIC_DIRECTORY, StaticFile, file_route, page_routes, read_files
from service.gateway.streams import stream
from service.methods.indexes import IndexMethods
from service.methods.retrieval import RetrievalMethods
from service.observability.calls import CallObserver
from service.observability.metrics import Metrics
from service.observability.monitoring_app import monitoring_app
from service.observability.tracing import Tracing
from service.security.authority import Authority
from service.security.scopes import Scope
from service.serving.readiness import Readiness

OPENAPI_FILE = Path(__file__).parent / "openapi.json"


def make_app(
    retrieval: RetrievalMethods,
    indexes: IndexMethods,
    readiness: Readiness,
    authority: Authority | None,
    metrics: Metrics,
    config: ServerConfig,
    tracing: Tracing | None = None,
) -> Starlette:
    """Return the application that serves the API over HTTP.

    Args:
        retrieval: The methods of RetrievalService.
        indexes: The methods of IndexService.
        readiness: What /readyz says; connections are not kept while it drains.
        authority: Who may call; None: everybody.
        metrics: Where calls are counted, and what /metrics shows.
        config: Limits, what is logged, and whether the explorer page is served.
        tracing: Where spans go; None: there are none.
    """
    observer = CallObserver(metrics, config.log, tracing)
    gate = Gate(authority, observer, config.max_request_seconds, config.max_request_bytes)
    services: dict[str, Any] = {"RetrievalService": retrieval, "IndexService": indexes}
    routes = [
        _route(endpoint, services[endpoint.service], gate)
        for endpoint in ENDPOINTS
        if hasattr(services[endpoint.service], _snake(endpoint.method))
    ]
    document = StaticFile.of(OPENAPI_FILE.read_bytes(), "application/json")
    routes += [file_route("/openapi.json", document), *_watching(metrics, readiness, gate)]
    if config.http.explorer:
        routes += page_routes(read_files(STATIC_DIRECTORY))
    parting = Middleware(Parting, readiness=readiness)
    app = Starlette(routes=routes, exception_handlers={HTTPException: _refused}, middleware=[parting])
    # A path with a slash too many is another one: a redirect would go wherever the Host header says.
    app.router.redirect_slashes = False
    return app


def _route(endpoint: Endpoint, methods: object, gate: Gate) -> Route:
    method = getattr(methods, _snake(endpoint.method))
    # Names of indexes may hold slashes.
    path = endpoint.path.replace("{name}", "{name:path}")
    handler = (stream if endpoint.is_stream else unary)(endpoint, method, gate)
    return Route(path, handler, methods=[endpoint.verb])


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).removeprefix("_")


def _watching(metrics: Metrics, readiness: Readiness, gate: Gate) -> list[Route]:
    """Return what machines watch; here, unlike on a port of its own, /metrics asks for a token."""
    found = {r.path: r.endpoint for r in monitoring_app(metrics, readiness).routes if isinstance(r, Route)}
    return [
        Route("/livez", found["/livez"]),
        Route("/readyz", found["/readyz"]),
        Route("/metrics", _guarded(found["/metrics"], gate)),
    ]


def _guarded(handler: Handler, gate: Gate) -> Handler:
    async def serve(request: Request) -> Response:
        try:
            gate.authorize(request, Scope.READ)
        except Exception as error:
            request_id = begin_call(request, gate.max_seconds).request_id
            return finished(error_response(error, request_id)[0], request_id)
        return await handler(request)

    return serve


async def _refused(request: Request, error: Exception) -> Response:
    """Answer what no route takes."""
    if not isinstance(error, HTTPException):
        raise error
    path = request.url.path[:200]
    if error.status_code == 405:
        text = f"{request.method[:20]} is not what {path} takes"
        refusal = HttpError(405, StatusCode.UNIMPLEMENTED, text, error.headers)
    else:
        refusal = HttpError(404, StatusCode.NOT_FOUND, f"there is nothing at {path}")
    request_id = begin_call(request, 1.0).request_id
    return finished(error_response(refusal, request_id)[0], request_id)
