"""Named points at which tests can make a build fail, to prove that it may die anywhere.

`GENRET_FAULT=point:action` in the environment: `kill` ends the process like `kill -9`, `enospc` raises the
error of a full disk, `interrupt` that of Ctrl-C. A further `:3` waits for the third passage of the point.
"""

from __future__ import annotations

import errno
import os
import signal

ENVIRONMENT_VARIABLE = "GENRET_FAULT"

_passages: dict[str, int] = {}


def fault_point(name: str) -> None:
    """Fail here if the environment says so.

    Raises:
        OSError: "no space left on device", if asked for.
        KeyboardInterrupt: if asked for.
        ValueError: the environment names an unknown action.
    """
    wanted = os.environ.get(ENVIRONMENT_VARIABLE)
    if wanted is None:
        return
    point, _, action = wanted.partition(":")
    action, _, passage = action.partition(":")
    if point != name:
        return
    _passages[name] = _passages.get(name, 0) + 1
    if _passages[name] != int(passage or 1):
        return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "enospc":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if action == "interrupt":
        raise KeyboardInterrupt
    raise ValueError(f"{ENVIRONMENT_VARIABLE}: expected kill, enospc or interrupt, got {action!r}")
