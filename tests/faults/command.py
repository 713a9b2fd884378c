"""Running `genret` in processes that may be killed, starved of disk or interrupted.

A fork server imports the command once, so that a run costs little more than its work.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

from genret.index_builder import merge
from genret.index_builder.faults import ENVIRONMENT_VARIABLE
from genret.index_builder.shard_maker import ShardMaker

_CONTEXT = multiprocessing.get_context("forkserver")
_COMMANDS = ("service.main", "index_builder.cli", "retrieval.index.inspect_command")
_EVIDENCE = ("retrieval.evidence.field_maker", "retrieval.ranking.fitting", "retrieval.vectors.encoder")
_CONTEXT.set_forkserver_preload(
    [*(f"genret.{name}" for name in (*_COMMANDS, *_EVIDENCE)), "faiss", "tests.index_fixtures"]
)

DEFAULT_LIMIT_S = 60.0
SHARD_RECORDS = 12
BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Under which a command runs."""

    fault: str = ""  # "point:action[:passage]" for `GENRET_FAULT`
    max_file_bytes: int | None = None  # no file can grow beyond this, as if the disk were full
    user: int | None = None  # run as this user id
    shard_records: int = SHARD_RECORDS  # most records per shard, so that a small source has several
    block_bytes: int = BLOCK_BYTES  # size of a range of the merge, so that a small index has several


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended; `status` is -n when signal n ended it."""

    status: int
    stdout: str
    stderr: str


NORMAL = Circumstances()


class Command:
    """One running `genret` command."""

    def __init__(self, arguments: Sequence[str], circumstances: Circumstances = NORMAL) -> None:
        out, write_out = _CONTEXT.Pipe(duplex=False)
        err, write_err = _CONTEXT.Pipe(duplex=False)
        self._begun, began = _CONTEXT.Pipe(duplex=False)
        self._pipes = (out, err)
        self.process: ForkServerProcess = _CONTEXT.Process(
            target=_run, args=(list(arguments), circumstances, write_out, write_err, began)
        )
        self.process.start()
        for pipe in (write_out, write_err, began):
            pipe.close()

    def begin(self) -> None:
        """Wait until the command itself runs."""
        self._begun.recv()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal, if the command still runs."""
        if self.process.is_alive() and self.process.pid is not None:
            os.kill(self.process.pid, number)

    def wait(self, limit_s: float = DEFAULT_LIMIT_S) -> Outcome:
        """Wait for the end; a command that takes too long is killed, and a TimeoutError."""
        self.process.join(limit_s)
        is_late = self.process.exitcode is None
        if is_late:
            self.process.kill()
            self.process.join()
        texts = []
        for pipe in self._pipes:  # each holds 64 KiB, more than any command says
            with open(pipe.fileno(), encoding="utf-8", closefd=False) as file:
                texts.append(file.read())
        for pipe in (*self._pipes, self._begun):
            pipe.close()
        if is_late:
            raise TimeoutError(f"still running after {limit_s} s: {texts}")
        assert self.process.exitcode is not None
        return Outcome(self.process.exitcode, *texts)


def _run(
    arguments: list[str], circumstances: Circumstances, out: Connection, err: Connection, began: Connection
) -> None:
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    out.close()
    err.close()
    if circumstances.fault:
        os.environ[ENVIRONMENT_VARIABLE] = circumstances.fault
    if circumstances.max_file_bytes is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limit = circumstances.max_file_bytes
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if circumstances.user is not None:
        os.setgid(circumstances.user)
        os.setuid(circumstances.user)
    _bound_shards(circumstances.shard_records)
    merge._MOST_BLOCK_BYTES = circumstances.block_bytes
    from genret.service.main import cli

    sys.argv = ["genret", *arguments]
    began.send(True)
    began.close()
    cli.main(args=arguments, prog_name="genret")


def _bound_shards(records: int) -> None:
    original = ShardMaker.__init__

    def small(self: ShardMaker, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        self._shard_records = records

    ShardMaker.__init__ = small  # type: ignore[method-assign]
