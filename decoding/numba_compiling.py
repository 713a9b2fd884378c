"""Compiles loops with numba and caches the machine code.

The cache lies beside the file of the loops or in NUMBA_CACHE_DIR; if neither can be written, loops are
compiled once per process. numba compares the cache with the loops' own file alone: a change elsewhere that
matters to them, such as the layout of states, needs a change there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numba
from numba.core import cgutils, types
from numba.extending import intrinsic

_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Decorator(Protocol):
    def __call__(self, function: _Function) -> _Function: ...


# Every compiled function, those that only the others call included.
_COMPILED: list[Any] = []


def compiled(function: _Function) -> _Function:
    """Compile a function on its first call; it runs in one thread and releases the GIL."""
    try:
        keeping: _Decorator = numba.njit(cache=True, nogil=True)
        loop = keeping(function)
    except (RuntimeError, OSError):  # no cache folder can be written, or there is no source file
        passing: _Decorator = numba.njit(nogil=True)
        loop = passing(function)
    _COMPILED.append(loop)
    return loop


def keep_nothing() -> None:
    """Disable the cache from now on, for reading and writing."""
    for loop in _COMPILED:
        loop._cache.disable()


def _to_pointer(typing_context: Any, address: Any) -> Any:
    """Typing and code of `pointer`, for numba."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


# Turns an address into a pointer, in compiled code.
pointer: Callable[[int], Any] = intrinsic(_to_pointer)
