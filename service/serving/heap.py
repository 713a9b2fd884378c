"""Settings of a process with models: memory that a group of requests frees is kept for the next one."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Mapping

# A batch of 32 takes and frees some 40 MB. By default glibc gives them back to the system and gets them again
# as pages that must be zeroed, which is 4 % of a batch's time on a CPU.
_OPTIONS = {
    -1: 128 * 2**20,  # M_TRIM_THRESHOLD: bytes kept at the end of each thread's arena
    -2: 64 * 2**20,  # M_TOP_PAD: bytes by which an arena grows
    -3: 32 * 2**20,  # M_MMAP_THRESHOLD: larger allocations are not kept; glibc's own maximum
}
# An operator who sets one of these decides instead.
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


# How long a thread may hold Python's interpreter lock while another waits for it, seconds. By default it is
# 5 ms, and an event loop would wait that long for a model's thread, or one of gRPC's, each time.
_SWITCH_INTERVAL_S = 0.001


def tune_process() -> None:
    """Set up this process for an event loop beside other threads."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


def keep_freed_memory(environ: Mapping[str, str] = os.environ) -> bool:
    """Have glibc keep some freed memory, unless the environment configures it; return whether it will.

    For a process that has loaded its models: imports would leave holes of some 40 MB in such a heap.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name in environ for name in _VARIABLES):
        return False
    return all(mallopt(option, value) for option, value in _OPTIONS.items())


def give_back_memory() -> None:
    """Free unreachable objects and give kept memory back to the system, after work that took much once."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
