"""Headers that are too large are refused, also where they came all at once.

The parser's own limit is about headers that are not complete yet, and one read of a socket may hold far more.
"""

from __future__ import annotations

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

# What stands around a header: a colon, a blank and the end of the line.
_AROUND = 4


class HeaderLimit:
    """Answers requests with too large headers by 431, and hangs up.

    Args:
        app: Answers the others.
        max_bytes: Most bytes of the path and all headers of a request.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http" and _size(scope) > self._max_bytes:
            text = f"the headers are larger than {self._max_bytes} bytes\n"
            refusal = PlainTextResponse(text, status_code=431, headers={"connection": "close"})
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _size(scope: Scope) -> int:
    headers = sum(len(name) + len(value) + _AROUND for name, value in scope["headers"])
    return headers + len(scope["raw_path"]) + len(scope["query_string"])
