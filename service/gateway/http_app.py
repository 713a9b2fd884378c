"""Builds the ASGI application: the API as JSON over HTTP, its OpenAPI document, and the explorer page.

The page consists of a few static files, and may fetch nothing from elsewhere.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from grpc import StatusCode
from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from genret.retrieval.errors import did_you_mean, nearest
from genret.service.configuration.server_config import ServerConfig
from genret.service.gateway.chat_completions import path_refused
from genret.service.gateway.endpoints import (
    ENDPOINTS,
    FORM_ENDPOINTS,
    Endpoint,
    Gate,
    Handler,
    finished,
    stream,
    unary,
)
from genret.service.gateway.http_calls import (
    BodyLimits,
    HttpError,
    begin_call,
    error_body,
    error_response,
)
from genret.service.gateway.http_server import PROBES, ConnectionCloser
from genret.service.methods import Methods
from genret.service.observability.observations import CallObserver
from genret.service.security.authority import Authority
from genret.service.security.bearer_tokens import Scope
from genret.service.serving.readiness import Readiness

OPENAPI_FILE = Path(__file__).parent / "openapi.json"


def make_app(
    methods: Methods,
    readiness: Readiness,
    authority: Authority,
    observer: CallObserver,
    config: ServerConfig,
    monitoring: Starlette,
) -> Starlette:
    """Return the application that serves the API over HTTP, and answers for `monitoring`, too."""
    limits = BodyLimits(config.max_request_bytes, config.max_batch_items, methods.request_bytes)
    gate = Gate(methods, authority, observer, config.max_request_seconds, limits)
    routes = [_route(endpoint, gate) for endpoint in ENDPOINTS + FORM_ENDPOINTS]
    document = file_route("/openapi.json", OPENAPI_FILE.read_bytes(), "application/json")
    routes += [document, *_watching(monitoring, gate)]
    if config.http.explorer:
        for path in sorted(STATIC_DIRECTORY.iterdir()):
            if path.suffix in _TYPES:
                place = "/" if path.name == _PAGE else f"/{path.name}"
                routes.append(file_route(place, path.read_bytes(), _TYPES[path.suffix]))
    parting = Middleware(ConnectionCloser, readiness=readiness)
    app = Starlette(routes=routes, exception_handlers={HTTPException: _refused}, middleware=[parting])
    # A path with a trailing slash is another one: a redirect would follow the Host header.
    app.router.redirect_slashes = False
    return app


class _NamePart(PathConvertor):
    regex = ".*(?<!:reload)"  # names of indexes may hold slashes; what ends so is another path


register_url_convertor("index", _NamePart())


def _route(endpoint: Endpoint, gate: Gate) -> Route:
    path = endpoint.path.replace("{name}", "{name:index}")
    handler = (stream if endpoint.row.is_stream else unary)(endpoint, gate)
    return Route(path, handler, methods=[endpoint.verb])


def _watching(monitoring: Starlette, gate: Gate) -> list[Route]:
    """Return the monitoring routes; unlike on the monitoring port, /metrics needs a token."""
    found = {r.path: r.endpoint for r in monitoring.routes if isinstance(r, Route)}
    return [Route(path, call if path in PROBES else _guarded(call, gate)) for path, call in found.items()]


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
    if not isinstance(error, HTTPException):
        raise error
    path = request.url.path[:200]
    foreign = {one.path: f"{one.verb} {one.path}" for one in FORM_ENDPOINTS}
    is_foreign = path in foreign
    if error.status_code == 405:
        text = f"{path} takes {(error.headers or {})['Allow']}, got {request.method[:20]}"
        refusal = HttpError(405, StatusCode.UNIMPLEMENTED, text, error.headers)
    else:
        paths = [route.path_format for route in request.app.routes]
        near = next((one for one in paths if one.endswith(path) or (path.endswith(one) and one != "/")), "")
        near = near or nearest(path, paths, 0.8)
        is_foreign = near in foreign or (not near and path.startswith(("/v1/", "/v2/")))
        served = f"; of the APIs of OpenAI, Cohere and Jina there are {', '.join(foreign.values())}"
        hint = did_you_mean(near, [near], served if is_foreign else "")
        refusal = HttpError(404, StatusCode.NOT_FOUND, f"there is nothing at {path}{hint}")
    request_id = begin_call(request, 1.0).request_id
    body = path_refused if is_foreign else error_body
    return finished(error_response(refusal, request_id, body)[0], request_id)


STATIC_DIRECTORY = Path(__file__).parent / "static"
_PAGE = "index.html"
# Content types of files by suffix; others are not served.
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # ask every time; the ETag reports no change
}


def file_route(path: str, body: bytes, kind: str) -> Route:
    """Return a route that serves the bytes of a file, or 304 to a client that has them already."""
    headers = {**_HEADERS, "etag": f'"{hashlib.sha256(body).hexdigest()[:32]}"'}

    async def serve(request: Request) -> Response:
        known = [
            tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")
        ]
        if headers["etag"] in known or "*" in known:
            return Response(status_code=304, headers=headers)
        return Response(body, headers={**headers, "content-type": kind})

    return Route(path, serve)
