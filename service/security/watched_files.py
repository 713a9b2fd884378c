"""A value read from files, and read again when they change; files that became unusable change nothing."""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from genret.retrieval.errors import InputError

_LOG = logging.getLogger(__name__)
_MAX_BYTES = 2**20

Value = TypeVar("Value")
# Of each file: inode, size, and times of the last change of its content and its inode; None if it is gone.
Stamp = tuple[tuple[int, int, int, int] | None, ...]


class WatchedFiles(Generic[Value]):
    """A value that `read` makes from files, again when one of them changes. Thread-safe.

    Nothing runs in the background: a caller of `current` checks the files, at most every `min_interval_s`
    seconds. `what` names the value in the log.
    """

    def __init__(
        self, what: str, paths: Sequence[Path], read: Callable[[], Value], min_interval_s: float
    ) -> None:
        self._what = what
        self._paths = tuple(paths)
        self._read = read
        self._min_interval_s = min_interval_s
        self._lock = threading.Lock()
        self._looked_at = time.monotonic()
        self._stamp = _stamp(self._paths)  # before the content: a change in between is seen at the next look
        self._value = read()

    def current(self) -> Value:
        """Return the value of the last usable files. Never fails: errors of new ones are logged."""
        if time.monotonic() - self._looked_at >= self._min_interval_s:
            with self._lock:
                self._looked_at = time.monotonic()
                stamp = _stamp(self._paths)
                # A broken state is remembered, too, so that it is logged once.
                if stamp != self._stamp:
                    self._take(stamp)
        return self._value

    def reload(self) -> bool:
        """Read the files now, changed or not; return whether they are usable."""
        with self._lock:
            self._looked_at = time.monotonic()
            return self._take(_stamp(self._paths))

    def _take(self, stamp: Stamp) -> bool:
        self._stamp = stamp
        try:
            self._value = self._read()
        except InputError as error:
            _LOG.error("%s cannot be used, the earlier content stays in force: %s", self._what, error)
            return False
        _LOG.info("%s was read again", self._what)
        return True


def read_file(field: str, path: Path) -> bytes:
    """Return the content of a regular file of at most 1 MiB; otherwise InputError under `field`."""
    try:
        # Without O_NONBLOCK a pipe without a writer would wait for one.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InputError(field, f"{path} is not a regular file")
            content: bytes = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise InputError(field, f"cannot read {path}: {error.strerror or error}") from error
    if len(content) > _MAX_BYTES:
        raise InputError(field, f"{path} is larger than {_MAX_BYTES // 2**20} MiB")
    return content


def warn_if_exposed(field: str, path: Path) -> None:
    """Log a warning if users other than the owner and the group can read a secret, or change it."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return  # the next check reports that it is gone
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        _LOG.warning(
            "%s: other users may read or change %s (mode %04o): chmod 600, or 640 with the server's group",
            field,
            path,
            mode,
        )


def _stamp(paths: Sequence[Path]) -> Stamp:
    return tuple(_stamp_of(path) for path in paths)


def _stamp_of(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
