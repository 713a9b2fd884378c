"""The process's heap: memory that a batch frees stays at hand for the next one."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Mapping

# A batch of 32 takes and frees some 40 MB. By default glibc gives them back to the system and gets them again
# as pages that must be zeroed, which is 4 % of a batch's time on a CPU.
_OPTIONS = {
    -1: 128 * 2**20,  # M_TRIM_THRESHOLD: kept at the end of each thread's arena, bytes
    -2: 64 * 2**20,  # M_TOP_PAD: and the next piece of an arena that has grown, which is so large
    -3: 32 * 2**20,  # M_MMAP_THRESHOLD: allocations that are not kept; glibc takes no more
}
# With these an operator decides.
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory(environ: Mapping[str, str] = os.environ) -> bool:
    """Have the C library keep some memory that is freed, unless the environment says what it keeps.

    Returns:
        Whether it will: only glibc can be asked.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name in environ for name in _VARIABLES):
        return False
    return all(mallopt(option, value) for option, value in _OPTIONS.items())


def give_back_memory() -> None:
    """Free what is unreachable, and give what is kept back to the system: behind work that took much once."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
