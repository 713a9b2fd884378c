"""Bearer tokens over real gRPC: who is let in, to what, and what the others learn."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import StatusCode
from grpc_status import rpc_status

from genret.service.configuration.server_config import AuthConfig
from genret.service.security.authority import Authority, Principal
from genret.service.security.bearer_tokens import Scope, line_of, new_token
from tests.service import secured_server as methods
from tests.service.secured_server import Secured, secured

READ, ADMIN = new_token(), new_token()
KINDS = {
    "unary_unary": methods.READ_METHOD,
    "unary_stream": methods.SERVER_STREAM,
    "stream_unary": methods.CLIENT_STREAM,
    "stream_stream": methods.BIDIRECTIONAL,
}


def bearer(token: str) -> tuple[str, str]:
    return "authorization", f"Bearer {token}"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    write_tokens(path, f"read {READ}", line_of(Scope.ADMIN, ADMIN))
    return path


def write_tokens(path: Path, *lines: str) -> None:
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)


def authority_of(token_file: Path) -> Authority:
    return Authority(AuthConfig(token_file))


async def call(running: Secured, *metadata: tuple[str, str], method: str) -> StatusCode:
    async with running.channel() as channel:
        try:
            await running.echo(channel, *metadata, method=method)
        except grpc.aio.AioRpcError as error:
            return error.code()
    return StatusCode.OK


@pytest.mark.parametrize(
    ("metadata", "method", "code"),
    [
        ([], methods.READ_METHOD, "UNAUTHENTICATED"),
        ([bearer("w" * 40)], methods.READ_METHOD, "UNAUTHENTICATED"),
        ([bearer(READ[:-1])], methods.READ_METHOD, "UNAUTHENTICATED"),
        ([("authorization", READ)], methods.READ_METHOD, "UNAUTHENTICATED"),
        ([("authorization", f"Basic {READ}")], methods.READ_METHOD, "UNAUTHENTICATED"),
        ([("authorization", "")], methods.READ_METHOD, "UNAUTHENTICATED"),
        ([bearer(READ), bearer(ADMIN)], methods.READ_METHOD, "UNAUTHENTICATED"),
        ([("authorization-bin", b"Bearer " + READ.encode())], methods.READ_METHOD, "UNAUTHENTICATED"),
        ([bearer(READ)], methods.READ_METHOD, "OK"),
        ([("authorization", f"bearer  {READ}")], methods.READ_METHOD, "OK"),
        ([bearer(ADMIN)], methods.READ_METHOD, "OK"),
        ([bearer(READ)], methods.ADMIN_METHOD, "PERMISSION_DENIED"),
        ([bearer(ADMIN)], methods.ADMIN_METHOD, "OK"),
        ([], methods.HEALTH_METHOD, "OK"),
        ([bearer("w" * 40)], methods.HEALTH_METHOD, "OK"),
        ([], methods.UNLISTED_METHOD, "UNAUTHENTICATED"),
        ([bearer(ADMIN)], methods.UNLISTED_METHOD, "PERMISSION_DENIED"),
        ([], "/genret.v1.RetrievalService/Nothing", "UNAUTHENTICATED"),
        ([bearer(READ)], "/genret.v1.RetrievalService/Nothing", "UNIMPLEMENTED"),
    ],
)
def test_a_call_is_allowed_by_its_token(
    token_file: Path, metadata: list[Any], method: str, code: str
) -> None:
    async def scenario() -> StatusCode:
        async with secured(authority_of(token_file)) as running:
            return await call(running, *metadata, method=method)

    assert asyncio.run(scenario()) is StatusCode[code]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_method_is_refused_before_its_request_is_parsed(token_file: Path, kind: str) -> None:
    async def scenario() -> list[Principal | None]:
        async with secured(authority_of(token_file)) as running:
            for metadata in ((), (bearer("w" * 40),)):
                with pytest.raises(grpc.RpcError) as caught:
                    await asyncio.to_thread(consume, running.port, kind, metadata)
                assert_refused(caught.value)
            assert running.parsed == []
            replies = await asyncio.to_thread(consume, running.port, kind, (bearer(READ),))
            assert b"".join(replies) in {b"one", b"oneone", b"onetwo"}
            assert running.parsed
            return running.principals

    (principal,) = asyncio.run(scenario())
    assert principal is not None
    assert principal.scope is Scope.READ
    assert len(principal.fingerprint) == 8
    assert principal.fingerprint not in READ


def assert_refused(error: Any) -> None:
    assert error.code() is StatusCode.UNAUTHENTICATED
    assert "bearer" in error.details()
    assert ("x-request-id", "of-the-client") in {(key, value) for key, value in error.trailing_metadata()}
    status = rpc_status.from_call(error)
    assert status.message == error.details()


def consume(port: int, kind: str, metadata: tuple[tuple[str, str], ...]) -> list[bytes]:
    """Call with the blocking client: asyncio's says INTERNAL when a call ends while a request is written."""
    with grpc.insecure_channel(f"localhost:{port}") as channel:
        multicallable = getattr(channel, kind)(KINDS[kind])
        request = iter([b"one", b"two"]) if kind.startswith("stream") else b"one"
        reply = multicallable(request, metadata=(*metadata, ("x-request-id", "of-the-client")), timeout=60)
        return list(reply) if kind.endswith("stream") else [reply]


def test_tokens_change_while_the_server_runs(token_file: Path) -> None:
    newer = new_token()

    async def scenario() -> None:
        authority = authority_of(token_file)
        async with secured(authority) as running:
            write_tokens(token_file, f"read {READ}", f"read {newer}")
            assert authority.reload()
            for token in (READ, newer):
                assert await call(running, bearer(token), method=methods.READ_METHOD) is StatusCode.OK
            write_tokens(token_file, f"read {newer}")
            assert authority.reload()
            gone = await call(running, bearer(READ), method=methods.READ_METHOD)
            assert gone is StatusCode.UNAUTHENTICATED
            write_tokens(token_file, "read short")
            assert not authority.reload()
            assert await call(running, bearer(newer), method=methods.READ_METHOD) is StatusCode.OK

    asyncio.run(scenario())


def test_a_header_of_a_megabyte_is_refused_and_the_server_goes_on(token_file: Path) -> None:
    async def scenario() -> tuple[StatusCode, StatusCode]:
        async with secured(authority_of(token_file)) as running:
            huge = await call(running, bearer("x" * 2**20), method=methods.READ_METHOD)
            return huge, await call(running, bearer(READ), method=methods.READ_METHOD)

    huge, after = asyncio.run(scenario())
    assert huge in {StatusCode.RESOURCE_EXHAUSTED, StatusCode.UNAUTHENTICATED}
    assert after is StatusCode.OK


@pytest.mark.parametrize(("trusted", "code"), [(True, "OK"), (False, "PERMISSION_DENIED")])
def test_without_tokens_reading_is_free_and_the_rest_depends_on_who_can_connect(
    trusted: bool, code: str
) -> None:
    async def scenario() -> tuple[StatusCode, ...]:
        async with secured(Authority(AuthConfig(), admin_without_token=trusted)) as running:
            return (
                await call(running, method=methods.READ_METHOD),
                await call(running, bearer("not asked for"), method=methods.UNLISTED_METHOD),
                await call(running, method=methods.ADMIN_METHOD),
                await call(running, method="/genret.v1.RetrievalService/Nothing"),
            )

    assert asyncio.run(scenario()) == (
        StatusCode.OK,
        StatusCode.OK,
        StatusCode[code],
        StatusCode.UNIMPLEMENTED,
    )
