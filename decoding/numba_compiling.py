"""Compiles loops by numba, and says where compiled code is kept.

It is kept beside the file of the loops or wherever NUMBA_CACHE_DIR says; where neither can be written, loops
are compiled once per process. What is kept is compared with the loops' own file alone: a change elsewhere
that matters to them, as of the layout of states, needs a change there.
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
    """Have a function compiled on its first call; it runs in one thread and does not hold Python's lock."""
    try:
        keeping: _Decorator = numba.njit(cache=True, nogil=True)
        loop = keeping(function)
    except (RuntimeError, OSError):  # no place for compiled code can be written, or there is no source file
        passing: _Decorator = numba.njit(nogil=True)
        loop = passing(function)
    _COMPILED.append(loop)
    return loop


def keep_nothing() -> None:
    """Neither read nor write kept code from now on; what is not compiled yet is compiled in memory."""
    for loop in _COMPILED:
        loop._cache.disable()


def _to_pointer(typing_context: Any, address: Any) -> Any:
    """Say how an address, an integer, becomes a pointer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


# Makes a pointer of an address, in compiled code.
pointer: Callable[[int], Any] = intrinsic(_to_pointer)
