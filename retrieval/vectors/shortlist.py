"""A shortlist: the entities that the vectors propose for a query."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class Shortlist:
    """Entities, the most alike first, none twice.

    Attributes:
        entities: Entity numbers. Shape: (m,), int64.
        similarities: Cosine of the query and the entity's most similar text, in [-1, 1] up to rounding
            and what compression loses; never rising. Shape: (m,), float32.
    """

    entities: npt.NDArray[np.int64]
    similarities: npt.NDArray[np.float32]


NO_ENTITIES = Shortlist(np.zeros(0, np.int64), np.zeros(0, np.float32))
