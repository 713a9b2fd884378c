"""Both clients behind one face: a test that holds for one holds for the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from genret.service.client import AsyncRetrievalClient, CallError, RetrievalClient

KINDS = ("sync", "async")


class Either:
    """A client of either kind, called without blocking the event loop that its server runs on."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.client, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if isinstance(self.client, RetrievalClient):
                return await asyncio.to_thread(method, *args, **kwargs)
            return await method(*args, **kwargs)

        return call

    async def stream(
        self, requests: Iterable[Any], seen: list[Any] | None = None, **kwargs: Any
    ) -> list[Any]:
        """Read a stream to its end; `seen` keeps what came before an error."""
        answers = [] if seen is None else seen
        answering = self.client.retrieve_stream(requests, **kwargs)
        if isinstance(self.client, RetrievalClient):
            await asyncio.to_thread(answers.extend, answering)
        else:
            async for answer in answering:
                answers.append(answer)
        return answers


async def error_of(call: Any) -> CallError:
    """Await a call of a client that must fail; return its error."""
    with pytest.raises(CallError) as caught:
        await call
    return caught.value


@asynccontextmanager
async def either_client(kind: str, address: str, **options: Any) -> AsyncIterator[Either]:
    if kind == "sync":
        client = RetrievalClient(address, **options)
        try:
            yield Either(client)
        finally:
            await asyncio.to_thread(client.close)
    else:
        async with AsyncRetrievalClient(address, **options) as asynchronous:
            yield Either(asynchronous)
