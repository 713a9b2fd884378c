"""Defines the request of a JSON answer, which checks itself, and its result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict, get_args

from genret.decoding.grammar.compile_options import (
    ExtraProperties,
    Formats,
    GrammarOptions,
    PropertyOrder,
    Whitespace,
)
from genret.decoding.params import MAX_BEAM_SIZE, MAX_DRAWS, MAX_K
from genret.retrieval.arguments import (
    PROMPT,
    check_filled,
    check_keywords,
    checked_options,
    declared,
    option,
)
from genret.retrieval.errors import InputError
from genret.retrieval.tables import Shown, Tabular, wire_name
from genret.retrieval.types import Entity, KvShare, Timings

ANSWER_METHODS = ("greedy", "sample", "beam", "disc")
DEFAULT_MAX_TOKENS, MAX_ANSWER_TOKENS = 512, 65_536
Schema = str | Mapping[str, Any] | bool


@check_keywords
@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """A query and the JSON Schema of its answer.

    Options say what they do where they are declared; those that need more words are listed here too.

    Attributes:
        query: The query text; must hold something besides white space.
        schema: A JSON Schema as text or as `json.loads` reads one; the order of its properties is the order
            they are written in. Kept as text.
        schema_name: Name of a schema the retriever or server knows, in place of `schema`.
        max_tokens: A budget below the shortest answer is refused.
        shortlist: Choose every title among the so many best ones of a search in the words that the checkpoint
            was taught, by `auto` where the index has evidence and by `beam` elsewhere, in [0, 1000]; 0: among
            all titles. None: among all where the checkpoint was
            taught documents or nothing; one that was taught titles alone takes the best title, or with
            several titles of one set in the schema one of the ten best.

    Raises:
        InputError: a field is out of range; it is named.
    """

    query: str
    schema: Schema | None = None
    schema_name: str | None = None
    method: str = option(
        "greedy",
        "greedy: the likeliest token at each step; sample: the model's own distribution over the allowed "
        "ones; beam: the likeliest document found; disc: an unbiased sample of documents.",
        choices=ANSWER_METHODS,
    )
    max_tokens: int = option(
        DEFAULT_MAX_TOKENS, "Most tokens of an answer; it is closed in time.", (1, MAX_ANSWER_TOKENS)
    )
    temperature: float = option(1.0, "sample, disc: divides the logits.", (0.01, 100))
    seed: int | None = option(
        None, "sample, disc: the same seed gives the same answer.", unset="chosen and told"
    )
    beam_size: int = option(4, "beam: live prefixes per step.", (1, MAX_BEAM_SIZE))
    num_draws: int = option(4, "disc: draws tried.", (1, MAX_DRAWS))
    whitespace: str = option(
        "spaced",
        "Between the parts of the answer: none, a blank behind commas and colons, or the model's choice.",
        choices=get_args(Whitespace),
    )
    property_order: str = option(
        "schema",
        "Order of properties: the schema's, or the model's choice.",
        choices=get_args(PropertyOrder),
    )
    formats: str = option("assert", "Whether known formats are enforced.", choices=get_args(Formats))
    extra_properties: str = option(
        "declared",
        "Properties the schema does not mention: only where it speaks of such, or wherever allowed.",
        choices=get_args(ExtraProperties),
    )
    shortlist: int | None = option(
        None,
        "Choose every title among the so many best ones of a search; 0: among all.",
        (0, MAX_K),
        unset="by the checkpoint",
    )
    forced_spans: bool = option(True, "greedy, sample: write what must come without asking the model.")
    end_repetition: bool = option(True, "greedy: end a text, number or list that only repeats itself.")
    prompt: str | None = declared(PROMPT)

    def __post_init__(self) -> None:
        check_filled("query", self.query)
        for name, value in {**checked_options(self), **self._checked_schema()}.items():
            object.__setattr__(self, name, value)

    @property
    def options(self) -> GrammarOptions:
        """The options by which the schema is read and written."""
        return GrammarOptions(
            whitespace=self.whitespace,  # type: ignore[arg-type]  # checked when the request was made
            property_order=self.property_order,  # type: ignore[arg-type]
            formats=self.formats,  # type: ignore[arg-type]
            extra_properties=self.extra_properties,  # type: ignore[arg-type]
            inexact="narrow",
        )

    def _checked_schema(self) -> dict[str, Any]:
        if (self.schema is None) == (self.schema_name is None):
            got = "neither" if self.schema is None else "both"
            raise InputError("schema", f"needs either a schema or the name of one, got {got}")
        if self.schema_name is not None:
            check_filled("schema_name", self.schema_name)
            return {}
        return {"schema": schema_text(self.schema)}

    @property
    def width(self) -> int:
        """Most branches the request has at once."""
        return {"beam": self.beam_size, "disc": self.num_draws}.get(self.method, 1)


@dataclass(frozen=True, slots=True)
class PreparedAnswer(AnswerRequest):
    """A request with its compiled schema, so that nothing is left to compile when its batch runs.

    Attributes:
        compiled: The schema, a `schemas.CompiledSchema` of the retriever that will answer; None: there is
            none yet.
        compile_ms: CPU time of its compilation, milliseconds; 0 if it was known.
    """

    compiled: Any = None
    compile_ms: float = 0.0

    @classmethod
    def of(cls, request: AnswerRequest, compiled: Any, compile_ms: float) -> PreparedAnswer:
        """Return `request` with its compiled schema."""
        own = {field.name: getattr(request, field.name) for field in fields(AnswerRequest)}
        return cls(**own, compiled=compiled, compile_ms=compile_ms)


@dataclass(frozen=True, slots=True, repr=False)
class AnswerEntity(Shown):
    """The entities behind a string of an answer that had to be a title.

    Attributes:
        pointer: JSON pointer of the string in the answer: "/people/0/name".
        index: Name of the index; its own, where the schema says "titles".
        title: The string.
        entities: Those with that title that the schema's filter allows, those with the greatest share first.
        shares: P(e | title) of each of them, which sum to 1.
    """

    pointer: str
    index: str
    title: str
    entities: tuple[Entity, ...]
    shares: tuple[float, ...] = ()

    _told = ("pointer", "title", "index")


@dataclass(frozen=True, slots=True, repr=False)
class AnswerResult(Tabular):
    """A document that is valid under the schema.

    Attributes:
        query, method: As in the request.
        text: The document as it was written.
        entities: Entities of its titles, in the order of the document.
        logprob: log P_L of its tokens, end token included, without the grammar; natural logarithm. Tokens of
            forced spans are scored too.
        num_tokens: Tokens of the document, end token included.
        num_forced: Those of them that were forced, and written without choosing.
        num_drafted: Tokens proposed by the draft model.
        num_accepted: Those of them that the model kept.
        num_forwards: Forward passes behind the prompt.
        seed: The seed that was used; None where nothing was sampled.
        schema_digest: Digest of the schema's canonical text: the same digest means the same grammar.
        compile_ms: CPU time of finding or compiling the grammar, milliseconds, without any wait.
        mass: `disc`: estimate of the model's probability that its answer is valid under the schema.
        mass_stderr: Standard error of `mass`; None with a single draw.
        timings: Wall times of the batch.
        kv: Key/value memory: this query's share.
    """

    query: str
    method: str
    text: str = field(metadata=wire_name("json"))
    entities: tuple[AnswerEntity, ...]
    logprob: float
    num_tokens: int
    num_forced: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_forwards: int = 0
    seed: int | None = None
    schema_digest: str = ""
    compile_ms: float = 0.0
    mass: float | None = None
    mass_stderr: float | None = None
    timings: Timings = field(default_factory=Timings)
    kv: KvShare = field(default_factory=KvShare, metadata=wire_name("kv_usage"))

    _told = ("query", "text", "method", "logprob", "num_tokens", "mass", "seed")

    @property
    def value(self) -> Any:
        """The document as Python values."""
        return json.loads(self.text)


class AnswerOptions(TypedDict, total=False):
    """Fields of `retrieval.answers.answer_types.AnswerRequest`, which says what they mean and checks them."""

    schema_name: str | None
    method: str
    max_tokens: int
    temperature: float
    seed: int | None
    beam_size: int
    num_draws: int
    whitespace: str
    property_order: str
    formats: str
    extra_properties: str
    shortlist: int | None
    forced_spans: bool
    end_repetition: bool
    prompt: str | None


def schema_text(schema: object) -> str:
    """Return a schema as JSON text, text unchanged; InputError if it is no text, JSON object or boolean."""
    if isinstance(schema, str):
        if schema.strip():  # what is blank is refused as no JSON, where it is compiled
            check_filled("schema", schema)
        return schema
    if not isinstance(schema, Mapping | bool):
        raise InputError("schema", f"must be JSON text, a mapping or a boolean, got {type(schema).__name__}")
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError("schema", f"is no JSON: {error}") from None
    check_filled("schema", text)
    return text


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} is no JSON value")
