"""Deterministic automata over bytes: what leaves are made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class ByteDfa:
    """Trimmed (every state is reachable and can reach a final one), minimal, numbered canonically, start 0.

    Equal automata have equal `digest`.

    Attributes:
        table: Next state by state and byte, -1 where there is none. Shape: (S, 256), int32.
        labels: Label of the text that ends in a state, -1 where none does. Shape: (S,), int32.
        digest: Of the contents.
    """

    table: NDArray[np.int32]
    labels: NDArray[np.int32]
    digest: bytes
