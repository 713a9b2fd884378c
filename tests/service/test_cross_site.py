"""Requests that a page of another site makes a browser send are told from others by their headers."""

from __future__ import annotations

import pytest

from service.errors import PermissionDeniedError
from service.security.authority import refuse_cross_site, refuse_foreign_host

OWN = {"host": "search.example:8080"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec-fetch-site": "same-origin", "origin": "http://search.example:8080"},
        {"sec-fetch-site": "same-origin", "origin": "https://known-to-the-proxy.example"},
        {"sec-fetch-site": "none"},
        {"origin": "http://search.example:8080"},
        {"origin": "https://search.example:8080"},
    ],
)
def test_own_pages_and_programs_may_send_anything(headers: dict[str, str]) -> None:
    refuse_cross_site("POST", OWN | headers)


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site", "origin": "http://search.example:8080"},
        {"sec-fetch-site": ""},
        {"origin": "https://evil.example"},
        {"origin": "http://search.example:8081"},
        {"origin": "http://search.example:8080.evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://[broken"},
    ],
)
def test_other_pages_may_only_send_what_changes_nothing(headers: dict[str, str]) -> None:
    refuse_cross_site("GET", OWN | headers)
    for method in ("POST", "PUT", "DELETE", "PATCH", "INVENTED"):
        with pytest.raises(PermissionDeniedError, match="another origin"):
            refuse_cross_site(method, OWN | headers)


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8080", "127.0.0.1:8080", "127.9.9.9", "[::1]:8080", "LOCALHOST:1"]
)
def test_loopback_is_this_machine(host: str) -> None:
    refuse_foreign_host({"host": host})


@pytest.mark.parametrize(
    "host",
    [
        "",
        "search.example",
        "10.0.0.1:8080",
        "localhost.evil.example",
        "127.0.0.1.evil.example:80",
        "[::1",
        "@localhost@x",
    ],
)
def test_other_names_are_not(host: str) -> None:
    with pytest.raises(PermissionDeniedError, match=r"start the server with auth\.token_file"):
        refuse_foreign_host({"host": host})
