"""The HTTP face for machines that watch: /metrics, /livez, /readyz. Asks for no token, tells no secrets."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from service.observability.metrics import Metrics
from service.serving.readiness import Readiness, State

_RETRY_AFTER_S = "1"
_FRESH = {"cache-control": "no-store"}


def monitoring_app(metrics: Metrics, readiness: Readiness) -> Starlette:
    """Return the app.

    Its handlers run on the event loop that serves requests, so that /livez says whether that turns, and what
    is scraped is read between two steps of it.

    Args:
        metrics: What /metrics shows.
        readiness: What /readyz says.
    """

    async def show_metrics(request: Request) -> Response:
        text, content_type = metrics.render()
        return Response(text, headers={"content-type": content_type, **_FRESH})

    async def say_alive(request: Request) -> Response:
        return PlainTextResponse("the event loop turns\n", headers=_FRESH)

    async def say_ready(request: Request) -> Response:
        state = readiness.state
        if state is State.READY:
            return PlainTextResponse(f"{state.value}\n", headers=_FRESH)
        return PlainTextResponse(
            f"{state.value}\n", status_code=503, headers={"retry-after": _RETRY_AFTER_S, **_FRESH}
        )

    app = Starlette(
        routes=[
            Route("/metrics", show_metrics, methods=["GET"]),
            Route("/livez", say_alive, methods=["GET"]),
            Route("/readyz", say_ready, methods=["GET"]),
        ]
    )
    app.router.redirect_slashes = False  # a redirect would go wherever the Host header says
    return app
