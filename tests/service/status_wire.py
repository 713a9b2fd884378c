"""One failed call as a client of either face sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import grpc
import httpx
from google.protobuf import json_format
from google.protobuf.message import Message
from grpc_status import rpc_status

from genret.service.gateway.endpoints import ENDPOINTS, NDJSON_TYPE, Endpoint
from tests.service.running_server import Running, Synchronous, unpack

REQUEST_ID = "the-request:7"


@dataclass(frozen=True)
class Ask:
    """A call that is going to fail; `raw` bytes replace the message, over gRPC and as the body of HTTP."""

    method: str
    message: Message
    raw: tuple[bytes, bytes] | None = None
    token: str = ""

    @property
    def endpoint(self) -> Endpoint:
        (found,) = (e for e in ENDPOINTS if e.method == self.method)
        return found

    @property
    def headers(self) -> dict[str, str]:
        token = {"authorization": f"Bearer {self.token}"} if self.token else {}
        return {"x-request-id": REQUEST_ID, **token}


@dataclass(frozen=True)
class Seen:
    """What came back."""

    code: str
    message: str
    details: dict[str, Any] = field(repr=False)
    request_id: str
    http_status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)


async def ask_grpc(api: Running, ask: Ask) -> Seen:
    """Ask over gRPC, with bytes: what is sent may be no message."""
    raw = ask.message.SerializeToString() if ask.raw is None else ask.raw[0]
    call: Any
    if ask.endpoint.row.is_stream:
        call = api.channel.stream_stream(ask.endpoint.row.full_name)(iter([raw]), timeout=60)
    else:
        metadata = tuple(ask.headers.items())
        call = api.channel.unary_unary(ask.endpoint.row.full_name)(raw, timeout=60, metadata=metadata)
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        trailers = {key: value for key, value in error.trailing_metadata() or ()}  # noqa: C416  # has no keys for dict()
        status = rpc_status.from_call(Synchronous(error))
        request_id = str(trailers.get("x-request-id", ""))
        return Seen(error.code().name, str(error.details()), unpack(status), request_id)
    raise AssertionError(f"the call succeeded: {answer!r}")


async def ask_http(client: httpx.AsyncClient, ask: Ask) -> Seen:
    """Ask over HTTP."""
    fields = json_format.MessageToDict(ask.message, preserving_proto_field_name=True)
    path = ask.endpoint.path.replace("{name}", str(fields.pop("name", "")))
    headers = {
        "content-type": NDJSON_TYPE if ask.endpoint.row.is_stream else "application/json",
        **ask.headers,
    }
    if ask.raw is not None:
        response = await client.post(path, content=ask.raw[1], headers=headers)
    else:
        response = await client.request(ask.endpoint.verb, path, json=fields, headers=headers)
    error = response.json()["error"]
    assert error["code"] == response.status_code
    details = {detail["@type"].rpartition(".")[2]: detail for detail in error["details"]}
    request_id = response.headers["x-request-id"]
    return Seen(
        error["status"], error["message"], details, request_id, response.status_code, dict(response.headers)
    )
