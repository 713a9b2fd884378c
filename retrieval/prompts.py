"""Prompt templates: how a query is put to the model, and `genret.json`, which a checkpoint carries.

A template is markup around user text. Markup and user text are tokenised separately, so a query can
never forge a special token and the markup's KV can be shared by all queries.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from retrieval.arguments import check_text, number
from retrieval.checkpoints import SETTINGS_FILE, settings_folder
from retrieval.errors import InputError, ModelError
from retrieval.request_checks import (
    DEFAULT_TITLE_WEIGHT,
    MAX_TITLE_WEIGHT,
    MIN_TITLE_WEIGHT,
)
from retrieval.text import Rendering, TextTokenizer
from retrieval.types import Mention

CONFIG_VERSION = 1

_TEMPLATE_FIELDS = (
    "prefix",
    "before_query",
    "suffix",
    "mention_format",
    "context_chars",
    "lowercase",
    "special_tokens",
)
_DEFAULT_PROMPTS = ("default_prompt", "mention_prompt", "answer_prompt", "annotate_prompt")
_MAY_BE_UNSET = ("answer_prompt", "annotate_prompt")

_FEW_SHOT_EXAMPLES = (
    ("which metal is liquid at room temperature", "Mercury (element)"),
    ("painter of the mona lisa", "Leonardo da Vinci"),
    ("river that flows through cairo", "Nile"),
)


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """Markup before and after the user's text.

    Attributes:
        name: How requests name it.
        prefix: Markup before the query; special tokens in it are special.
        before_query: Plain text right before the query and tokenised with it, e.g. a blank.
        suffix: Markup between the query and the title.
        mention_format: How a mention in context becomes the query text; `{left}`, `{mention}` and
            `{right}` stand for its parts.
        context_chars: Most characters of left and of right context used for a mention.
        lowercase: Whether the user's text is put in lower case, for models taught on such text only.
        special_tokens: Whether the prompt gets the special tokens that the tokenizer itself puts around a
            text (a beginning-of-sequence token, an encoder's end token), as pretrained models expect.
    """

    name: str
    prefix: str = ""
    before_query: str = ""
    suffix: str = ""
    mention_format: str = "{mention}"
    context_chars: int = 0
    lowercase: bool = False
    special_tokens: bool = False

    def __post_init__(self) -> None:
        for name in ("name", "prefix", "before_query", "suffix", "mention_format"):
            check_text(name, getattr(self, name))
        if isinstance(self.context_chars, bool) or not isinstance(self.context_chars, int):
            raise InputError("context_chars", f"must be an integer, got {self.context_chars!r}")
        if self.context_chars < 0:
            raise InputError("context_chars", f"must be >= 0, got {self.context_chars}")
        for name in ("lowercase", "special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(name, f"must be true or false, got {getattr(self, name)!r}")
        if "{mention}" not in self.mention_format:
            raise InputError("mention_format", "must contain {mention}")

    def shared_tokens(self, tokenizer: TextTokenizer) -> list[int]:
        """Return the tokens that the prompt of every query begins with."""
        leading = tokenizer.frame[0] if self.special_tokens else []
        return [*leading, *tokenizer.encode_markup(self.prefix)]

    def encode(self, tokenizer: TextTokenizer, query: str) -> list[int]:
        """Return prompt token ids for one query."""
        text = self.before_query + (query.lower() if self.lowercase else query)
        trailing = tokenizer.frame[1] if self.special_tokens else []
        return [
            *self.shared_tokens(tokenizer),
            *tokenizer.encode_text(text, after=self.prefix),
            *tokenizer.encode_markup(self.suffix, after=text),
            *trailing,
        ]

    def mention_query(self, mention: Mention) -> str:
        """Return the query text of a mention in its context."""
        width = self.context_chars
        parts = {
            "{left}": mention.left[-width:] if width else "",
            "{mention}": mention.mention,
            "{right}": mention.right[:width],
        }
        text = self.mention_format
        pieces: list[str] = []
        while text:  # one pass, so that braces inside the document are never read as fields
            at, key = min(((text.find(k), k) for k in parts if k in text), default=(-1, ""))
            if at < 0:
                pieces.append(text)
                break
            pieces += [text[:at], parts[key]]
            text = text[at + len(key) :]
        return " ".join("".join(pieces).split())


PLAIN = PromptTemplate(
    name="plain", prefix="Query:", before_query=" ", suffix="\nEntity:", special_tokens=True
)
FEW_SHOT = PromptTemplate(
    name="few-shot",
    prefix="Retrieve the entity for my query.\n"
    + "".join(f"Query: <{q}>    Entity: <{t}>\n" for q, t in _FEW_SHOT_EXAMPLES)
    + "Query: <",
    suffix=">    Entity:",
    special_tokens=True,
)
MENTION = PromptTemplate(
    name="mention",
    prefix="Text:",
    before_query=" ",
    suffix="\nThe marked words mean:",
    special_tokens=True,
    mention_format="{left}[{mention}]{right}",
    context_chars=200,
)
JSON_ANSWER = PromptTemplate(
    name="json",
    prefix="Answer the query with JSON.\nQuery:",
    before_query=" ",
    suffix="\nJSON:\n",
    special_tokens=True,
)
ANNOTATE = PromptTemplate(
    name="annotate",
    prefix="Link the names in the text.\nText:",
    before_query=" ",
    suffix="\nText with links:\n",
    special_tokens=True,
)
BUILT_IN = {template.name: template for template in (PLAIN, FEW_SHOT, MENTION, JSON_ANSWER, ANNOTATE)}


@dataclass(frozen=True, slots=True)
class NameEvidence:
    """How evidence is weighed among the entities that a text calls by one name (docs/numbers.md).

    Attributes:
        mention: Probability that is added to what the model gives the name as the text has it. The less a
            model knows of a catalogue, the larger it should be.
        spelling: How much more an entity counts whose name is spelled as in the text, letter case included.
        context: How much more one counts of whose title another word stands near the mention.
    """

    mention: float = 0.5
    spelling: float = 5.0
    context: float = 9.0


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """What `genret.json` beside a checkpoint says: its prompts and how its titles are rendered.

    Attributes:
        prompts: Templates by name.
        default_prompt: Template used for queries.
        mention_prompt: Template used for mentions.
        answer_prompt: Template used for JSON answers; None: the built-in "json", or the default template of a
            checkpoint that was taught with one of its own.
        rendering: How the model was taught to write a title; None when the file says nothing.
        annotate_prompt: Template used for texts that are written again with links in them; None: the built-in
            "annotate", or the default template of a checkpoint that was taught with one of its own.
        title_weight: How much more a title counts than an alias where entities share a surface form and a
            request does not say, in [1e-6, 1e6].
        name_evidence: What else counts where a text is linked among the entities of one name.
        base: The model that an adapter belongs to, where it is not the one that its `adapter_config.json`
            names; see `retrieval.checkpoints`.
    """

    prompts: Mapping[str, PromptTemplate] = field(default_factory=lambda: dict(BUILT_IN))
    default_prompt: str = "plain"
    mention_prompt: str = "mention"
    answer_prompt: str | None = None
    rendering: Rendering | None = None
    annotate_prompt: str | None = None
    title_weight: float = DEFAULT_TITLE_WEIGHT
    name_evidence: NameEvidence = field(default_factory=NameEvidence)
    base: str | None = None

    def prompt(self, name: str | None) -> PromptTemplate:
        """Return the template called `name`, the default one for None.

        Raises:
            InputError: no such template; the text lists those there are.
        """
        key = self.default_prompt if name is None else name
        if key not in self.prompts:
            raise InputError("prompt", f"unknown template {key!r}; known: {sorted(self.prompts)}")
        return self.prompts[key]

    def answer_template(self, name: str | None) -> PromptTemplate:
        """Return the template called `name`, the one for JSON answers for None.

        Raises:
            InputError: no such template; the text lists those there are.
        """
        return self._template(self.answer_prompt if name is None else name, JSON_ANSWER)

    def annotate_template(self, name: str | None) -> PromptTemplate:
        """Return the template called `name`, the one for texts with links for None.

        Raises:
            InputError: no such template; the text lists those there are.
        """
        return self._template(self.annotate_prompt if name is None else name, ANNOTATE)

    def _template(self, name: str | None, built_in: PromptTemplate) -> PromptTemplate:
        """The template of a name; without one the built-in, or a taught checkpoint's own default."""
        if name is not None:
            return self.prompt(name)
        default = self.prompt(None)
        return built_in if default in BUILT_IN.values() else default

    def save(self, folder: Path) -> None:
        """Write `genret.json` into a checkpoint directory."""
        document = {
            "format_version": CONFIG_VERSION,
            "default_prompt": self.default_prompt,
            "mention_prompt": self.mention_prompt,
            "answer_prompt": self.answer_prompt,
            "rendering": self.rendering.to_json() if self.rendering else None,
            "prompts": {
                name: {field_name: getattr(template, field_name) for field_name in _TEMPLATE_FIELDS}
                for name, template in sorted(self.prompts.items())
            },
        }
        # Releases that do not know one of these refuse the file.
        if self.annotate_prompt is not None:
            document["annotate_prompt"] = self.annotate_prompt
        if self.title_weight != DEFAULT_TITLE_WEIGHT:
            document["title_weight"] = self.title_weight
        if self.name_evidence != NameEvidence():
            document["name_evidence"] = asdict(self.name_evidence)
        if self.base is not None:
            document["base"] = self.base
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        (folder / SETTINGS_FILE).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> CheckpointConfig:
        """Read `genret.json`; built-in templates when the checkpoint has none.

        Raises:
            ModelError: the file is there and malformed.
        """
        file = settings_folder(folder) / SETTINGS_FILE
        if not file.is_file():
            return cls()
        try:
            return cls._parse(json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{file}: malformed: {error}") from error

    @classmethod
    def _parse(cls, document: object) -> CheckpointConfig:
        fields = _object("the document", document)
        version = fields.pop("format_version", None)
        if version != CONFIG_VERSION:
            raise ValueError(f"format_version: expected {CONFIG_VERSION}, got {version!r}")
        prompts = dict(BUILT_IN)
        for name, value in _object("prompts", fields.pop("prompts", {})).items():
            prompts[name] = _template(name, value)
        rendering = fields.pop("rendering", None)
        defaults = {name: fields.pop(name, getattr(cls(), name)) for name in _DEFAULT_PROMPTS}
        fields.pop("vector_weight", None)  # of earlier checkpoints: what vectors count, each index now says
        title_weight = _factor("title_weight", fields.pop("title_weight", DEFAULT_TITLE_WEIGHT))
        evidence = _name_evidence(fields.pop("name_evidence", {}))
        base = fields.pop("base", None)
        if base is not None:
            check_text("base", base)
        if fields:
            raise ValueError(f"unknown keys {sorted(fields)}")
        for name, value in defaults.items():
            if value not in list(prompts) and not (name in _MAY_BE_UNSET and value is None):
                raise ValueError(f"{name}: unknown template {value!r}; known: {sorted(prompts)}")
        return cls(
            prompts=prompts,
            rendering=Rendering.from_json(rendering) if rendering is not None else None,
            title_weight=title_weight,
            name_evidence=evidence,
            base=base,
            **defaults,
        )


def _template(name: str, value: object) -> PromptTemplate:
    fields = _object(f"prompts.{name}", value)
    unknown = sorted(set(fields) - set(_TEMPLATE_FIELDS))
    if unknown:
        raise ValueError(f"prompts.{name}: unknown keys {unknown}; known: {sorted(_TEMPLATE_FIELDS)}")
    try:
        return PromptTemplate(name=name, **fields)
    except InputError as error:
        raise ValueError(f"prompts.{name}.{error}") from None


def _name_evidence(value: object) -> NameEvidence:
    fields = _object("name_evidence", value)
    if unknown := sorted(set(fields) - set(asdict(NameEvidence()))):
        raise ValueError(f"name_evidence: unknown keys {unknown}; known: {sorted(asdict(NameEvidence()))}")
    return NameEvidence(**{name: _factor(f"name_evidence.{name}", one) for name, one in fields.items()})


def _factor(name: str, value: object) -> float:
    return number(name, value, MIN_TITLE_WEIGHT, MAX_TITLE_WEIGHT)


def _object(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name}: expected a JSON object, got {type(value).__name__}")
    return dict(value)
