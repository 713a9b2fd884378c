"""What a decoder found for one query: its answer, and what may be made of it together with other entities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from decoding.types import Hypothesis
from retrieval.types import RetrievalResult


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """What a decoder found.

    Attributes:
        answer: The answer of the decoder alone.
        entities: The entities that were found, the best first: more than the answer lists, as a rule, and
            with `beam` not more than one above `MAX_SHORTLIST_SIZE`.
        unseen: No row that was not found has a better score; inf where nobody knows.
        logprobs: log P(e | q) of these entities, by the forms that were found.
        rows: By rank, the rows that were found with log P(f | q), which need not be scored again. Empty of
            `disc`, whose log-probabilities can be those of another temperature.
    """

    answer: RetrievalResult
    entities: tuple[int, ...]
    unseen: float
    logprobs: Mapping[int, float] = field(default_factory=dict)
    rows: Mapping[int, Hypothesis] = field(default_factory=dict)
