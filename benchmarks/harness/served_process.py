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

from harness.processes import memory_bytes, process_tree

_MIB = 1 << 20
_READY = re.compile(r"genret: ready on (\S+?):? ")


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory, files and threads of a server's processes together."""

    pss_mib: float  # resident memory, files that are mapped included
    anonymous_mib: float  # resident memory that is no file's
    num_fds: int  # open files and sockets
    num_threads: int
    mapped_versions: int  # versions of indexes of which files are mapped


class ServedProcess:
    """A running `genret serve`."""

    def __init__(self, process: subprocess.Popen[bytes], address: str, log: Path) -> None:
        self.process = process
        self.address = address
        self.log = log

    def footprint(self) -> Footprint:
        """Look at the processes from outside."""
        pids = process_tree(self.process.pid)
        maps = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in pids)
        return Footprint(
            pss_mib=sum(memory_bytes("Pss", pid) for pid in pids) / _MIB,
            anonymous_mib=sum(memory_bytes("RssAnon", pid) for pid in pids) / _MIB,
            num_fds=sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
            num_threads=sum(len(os.listdir(f"/proc/{pid}/task")) for pid in pids),
            mapped_versions=len(set(re.findall(r"/versions/([0-9a-f]+)/", maps))),
        )

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
