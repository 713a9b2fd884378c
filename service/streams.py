"""Answers the queries of a stream as they come, and decides when the next one is read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

from genret.service.call import Call, client_address
from genret.service.errors import NotReadyError
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.serving.readiness import IdleWait
from genret.service.serving.request_bytes import RequestBytes
from genret.service.wire.requests import check_stream_id, held_bytes
from genret.service.wire.rpc_status import outcome

# Queries of one stream that were read and whose answers were not written.
MAX_IN_FLIGHT = 64
# Bytes of answers that were not written; a single answer may be larger.
MAX_HELD_BYTES = 4 * 1024 * 1024
Write = Callable[[pb.RetrieveStreamResponse], Awaitable[None]]


class QueryStream:
    """One stream: a task that reads, a task per query, and the caller's task, the only one that writes."""

    def __init__(
        self,
        ask: Callable[[pb.RetrieveRequest, Call], Awaitable[pb.RetrieveResponse]],
        call: Call,
        request_bytes: RequestBytes,
    ) -> None:
        self._ask = ask
        self._call = call
        self._bytes = request_bytes
        self._client = client_address()
        self._room = StreamRoom(MAX_IN_FLIGHT, MAX_HELD_BYTES)
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers: asyncio.Queue[pb.RetrieveStreamResponse | None] = asyncio.Queue()
        self._dropping: IdleWait | None = None  # None: queries are taken
        self._num_dropped = 0

    async def run(self, requests: AsyncIterator[pb.RetrieveStreamRequest], write: Write) -> None:
        """Answer everything; an early end cancels what is in flight."""
        reader = asyncio.create_task(self._read(requests))
        reader.add_done_callback(lambda _: self._answers.put_nowait(None))
        try:
            while len(self._room) or not (reader.done() or self._dropping):
                answer = await self._answers.get()
                if answer is not None:
                    await write(answer)
                    self._room.written(answer.ByteSize())
            if self._dropping is not None:
                await self._see_out(self._dropping, reader)
            reader.result()
        finally:
            tasks = [reader, *self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def stop(self) -> None:
        """Take no more queries."""
        if self._dropping is None:
            self._dropping = IdleWait()
            self._room.open()
            self._answers.put_nowait(None)

    async def _see_out(self, dropping: IdleWait, reader: asyncio.Task[None]) -> None:
        """End a stopped stream; without error if the client has sent no query in vain."""
        dropping.broken()  # the client may send its next query in response to the last answer
        ended = asyncio.Event()
        reader.add_done_callback(lambda _: ended.set())
        await dropping.come(ended)
        if self._num_dropped or not reader.done():
            raise NotReadyError()

    async def _read(self, requests: AsyncIterator[pb.RetrieveStreamRequest]) -> None:
        while True:
            # Wait before reading: a query that cannot be answered yet stays with the client.
            await self._room.wait()
            await asyncio.sleep(0)  # the query read before takes its bytes, or waits for them
            await self._bytes.turn(self._client)
            message = await anext(requests, None)
            if message is None:
                return
            if self._dropping is not None:
                # Many clients take a stream that ends while they are sending for a broken one.
                self._num_dropped += 1
                self._dropping.broken()
                continue
            self._room.asked()
            task = asyncio.create_task(self._answer(message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            del message, task  # they would stay while the next query is waited for

    async def _answer(self, message: pb.RetrieveStreamRequest) -> None:
        call = replace(self._call, arrived=time.monotonic())
        empty = pb.RetrieveStreamResponse(id=message.id)
        answer = await outcome(empty, call.request_id, self._checked, message, call)
        self._room.answered(answer.ByteSize())
        self._answers.put_nowait(answer)

    async def _checked(self, message: pb.RetrieveStreamRequest, call: Call) -> pb.RetrieveResponse:
        check_stream_id(message.id)
        async with self._bytes.room(self._client, held_bytes(message)):
            return await self._ask(message.request, call)


# Factor by which the largest answer so far is forgotten, per answer.
_DECAY = 0.95


class StreamRoom:
    """Decides when a stream may read its next query. Lives on one event loop.

    `max_queries` limits queries read and not written back, `max_bytes` the unwritten answers. A query
    without an answer counts as the largest of the last answers. A single query always fits.
    """

    def __init__(self, max_queries: int, max_bytes: int) -> None:
        self._max_queries = max_queries
        self._max_bytes = max_bytes
        self._num_asked = 0
        self._num_answered = 0
        self._bytes = 0
        self._expected = max_bytes / max_queries
        self._changed = asyncio.Event()
        self._is_open = False

    def __len__(self) -> int:
        """Queries that were read and whose answers were not written."""
        return self._num_asked + self._num_answered

    async def wait(self) -> None:
        """Wait until one more query may be read."""
        while not (self._is_open or self._fits()):
            self._changed.clear()
            await self._changed.wait()

    def asked(self) -> None:
        """Note a query that was read."""
        self._num_asked += 1

    def answered(self, size: int) -> None:
        """Note an answer of `size` bytes."""
        self._num_asked -= 1
        self._num_answered += 1
        self._bytes += size
        self._expected = max(size, self._expected * _DECAY)
        self._changed.set()

    def written(self, size: int) -> None:
        """Note that an answer was sent."""
        self._num_answered -= 1
        self._bytes -= size
        self._changed.set()

    def open(self) -> None:
        """Lift the limits."""
        self._is_open = True
        self._changed.set()

    def _fits(self) -> bool:
        if not len(self):
            return True
        expected = self._bytes + (self._num_asked + 1) * self._expected
        return len(self) < self._max_queries and expected <= self._max_bytes
