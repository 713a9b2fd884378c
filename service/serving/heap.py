"""Settings of a process with models: memory that a group of requests frees is kept for the next one."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

# A batch of 32 takes and frees some 40 MB. By default glibc gives them back to the system and gets them again
# as pages that must be zeroed, which is 4 % of a batch's time on a CPU.
_OPTIONS = {
    -1: 128 * 2**20,  # M_TRIM_THRESHOLD: bytes kept at the end of each thread's arena
    -2: 64 * 2**20,  # M_TOP_PAD: bytes by which an arena grows
    -3: 32 * 2**20,  # M_MMAP_THRESHOLD: larger allocations are not kept; glibc's own maximum
}
# An operator who sets one of these decides instead.
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")

# Mappings of this process (Linux), and addresses of files in memory that it cannot write and of which it has
# written no page, as relocations do: given back, nothing is lost. Emulators print 0 everywhere, for Rss too.
_MAPPINGS = Path("/proc/self/smaps")
_UNCHANGED = re.compile(
    rb"(?m)^(\w+)-(\w+) r-[x-]p (?:\S+ +){3}/.*\n(?:\w+:.*\n)*?Rss: +[1-9].*\n(?:\w+:.*\n)*?Anonymous: +0 kB$"
)

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
    """Free unreachable objects and give memory back to the system, after work that took much once.

    Pages of code and constants, of which loading touches more than answering, are left to the cache of files:
    what is used again comes back from there without being read.
    """
    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    for start, end in _UNCHANGED.findall(_MAPPINGS.read_bytes() if _MAPPINGS.exists() else b""):
        address = int(start, 16)
        libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(int(end, 16) - address), mmap.MADV_DONTNEED)
