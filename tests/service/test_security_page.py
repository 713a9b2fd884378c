"""docs/security.md says of tokens, limits and links what is so."""

from __future__ import annotations

import re
from pathlib import Path

from service.gateway import http_calls as calls
from service.gateway import http_server
from service.security.bearer_tokens import (
    MAX_CHARACTERS,
    MAX_LIVE,
    METHOD_SCOPES,
    MIN_CHARACTERS,
    Scope,
    line_of,
)

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
TEXT = " ".join(PAGE.read_text("utf-8").split())


def test_the_token_of_the_example_has_the_line_below_it() -> None:
    (block,) = re.findall(r"```\n\$ genret token new --scope read\n(.+)\n(.+)\n```", PAGE.read_text("utf-8"))
    token, line = block
    assert line == line_of(Scope.READ, token)


def test_numbers_are_those_of_the_code() -> None:
    assert f"{MIN_CHARACTERS} to {MAX_CHARACTERS} printable ASCII characters" in TEXT
    assert MAX_LIVE == 2
    assert "Two tokens of a scope may be live" in TEXT
    headers, body = http_server._MAX_HEADER_BYTES // 1024, calls._BODY_SECONDS
    assert f"Headers have {headers} KiB and {http_server._HEADER_SECONDS:.0f} seconds" in TEXT
    assert f"and {body:.0f} seconds." in TEXT


def test_scopes_are_those_of_the_methods() -> None:
    admin = {name.rpartition("/")[2] for name, scope in METHOD_SCOPES.items() if scope is Scope.ADMIN}
    assert admin == {"ReloadIndex"}
    assert "`admin` allows that and ReloadIndex" in TEXT
    free = {name.split("/")[1] for name, scope in METHOD_SCOPES.items() if scope is None}
    assert free == {"grpc.health.v1.Health"}


def test_links_lead_somewhere() -> None:
    headings = {
        re.sub(r"[^\w -]", "", line.lstrip("# ")).lower().replace(" ", "-")
        for line in PAGE.read_text("utf-8").splitlines()
        if line.startswith("#")
    }
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        if target.startswith("#"):
            assert target[1:] in headings
        else:
            assert (PAGE.parent / target).exists(), target
