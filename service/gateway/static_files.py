"""The explorer page: a few files, read once, that may fetch nothing from elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

STATIC_DIRECTORY = Path(__file__).parent / "static"
_PAGE = "index.html"
# By suffix what a file is. Others are not served.
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
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
    "cache-control": "no-cache",  # ask every time; the ETag says that nothing changed
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file as it is sent.

    Attributes:
        body: Its bytes.
        kind: Its content type.
        etag: Digest of its bytes, in quotes.
    """

    body: bytes
    kind: str
    etag: str

    @classmethod
    def of(cls, body: bytes, kind: str) -> StaticFile:
        """Return the file with these bytes."""
        return cls(body, kind, f'"{hashlib.sha256(body).hexdigest()[:32]}"')

    def response(self, request: Request) -> Response:
        """Return the file, or that the client has it already."""
        headers = {**_HEADERS, "etag": self.etag}
        known = [
            tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")
        ]
        if self.etag in known or "*" in known:
            return Response(status_code=304, headers=headers)
        return Response(self.body, headers={**headers, "content-type": self.kind})


def read_files(directory: Path) -> Mapping[str, StaticFile]:
    """Return the files of a directory by name; none where there is no directory."""
    if not directory.is_dir():
        return {}
    return {
        path.name: StaticFile.of(path.read_bytes(), _TYPES[path.suffix])
        for path in sorted(directory.iterdir())
        if path.is_file() and path.suffix in _TYPES
    }


def page_routes(files: Mapping[str, StaticFile]) -> list[Route]:
    """Return `/` for the page, and a path for each file it is made of."""
    return [file_route("/" if name == _PAGE else f"/{name}", file) for name, file in files.items()]


def file_route(path: str, file: StaticFile) -> Route:
    """Return a route that serves one file."""

    async def serve(request: Request) -> Response:
        return file.response(request)

    return Route(path, serve)
