"""Child processes, measured: wall time, processor time, and memory of the whole tree below them."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

_SAMPLE_SECONDS = 0.02
_KIB = 1024


@dataclass(frozen=True, slots=True)
class Usage:
    """What one process and its children took.

    Attributes:
        seconds: Wall time.
        cpu_seconds: User and system time of all threads, and of children it waited for.
        peak_bytes: Largest resident memory: the kernel's high-water mark of the process itself, or the
            largest sum over the process and its descendants that was sampled, whichever is larger.
        stdout: What it printed.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    stdout: str


def measured(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Usage:
    """Run a command to its end.

    Raises:
        click.ClickException: it failed.
    """
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **(environment or {})})
    sampler = _Sampler(process.pid)
    assert process.stdout is not None  # a pipe was asked for
    stdout = process.stdout.read().decode()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # its number stays its own until it is reaped
    seconds = time.perf_counter() - begun
    sampler.stop()
    _, status, usage = os.wait4(process.pid, 0)
    process.stdout.close()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise click.ClickException(f"{' '.join(command)} failed with status {process.returncode}")
    return Usage(seconds, usage.ru_utime + usage.ru_stime, sampler.peak_bytes, stdout)


def resident_bytes(pid: int | str = "self") -> int:
    """Return the resident memory of one process now; 0 when it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_bytes(pid: int | str = "self") -> int:
    """Return the high-water mark of one process's resident memory since its exec; 0 when it is gone.

    Not `ru_maxrss`, which a child starts with the resident memory of the process that forked it.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    marks = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(marks[0]) * _KIB if marks else 0


def available_bytes() -> int:
    """Return the memory that the machine can give without swapping, file caches that it can drop included."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * _KIB
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class _Sampler(threading.Thread):
    """Looks at the resident memory of a process and its descendants, again and again."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.peak_bytes = 0
        self._pid = pid
        self._done = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._done.wait(_SAMPLE_SECONDS):
            together = sum(map(resident_bytes, process_tree(self._pid)))
            self.peak_bytes = max(self.peak_bytes, together, peak_bytes(self._pid))

    def stop(self) -> None:
        self._done.set()
        self.join()


def process_tree(pid: int) -> list[int]:
    """Return a process and its descendants."""
    found = [pid]
    for parent in found:  # grows while it is walked
        try:
            for task in os.listdir(f"/proc/{parent}/task"):
                children = Path(f"/proc/{parent}/task/{task}/children").read_text()
                found += map(int, children.split())
        except OSError:  # it ended meanwhile
            continue
    return found
