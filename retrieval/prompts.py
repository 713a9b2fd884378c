"""Prompt templates: how a query is put to the model, and `genret.json`, which a checkpoint carries.

Markup and user text are tokenised separately, so a query can never forge a special token, and the markup's
KV can be shared by all queries.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from genret.retrieval.arguments import check_count, check_text
from genret.retrieval.checkpoints import SETTINGS_FILE, json_object, settings_folder, weights_folder
from genret.retrieval.errors import InputError, ModelError
from genret.retrieval.text import Rendering, TextTokenizer
from genret.retrieval.types import DEFAULT_TITLE_WEIGHT, Mention

CONFIG_VERSION = 1
_LONGEST_SHOWN = 80  # characters of a wrong value in a message
_KINDS = {
    "object": "a JSON object",
    "string": "text",
    "null": "null",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
}

# The contract of the file, field by field; docs/prompts.md shows it as a table.
SCHEMA_FILE = Path(__file__).with_name("genret.schema.json")

_TEMPLATE_TEXTS = ("prefix", "before_query", "suffix", "mention_format")
_TEMPLATE_FIELDS = (*_TEMPLATE_TEXTS, "context_chars", "lowercase", "special_tokens")
_DEFAULT_PROMPTS = ("default_prompt", "mention_prompt", "answer_prompt", "annotate_prompt")

# Chosen by measurement, see docs/prompts.md. None of the answers is one of the sample's dev or test queries.
QUERY_SHOTS = (
    ("which metal is liquid at room temperature", "Mercury (element)"),
    ("painter of the mona lisa", "Leonardo da Vinci"),
    ("large river through the jungle of brazil", "Amazon River"),
    ("here's looking at you kid, humphrey bogart", "Casablanca (film)"),
    ("planet with the rings", "Saturn"),
    ("tallest animal, long neck, eats acacia leaves", "Giraffe"),
)
# Most are called what the text calls them: examples that all are called otherwise teach a model to rename.
MENTION_SHOTS = (
    ("She flew from [Lisbon] to Rome with two suitcases and a violin", "Lisbon"),
    ("The laws that [Newton] found hold for apples and for moons", "Isaac Newton"),
    ("Between Venus and Mars, and far from [Saturn], lies the Earth", "Saturn"),
    ("Bogart was never better than in [Casablanca], and the ending is perfect", "Casablanca (film)"),
    ("They ate [paella] on the beach until midnight", "Paella"),
    ("He drove his old [Volvo] through the snow", "Volvo"),
)
# Schema and query, and the answer: a message and a question. Small models copy values of examples that are
# like the query: with two questions about famous names they answered half of all questions with these.
ANSWER_SHOTS = (
    (
        '{"type":"object","properties":{"sender":{"type":"string","description":"who wrote"},'
        '"mood":{"enum":["happy","angry","neutral"]},'
        '"asks_for":{"type":"string","description":"what is asked for, in a few words"}}}\n'
        "Query: Hi, this is Ben. My lamp came broken for the second time, send me a new one.",
        '{"sender": "Ben", "mood": "angry", "asks_for": "a new lamp"}',
    ),
    (
        '{"type":"object","properties":{"name":{"type":"string"},"kind":{"enum":["planet","metal","painter"]},'
        '"facts":{"type":"array","items":{"type":"string"}}}}\nQuery: planet with the rings',
        '{"name": "Saturn", "kind": "planet", "facts": ["sixth planet from the Sun", "has rings of ice"]}',
    ),
)
SCHEMA_PLACE = "{schema}"  # where a template for JSON answers shows the schema
TITLE_START = "Entity:"  # what stands right before a title in all built-in templates for queries
MENTION_FORMAT, MENTION_CONTEXT_CHARS = "{left}[{mention}]{right}", 200


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """Markup before and after the user's text.

    Attributes:
        name: Name in requests.
        prefix: Markup before the query; special tokens in it are special.
        before_query: Plain text right before the query and tokenised with it, e.g. a blank.
        suffix: Markup between the query and the title.
        mention_format: Query text of a mention; `{left}`, `{mention}` and `{right}` stand for its parts.
        context_chars: Most characters of left and of right context used for a mention.
        lowercase: Whether the user's text is put in lower case, for models taught on such text only.
        special_tokens: Whether the prompt gets the special tokens that the tokenizer itself puts around a
            text, as pretrained models expect.
        rendering: How titles stand behind this prompt; None: as the checkpoint says.
        schema: User's text in the place of `SCHEMA_PLACE` in prefix and suffix. Given by `showing`, and in no
            file.
    """

    name: str
    prefix: str = ""
    before_query: str = ""
    suffix: str = ""
    mention_format: str = "{mention}"
    context_chars: int = 0
    lowercase: bool = False
    special_tokens: bool = False
    rendering: Rendering | None = None
    schema: str = ""

    def __post_init__(self) -> None:
        for name in ("name", *_TEMPLATE_TEXTS):
            check_text(name, getattr(self, name))
        check_count("context_chars", self.context_chars)
        for name in ("lowercase", "special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(name, f"must be true or false, got {getattr(self, name)!r}")
        if "{mention}" not in self.mention_format:
            raise InputError("mention_format", "must contain {mention}")

    def showing(self, schema: str) -> PromptTemplate:
        """Return the template with the schema of an answer; unchanged where it has no place for one."""
        return replace(self, schema=schema) if SCHEMA_PLACE in self.prefix + self.suffix else self

    def shared_tokens(self, tokenizer: TextTokenizer) -> list[int]:
        """Return the tokens that the prompt of every query begins with."""
        leading = tokenizer.frame[0] if self.special_tokens else []
        return [*leading, *self._markup(tokenizer, self.prefix)]

    def encode(self, tokenizer: TextTokenizer, query: str) -> list[int]:
        """Return prompt token ids for one query."""
        text = self.before_query + (query.lower() if self.lowercase else query)
        trailing = tokenizer.frame[1] if self.special_tokens else []
        return [
            *self.shared_tokens(tokenizer),
            *tokenizer.encode_text(text, after=self.prefix),
            *self._markup(tokenizer, self.suffix, after=text),
            *trailing,
        ]

    def _markup(self, tokenizer: TextTokenizer, markup: str, after: str = "") -> list[int]:
        before, place, behind = markup.partition(SCHEMA_PLACE)
        ids = tokenizer.encode_markup(before, after=after)
        if place:
            ids += tokenizer.encode_text(self.schema, after=before or after)
            ids += tokenizer.encode_markup(behind, after=self.schema)
        return ids

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


def _shots(kind: str, shots: Iterable[tuple[str, str]]) -> str:
    return "".join(f"\n{kind}: {asked}\n{TITLE_START} {title}\n" for asked, title in shots)


# Of decoders. An encoder-decoder begins a title from nothing: `CheckpointConfig.load` leaves them out.
_BEHIND_START = Rendering(context=TITLE_START, prefix=" ")
_ON_A_LINE = Rendering(context=TITLE_START, prefix=" ", end_token="\n")


def _built_in(name: str, prefix: str, suffix: str, titles: Rendering | None = None) -> PromptTemplate:
    return PromptTemplate(name, prefix, " ", suffix, special_tokens=True, rendering=titles)


def _for_mentions(template: PromptTemplate) -> PromptTemplate:
    return replace(template, mention_format=MENTION_FORMAT, context_chars=MENTION_CONTEXT_CHARS)


PLAIN = _built_in("plain", "Query:", f"\n{TITLE_START}", _BEHIND_START)
FEW_SHOT = _built_in(
    "few-shot",
    "Retrieve the entity for my query.\n" + _shots("Query", QUERY_SHOTS) + "\nQuery:",
    f"\n{TITLE_START}",
    _ON_A_LINE,
)
_MENTION_START = "The marked words mean:"
MENTION = _for_mentions(
    _built_in("mention", "Text:", f"\n{_MENTION_START}", Rendering(context=_MENTION_START, prefix=" "))
)
FEW_SHOT_MENTION = _for_mentions(
    _built_in(
        "few-shot-mention",
        "Name the entity that the words in brackets mean.\n" + _shots("Text", MENTION_SHOTS) + "\nText:",
        f"\n{TITLE_START}",
        _ON_A_LINE,
    )
)
_ANSWER = "Answer the query with JSON that follows the schema.\n"
_ANSWERED = "".join(f"\nSchema: {asked}\nJSON:\n{answer}\n" for asked, answer in ANSWER_SHOTS)
JSON_ANSWER = _built_in("json", f"{_ANSWER}{_ANSWERED}\nSchema: {SCHEMA_PLACE}\nQuery:", "\nJSON:\n")
# For models with few positions, where the schema would leave little for the answer.
JSON_BRIEF = _built_in("json-brief", "Answer the query with JSON.\nQuery:", "\nJSON:\n")
ANNOTATE = _built_in("annotate", "Link the names in the text.\nText:", "\nText with links:\n")
BUILT_IN = {
    template.name: template
    for template in (PLAIN, FEW_SHOT, MENTION, FEW_SHOT_MENTION, JSON_ANSWER, JSON_BRIEF, ANNOTATE)
}
_BUILT_IN_MARKUP = frozenset(replace(template, rendering=None) for template in BUILT_IN.values())
_PLACE = "GENRETUSERTEXT"  # of the user's text in a chat template


class ChatTemplate:
    """The chat template of a checkpoint directory. Nothing is loaded before a prompt asks for it.

    It is rendered by transformers in its sandbox, with a placeholder for the user's text. The parts around
    the placeholder are markup like any other: the text itself never passes through the template.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._prompts: dict[str, PromptTemplate] = {}

    @classmethod
    def of(cls, folder: Path) -> ChatTemplate | None:
        """Return the chat template of a directory; None where it has none."""
        if (folder / "chat_template.jinja").is_file():
            return cls(folder)
        try:
            declared = json.loads((folder / "tokenizer_config.json").read_bytes())
        except (OSError, ValueError):
            return None  # loading the tokenizer gives the better error
        return cls(folder) if isinstance(declared, dict) and declared.get("chat_template") else None

    def prompt(self, name: str) -> PromptTemplate:
        """Return the prompt template of a name among `CHAT_PROMPTS`, made when it is first asked for."""
        if name not in self._prompts:
            self._prompts[name] = CHAT_PROMPTS[name].template(name, self)
        return self._prompts[name]

    def around_query(
        self, turns: Sequence[tuple[str, str]], ask: str, start: str
    ) -> tuple[str, str, str | None]:
        """Return the markup around the user's text, which ends the last user turn of a conversation.

        The third is the token that ends the assistant's turn; None: the turn ends with the title.

        Args:
            turns: Earlier turns, each of the user and of the assistant.
            ask: Words before the text in the last turn of the user.
            start: First words of the assistant's last turn, before the title; may be empty.

        Raises:
            InputError: the template cannot be rendered, or does not show user and assistant as they are.
        """
        said = [
            {"role": role, "content": text}
            for turn in turns
            for role, text in zip(("user", "assistant"), turn, strict=True)
        ]
        asked = [*said, {"role": "user", "content": ask + _PLACE}]
        if start:
            asked.append({"role": "assistant", "content": start})
        before, after = self._parted(
            asked, continue_final_message=bool(start), add_generation_prompt=not start
        )
        if not after.endswith(start):
            raise self._error(f"the assistant's turn must go on behind {start!r}, got {after[-40:]!r}")
        ended = [{"role": "user", "content": ask}, {"role": "assistant", "content": start + _PLACE}]
        _, behind = self._parted(ended)
        return before, after, self._first_token(behind)

    def _parted(self, messages: list[dict[str, str]], **options: bool) -> tuple[str, str]:
        """Render messages, one of which holds the placeholder, and return the parts around it."""
        import jinja2

        try:
            rendered = self._tokenizer.apply_chat_template(messages, tokenize=False, **options)
        except (jinja2.TemplateError, LookupError, TypeError, ValueError) as error:
            raise self._error(f"cannot be rendered: {error}") from error
        parts = rendered.split(_PLACE)
        if len(parts) != 2:
            raise self._error(f"expected to show the user's text once, got it {len(parts) - 1} times")
        return parts[0], parts[1]

    def _first_token(self, markup: str) -> str | None:
        """Return the first token of markup as the vocabulary has it; None for empty markup."""
        ids = self._tokenizer.encode(markup, add_special_tokens=False)
        return None if not ids else str(self._tokenizer.convert_ids_to_tokens(ids[0]))

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import PreTrainedTokenizerFast  # transformers takes seconds to import

        try:
            return PreTrainedTokenizerFast.from_pretrained(str(self._folder), local_files_only=True)
        except (OSError, ValueError, TypeError, LookupError) as error:
            raise self._error(f"its tokenizer cannot be loaded: {error}") from error

    def _error(self, message: str) -> InputError:
        return InputError("prompt", f"the chat template of {self._folder}: {message}")


@dataclass(frozen=True, slots=True)
class _Chat:
    """A conversation that ends where a title begins: earlier turns show how, the last has the user's text.

    Attributes:
        ask: The first words of every turn of the user.
        shots: The rest of each earlier turn of the user, and the assistant's answer to it.
        last: The text between `ask` and the user's own text, in the last turn.
        start: The first words of every answer; empty where answers are no titles.
    """

    ask: str
    shots: tuple[tuple[str, str], ...]
    mention_format: str = "{mention}"
    context_chars: int = 0
    last: str = " "
    start: str = TITLE_START

    def template(self, name: str, chat: ChatTemplate) -> PromptTemplate:
        """Return the conversation in the words of a checkpoint's chat template."""
        turns = [(f"{self.ask} {asked}", f"{self.start} {answer}".lstrip()) for asked, answer in self.shots]
        before, after, end = chat.around_query(turns, self.ask + self.last, self.start)
        titles = Rendering(context=self.start, prefix=" ", end_token=end)
        return PromptTemplate(
            name=name,
            prefix=before.removesuffix(" "),
            before_query=" " if before.endswith(" ") else "",
            suffix=after,
            mention_format=self.mention_format,
            context_chars=self.context_chars,
            rendering=titles if self.start else None,
        )


CHAT_PROMPTS = {
    "chat": _Chat("Query:", QUERY_SHOTS),
    "chat-mention": _Chat("Text:", MENTION_SHOTS, MENTION_FORMAT, MENTION_CONTEXT_CHARS),
    # An assistant whose turn begins with nothing is surer of JSON than one that begins with "JSON:".
    "chat-json": _Chat(f"{_ANSWER}Schema:", ANSWER_SHOTS, last=f" {SCHEMA_PLACE}\nQuery: ", start=""),
}


@dataclass(frozen=True, slots=True)
class NameEvidence:
    """Weights of evidence among the entities that a text calls by one name (docs/numbers.md).

    Attributes:
        mention: Probability that is added to what the model gives the name as the text has it. The less a
            model knows of a catalogue, the larger it should be.
        spelling: Factor for an entity whose name is spelled as in the text, letter case included.
        context: Factor for one of whose title another word stands near the mention.
    """

    mention: float = 0.5
    spelling: float = 5.0
    context: float = 9.0


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """The contents of `genret.json` beside a checkpoint: its prompts and how its titles are rendered.

    Attributes:
        prompts: Templates by name.
        default_prompt: Template used for queries.
        mention_prompt: Template used for mentions.
        answer_prompt: Template used for JSON answers; None: the built-in "json", or the default template of a
            checkpoint that was taught with one of its own.
        rendering: How the model was taught to write a title; None when the file says nothing.
        annotate_prompt: Template used for texts that are written again with links in them; None: the built-in
            "annotate", or as with `answer_prompt`.
        title_weight: As in `RetrieveRequest`, for requests that have none.
        name_evidence: Weights of other evidence where a text is linked among the entities of one name.
        base: Base of an adapter, where its `adapter_config.json` names another; see `retrieval.checkpoints`.
        chat: The checkpoint's chat template, for the prompts `CHAT_PROMPTS`; None: it has none.
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
    chat: ChatTemplate | None = field(default=None, compare=False)

    @property
    def known_prompts(self) -> list[str]:
        """Names of all templates, in alphabetical order."""
        return sorted({*self.prompts, *(CHAT_PROMPTS if self.chat is not None else ())})

    def prompt(self, name: str | None) -> PromptTemplate:
        """Return the template called `name`, the default one for None; InputError lists those there are."""
        key = self.default_prompt if name is None else name
        if key in self.prompts:
            return self.prompts[key]
        if key not in CHAT_PROMPTS:
            raise InputError("prompt", f"unknown template {key!r}; known: {self.known_prompts}")
        if self.chat is None:
            raise InputError(
                "prompt",
                f"{key!r} needs a checkpoint with a chat template (chat_template.jinja, or chat_template in "
                f"tokenizer_config.json), and this one has none; known: {self.known_prompts}",
            )
        return self.chat.prompt(key)

    @property
    def is_default_built_in(self) -> bool:
        """Whether the default template is a built-in one, not one that the checkpoint was taught with."""
        if self.default_prompt not in self.prompts:
            return True  # of the chat template
        return replace(self.prompt(None), rendering=None) in _BUILT_IN_MARKUP

    @property
    def knows_titles_alone(self) -> bool:
        """Whether the checkpoint was taught titles with a template of its own, and no JSON documents."""
        return self.answer_prompt is None and not self.is_default_built_in

    def of_base(self, folder: Path) -> CheckpointConfig:
        """Return the config for the answers of an adapter's base, which `folder` describes.

        Its own prompts come first. Without one for answers it is asked as a chat model if it has a chat
        template. ModelError as of `load`.
        """
        base = CheckpointConfig.load(folder)
        chosen = base.answer_prompt
        if chosen is None and base.is_default_built_in:
            chosen = JSON_ANSWER.name if base.chat is None else "chat-json"
        return replace(base, prompts={**self.prompts, **base.prompts}, answer_prompt=chosen)

    def with_prompt(self, name: str | None) -> CheckpointConfig:
        """Return the config with another default template; unchanged for None. Raises as `prompt` does."""
        if name is None:
            return self
        self.prompt(name)
        return replace(self, default_prompt=name)

    def title_rendering(self) -> Rendering:
        """Return how titles stand behind the default template, which an index for it is built with."""
        return self.rendering or self.prompt(None).rendering or Rendering()

    def answer_template(self, name: str | None) -> PromptTemplate:
        """Return the template called `name`, for None the one for JSON answers. Raises as `prompt` does."""
        return self._template(self.answer_prompt if name is None else name, JSON_ANSWER)

    def annotate_template(self, name: str | None) -> PromptTemplate:
        """Return the template called `name`, for None the one for annotations. Raises as `prompt` does."""
        return self._template(self.annotate_prompt if name is None else name, ANNOTATE)

    def _template(self, name: str | None, built_in: PromptTemplate) -> PromptTemplate:
        """Return a template; without a name the built-in one, or a taught checkpoint's own default."""
        if name is not None:
            return self.prompt(name)
        return built_in if self.is_default_built_in else self.prompt(None)

    def save(self, folder: Path) -> None:
        """Write `genret.json` into a checkpoint directory.

        Templates are written in full, so that later changes of built-in ones, or of the chat template, do not
        change what an index was built for.
        """
        defaults = {name: getattr(self, name) for name in _DEFAULT_PROMPTS}
        names = {*self.prompts, *(name for name in defaults.values() if name is not None)}
        document: dict[str, Any] = {
            "format_version": CONFIG_VERSION,
            "default_prompt": self.default_prompt,
            "mention_prompt": self.mention_prompt,
            "answer_prompt": self.answer_prompt,
            "rendering": self.rendering.to_json() if self.rendering else None,
            "prompts": {name: _template_json(self.prompt(name)) for name in sorted(names)},
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
        """Read `genret.json`, or take what is built in; ModelError names file, field, expected and got."""
        settings = settings_folder(folder)
        built_in, file = cls.built_in(weights_folder(settings)), settings / SETTINGS_FILE
        if not file.is_file():
            return built_in
        try:
            document = json.loads(file.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
            check_document(document)
            return built_in._with_document(document)
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{file}: malformed: {error}") from error

    @classmethod
    def built_in(cls, folder: Path) -> CheckpointConfig:
        """Return the config of a checkpoint without `genret.json`; ModelError for a bad `config.json`."""
        prompts = dict(BUILT_IN)
        file = folder / "config.json"
        if file.is_file() and json_object(file).get("is_encoder_decoder", False):
            prompts = {name: replace(template, rendering=None) for name, template in prompts.items()}
        return cls(prompts=prompts, chat=ChatTemplate.of(folder))

    def _with_document(self, document: dict[str, Any]) -> CheckpointConfig:
        """Return the config with the fields of a document that follows the schema."""
        own = {name: _template(name, value) for name, value in document.get("prompts", {}).items()}
        rendering = document.get("rendering")
        taken = (*_DEFAULT_PROMPTS, "title_weight", "base")
        plain = {name: document[name] for name in taken if name in document}
        config = replace(
            self,
            prompts={**self.prompts, **own},
            rendering=Rendering.from_json(rendering) if rendering is not None else None,
            name_evidence=NameEvidence(**document.get("name_evidence", {})),
            **plain,
        )
        for field_name in _DEFAULT_PROMPTS:
            name = getattr(config, field_name)
            if name is not None and name not in config.known_prompts:
                try:
                    config.prompt(name)
                except InputError as error:
                    raise ValueError(f"{field_name}: {error.message}") from None
        return config


def check_document(document: object) -> None:
    """Check the content of `genret.json`; ValueError names the field, what was expected and got."""
    from jsonschema import Draft202012Validator  # takes a tenth of a second to import

    validator = Draft202012Validator(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))
    error = next(iter(validator.iter_errors(document)), None)
    if error is not None:
        raise ValueError(_said(error))


def _said(error: Any) -> str:
    """Return a violation of the schema as "field: expected ..., got ..."."""
    where, got = list(error.absolute_path), json.dumps(error.instance, ensure_ascii=False)
    match error.validator:
        case "required":
            (name,) = (name for name in error.validator_value if name not in error.instance)
            where, expected, got = [*where, name], f"{error.schema['properties'][name]['const']}", "nothing"
        case "additionalProperties":
            known = sorted(error.schema["properties"])
            unknown = sorted(set(error.instance) - set(known))
            expected, got = f"fields among {known}", f"unknown {unknown}"
        case "type":
            kinds = error.validator_value
            kinds = kinds if isinstance(kinds, list) else [kinds]
            expected = " or ".join(_KINDS[kind] for kind in kinds)
        case "minimum" | "maximum":
            low, high = error.schema["minimum"], error.schema.get("maximum")
            expected = f"at least {low}" if high is None else f"a number in [{low:g}, {high:g}]"
        case "pattern":
            expected = "text with {mention} in it"
        case _:
            expected = json.dumps(error.validator_value)
    name = ".".join(map(str, where)) or "the document"
    shown = got if len(got) <= _LONGEST_SHOWN else got[:_LONGEST_SHOWN] + "…"
    return f"{name}: expected {expected}, got {shown}"


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"expected JSON, got {constant}, which is no number of JSON")


def _template_json(template: PromptTemplate) -> dict[str, Any]:
    fields: dict[str, Any] = {name: getattr(template, name) for name in _TEMPLATE_FIELDS}
    if template.rendering is not None:  # releases that do not know it refuse the file
        fields["rendering"] = template.rendering.to_json()
    return fields


def _template(name: str, value: dict[str, Any]) -> PromptTemplate:
    rendering = value.get("rendering")
    own = None if rendering is None else Rendering.from_json(rendering)
    try:
        return PromptTemplate(**{**value, "name": name, "rendering": own})
    except InputError as error:
        raise ValueError(f"prompts.{name}.{error}") from None
