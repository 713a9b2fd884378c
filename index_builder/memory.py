"""How a memory limit is shared out between the steps of a build."""

from __future__ import annotations

from dataclasses import dataclass

from retrieval.errors import InputError

MIB = 1 << 20
DEFAULT_MEMORY_LIMIT = 2 << 30
MIN_MEMORY_LIMIT = 512 * MIB

# Interpreter, NumPy, Arrow and a tokenizer, before the first title is read.
_BASE = 300 * MIB


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """A limit on the resident memory of the process, in bytes.

    Raises:
        InputError: the limit is too small to work with.
    """

    limit_bytes: int = DEFAULT_MEMORY_LIMIT

    def __post_init__(self) -> None:
        if self.limit_bytes < MIN_MEMORY_LIMIT:
            raise InputError(
                "memory_limit",
                f"must be at least {MIN_MEMORY_LIMIT // MIB} MiB, got {self.limit_bytes} bytes",
            )

    @property
    def free_bytes(self) -> int:
        """What is left for data."""
        return self.limit_bytes - _BASE
