"""Paths that are nearly one of the API's lead nowhere."""

from __future__ import annotations

import httpx
import pytest

from service.observability.metrics import Metrics, monitoring_app
from service.serving.readiness import Readiness
from tests.service.asynchronous import asynchronous
from tests.service.http_gateway import http_client


@pytest.mark.parametrize(
    ("verb", "path"),
    [("POST", "/v1/retrieve/"), ("GET", "/livez/"), ("GET", "/openapi.json/"), ("POST", "/v1/answer/")],
)
@asynchronous
async def test_a_slash_too_many_is_not_redirected_to_where_the_host_header_says(verb: str, path: str) -> None:
    async with http_client() as client:
        reply = await client.request(verb, path, headers={"host": "elsewhere.example"}, content=b"{}")
    assert reply.status_code == 404
    assert "location" not in reply.headers
    assert reply.json()["error"]["status"] == "NOT_FOUND"
    assert reply.headers["x-request-id"]


@asynchronous
async def test_the_port_of_those_who_watch_redirects_nobody_either() -> None:
    app = monitoring_app(Metrics(), Readiness(()))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://any.example") as client:
        for path in ("/metrics/", "/livez/", "/readyz/"):
            assert (await client.get(path)).status_code == 404
        assert (await client.get("/livez")).status_code == 200
