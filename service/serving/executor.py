"""Runs model work on one thread per device, so that its failures end no more than the call.

The memory that a batch frees is kept in the process's heap for the next one.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DeviceExecutor:
    """Runs blocking model work, one call at a time, off the event loop.

    With the model on the loop itself a health check takes as long as a batch (measured: 1 s against 2 ms),
    and two batches at once on one device only take turns.

    Args:
        device: Name of the device, for the thread's name.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"genret-{device}")

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `call` on the device's thread and return what it returns.

        Cancelling the awaiting task does not stop a call that has started: pass it a CancelToken.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, partial(contained, call, *args, **kwargs))

    def close(self) -> None:
        """Drop calls that have not started and wait for the one that has. Idempotent."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def contained(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what `call` returns; whatever it raises is an error of that call, and of nothing else.

    A panic in an extension written in Rust, as tokenizers are, is no `Exception`; a stray cancellation would
    be taken for one of the task that waits; and a future cannot hold a StopIteration, so its waiter would
    never hear of it.

    Raises:
        RuntimeError: one of these; it is the cause.
        Exception: all else that `call` raises.
    """
    try:
        return call(*args, **kwargs)
    except (StopIteration, CancelledError) as error:
        raise _died_of(error) from error
    except Exception:
        raise
    except BaseException as error:
        raise _died_of(error) from error


def _died_of(error: BaseException) -> RuntimeError:
    return RuntimeError(f"the call ended with {type(error).__name__}: {error}")


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
