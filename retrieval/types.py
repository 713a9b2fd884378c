"""Defines the values of the retrieval library: requests, mentions, entities, candidates, results.

Plain frozen dataclasses, no tensors: they cross the service boundary unchanged. A request checks itself:
the ranges of its fields, and which of them go together.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict, cast

from genret.decoding.params import (
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
from genret.retrieval.arguments import (
    ALLOW_IDS,
    DENY_IDS,
    FILTER,
    PROMPT,
    Restriction,
    check_filled,
    check_keywords,
    check_known,
    check_text,
    checked_options,
    declared,
    option,
    options_of,
)
from genret.retrieval.errors import InputError
from genret.retrieval.explanation import Explanation
from genret.retrieval.filters.predicate import parse
from genret.retrieval.tables import Shown, Tabular, wire_name

MetadataValue = str | int | float | bool | None

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
MAX_VECTOR_WEIGHT = 1000
# Fitted on labelled mentions (docs/numbers.md): the entity that a name is the title of is meant ten times as
# often as those that have it as an alias, all together.
DEFAULT_TITLE_WEIGHT = 10.0


@check_keywords
@dataclass(frozen=True, slots=True)
class RetrieveRequest:
    """One query and how to answer it.

    Options say what they do where they are declared; those that need more words are listed here too. Options
    of another method are checked and have no effect, but for those that change the meaning of an answer,
    which are refused: a threshold that nobody looks at would be taken for one that was passed.

    Attributes:
        query: The query text; must hold something besides white space.
        method: "auto" is its decoder alone where there is no evidence to use.
        beam_size: `beam`: live prefixes per step; None: max(k, 10). `disc`: prefixes per draw; None: 1, which
            is DISC itself. With more, draws favour likely titles.
        num_samples: `disc`: samples times draws times prefixes per draw are at most 8,192.
        adaptive: `disc`: judge draws against the known bounds of P_L(S), and leave out of the second phase
            what the first found to be invalid: more draws are accepted. Excludes `top_m` and a `beam_size`
            above 1.
        exact: `beam`: go on after the beam search, through the prefixes it dropped, until the list of
            entities is proven or the budget is spent. Where entities have several forms that may take fewer
            forms than the beam search lists, or many more.
        aggregate: `beam`: score of an entity: "sum", its probability by all of its forms that were found, or
            "max", that by the best one. None: "sum", and "max" with a `length_penalty`: a sum of
            probabilities has no length.
        allow_ids: Ids of the entities allowed, at most 100,000; None: all of them, empty: none. An answer
            passes `filter`, `allow_ids` and `deny_ids`; ids the index lacks have no effect.
        explain: Whether the result has an `explanation`; the answer is the same. Excludes `adaptive`, and a
            `beam_size` above 1 with `disc`.
        shortlist_size: `shortlist`, `auto`: where the filter allows no more (100 with None), all of them are
            scored, and no decoder is asked. Of those proposed and those decoded, `auto` by its ranking scores
            as many (10 with None), at least k: those that can be the first by what the decoder found of them.
        vector_weight: `shortlist`, `auto`: added to a log-probability for a vector similarity of 1. With
            `auto` it takes the place of the ranking, as do `exact`, `length_penalty` and `aggregate`.
        restriction: `filter`, `allow_ids` and `deny_ids`, read once.

    Raises:
        InputError: a field is out of range, or does not go with another one; it is named.
    """

    query: str
    k: int = option(10, "Candidates wanted, at most 1000.", (1, MAX_K))
    method: str = option(
        "auto",
        "auto: what a decoder finds and the evidence proposes, by the index's ranking; beam: the k most "
        "probable titles; disc: samples and their shares; shortlist: what the evidence proposes, scored.",
        choices=METHODS,
    )
    beam_size: int | None = option(
        None,
        "beam: live prefixes per step, at most 1000; disc: prefixes per draw, at most 64.",
        (1, MAX_BEAM_SIZE),
        disc_high=MAX_DISC_BEAM_SIZE,
        unset="beam: the larger of k and 10; disc: 1",
    )
    num_draws: int = option(4, "disc: draws tried per sample.", (1, MAX_DRAWS))
    num_samples: int | None = option(
        None, "disc: independent samples.", (1, MAX_SAMPLES), unset=str(DEFAULT_NUM_SAMPLES)
    )
    temperature: float = option(1.0, "disc: divides the logits.", (0.01, 100))
    top_m: int | None = option(
        None,
        "disc: only the M likeliest tokens of a step, which biases the shares.",
        (1, 2**31 - 1),
        unset="all, exact",
    )
    seed: int | None = option(None, "disc: the same seed gives the same answer.", unset="chosen and told")
    min_mass: float | None = option(
        None,
        "disc: no match when the model's probability that its answer is in the catalogue is below this, "
        "in [0, 1].",
        (0, 1),
        methods=("disc",),
        unset="no limit",
    )
    adaptive: bool = option(
        False,
        "disc: what the first draws find invalid is left out of later ones; more are accepted.",
        methods=("disc",),
    )
    exact: bool = option(
        False, "beam: go on until the list is proven, or --exact-budget is spent.", methods=("beam",)
    )
    exact_budget: int | None = option(
        None,
        "beam: most tokens computed for that, at most 1000000.",
        (0, MAX_EXACT_BUDGET),
        methods=("beam",),
        unset=str(DEFAULT_EXACT_BUDGET),
    )
    length_penalty: float = option(
        0.0,
        "beam: rank by log P / length ** this, in [-4, 4]; above 0 favours long titles.",
        (-MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY),
        methods=("beam",),
    )
    aggregate: str | None = option(
        None,
        "beam: an entity's score is the probability of all of its titles and aliases found, or the "
        "score of the best one.",
        choices=AGGREGATES,
        methods=("beam",),
        unset="sum; max with a --length-penalty",
        wire="aggregation",
    )
    prompt: str | None = declared(PROMPT)
    filter: str | None = declared(FILTER)
    allow_ids: tuple[str, ...] | None = declared(ALLOW_IDS)
    deny_ids: tuple[str, ...] = declared(DENY_IDS)
    explain: bool = option(
        False,
        "Show the tokens the model walked through as well; disc: and its draws. Excludes adaptive draws.",
    )
    shortlist_size: int | None = option(
        None,
        "auto, shortlist: entities that the evidence proposes, at most 2000.",
        (1, MAX_SHORTLIST_SIZE),
        methods=SCORED_METHODS,
        unset=f"auto: {DEFAULT_AUTO_SIZE}; shortlist: {DEFAULT_SHORTLIST_SIZE}",
    )
    decoder: str | None = option(
        None,
        "auto: what decodes beside the shortlist; its options are the ones that count.",
        choices=DECODERS,
        methods=("auto",),
        unset="beam",
    )
    vector_weight: float | None = option(
        None,
        "auto, shortlist: order by log P + this * similarity, at most 1000.",
        (0, MAX_VECTOR_WEIGHT),
        methods=SCORED_METHODS,
        unset="shortlist: 0; auto: the order of the ranking",
    )
    shortlist_query: str | None = option(
        None,
        "auto, shortlist: text that the evidence is asked with.",
        methods=SCORED_METHODS,
        unset="the query",
        is_filled=True,
    )
    title_weight: float | None = option(
        None,
        "How much more an entity counts for a name that is its title than for one that is its alias, "
        "where several share the name, in [1e-6, 1e6].",
        (1e-6, 1e6),
        unset="the checkpoint's",
    )
    restriction: Restriction = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, value in _checked_fields(self).items():
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
        """Most branches of its decoder: its beam size, or every prefix of all of its draws; 1 without one."""
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
        """The rule by which forms make an entity's score with `beam`: "sum" or "max"."""
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
        """The text that the evidence is asked with."""
        return self.query if self.shortlist_query is None else self.shortlist_query


@check_keywords
@dataclass(frozen=True, slots=True)
class Mention:
    """A span of text to be linked, with the text around it; InputError names a part that is no text."""

    mention: str
    left: str = ""
    right: str = ""

    def __post_init__(self) -> None:
        for name in ("mention", "left", "right"):
            check_text(name, getattr(self, name))


@dataclass(frozen=True, slots=True, repr=False)
class Entity(Shown):
    """A catalogue entry: id, canonical title, further forms, and every further column of the catalogue."""

    entity_id: str
    title: str
    aliases: tuple[str, ...] = ()
    metadata: Mapping[str, MetadataValue] = field(default_factory=dict)

    _told = ("entity_id", "title", "aliases", "metadata")


@dataclass(frozen=True, slots=True, repr=False)
class Candidate(Shown):
    """One answer.

    Attributes:
        entity_id: The entity.
        title: Its canonical title.
        surface: The form the model wrote; of several that were found, the one that says most for the entity.
        logprob: log P(e | q), natural: the sum over the entity's forms of the model's probability of the form
            times the entity's share in it, P(f | q) · P(e | f). Over the forms that were found with `beam`
            and `disc`, over all of them with `shortlist` and `auto`. See docs/numbers.md. NaN where no model
            was asked (`EvidenceSearch`).
        probability: `disc`: share of the samples that named this entity; `beam`: None; `auto` by its ranking:
            the calibrated probability that this entity is meant (docs/ranking.md); `shortlist` and `auto`
            without a ranking: P(e | q) over the probability of all forms that were scored.
        metadata: The entity's metadata.
        score: Key of the list's order; equal ones go by weight, title and id. `beam`: `logprob`, or with the
            aggregate "max" log P(f | q) of `surface`, divided by its length ** length_penalty, plus
            log P(e | f); `disc`: `probability`; `auto`: the ranking's score, the sum of `shares`; `shortlist`
            and `auto` without a ranking: as with `beam`, plus the request's `vector_weight` times
            `similarity`.
        similarity: `shortlist`, `auto`: vector similarity of the query and the entity's most similar text;
            None where no vectors were asked.
        shares: `auto` by its ranking: part of the score by kind of evidence, the largest first; kinds are
            "names", "texts", "queries", "vectors", "model" and "weight". Empty otherwise.
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

    _told = ("title", "entity_id", "probability", "logprob", "score")


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall times of the batch this query was part of, in milliseconds.

    `shortlist_ms`: asking the evidence and putting candidates in order; `score_ms`: scoring forms.
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
        peak_bytes: Most held at any time, copies made on the way included; a shared prefix is not.
        per_branch_bytes: Most that one cache per beam, or per draw, would have held.
        shared_prefix_bytes: Size of the prefix shared with other requests, held once for all; not divided.
    """

    peak_bytes: int = 0
    per_branch_bytes: int = 0
    shared_prefix_bytes: int = 0
    num_collections: int = 0

    @property
    def saved_bytes(self) -> int:
        """Bytes that the shared token tree saved; negative where it took more."""
        return self.per_branch_bytes - self.peak_bytes


@dataclass(frozen=True, slots=True, repr=False)
class RetrievalResult(Tabular):
    """Answer to one query.

    Attributes:
        query: The query text.
        method: "beam", "disc", "shortlist" or "auto"; the decoder where `auto` scored nothing.
        candidates: Best first; empty means that nothing in the catalogue matched, or that the answer is
            withheld (`NO_MATCH`).
        certified: `beam`: whether the candidates are proven to be the k best entities in their order, all
            forms counted; `disc`: None. `auto` by its ranking: None, for an order by evidence is not the
            model's. `shortlist` and `auto` otherwise: True where every entity allowed was scored; else
            `shortlist` None, and `auto` as its decoder, False with a `vector_weight`.
        mass: `disc`: estimate of P_L(S), the model's probability that its answer is in the catalogue; under a
            filter, that it is a surface form of an allowed entity. It may lie outside the bounds.
        mass_stderr: Standard error of `mass`; None with a single draw.
        mass_lower: `disc`: lower bound of P_L(S): the probability of the distinct titles that were written.
            `shortlist`, `auto`: the probability of the distinct forms that were scored.
        mass_upper: `disc`: upper bound of P_L(S), by what was found to be invalid; 1 where nothing is known.
        num_draws: `disc`: draws used; 0 for `beam`.
        num_accepted: `disc`: results that came from an accepted draw (the rest were resampled).
        num_nodes: Tokens the model computed behind the prompt; draws share those of common prefixes.
        num_exact_nodes: `beam`: those of them that `exact` asked for.
        num_steps: Decode steps of the batch.
        seed: `disc`: the seed used; the same seed gives the same samples.
        abstained: `disc`: whether candidates are withheld because `bounded_mass` is below `min_mass`.
        timings: Wall times.
        kv: Key/value memory.
        explanation: The token tree behind the answer, where the request asked for it; None otherwise.
        num_scored: `shortlist`, `auto`: forms that were scored.
        shortlist_size: `shortlist`, `auto`: entities that the evidence proposed, or all of those allowed.
        nothing_fits: `auto` by its ranking: the probability that no entity of the index is meant; else None.
        missing_evidence: `shortlist`, `auto`: kinds of evidence that the index has and that could not be
            used: kinds as in `Candidate.shares`, "ranking", and "prior".
    """

    query: str
    method: str
    candidates: tuple[Candidate, ...]
    certified: bool | None = None
    mass: float | None = None
    mass_stderr: float | None = None
    mass_lower: float | None = field(default=None, metadata=wire_name("mass_lower_bound"))
    mass_upper: float | None = field(default=None, metadata=wire_name("mass_upper_bound"))
    num_draws: int = 0
    num_accepted: int = 0
    num_nodes: int = 0
    num_exact_nodes: int = 0
    num_steps: int = 0
    seed: int | None = None
    abstained: bool = False
    timings: Timings = field(default_factory=Timings)
    kv: KvShare = field(default_factory=KvShare, metadata=wire_name("kv_usage"))
    explanation: Explanation | None = None
    num_scored: int = 0
    shortlist_size: int = 0
    nothing_fits: float | None = None
    missing_evidence: tuple[str, ...] = ()

    _told = ("query", "method", "certified", "mass", "nothing_fits", "abstained", "missing_evidence")
    _rows, _has_ranks, _shared = "candidates", True, ("query", "method")

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


class MethodOptions:
    """A method and the options that belong to it: `retrieve(queries, method=Beam(exact=True))`.

    Its fields are those of `RetrieveRequest`, which says what they mean and checks them when it is made.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        RetrieveRequest("-", **self.request_fields())

    def request_fields(self) -> dict[str, Any]:
        """Return the fields of a request for this method, its name and its decoder's options among them."""
        own = {one.name: getattr(self, one.name) for one in fields(cast(Any, self))}
        decoder = own.pop("decoder", None)
        if isinstance(decoder, MethodOptions):
            inner = decoder.request_fields()
            own |= inner | {"decoder": inner["method"]}
        return own | {"method": type(self).__name__.lower()}


@check_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class Beam(MethodOptions):
    """Asks for the most probable titles."""

    beam_size: int | None = None
    exact: bool = False
    exact_budget: int | None = None
    length_penalty: float = 0.0
    aggregate: str | None = None


@check_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class Disc(MethodOptions):
    """Asks for samples and their shares."""

    num_samples: int | None = None
    num_draws: int = 4
    beam_size: int | None = None
    temperature: float = 1.0
    top_m: int | None = None
    seed: int | None = None
    min_mass: float | None = None
    adaptive: bool = False


@check_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class Shortlist(MethodOptions):
    """Asks for what the evidence proposes, scored exactly."""

    shortlist_size: int | None = None
    vector_weight: float | None = None
    shortlist_query: str | None = None


@check_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class Auto(Shortlist):
    """Asks for what a decoder finds and the evidence proposes; `decoder` None: beam search."""

    decoder: Beam | Disc | None = None


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


def with_options(
    k: int, method: str | MethodOptions, prompt: str | None, options: RequestOptions
) -> RetrieveRequest:
    """Return a request with options that many share; its query is a placeholder.

    Warns of options that only draws use where nothing is drawn: such a request is no mistake on the wire.

    Raises:
        InputError: an option is unknown or out of range, does not go with another one, or stands beside a
            method that has it as a field.
    """
    given: dict[str, Any] = dict(options)  # a request takes any iterable of ids, and reads it once
    check_known(given, RetrieveRequest)
    asked = method.request_fields() if isinstance(method, MethodOptions) else {"method": method}
    for name in given.keys() & asked.keys():
        raise InputError(name, f"must stand in {method!r}, as its field; got {given[name]!r} beside it")
    request = RetrieveRequest("-", k=k, prompt=prompt, **given, **asked)
    for name in ("num_draws", "num_samples", "temperature", "top_m", "seed"):
        if given.get(name) is not None and request.decoding != "disc":
            warnings.warn(f"{name} has no effect: needs method disc, got {_method(request)}", stacklevel=3)
    return request


def _checked_fields(request: RetrieveRequest) -> dict[str, Any]:
    """Return what the fields of a request become: plain numbers, ids read once, the restriction made."""
    check_filled("query", request.query)
    in_force, options = (request.method, request.decoding), options_of(RetrieveRequest)
    checked = checked_options(request, request.decoding)
    for name, value in checked.items():
        takers = options[name].methods
        if value != options[name].default and takers and not any(word in takers for word in in_force):
            raise InputError(name, f"needs the method {' or '.join(takers)}, got {_method(request)}")
    if request.decoding == "disc":
        _check_disc(request)
    elif request.decoding == "beam":
        _check_beam(request)
    elif request.explain:
        raise InputError("explain", "needs a decoder, got the method shortlist, which walks no token tree")
    predicate = None if request.filter is None else parse(request.filter)
    restriction = Restriction(predicate, checked.get("allow_ids"), checked.get("deny_ids", ()))
    return {**checked, "restriction": restriction}


def _method(request: RetrieveRequest) -> str:
    if request.method == "auto":
        return f"the method auto with the decoder {request.decoding}"
    return f"the method {request.method}"


def _check_beam(request: RetrieveRequest) -> None:
    if request.exact_budget is not None and not request.exact:
        raise InputError("exact_budget", f"needs exact, which is not asked for; got {request.exact_budget}")
    if request.aggregate == "sum" and request.length_penalty:
        raise InputError(
            "aggregate",
            "must be max with a length_penalty, as a sum of probabilities has no length; "
            f"got sum with length_penalty {request.length_penalty:g}",
        )


def _check_disc(request: RetrieveRequest) -> None:
    """Refuse options that exclude each other, and too many draws."""
    several = [f"beam_size {request.prefixes}"] if request.prefixes > 1 else []
    top = [] if request.top_m is None else [f"top_m {request.top_m}"]
    if request.adaptive and (got := " and ".join([*top, *several])):
        raise InputError("adaptive", f"excludes top_m and a beam_size above 1, got {got}")
    if request.explain and (got := "adaptive" if request.adaptive else "".join(several)):
        raise InputError("explain", f"with disc, excludes adaptive and a beam_size above 1, got {got}")
    if (total := request.width) > MAX_TOTAL_DRAWS:
        prefixes = "".join(f" and {one}" for one in several)
        raise InputError(
            "num_samples",
            f"times num_draws times beam_size must be at most {MAX_TOTAL_DRAWS}, got {total} "
            f"(with num_draws {request.num_draws}{prefixes})",
        )
