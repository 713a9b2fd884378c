"""What goes into and comes out of the retrieval library: mentions, entities, candidates, results.

Plain frozen dataclasses, no tensors: they cross the service boundary unchanged.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real

from decoding.params import (
    MAX_BEAM_SIZE,
    MAX_DRAWS,
    MAX_K,
    MAX_SAMPLES,
    MAX_TOTAL_DRAWS,
    default_beam_size,
)
from retrieval.errors import InputError
from retrieval.filters.parser import parse
from retrieval.filters.restriction import Restriction, checked_ids

MetadataValue = str | int | float | bool | None

METHODS = ("beam", "disc")
DEFAULT_NUM_SAMPLES = 16

# Integer fields of a request: name, least, most, whether None is allowed.
_RANGES = (
    ("k", 1, MAX_K, False),
    ("beam_size", 1, MAX_BEAM_SIZE, True),
    ("num_draws", 1, MAX_DRAWS, False),
    ("num_samples", 1, MAX_SAMPLES, True),
    ("top_m", 1, 2**31 - 1, True),
    ("seed", -(2**63), 2**63 - 1, True),
)


def check_text(field_name: str, value: object) -> None:
    """Refuse what is not text, and text that no tokenizer and no file can take.

    Raises:
        InputError: `value` is no string, or holds half a surrogate pair, as JSON escapes can.
    """
    if not isinstance(value, str):
        raise InputError(field_name, f"must be text, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            field_name, f"not valid Unicode: half a surrogate pair at character {error.start + 1}"
        ) from None


def _integer(field_name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InputError(field_name, f"must be an integer, got {value!r}")
    number = operator.index(value)  # NumPy's integers too
    if not low <= number <= high:
        raise InputError(field_name, f"must be in [{low}, {high}], got {number}")
    return number


@dataclass(frozen=True, slots=True)
class RetrieveRequest:
    """One query and how to answer it. Options of the other method are checked and have no effect.

    Attributes:
        query: The query text; must hold something besides white space.
        k: Candidates wanted, in [1, 1000].
        method: "beam" (top-k list) or "disc" (unbiased samples and their posterior).
        beam_size: `beam`: live prefixes per step, in [1, 1000]; None: max(k, 10).
        num_draws: `disc`: K, draws tried per sample, in [1, 256].
        num_samples: `disc`: independent samples, in [1, 256]; None: 16. Samples times draws: at most 8,192.
        temperature: `disc`: divides the logits, in [0.01, 100].
        top_m: `disc`: verify only the M likeliest tokens of a step, which biases the weights; None: exact.
        seed: `disc`: seed of this request; None: one is chosen and reported with the result.
        prompt: Name of the prompt template; None: the checkpoint's default.
        filter: Predicate over the entities' columns (docs/filters.md); None: all of them. Whether it fits an
            index is seen when that index is asked.
        allow_ids: Ids of the entities allowed, at most 100,000; None: all of them, empty: none.
        deny_ids: Ids of entities not allowed, at most 100,000. An answer passes `filter`, `allow_ids` and
            `deny_ids`; ids the index lacks have no effect.
        restriction: What these three say, read once.

    Raises:
        InputError: a field is out of range; it is named.
    """

    query: str
    k: int = 10
    method: str = "beam"
    beam_size: int | None = None
    num_draws: int = 4
    num_samples: int | None = None
    temperature: float = 1.0
    top_m: int | None = None
    seed: int | None = None
    prompt: str | None = None
    filter: str | None = None
    allow_ids: tuple[str, ...] | None = None
    deny_ids: tuple[str, ...] = ()
    restriction: Restriction = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_text("query", self.query)
        if not self.query.strip():
            raise InputError("query", "must not be empty")
        if self.method not in METHODS:
            raise InputError("method", f"must be one of {', '.join(METHODS)}; got {self.method!r}")
        for name, low, high, optional in _RANGES:
            value = getattr(self, name)
            if not (value is None and optional):
                object.__setattr__(self, name, _integer(name, value, low, high))
        temperature = self.temperature
        if isinstance(temperature, bool) or not isinstance(temperature, Real):
            raise InputError("temperature", f"must be a number, got {temperature!r}")
        if math.isnan(temperature) or not 0.01 <= temperature <= 100.0:
            raise InputError("temperature", f"must be in [0.01, 100], got {temperature}")
        object.__setattr__(self, "temperature", float(temperature))
        if self.prompt is not None:
            check_text("prompt", self.prompt)
        predicate = None
        if self.filter is not None:
            check_text("filter", self.filter)
            predicate = parse(self.filter)
        if self.allow_ids is not None:
            object.__setattr__(self, "allow_ids", checked_ids("allow_ids", self.allow_ids))
        object.__setattr__(self, "deny_ids", checked_ids("deny_ids", self.deny_ids))
        object.__setattr__(self, "restriction", Restriction(predicate, self.allow_ids, self.deny_ids))
        if (total := self.width) > MAX_TOTAL_DRAWS and self.method == "disc":
            raise InputError(
                "num_samples", f"times num_draws must be at most {MAX_TOTAL_DRAWS}, got {total} draws"
            )

    @property
    def width(self) -> int:
        """Most branches the request can have at once: its beam size, or all of its draws."""
        if self.method == "beam":
            return self.beam_size or default_beam_size(self.k)
        return (self.num_samples or DEFAULT_NUM_SAMPLES) * self.num_draws


@dataclass(frozen=True, slots=True)
class Mention:
    """A span of text to be linked, with the text around it.

    Raises:
        InputError: a part is no text; it is named.
    """

    mention: str
    left: str = ""
    right: str = ""

    def __post_init__(self) -> None:
        for name in ("mention", "left", "right"):
            check_text(name, getattr(self, name))


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
        probability: `disc`: share of the samples that named this entity (a sample whose surface form
            belongs to several entities counts in equal parts); `beam`: None.
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
        certified: `beam`: whether the candidates are proven to be the k likeliest entities in their order,
            all surface forms counted; `disc`: None.
        mass: `disc`: estimate of P_L(S), the model's probability that its answer is in the catalogue; under a
            filter, that it is a surface form of an allowed entity.
        mass_stderr: Standard error of `mass`.
        num_draws: `disc`: draws used; 0 for `beam`.
        num_accepted: `disc`: results that came from an accepted draw (the rest were resampled).
        num_steps: Decode steps of the batch.
        seed: `disc`: the seed used; the same seed gives the same samples.
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
    seed: int | None = None
    timings: Timings = field(default_factory=Timings)

    @property
    def no_match(self) -> bool:
        """Whether the catalogue holds no answer."""
        return not self.candidates
