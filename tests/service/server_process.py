"""Commands as processes, `genret serve` above all, with everything they say."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
GENRET = [sys.executable, "-m", "genret"]
_OURS = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
ENVIRONMENT = {**os.environ, **_OURS}
_SECONDS = 300


def genret(*arguments: str, stdin: str | None = None, **changed: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with `changed` variables of the environment."""
    command, environment = [*GENRET, *arguments], ENVIRONMENT | changed
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=_SECONDS, env=environment
    )


class GenretProcess:
    """A command that runs, with `changed` variables of the environment; a context that kills what is left."""

    def __init__(self, *arguments: str, cwd: Path | None = None, **changed: str) -> None:
        command = [*GENRET, *arguments]
        environment = {**os.environ, **_OURS, **changed}  # as it is now, not when this module was imported
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=cwd)
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(_SECONDS)
        self._reader.join(_SECONDS)

    @property
    def lines(self) -> list[str]:
        """What it has said so far."""
        with self._changed:
            return list(self._lines)

    def said(self, text: str) -> str:
        """Wait for a line with a text and return it."""
        with self._changed:
            found = self._changed.wait_for(
                lambda: any(text in line for line in self._lines) or self._ended, _SECONDS
            )
            for line in self._lines:
                if text in line:
                    return line
            raise AssertionError(f"{'ended' if found else 'too late'}, never said {text!r}: {self._lines}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def exit_code(self) -> int:
        code = self._process.wait(_SECONDS)
        self._reader.join(_SECONDS)
        return code

    def _read(self) -> None:
        with self._process.stderr as stream:
            for line in stream:
                with self._changed:
                    self._lines.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class ServerProcess(GenretProcess):
    """`genret serve`, on a free port unless a file says where."""

    def __init__(self, *options: str, cwd: Path | None = None) -> None:
        place = () if "--config" in options else ("--device", "cpu", "--port", "0")
        super().__init__("serve", *place, *options, cwd=cwd)

    def address(self) -> str:
        """Wait until it is ready and return where it listens."""
        found = re.search(r"ready on (\S+): ", self.said("ready on "))
        return found[1]

    def engine_pid(self) -> int:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text(encoding="ascii")
        return int(children.split()[0])
