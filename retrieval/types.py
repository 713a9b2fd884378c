"""What goes into and comes out of the retrieval library: mentions, entities, candidates, results.

Plain frozen dataclasses, no tensors: they cross the service boundary unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from decoding.params import (
    MAX_BEAM_SIZE,
    MAX_DISC_BEAM_SIZE,
    MAX_DRAWS,
    MAX_K,
    MAX_SAMPLES,
    MAX_TOTAL_DRAWS,
    default_beam_size,
)
from retrieval.arguments import check_text, integer, number
from retrieval.errors import InputError
from retrieval.filters.parser import parse
from retrieval.filters.restriction import Restriction, checked_ids

MetadataValue = str | int | float | bool | None

METHODS = ("beam", "disc")
DEFAULT_NUM_SAMPLES = 16

# Integer fields of a request: name, least, most, whether None is allowed.
_RANGES = (
    ("k", 1, MAX_K, False),
    ("num_draws", 1, MAX_DRAWS, False),
    ("num_samples", 1, MAX_SAMPLES, True),
    ("top_m", 1, 2**31 - 1, True),
    ("seed", -(2**63), 2**63 - 1, True),
)


@dataclass(frozen=True, slots=True)
class RetrieveRequest:
    """One query and how to answer it.

    Options of the other method are checked and have no effect, but for `min_mass` and `adaptive`, which
    `beam` refuses: a threshold that nobody looks at would be taken for one that was passed.

    Attributes:
        query: The query text; must hold something besides white space.
        k: Candidates wanted, in [1, 1000].
        method: "beam" (top-k list) or "disc" (unbiased samples and their posterior).
        beam_size: `beam`: live prefixes per step, in [1, 1000]; None: max(k, 10). `disc`: prefixes per draw,
            in [1, 64]; None: 1, which is DISC itself. With more, draws favour likely titles.
        num_draws: `disc`: K, draws tried per sample, in [1, 256].
        num_samples: `disc`: independent samples, in [1, 256]; None: 16. Samples times draws times prefixes
            per draw: at most 8,192.
        temperature: `disc`: divides the logits, in [0.01, 100].
        top_m: `disc`: verify only the M likeliest tokens of a step, which biases the weights; None: exact.
        seed: `disc`: seed of this request; None: one is chosen and reported with the result.
        min_mass: `disc`: abstain (no candidates) when the model's probability that its answer is in the
            catalogue is estimated to be below this, in [0, 1]; None: never. Under a filter, that its answer
            is a surface form of an allowed entity.
        adaptive: `disc`: judge draws against what is known of P_L(S), and leave out of the second phase what
            the first found to be invalid: more draws are accepted. Excludes `top_m` and a `beam_size` > 1.
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
    min_mass: float | None = None
    adaptive: bool = False
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
                object.__setattr__(self, name, integer(name, value, low, high))
        object.__setattr__(self, "temperature", number("temperature", self.temperature, 0.01, 100))
        if self.min_mass is not None:
            object.__setattr__(self, "min_mass", number("min_mass", self.min_mass, 0, 1))
        if not isinstance(self.adaptive, bool):
            raise InputError("adaptive", f"must be True or False, got {self.adaptive!r}")
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
        if self.method == "disc":
            self._check_disc()
        else:
            self._check_beam()

    def _check_beam(self) -> None:
        """Refuse what changes the meaning of an answer and is not done here."""
        self._check_beam_size(MAX_BEAM_SIZE)
        for name, is_set in (("min_mass", self.min_mass is not None), ("adaptive", self.adaptive)):
            if is_set:
                raise InputError(name, f"needs the method disc, got the method {self.method}")

    def _check_beam_size(self, most: int, when: str = "") -> None:
        if self.beam_size is not None:
            object.__setattr__(self, "beam_size", integer("beam_size", self.beam_size, 1, most, when))

    def _check_disc(self) -> None:
        self._check_beam_size(MAX_DISC_BEAM_SIZE, " with the method disc")
        clashes = [f"top_m {self.top_m}"] if self.top_m is not None else []
        clashes += [f"beam_size {self.prefixes}"] if self.prefixes > 1 else []
        if self.adaptive and clashes:
            got = " and ".join(clashes)
            raise InputError("adaptive", f"excludes top_m and a beam_size above 1, got {got}")
        if (total := self.width) > MAX_TOTAL_DRAWS:
            prefixes = f" and beam_size {self.prefixes}" if self.prefixes > 1 else ""
            raise InputError(
                "num_samples",
                f"times num_draws times beam_size must be at most {MAX_TOTAL_DRAWS}, got {total} "
                f"(with num_draws {self.num_draws}{prefixes})",
            )

    @property
    def samples(self) -> int:
        """The number of samples in force with `disc`."""
        return self.num_samples or DEFAULT_NUM_SAMPLES

    @property
    def prefixes(self) -> int:
        """The prefixes per draw in force with `disc`."""
        return self.beam_size or 1

    @property
    def width(self) -> int:
        """Most branches the request can have at once: its beam size, or every prefix of all of its draws."""
        if self.method == "beam":
            return self.beam_size or default_beam_size(self.k)
        return self.samples * self.num_draws * self.prefixes


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
        candidates: Best first; empty means that nothing in the catalogue matched, or that the answer is
            withheld (`NO_MATCH`).
        certified: `beam`: whether the candidates are proven to be the k likeliest entities in their order,
            all surface forms counted; `disc`: None.
        mass: `disc`: estimate of P_L(S), the model's probability that its answer is in the catalogue; under a
            filter, that it is a surface form of an allowed entity. It may lie outside the bounds.
        mass_stderr: Standard error of `mass`; None with a single draw.
        mass_lower: `disc`: what P_L(S) is at least: the probability of the distinct titles that were written.
        mass_upper: `disc`: what P_L(S) is at most, from what was found to be invalid on the way; 1 where
            nothing is known.
        num_draws: `disc`: draws used; 0 for `beam`.
        num_accepted: `disc`: results that came from an accepted draw (the rest were resampled).
        num_nodes: `disc`: tokens the model computed behind the prompt; draws share those of common prefixes.
        num_steps: Decode steps of the batch.
        seed: `disc`: the seed used; the same seed gives the same samples.
        abstained: `disc`: whether there are no candidates because `bounded_mass` is below the request's
            `min_mass`.
        timings: Wall times.
    """

    query: str
    method: str
    candidates: tuple[Candidate, ...]
    certified: bool | None = None
    mass: float | None = None
    mass_stderr: float | None = None
    mass_lower: float | None = None
    mass_upper: float | None = None
    num_draws: int = 0
    num_accepted: int = 0
    num_nodes: int = 0
    num_steps: int = 0
    seed: int | None = None
    abstained: bool = False
    timings: Timings = field(default_factory=Timings)

    @property
    def no_match(self) -> bool:
        """Whether there is no answer: the catalogue holds none, or it is withheld."""
        return not self.candidates

    @property
    def bounded_mass(self) -> float | None:
        """`mass` within its bounds, the best single figure for P_L(S); None with `beam`."""
        if self.mass is None:
            return None
        lower = 0.0 if self.mass_lower is None else self.mass_lower
        upper = 1.0 if self.mass_upper is None else self.mass_upper
        return min(max(self.mass, lower), upper)
