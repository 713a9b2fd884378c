"""Compiles loops with numba and keeps the machine code.

It is kept in NUMBA_CACHE_DIR, or beside the file of the loops. What was compiled ahead into NUMBA_CACHE_DIR
is read where that folder cannot be written, too: in a container. Code belongs to the content of the loops'
own file (a change elsewhere that matters to them, such as the layout of states, needs a change there), to
numba's version, to Python's, and to the processor's name and features: NUMBA_CPU_NAME=generic makes it run,
and be found, on all of an architecture.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numba
from numba.core import caching, cgutils, config, sigutils, types
from numba.extending import intrinsic

_Function = TypeVar("_Function", bound=Callable[..., Any])

logger = logging.getLogger(__name__)


class _GivenFolder(caching._CacheLocator):  # type: ignore[misc]
    """The loops' folder below NUMBA_CACHE_DIR, also where it can only be read; numba's own writes into it."""

    def __init__(self, path: Path, file: str, line: int) -> None:
        self._path, self._py_file, self._line = path, file, line  # `_py_file` is numba's name

    @classmethod
    def from_function(cls, function: Any, file: str) -> _GivenFolder | None:
        """Return the place of a function's code; None leaves it to numba."""
        if not config.CACHE_DIR or not Path(file).is_file():
            return None
        path = Path(config.CACHE_DIR, cls.get_suitable_cache_subpath(file))
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError:
            return None
        return cls(path, file, function.__code__.co_firstlineno)

    def get_cache_path(self) -> str:
        """Return the folder."""
        return str(self._path)

    def get_source_stamp(self) -> bytes:
        """Return what tells one content of the file from another: times do not survive every image."""
        return hashlib.sha256(Path(self._py_file).read_bytes()).digest()

    def get_disambiguator(self) -> str:
        """Return what tells functions of one name from each other."""
        return str(self._line)


class _Files(caching.CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (_GivenFolder, *caching.CompileResultCacheImpl._locator_classes)


class _Kept(caching.FunctionCache):  # type: ignore[misc]
    """numba's cache of a function, which is done without where it fails.

    Kept code may be cut short, another user's or on a full disk, each with its own error.
    """

    _impl_class = _Files
    _is_told: ClassVar = False  # whether the log says so already; there are two dozen loops

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the code for a signature; None if it has to be compiled."""
        try:
            found = super().load_overload(sig, target_context)
            arguments, _ = sigutils.normalize_signature(sig)
            # Two processes that compile at once can swap each other's files.
            if found is not None and found.signature.args != arguments:
                raise TypeError(f"expected code for {arguments}, found some for {found.signature.args}")
        except Exception as error:
            self._give_up(error)
            return None
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the code of a signature."""
        try:
            super().save_overload(sig, data)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self.disable()
        level = logging.DEBUG if _Kept._is_told else logging.WARNING
        _Kept._is_told = True
        logger.log(level, "compiled loops are neither found nor kept for the next process: %r", error)


def compiled(function: _Function) -> _Function:
    """Compile a function on its first call; it runs in one thread and releases the GIL."""
    loop: Any = numba.njit(nogil=True)(function)
    with suppress(RuntimeError, OSError):  # no folder can be written, or there is no source file
        loop._cache = _Kept(function)
    return loop  # type: ignore[no-any-return]


def _to_pointer(typing_context: Any, address: Any) -> Any:
    """Typing and code of `pointer`, for numba."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


# Turns an address into a pointer, in compiled code.
pointer: Callable[[int], Any] = intrinsic(_to_pointer)
