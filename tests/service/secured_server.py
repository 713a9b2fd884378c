"""A gRPC server of byte-echoing methods, one of each kind, behind TLS and authentication as tests ask."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from genret.service.call import TOKEN
from genret.service.configuration.server_config import TlsConfig
from genret.service.rpc import AuthenticationInterceptor
from genret.service.security.authority import Authority
from genret.service.security.tls import server_credentials

READ_METHOD = "/genret.v1.RetrievalService/Retrieve"
ADMIN_METHOD = "/genret.v1.IndexService/ReloadIndex"
HEALTH_METHOD = "/grpc.health.v1.Health/Check"
SERVER_STREAM = "/genret.v1.RetrievalService/Link"
CLIENT_STREAM = "/genret.v1.RetrievalService/Answer"
BIDIRECTIONAL = "/genret.v1.RetrievalService/RetrieveStream"
UNLISTED_METHOD = "/genret.v1.RetrievalService/Forgotten"


def tokens_in(folder: Path, *lines: str) -> Path:
    """A file of tokens that its owner alone may read."""
    path = folder / "tokens"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    path.chmod(0o600)
    return path


@dataclass
class Secured:
    port: int
    parsed: list[bytes] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)

    def channel(self, credentials: grpc.ChannelCredentials | None = None) -> grpc.aio.Channel:
        """A channel with connections of its own: none is shared with an earlier channel."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        address = f"localhost:{self.port}"
        if credentials is None:
            return grpc.aio.insecure_channel(address, options=options)
        return grpc.aio.secure_channel(address, credentials, options=options)

    async def echo(
        self, channel: grpc.aio.Channel, *metadata: tuple[str, str], method: str = READ_METHOD
    ) -> bytes:
        return await channel.unary_unary(method)(b"echo", metadata=metadata, timeout=60)

    async def code(
        self,
        *metadata: tuple[str, str],
        method: str = READ_METHOD,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> grpc.StatusCode:
        """Echo over a channel of its own, and return how that ended."""
        async with self.channel(credentials) as channel:
            try:
                await self.echo(channel, *metadata, method=method)
            except grpc.aio.AioRpcError as error:
                return error.code()
        return grpc.StatusCode.OK


@asynccontextmanager
async def secured(authority: Authority, tls: TlsConfig | None = None) -> AsyncIterator[Secured]:
    server = grpc.aio.server(interceptors=[AuthenticationInterceptor(authority)])
    running = Secured(0)
    server.add_generic_rpc_handlers((_Echo(running),))
    if tls is None:
        running.port = server.add_insecure_port("localhost:0")
    else:
        running.port = server.add_secure_port("localhost:0", server_credentials(tls))
    await server.start()
    try:
        yield running
    finally:
        await server.stop(None)


class _Echo(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc is untyped
    """Echoes bytes under every method named above, and notes what was parsed and who called."""

    def __init__(self, running: Secured) -> None:
        unary = grpc.unary_unary_rpc_method_handler(self._unary, self._parse)
        self._running = running
        self._handlers = {
            **dict.fromkeys((READ_METHOD, ADMIN_METHOD, HEALTH_METHOD, UNLISTED_METHOD), unary),
            SERVER_STREAM: grpc.unary_stream_rpc_method_handler(self._server_stream, self._parse),
            CLIENT_STREAM: grpc.stream_unary_rpc_method_handler(self._client_stream, self._parse),
            BIDIRECTIONAL: grpc.stream_stream_rpc_method_handler(self._bidirectional, self._parse),
        }

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler | None:
        return self._handlers.get(handler_call_details.method)

    def _parse(self, message: bytes) -> bytes:
        self._running.parsed.append(message)
        return message

    async def _unary(self, request: bytes, context: Any) -> bytes:
        self._running.tokens.append(TOKEN.get())
        return request

    async def _server_stream(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        self._running.tokens.append(TOKEN.get())
        yield request
        yield request

    async def _client_stream(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        self._running.tokens.append(TOKEN.get())
        return b"".join([request async for request in requests])

    async def _bidirectional(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        self._running.tokens.append(TOKEN.get())
        async for request in requests:
            yield request
