"""What goes into and comes out of the retrieval library: mentions, entities, candidates, results.

Plain frozen dataclasses, no tensors: they cross the service boundary unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MetadataValue = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Mention:
    """A span of text to be linked, with the text around it."""

    mention: str
    left: str = ""
    right: str = ""


@dataclass(frozen=True, slots=True)
class Entity:
    """A catalogue entry.

    Attributes:
        entity_id: Opaque identifier, unique in the catalogue.
        title: Its canonical title.
        aliases: Further surface forms.
        metadata: Every further column of the catalogue.
    """

    entity_id: str
    title: str
    aliases: tuple[str, ...] = ()
    metadata: Mapping[str, MetadataValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One answer.

    Attributes:
        entity_id: The entity.
        title: Its canonical title.
        surface: The surface form the model wrote (title or alias); the likeliest when several were found.
        logprob: Natural log of the model's probability of the entity's surface forms that were found
            (log-sum-exp over them).
        probability: Share of the samples that named this entity (`disc`), or None.
        metadata: The entity's metadata.
    """

    entity_id: str
    title: str
    surface: str
    logprob: float
    probability: float | None
    metadata: Mapping[str, MetadataValue]


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall time of the batch this query was part of, in milliseconds."""

    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    total_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class RetrievalResult:
    """Answer to one query.

    Attributes:
        query: The query text.
        method: "beam" or "disc".
        candidates: Best first; empty means that nothing in the catalogue matched (`NO_MATCH`).
        certified: `beam`: whether the surface-form list is proven to be the exact top-k; `disc`: None.
        mass: `disc`: estimate of P_L(S), the model's probability that its answer is in the catalogue.
        mass_stderr: Standard error of `mass`.
        num_draws: `disc`: draws used; 0 for `beam`.
        num_accepted: `disc`: results that came from an accepted draw (the rest were resampled).
        num_steps: Decode steps of the batch.
        timings: Wall times.
    """

    query: str
    method: str
    candidates: tuple[Candidate, ...]
    certified: bool | None = None
    mass: float | None = None
    mass_stderr: float | None = None
    num_draws: int = 0
    num_accepted: int = 0
    num_steps: int = 0
    timings: Timings = field(default_factory=Timings)

    @property
    def no_match(self) -> bool:
        """Whether the catalogue holds no answer."""
        return not self.candidates
