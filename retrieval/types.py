"""What goes into and comes out of the retrieval library: mentions, entities, candidates, results.

Plain frozen dataclasses, no tensors: they cross the service boundary unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from decoding.params import DEFAULT_EXACT_BUDGET, default_beam_size
from retrieval.arguments import check_text
from retrieval.explanation import Explanation
from retrieval.filters.restriction import Restriction
from retrieval.request_checks import DEFAULT_NUM_SAMPLES, checked_fields

MetadataValue = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class RetrieveRequest:
    """One query and how to answer it.

    Options of the other method are checked and have no effect, but for those that change what an answer
    means, which are refused (`min_mass` and `adaptive` by `beam`; `exact`, `exact_budget`, `length_penalty`
    and `aggregate` by `disc`): a threshold that nobody looks at would be taken for one that was passed.

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
        exact: `beam`: go on after the beam search, through what it dropped, until the list of entities is
            proven or the budget is spent. Where entities have several surface forms that may take fewer forms
            than the beam search lists, or many more.
        exact_budget: `exact`: most tokens computed for that, in [0, 1,000,000]; None: 1,024.
        length_penalty: `beam`: surface forms are ranked by logprob / length ** length_penalty, the length in
            tokens with the end token, in [-4, 4]. 0: by log-probability; above 0 favours long ones.
        aggregate: `beam`: what the score of an entity is: "sum", the probability of all of its surface forms
            that were found, or "max", the score of the best one. None: "sum", and "max" with a
            `length_penalty`, where "sum" is refused: a sum of probabilities has no length.
        prompt: Name of the prompt template; None: the checkpoint's default.
        filter: Predicate over the entities' columns (docs/filters.md); None: all of them. Whether it fits an
            index is seen when that index is asked.
        allow_ids: Ids of the entities allowed, at most 100,000; None: all of them, empty: none.
        deny_ids: Ids of entities not allowed, at most 100,000. An answer passes `filter`, `allow_ids` and
            `deny_ids`; ids the index lacks have no effect.
        explain: Whether the result says what the model was asked on the way (`RetrievalResult.explanation`).
            The answer is the same. Excludes `adaptive`, and a `beam_size` above 1 with `disc`.
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
    exact: bool = False
    exact_budget: int | None = None
    length_penalty: float = 0.0
    aggregate: str | None = None
    prompt: str | None = None
    filter: str | None = None
    allow_ids: tuple[str, ...] | None = None
    deny_ids: tuple[str, ...] = ()
    explain: bool = False
    restriction: Restriction = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, value in checked_fields(self).items():
            object.__setattr__(self, name, value)

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

    @property
    def budget(self) -> int:
        """Most tokens computed to prove the list after the beam search; 0 without `exact`."""
        if not self.exact:
            return 0
        return DEFAULT_EXACT_BUDGET if self.exact_budget is None else self.exact_budget

    @property
    def aggregation(self) -> str:
        """How the surface forms of an entity make its score with `beam`: "sum" or "max"."""
        return self.aggregate or ("max" if self.length_penalty else "sum")


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
        surface: The surface form the model wrote (title or alias); the best when several were found.
        logprob: Natural log of the model's probability of the entity's surface forms that were found
            (log-sum-exp over them).
        probability: `disc`: share of the samples that named this entity (a sample whose surface form
            belongs to several entities counts in equal parts); `beam`: None.
        metadata: The entity's metadata.
        score: What the list is ordered by. `beam`: `logprob`, or with the aggregate "max" the logprob of
            `surface`, divided by its length ** length_penalty; `disc`: `probability`.
    """

    entity_id: str
    title: str
    surface: str
    logprob: float
    probability: float | None
    metadata: Mapping[str, MetadataValue]
    score: float


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall time of the batch this query was part of, in milliseconds."""

    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    total_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class KvShare:
    """Key/value memory of one query: its equal share of the batch it was part of, in bytes.

    Attributes:
        peak_bytes: Most held at any time, copies that are made on the way included; a shared prefix is not.
        per_branch_bytes: Most that one cache per beam, or per draw, would have held.
        shared_prefix_bytes: Of the prompt's beginning that it shares with other requests, held once for all
            of them; not divided.
        num_collections: How often branches that had died were collected.
    """

    peak_bytes: int = 0
    per_branch_bytes: int = 0
    shared_prefix_bytes: int = 0
    num_collections: int = 0

    @property
    def saved_bytes(self) -> int:
        """What the shared tree saved; negative where it took more."""
        return self.per_branch_bytes - self.peak_bytes


@dataclass(frozen=True, slots=True)
class RetrievalResult:
    """Answer to one query.

    Attributes:
        query: The query text.
        method: "beam" or "disc".
        candidates: Best first; empty means that nothing in the catalogue matched, or that the answer is
            withheld (`NO_MATCH`).
        certified: `beam`: whether the candidates are proven to be the k best entities in their order, all
            surface forms counted; `disc`: None.
        mass: `disc`: estimate of P_L(S), the model's probability that its answer is in the catalogue; under a
            filter, that it is a surface form of an allowed entity. It may lie outside the bounds.
        mass_stderr: Standard error of `mass`; None with a single draw.
        mass_lower: `disc`: what P_L(S) is at least: the probability of the distinct titles that were written.
        mass_upper: `disc`: what P_L(S) is at most, from what was found to be invalid on the way; 1 where
            nothing is known.
        num_draws: `disc`: draws used; 0 for `beam`.
        num_accepted: `disc`: results that came from an accepted draw (the rest were resampled).
        num_nodes: Tokens the model computed behind the prompt; draws share those of common prefixes.
        num_exact_nodes: `beam`: those of them that `exact` asked for.
        num_steps: Decode steps of the batch.
        seed: `disc`: the seed used; the same seed gives the same samples.
        abstained: `disc`: whether there are no candidates because `bounded_mass` is below the request's
            `min_mass`.
        timings: Wall times.
        kv: Key/value memory.
        explanation: The token tree behind the answer, where the request asked for it; None otherwise.
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
    num_exact_nodes: int = 0
    num_steps: int = 0
    seed: int | None = None
    abstained: bool = False
    timings: Timings = field(default_factory=Timings)
    kv: KvShare = field(default_factory=KvShare)
    explanation: Explanation | None = None

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
