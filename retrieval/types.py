"""Defines the values of the retrieval library: requests, mentions, entities, candidates, results.

Plain frozen dataclasses, no tensors: they cross the service boundary unchanged. A request checks itself:
the ranges of its fields, and which of them go together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from decoding.params import (
    DEFAULT_EXACT_BUDGET,
    MAX_BEAM_SIZE,
    MAX_DISC_BEAM_SIZE,
    MAX_DRAWS,
    MAX_EXACT_BUDGET,
    MAX_K,
    MAX_LENGTH_PENALTY,
    MAX_SAMPLES,
    MAX_TOTAL_DRAWS,
    default_beam_size,
)
from retrieval.arguments import check_text, integer, number
from retrieval.errors import InputError
from retrieval.explanation import Explanation
from retrieval.filters.predicate import parse
from retrieval.filters.restriction import Restriction, checked_ids

MetadataValue = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class RetrieveRequest:
    """One query and how to answer it.

    Options of another method are checked and have no effect, but for those that change what an answer
    means, which are refused (`min_mass` and `adaptive` by `beam`; `exact`, `exact_budget`, `length_penalty`
    and `aggregate` by `disc`; all of these by `shortlist`): a threshold that nobody looks at would be taken
    for one that was passed. What concerns shortlists is refused by methods that make none.

    Attributes:
        query: The query text; must hold something besides white space.
        k: Candidates wanted, in [1, 1000].
        method: "beam" (top-k list), "disc" (unbiased samples and their posterior), "shortlist" (the entities
            that the index's evidence proposes, scored exactly) or "auto" (what a decoder finds and what the
            evidence proposes, all scored exactly, in the order of the index's ranking; the decoder alone
            where there is no evidence to use).
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
        aggregate: `beam`: what the score of an entity is: "sum", its probability by all of its surface forms
            that were found, or "max", that by the best one. None: "sum", and "max" with a
            `length_penalty`, where "sum" is refused: a sum of probabilities has no length.
        prompt: Name of the prompt template; None: the checkpoint's default.
        filter: Predicate over the entities' columns (docs/filters.md); None: all of them. Whether it fits an
            index is seen when that index is asked.
        allow_ids: Ids of the entities allowed, at most 100,000; None: all of them, empty: none.
        deny_ids: Ids of entities not allowed, at most 100,000. An answer passes `filter`, `allow_ids` and
            `deny_ids`; ids the index lacks have no effect.
        explain: Whether the result says what the model was asked on the way (`RetrievalResult.explanation`).
            The answer is the same. Excludes `adaptive`, and a `beam_size` above 1 with `disc`.
        shortlist_size: `shortlist`, `auto`: entities that the evidence proposes, in [1, 2000]; None: 100 with
            `shortlist`, 24 with `auto`. Where the filter allows no more (100 with None), all of them are
            scored, and no decoder is asked. Of those proposed and those decoded, `auto` by its ranking scores
            as many (12 with None), at least k: those that can be the first by what the decoder found of them.
        decoder: `auto`: "beam" or "disc", whose options are valid then; None: "beam".
        vector_weight: `shortlist`, `auto`: what a vector similarity of 1 adds to the log-probabilities by
            which candidates are put in order, in [0, 1000]; None: 0. With `auto` it takes the place of the
            ranking, as do `exact`, `length_penalty` and `aggregate`.
        shortlist_query: `shortlist`, `auto`: the text that the evidence is asked with; None: the query.
        title_weight: How much more an entity counts for a surface form that is its title than for one that is
            its alias, where several entities share the form, in [1e-6, 1e6]; None: the checkpoint's.
        restriction: What these three say, read once.

    Raises:
        InputError: a field is out of range; it is named.
    """

    query: str
    k: int = 10
    method: str = "auto"
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
    shortlist_size: int | None = None
    decoder: str | None = None
    vector_weight: float | None = None
    shortlist_query: str | None = None
    title_weight: float | None = None
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
        """Most branches its decoder can have at once: its beam size, or every prefix of all of its draws.

        1 without a decoder.
        """
        if self.decoding is None:
            return 1
        if self.decoding == "beam":
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

    @property
    def decoding(self) -> str | None:
        """The decoder in force: "beam", "disc", or None with `shortlist`."""
        if self.method == "auto":
            return self.decoder or "beam"
        return None if self.method == "shortlist" else self.method

    @property
    def is_ranked(self) -> bool:
        """Whether the index's ranking makes the order: with `auto`, unless the request has one of its own."""
        own_order = self.exact or self.length_penalty or self.aggregate is not None
        return self.method == "auto" and not own_order and self.vector_weight is None

    @property
    def proposals(self) -> int:
        """The number of entities that the evidence is asked for; 0 with `beam` and `disc`."""
        if self.method not in SCORED_METHODS:
            return 0
        return self.shortlist_size or (DEFAULT_AUTO_SIZE if self.method == "auto" else DEFAULT_SHORTLIST_SIZE)

    @property
    def similarity_weight(self) -> float:
        """The `vector_weight` in force."""
        return self.vector_weight or 0.0

    @property
    def role_weight(self) -> float:
        """The `title_weight` in force."""
        return DEFAULT_TITLE_WEIGHT if self.title_weight is None else self.title_weight

    @property
    def evidence_text(self) -> str:
        """What the evidence is asked with."""
        return self.query if self.shortlist_query is None else self.shortlist_query


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
        surface: The surface form the model wrote (title or alias); where several were found, the one that
            says most for the entity.
        logprob: log P(e | q), natural: the sum over the entity's surface forms of the model's probability of
            the form times the entity's share in it, P(f | q) · P(e | f). Over the forms that were found with
            `beam` and `disc`, over all of them with `shortlist` and `auto`. See docs/numbers.md. NaN where no
            model was asked (`EvidenceSearch`).
        probability: `disc`: share of the samples that named this entity; `beam`: None; `auto` by its ranking:
            the calibrated probability that this entity is meant (docs/ranking.md); `shortlist` and `auto`
            without a ranking: P(e | q) over the probability of all forms that were scored.
        metadata: The entity's metadata.
        score: What the list is ordered by; equal ones by weight, title and id. `beam`: `logprob`, or with the
            aggregate "max" log P(f | q) of `surface`, divided by its length ** length_penalty, plus
            log P(e | f); `disc`: `probability`; `auto`: what the ranking gives, the sum of `shares`;
            `shortlist` and `auto` without a ranking: `logprob`, or what it is with `beam`, plus the request's
            `vector_weight` times `similarity`.
        similarity: `shortlist`, `auto`: how alike the query and the entity's most similar text are, by their
            vectors; None where no vectors were asked.
        shares: `auto` by its ranking: what each kind of evidence adds to the score, the largest first; kinds
            are "names", "texts", "queries", "vectors", "model" and "weight". Empty otherwise.
    """

    entity_id: str
    title: str
    surface: str
    logprob: float
    probability: float | None
    metadata: Mapping[str, MetadataValue]
    score: float
    similarity: float | None = None
    shares: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall time of the batch this query was part of, in milliseconds.

    Attributes:
        prefill_ms: Of running the prompts.
        decode_ms: Of the decoder.
        total_ms: Of everything.
        shortlist_ms: Of asking the evidence, and of putting candidates in order.
        score_ms: Of scoring the surface forms of shortlists.
    """

    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    total_ms: float = 0.0
    shortlist_ms: float = 0.0
    score_ms: float = 0.0


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
        method: What was used: "beam", "disc", "shortlist" or "auto"; the decoder where `auto` scored nothing.
        candidates: Best first; empty means that nothing in the catalogue matched, or that the answer is
            withheld (`NO_MATCH`).
        certified: `beam`: whether the candidates are proven to be the k best entities in their order, all
            surface forms counted; `disc`: None. `auto` by its ranking: None, for an order by evidence is
            not the model's. `shortlist` and `auto` otherwise: True where every entity allowed was scored;
            else `shortlist` None, and `auto` as its decoder, False with a `vector_weight`.
        mass: `disc`: estimate of P_L(S), the model's probability that its answer is in the catalogue; under a
            filter, that it is a surface form of an allowed entity. It may lie outside the bounds.
        mass_stderr: Standard error of `mass`; None with a single draw.
        mass_lower: `disc`: what P_L(S) is at least: the probability of the distinct titles that were written.
            `shortlist`, `auto`: the probability of the distinct surface forms that were scored.
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
        num_scored: `shortlist`, `auto`: surface forms that were scored.
        shortlist_size: `shortlist`, `auto`: entities that the evidence proposed, or all of those allowed.
        nothing_fits: `auto` by its ranking: the probability that no entity of the index is meant; None
            otherwise.
        missing_evidence: `shortlist`, `auto`: kinds of evidence that the index has and that this answer went
            without, damaged or failing: kinds as in `Candidate.shares`, "ranking", and "prior".
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
    num_scored: int = 0
    shortlist_size: int = 0
    nothing_fits: float | None = None
    missing_evidence: tuple[str, ...] = ()

    @property
    def no_match(self) -> bool:
        """Whether there is no answer: the catalogue holds none, or it is withheld."""
        return not self.candidates

    @property
    def bounded_mass(self) -> float | None:
        """`mass` within its bounds, the best single figure for P_L(S); None without DISC."""
        if self.mass is None:
            return None
        lower = 0.0 if self.mass_lower is None else self.mass_lower
        upper = 1.0 if self.mass_upper is None else self.mass_upper
        return min(max(self.mass, lower), upper)


class RequestOptions(TypedDict, total=False):
    """Fields of `retrieval.types.RetrieveRequest`, which says what they mean and checks them."""

    beam_size: int | None
    num_draws: int
    num_samples: int | None
    temperature: float
    top_m: int | None
    seed: int | None
    min_mass: float | None
    adaptive: bool
    exact: bool
    exact_budget: int | None
    length_penalty: float
    aggregate: str | None
    filter: str | None
    allow_ids: Iterable[str] | None
    deny_ids: Iterable[str]
    explain: bool
    shortlist_size: int | None
    decoder: str | None
    vector_weight: float | None
    shortlist_query: str | None
    title_weight: float | None


def with_options(k: int, method: str, prompt: str | None, options: RequestOptions) -> RetrieveRequest:
    """Return a request that stands for all that are asked with the same options; its query is a placeholder.

    Raises:
        InputError: an option is out of range; it is named.
    """
    fields: dict[str, Any] = dict(options)  # a request takes any iterable of ids, and reads it once
    return RetrieveRequest("-", k=k, method=method, prompt=prompt, **fields)


METHODS = ("auto", "beam", "disc", "shortlist")
DECODERS = ("beam", "disc")
SCORED_METHODS = ("auto", "shortlist")  # they score every surface form of what they list
AGGREGATES = ("sum", "max")
DEFAULT_NUM_SAMPLES = 16
DEFAULT_SHORTLIST_SIZE = 100
# What evidence puts further behind is hardly ever right, and every candidate costs the model some tokens.
DEFAULT_AUTO_SIZE = 24
# Of what evidence and decoder find together, `auto` has the model score so many, at least k.
DEFAULT_NUM_RANKED = 10
MAX_SHORTLIST_SIZE = 2000
MAX_VECTOR_WEIGHT = 1000.0
# Fitted on labelled mentions (docs/numbers.md): the entity that a name is the title of is meant ten times as
# often as those that have it as an alias, all together.
DEFAULT_TITLE_WEIGHT = 10.0
MIN_TITLE_WEIGHT, MAX_TITLE_WEIGHT = 1e-6, 1e6

# Integer fields: name, least, most, whether None is allowed.
_INTEGERS = (
    ("k", 1, MAX_K, False),
    ("num_draws", 1, MAX_DRAWS, False),
    ("num_samples", 1, MAX_SAMPLES, True),
    ("top_m", 1, 2**31 - 1, True),
    ("seed", -(2**63), 2**63 - 1, True),
    ("exact_budget", 0, MAX_EXACT_BUDGET, True),
    ("shortlist_size", 1, MAX_SHORTLIST_SIZE, True),
)
# Other numbers, likewise.
_NUMBERS = (
    ("temperature", 0.01, 100.0, False),
    ("min_mass", 0.0, 1.0, True),
    ("length_penalty", -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY, False),
    ("vector_weight", 0.0, MAX_VECTOR_WEIGHT, True),
    ("title_weight", MIN_TITLE_WEIGHT, MAX_TITLE_WEIGHT, True),
)


def checked_fields(request: RetrieveRequest) -> dict[str, Any]:
    """Return fields of a request as they are kept: plain numbers, ids read once, the restriction made.

    Raises:
        InputError: a field is out of range, or does not go with another one; it is named.
    """
    check_text("query", request.query)
    if not request.query.strip():
        raise InputError("query", "must not be empty")
    if request.method not in METHODS:
        raise InputError("method", f"must be one of {', '.join(METHODS)}; got {request.method!r}")
    fields = _checked_numbers(request)
    for name in ("adaptive", "exact", "explain"):
        if not isinstance(value := getattr(request, name), bool):
            raise InputError(name, f"must be True or False, got {value!r}")
    if request.aggregate is not None and request.aggregate not in AGGREGATES:
        raise InputError("aggregate", f"must be one of {', '.join(AGGREGATES)}; got {request.aggregate!r}")
    if request.prompt is not None:
        check_text("prompt", request.prompt)
    _check_shortlist(request)
    fields |= _checked_restriction(request)
    return fields | _CHECKED_BY[request.decoding](request)


def _check_shortlist(request: RetrieveRequest) -> None:
    if request.decoder is not None:
        if request.decoder not in DECODERS:
            raise InputError("decoder", f"must be one of {', '.join(DECODERS)}; got {request.decoder!r}")
        if request.method != "auto":
            raise InputError("decoder", f"needs the method auto, got the method {request.method}")
    if request.method not in SCORED_METHODS:
        for name in ("shortlist_size", "vector_weight", "shortlist_query"):
            if getattr(request, name) is not None:
                needed = " or ".join(SCORED_METHODS)
                raise InputError(name, f"needs the method {needed}, got the method {request.method}")
    if request.shortlist_query is not None:
        check_text("shortlist_query", request.shortlist_query)
        if not request.shortlist_query.strip():
            raise InputError("shortlist_query", "must not be empty")


def _checked_numbers(request: RetrieveRequest) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, least, most, optional in _INTEGERS:
        if not ((value := getattr(request, name)) is None and optional):
            fields[name] = integer(name, value, least, most)
    for name, low, high, optional in _NUMBERS:
        if not ((value := getattr(request, name)) is None and optional):
            fields[name] = number(name, value, low, high)
    return fields


def _checked_restriction(request: RetrieveRequest) -> dict[str, Any]:
    predicate = None
    if request.filter is not None:
        check_text("filter", request.filter)
        predicate = parse(request.filter)
    allowed = None if request.allow_ids is None else checked_ids("allow_ids", request.allow_ids)
    denied = checked_ids("deny_ids", request.deny_ids)
    return {
        "allow_ids": allowed,
        "deny_ids": denied,
        "restriction": Restriction(predicate, allowed, denied),
    }


def _checked_beam_size(request: RetrieveRequest, most: int, when: str = "") -> dict[str, Any]:
    if request.beam_size is None:
        return {}
    return {"beam_size": integer("beam_size", request.beam_size, 1, most, when)}


def _checked_beam(request: RetrieveRequest) -> dict[str, Any]:
    """Refuse what changes the meaning of an answer and is not done here."""
    fields = _checked_beam_size(request, MAX_BEAM_SIZE)
    _refuse_disc_options(request)
    if request.exact_budget is not None and not request.exact:
        raise InputError("exact_budget", f"needs exact, which is not asked for; got {request.exact_budget}")
    if request.aggregate == "sum" and request.length_penalty:
        raise InputError(
            "aggregate",
            "must be max with a length_penalty, as a sum of probabilities has no length; "
            f"got sum with length_penalty {request.length_penalty:g}",
        )
    return fields


def _method(request: RetrieveRequest) -> str:
    """Return what an error says that the method is."""
    if request.method == "auto":
        return f"the method auto with the decoder {request.decoding}"
    return f"the method {request.method}"


def _refuse_beam_options(request: RetrieveRequest) -> None:
    asked = {
        "exact": request.exact,
        "exact_budget": request.exact_budget is not None,
        "length_penalty": request.length_penalty != 0,
        "aggregate": request.aggregate is not None,
    }
    for name, is_set in asked.items():
        if is_set:
            raise InputError(name, f"needs the method beam, got {_method(request)}")


def _refuse_disc_options(request: RetrieveRequest) -> None:
    for name, is_set in (("min_mass", request.min_mass is not None), ("adaptive", request.adaptive)):
        if is_set:
            raise InputError(name, f"needs the method disc, got {_method(request)}")


def _checked_shortlist(request: RetrieveRequest) -> dict[str, Any]:
    _refuse_disc_options(request)
    _refuse_beam_options(request)
    if request.explain:
        raise InputError("explain", "needs a decoder, got the method shortlist, which walks no token tree")
    return _checked_beam_size(request, MAX_BEAM_SIZE)


def _checked_disc(request: RetrieveRequest) -> dict[str, Any]:
    _refuse_beam_options(request)
    fields = _checked_beam_size(request, MAX_DISC_BEAM_SIZE, " with the method disc")
    clashes = [f"top_m {request.top_m}"] if request.top_m is not None else []
    clashes += [f"beam_size {request.prefixes}"] if request.prefixes > 1 else []
    if request.adaptive and clashes:
        got = " and ".join(clashes)
        raise InputError("adaptive", f"excludes top_m and a beam_size above 1, got {got}")
    _check_explained_draws(request)
    if (total := request.width) > MAX_TOTAL_DRAWS:
        prefixes = f" and beam_size {request.prefixes}" if request.prefixes > 1 else ""
        raise InputError(
            "num_samples",
            f"times num_draws times beam_size must be at most {MAX_TOTAL_DRAWS}, got {total} "
            f"(with num_draws {request.num_draws}{prefixes})",
        )
    return fields


def _check_explained_draws(request: RetrieveRequest) -> None:
    """Refuse draws that have no one way through the token tree and no one sample that they are of."""
    if not request.explain:
        return
    clashes = ["adaptive"] if request.adaptive else []
    clashes += [f"a beam_size of {request.prefixes}"] if request.prefixes > 1 else []
    if clashes:
        raise InputError(
            "explain",
            "cannot be combined with adaptive or a beam_size above 1 with the method disc; "
            f"got {' and '.join(clashes)}",
        )


_CHECKED_BY: dict[str | None, Callable[[RetrieveRequest], dict[str, Any]]] = {
    "beam": _checked_beam,
    "disc": _checked_disc,
    None: _checked_shortlist,
}
