"""Starts the engine's process of a server, and carries what the two say to each other: pickled tuples.

Both processes are of one server and trust each other; what clients have sent is in frames as bytes.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import struct
import subprocess
import sys
from typing import Any, Literal, NamedTuple

from genret.service.call import Attribute, CallScope

_MODULE = "genret.service.serving.engine_worker"
_LENGTH = struct.Struct("=I")
ToEngine = Literal["configure", "call", "cancel", "reload", "metrics", "pulse", "stop"]
FromEngine = Literal["ready", "failed", "ended"]


class Worker:
    """A running process of `engine_worker`, and the socket to it, which its user closes."""

    def __init__(self) -> None:
        self.link, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno())]
            # What this process imports from, and not what lies where it was started.
            paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
            # A session of its own: a Ctrl-C in the terminal is for the server, which lets the engine finish.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": paths},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def end(self, seconds: float) -> int | None:
        """Wait for its end, so long at most; return its exit code, below 0 a signal's number. Blocks."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """End it at once. Idempotent."""
        self._process.kill()
        self._process.wait()


class Stage(NamedTuple):
    """A stage of an answer, for its trace."""

    name: str
    begin_s: float
    end_s: float
    attributes: dict[str, Attribute]


class Notes(NamedTuple):
    """What an engine's process noted of a call, see `CallScope`.

    `num_held` is what the client had unfinished when it was refused for lack of room, None if it was not.
    """

    prompt_tokens: int = 0
    num_answers: int = 0
    answered: float | None = None
    stages: tuple[Stage, ...] = ()
    num_held: int | None = None

    def add_to(self, scope: CallScope) -> None:
        """Note the same of the call here."""
        scope.prompt_tokens += self.prompt_tokens
        scope.num_answers += self.num_answers
        scope.answered = self.answered or scope.answered
        for stage in self.stages:
            if scope.span is not None:
                scope.span.stage(*stage)


class Frames:
    """Sends and receives frames. Lives on one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, link: socket.socket) -> Frames:
        """Return the frames of a connected socket, which is closed with them."""
        return cls(*await asyncio.open_connection(sock=link))

    def send(self, kind: ToEngine | FromEngine, *values: Any) -> None:
        """Send a frame; one to a process that has ended is lost."""
        frame = pickle.dumps((kind, *values), pickle.HIGHEST_PROTOCOL)
        if not self._writer.is_closing():
            self._writer.writelines((_LENGTH.pack(len(frame)), frame))

    async def drain(self) -> None:
        """Wait until there is room for further frames."""
        try:
            await self._writer.drain()
        except ConnectionError:
            return  # `receive` tells that the other process has ended

    async def receive(self) -> tuple[Any, ...] | None:
        """Return the next frame, None when the other process has ended."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            return tuple(pickle.loads(await self._reader.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def close(self) -> None:
        """Close the socket. Idempotent."""
        self._writer.close()
