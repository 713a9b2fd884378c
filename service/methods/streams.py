"""Streams of queries: each answered as soon as it can be, a bounded number of them at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

from service.errors import NotReadyError
from service.methods.call import Call
from service.methods.failures import failure_status
from service.methods.stream_room import StreamRoom
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.serving.quiet import Quiet
from service.wire.streams import check_stream_id

# Queries of one stream that have been read and whose answers have not been taken off the server.
MAX_IN_FLIGHT = 64
# Of answers that have not been taken off the server, bytes; a single one may be larger.
MAX_HELD_BYTES = 4 * 1024 * 1024
Ask = Callable[[pb.RetrieveRequest, Call], Awaitable[pb.RetrieveResponse]]
Write = Callable[[pb.RetrieveStreamResponse], Awaitable[None]]


class Streams:
    """The open streams of a server. Lives on one event loop.

    Args:
        ask: Answers one query; waits where there is no room.
        max_in_flight: Most queries of one stream that have been read and whose answers have not been written.
        max_bytes: Most bytes of such answers; see `StreamRoom`.
    """

    def __init__(self, ask: Ask, max_in_flight: int = MAX_IN_FLIGHT, max_bytes: int = MAX_HELD_BYTES) -> None:
        self._ask = ask
        self._max_in_flight = max_in_flight
        self._max_bytes = max_bytes
        self._open: set[_Stream] = set()
        self._stopped = False

    async def serve(
        self, requests: AsyncIterator[pb.RetrieveStreamRequest], call: Call, write: Write
    ) -> None:
        """Answer the queries of a stream until there are no more.

        Args:
            requests: The queries; they are read only while there is room for them and their answers.
            call: The stream's call.
            write: Sends an answer; returns when there is room for the next one.

        Raises:
            NotReadyError: the server shuts down; every query that was read before that has been answered.
            Exception: what reading or writing raises; when reading fails, every query that was read has been
                answered.
        """
        if self._stopped:
            raise _shutting_down()
        stream = _Stream(self._ask, call, StreamRoom(self._max_in_flight, self._max_bytes))
        self._open.add(stream)
        try:
            await stream.run(requests, write)
        finally:
            self._open.discard(stream)

    def stop(self) -> None:
        """Take no more queries of any stream: each ends with what it has in flight. Idempotent."""
        self._stopped = True
        for stream in self._open:
            stream.stop()

    def __len__(self) -> int:
        return len(self._open)


class _Stream:
    """One stream: a task that reads, a task per query, and the caller's task, which alone writes."""

    def __init__(self, ask: Ask, call: Call, room: StreamRoom) -> None:
        self._ask = ask
        self._call = call
        self._room = room
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers: asyncio.Queue[pb.RetrieveStreamResponse | None] = asyncio.Queue()
        self._dropping: Quiet | None = None  # None: queries are taken
        self._num_dropped = 0

    async def run(self, requests: AsyncIterator[pb.RetrieveStreamRequest], write: Write) -> None:
        """Answer everything; whatever ends it early cancels what is in flight."""
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
            self._dropping = Quiet()
            self._room.open()
            self._answers.put_nowait(None)

    async def _see_out(self, dropping: Quiet, reader: asyncio.Task[None]) -> None:
        """End a stream that was stopped; it ends well where the client has sent nothing in vain."""
        dropping.broken()  # the last answer may well be what the next query waits for
        ended = asyncio.Event()
        reader.add_done_callback(lambda _: ended.set())
        await dropping.come(ended)
        if self._num_dropped or not reader.done():
            raise _shutting_down()

    async def _read(self, requests: AsyncIterator[pb.RetrieveStreamRequest]) -> None:
        while True:
            # Before the query is read: one that cannot be answered yet stays in the client's hands.
            await self._room.wait()
            message = await anext(requests, None)
            if message is None:
                return
            if self._dropping is not None:
                # A stream that ends while its client is sending is, to many a client, one that broke.
                self._num_dropped += 1
                self._dropping.broken()
                continue
            self._room.asked()
            task = asyncio.create_task(self._answer(message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, message: pb.RetrieveStreamRequest) -> None:
        call = replace(self._call, arrived=time.monotonic())
        try:
            check_stream_id(message.id)
            response = await self._ask(message.request, call)
            answer = pb.RetrieveStreamResponse(id=message.id, response=response)
        except Exception as error:
            status = failure_status(error, call.request_id)
            answer = pb.RetrieveStreamResponse(id=message.id, error=status)
        self._room.answered(answer.ByteSize())
        self._answers.put_nowait(answer)


def _shutting_down() -> NotReadyError:
    return NotReadyError("the server is shutting down", retry_after_s=1.0)
