"""A server of its own process: started, looked at from outside, stopped."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.processes import memory_bytes

_MIB = 1 << 20
_READY = re.compile(r"genret: ready on (\S+?):? ")


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory, files and threads of a process."""

    rss_mib: float  # resident memory, files that are mapped included
    anonymous_mib: float  # resident memory that is no file's
    num_fds: int  # open files and sockets
    num_threads: int
    mapped_versions: int  # versions of indexes of which files are mapped


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """Times of a thread; in what is left of a span it had nothing to do, or waited for a lock."""

    ran_s: float  # on a core
    queued_s: float  # ready to run while the cores were others'

    def since(self, earlier: ThreadTimes | None) -> ThreadTimes:
        """Return what came since an earlier look; None: the thread is new."""
        if earlier is None:
            return self
        return ThreadTimes(self.ran_s - earlier.ran_s, self.queued_s - earlier.queued_s)


class ServedProcess:
    """A running `genret serve`."""

    def __init__(self, process: subprocess.Popen[bytes], address: str, log: Path) -> None:
        self.process = process
        self.address = address
        self.log = log

    def footprint(self) -> Footprint:
        """Look at the process from outside."""
        proc, pid = Path("/proc") / str(self.process.pid), self.process.pid
        versions = set(re.findall(r"/versions/([0-9a-f]+)/", (proc / "maps").read_text()))
        return Footprint(
            rss_mib=memory_bytes("VmRSS", pid) / _MIB,
            anonymous_mib=memory_bytes("RssAnon", pid) / _MIB,
            num_fds=len(os.listdir(proc / "fd")),
            num_threads=len(os.listdir(proc / "task")),
            mapped_versions=len(versions),
        )

    def thread_times(self) -> dict[int, ThreadTimes]:
        """Return the times of every thread since it began, by its id."""
        times = {}
        for folder in (Path("/proc") / str(self.process.pid) / "task").iterdir():
            with contextlib.suppress(FileNotFoundError):  # one that has just ended
                ran_ns, queued_ns, _ = map(int, (folder / "schedstat").read_text().split())
                times[int(folder.name)] = ThreadTimes(ran_ns / 1e9, queued_ns / 1e9)
        return times

    def log_lines(self, containing: str) -> list[str]:
        """Return lines of the log that contain a text."""
        return [line for line in self.log.read_text(errors="replace").splitlines() if containing in line]


@contextlib.contextmanager
def serving(*arguments: str | Path, start_seconds: float = 120) -> Iterator[ServedProcess]:
    """Run `genret serve ARGUMENTS --port 0` until the end of the block, where SIGTERM stops it.

    Raises:
        RuntimeError: it did not become ready, or did not stop with exit code 0; holds the log's end.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        command = [sys.executable, "-m", "genret", "serve", *map(str, arguments), "--port", "0"]
        with log.open("wb") as stderr:
            process = subprocess.Popen(command, stderr=stderr, stdin=subprocess.DEVNULL)
        try:
            yield ServedProcess(process, _wait_until_ready(process, log, start_seconds), log)
        finally:
            code = _stop(process)
        if code != 0:
            raise RuntimeError(f"the server ended with exit code {code}: {_end(log)}")


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path, seconds: float) -> str:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        found = _READY.search(log.read_text(errors="replace"))
        if found:
            return found.group(1).removesuffix(":")
        time.sleep(0.05)
    raise RuntimeError(f"the server did not become ready: {_end(log)}")


def _stop(process: subprocess.Popen[bytes]) -> int:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(timeout=90)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _end(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]
