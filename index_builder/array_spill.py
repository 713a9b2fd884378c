"""Arrays set aside on disk while a version is being put together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from index_builder.durable import naming


class ArraySpill:
    """One file of arrays; memory holds only where each of them lies.

    Args:
        path: The file; made with the first array.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end = 0

    def put(self, array: npt.NDArray[Any]) -> Callable[[], npt.NDArray[Any]]:
        """Append an array and return what reads it back.

        Raises:
            OSError: the disk is full, or worse; `filename` is set.
        """
        data = np.ascontiguousarray(array)
        with naming(self._path), self._path.open("ab") as file:
            file.write(data.data)
        begin = self._end
        self._end += data.nbytes
        return partial(self._get, begin, len(data), data.dtype)

    def remove(self) -> None:
        """Remove the file; nothing can be read back any more."""
        self._path.unlink(missing_ok=True)

    def _get(self, begin: int, count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        with naming(self._path):
            array: npt.NDArray[Any] = np.fromfile(self._path, dtype, count, offset=begin)
            if len(array) != count:
                raise OSError(f"{self._path} ends early: expected {count} items at {begin}, got {len(array)}")
        return array
