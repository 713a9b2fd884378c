"""Child processes, measured: wall time, processor time, and memory of the whole tree below them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from genret.retrieval.index.small_files import digest_file

_BUILD = "from genret.index_builder.cli import build_command; build_command()"
_SAMPLE_SECONDS = 0.02
_KIB = 1024


@dataclass(frozen=True, slots=True)
class Usage:
    """Time and memory of one process and its children.

    The peak is the kernel's high-water mark of the process itself, or the largest sum over the process and
    its descendants that was sampled, whichever is larger.
    """

    seconds: float  # wall time
    cpu_seconds: float  # user and system time of all threads, and of children it waited for
    peak_bytes: int  # of resident memory
    stdout: str


def measured(command: Sequence[str]) -> Usage:
    """Run a command to its end.

    Raises:
        click.ClickException: it failed.
    """
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    with MemoryTrace(_SAMPLE_SECONDS, process.pid) as trace:
        assert process.stdout is not None  # a pipe was asked for
        stdout = process.stdout.read().decode()
        # The process number stays its own until the process is reaped.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        seconds = time.perf_counter() - begun
    _, status, usage = os.wait4(process.pid, 0)
    process.stdout.close()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise click.ClickException(f"{' '.join(command)} failed with status {process.returncode}")
    return Usage(seconds, usage.ru_utime + usage.ru_stime, trace.peak_bytes, stdout)


def build_index(source: Path, out: Path, *arguments: object) -> Usage:
    """Build an index in a process of its own; the arguments are further ones of `build-index`."""
    words = map(str, (source, "--out", out, "--quiet", *arguments))
    return measured([sys.executable, "-c", _BUILD, *words])


def memory_bytes(field: str, pid: int | str = "self") -> int:
    """Return an entry of /proc/PID/status or smaps_rollup now; 0 when the process is gone.

    "VmRSS" is resident memory, "Pss" the same with a part of what several processes map, "RssAnon" what is no
    file's, "VmHWM" the high-water mark since the exec (not `ru_maxrss`, which a child starts with the
    resident memory of the process that forked it).
    """
    try:
        lines = Path(f"/proc/{pid}/{'smaps_rollup' if field == 'Pss' else 'status'}").read_text().splitlines()
    except OSError:
        return 0
    found = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(found[0]) * _KIB if found else 0


class MemoryTrace:
    """Samples the resident memory of a process and its descendants while a block runs.

    Without a number the process is this one. Memory that processes share (a mapped index, libraries) is
    counted in each of them.

    Attributes:
        samples: Seconds since the block began, and bytes.
        peak_bytes: Largest sum sampled; with `pid`, the high-water mark of that process if it is larger.
    """

    def __init__(self, interval_s: float = 0.2, pid: int | None = None) -> None:
        self.samples: list[tuple[float, int]] = []
        self.peak_bytes = 0
        self._interval_s, self._pid = interval_s, pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def thinned(self, number: int) -> list[tuple[float, int]]:
        """Return at most so many stretches of the time, each with the largest sum in it."""
        step = max(1, -(-len(self.samples) // number))
        parts = [self.samples[at : at + step] for at in range(0, len(self.samples), step)]
        return [(round(part[-1][0], 1), max(memory for _, memory in part)) for part in parts]

    def __enter__(self) -> MemoryTrace:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        begun = time.perf_counter()
        while True:
            together = sum(memory_bytes("VmRSS", pid) for pid in process_tree(self._pid or os.getpid()))
            self.samples.append((time.perf_counter() - begun, together))
            own = 0 if self._pid is None else memory_bytes("VmHWM", self._pid)
            self.peak_bytes = max(self.peak_bytes, together, own)
            if self._done.wait(self._interval_s):
                return


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


def digests(folder: Path) -> dict[str, Any]:
    """Return the digest of every file below a folder, by its path there."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): digest_file(file) for file in files}


def same_files(ours: Mapping[str, Any], theirs: Mapping[str, Any], complaint: str) -> None:
    """Fail with a complaint and the names of the files unless their contents are the same."""
    differing = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
    if differing:
        raise click.ClickException(f"{complaint} in {differing}")
