"""Draws (prompt text, title) pairs without end from a catalogue, its training queries and labelled mentions.

Six recipes teach six skills: to write a title for its title or alias, for its description, for a person's
query, for a handful of words about it, for a mention in running text, and for a name never seen before
(copying). Their shares change over the run: names first, meaning later. A sentence encoder learns from the
same queries, each beside a text of its entity.

Some examples ask for a JSON document: a model that has only written bare titles is lost behind `{"title": "`.
Others ask for a text with links: mentions of one text are put together, and names without a label are taught
as not to be linked.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, NamedTuple

from genret.decoding.markup.link_syntax import spelled_text, spelled_title
from genret.retrieval.noise import (
    drop_words,
    insert_words,
    recase,
    reorder_clauses,
    shorten,
    strip_accents,
    typo,
)
from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.training.training_data import (
    LabelledMention,
    TrainingEntity,
    TrainingQuery,
    training_queries,
)
from genret.retrieval.types import Mention

_WORD = re.compile(r"[^\W_]+(?:['’.-][^\W_]+)*")
_STOPWORDS = frozenset(
    """
    a an and are as at be been by can did do does for from had has have he her him his how i in into
    is it its made me name named of on one or s she so some such than that the their them there they
    this to under up used was were what when where which while who whom whose why with would you
    your
    """.split()  # noqa: SIM905 - a list literal would fill a page
)
_QUESTIONS = (
    "what is the {}", "which is the {}", "what's the name of the {}", "who is the {}", "name the {}",
    "the {}", "a {}", "{}", "{}", "{}?", "what do you call the {}", "looking for the {}",
    "that {}", "which {}", "what {}", "who was the {}", "tell me the {}",
)  # fmt: skip
_KIND_QUESTIONS = (
    "which {kind} is {}", "what {kind} is the {}", "{kind} {}", "{kind}: {}", "{} {kind}", "the {kind} of {}",
    "name of the {kind} with {}", "{kind} known for {}", "which {kind} {}", "what {kind} {}",
)  # fmt: skip
_SENTENCES = (
    ("we talked about", "for an hour"), ("she wrote a book on", ""), ("", "is mentioned in the report"),
    ("according to", ", this was wrong"), ("the history of", "is long"), ("he had heard of", "before"),
    ("an article about", "appeared yesterday"), ("", ""), ("compared with", "it is small"),
)  # fmt: skip


RECIPES = ("name", "description", "query", "keywords", "mention", "invented")
# Weights of the recipes, which need no particular sum.
COPYING_FIRST = dict(zip(RECIPES, (0.5, 0.12, 0.12, 0.08, 0.03, 0.15), strict=True))
LATER = dict(zip(RECIPES, (0.15, 0.13, 0.26, 0.36, 0.06, 0.05), strict=True))
# With labelled mentions, which teach most of what sentences around a name can: their share grows.
LATER_WITH_MENTIONS = dict(zip(RECIPES, (0.17, 0.08, 0.24, 0.12, 0.34, 0.05), strict=True))
# For a pretrained model with training queries, which can read and copy: mostly what people ask.
OF_PRETRAINED = dict(zip(RECIPES, (0.13, 0.06, 0.57, 0.16, 0.08, 0.0), strict=True))
# For a sentence encoder, which copies nothing and reads no mentions.
BESIDE_TEXTS = dict(zip(RECIPES, (0.25, 0.2, 0.3, 0.25, 0.0, 0.0), strict=True))
_ALIAS_TARGET = 0.15  # share of the alias inputs whose target is the alias itself, not the title
_LABELLED_SHARE = 0.8  # of the mentions, where there are labelled ones
_QUERY_AS_TEXT = 0.3  # of the texts beside queries, where the entity has training queries


@dataclass(frozen=True, slots=True)
class ExampleOptions:
    """Options of the generator."""

    # Weights of the recipes at the start, and from `ramp_examples` on; between the two they change linearly
    first: Mapping[str, float] = field(default_factory=COPYING_FIRST.copy)
    later: Mapping[str, float] = field(default_factory=LATER.copy)
    ramp_examples: int = 40_000  # length of the change, in examples
    clean: float = 0.35  # share of names and queries left as written (apart from letter case)
    # Share of the examples with a query whose target is a JSON document with the title in it
    answers: float = 0.0
    # Share of the examples with a labelled mention whose target is the text with links in it
    annotations: float = 0.0
    texts: bool = False  # whether every example has a text of its entity, for a sentence encoder


@dataclass(frozen=True, slots=True)
class Example:
    """One training pair."""

    title: str  # title to be written
    recipe: str  # recipe that made it
    query: str | None = None  # query text, or None if `mention` is set
    mention: Mention | None = None  # mention in context, for the mention template
    # JSON to be written in the title's place, for the template of answers; None: the bare title
    document: str | None = None
    # Text around the mention, to be written again with its links; None: the bare title
    linked: LinkedText | None = None
    # Entity that the query was made from; None: none, or only its title is known
    entity_id: str | None = None
    text: str | None = None  # title, alias, description or training query of that entity, or None


@dataclass(frozen=True, slots=True)
class _Source:
    entity: TrainingEntity
    texts: tuple[str, ...]  # description and train queries
    queries: tuple[str, ...]
    words: tuple[str, ...] = ()  # content words of all texts, aliases and the kind
    word_weights: tuple[float, ...] = ()
    partial: tuple[str, ...] = field(default=())  # parts of names that no other entity has


class ExampleGenerator:
    """Draws examples from some entities, `training_queries` and mentions; `draw(i, random)` is the i-th."""

    def __init__(
        self,
        entities: Sequence[TrainingEntity],
        queries: Sequence[TrainingQuery] = (),
        options: ExampleOptions | None = None,
        mentions: Sequence[LabelledMention] = (),
    ) -> None:
        self.options = options or ExampleOptions()
        texts: dict[str, list[str]] = {entity.entity_id: [] for entity in entities}
        for query in training_queries(queries):
            texts[query.entity_id].append(query.text)
        self._sources = _sources(entities, texts)
        self._by_id = {source.entity.entity_id: source for source in self._sources}
        self._described = [s for s in self._sources if s.entity.description]
        self._queried = [s for s in self._sources if s.queries]
        self._worded = [s for s in self._sources if len(s.words) >= 2]
        self._strangers = sorted({w for s in self._sources for w in s.words}) or [entities[0].title]
        self._name_words = sorted({word for entity in entities for word in entity.title.split()})
        self._kinds = {entity.title: entity.kind for entity in entities}
        self._mentions = mentions
        self._linked = linked_texts(mentions) if self.options.annotations else []

    def draw(self, index: int, random: Random) -> Example:
        """Return one example of the mixture due at position `index` of the run."""
        example = self._draw(index, random)
        if self.options.texts and example.entity_id is not None:
            return replace(example, text=_text(self._by_id[example.entity_id], random))
        share = self.options.answers
        if not share or example.mention is not None or random.random() >= share:
            return example
        document = answer_document(example.title, self._kinds.get(example.title, ""), random)
        return replace(example, document=document)

    def _draw(self, index: int, random: Random) -> Example:
        weights = self._weights(index)
        recipe = random.choices(list(weights), weights=list(weights.values()))[0]
        if recipe == "description" and self._described:
            return self._description(random.choice(self._described), random)
        if recipe == "query" and self._queried:
            return self._query(random.choice(self._queried), random)
        if recipe == "keywords" and self._worded:
            return self._keywords(random.choice(self._worded), random)
        if recipe == "mention" and self._mentions and random.random() < _LABELLED_SHARE:
            number = random.choice(range(len(self._mentions)))
            labelled, share = self._mentions[number], self.options.annotations
            linked = self._linked[number] if share > 0 and random.random() < share else None
            return Example(labelled.title, "mention", mention=labelled.mention, linked=linked)
        if recipe == "mention":
            return self._mention(random.choice(self._sources), random)
        if recipe == "invented":
            return self._invented(random)
        return self._name(random.choice(self._sources), random)

    def _weights(self, index: int) -> Mapping[str, float]:
        ramp = self.options.ramp_examples
        late = 1.0 if ramp == 0 else min(1.0, index / ramp)
        first, later = self.options.first, self.options.later
        return {recipe: (1 - late) * first[recipe] + late * later[recipe] for recipe in RECIPES}

    def _name(self, source: _Source, random: Random) -> Example:
        entity = source.entity
        title, text = entity.title, entity.title
        if entity.aliases and random.random() < 0.6:
            text = random.choice(entity.aliases)
            if random.random() < _ALIAS_TARGET:
                title = text
        elif source.partial and random.random() < 0.25:
            text = random.choice(source.partial)
        if random.random() >= self.options.clean:
            text = damage_name(text, random)
        return Example(title, "name", query=_typed(text, random), entity_id=entity.entity_id)

    def _description(self, source: _Source, random: Random) -> Example:
        text = source.entity.description
        if random.random() < 0.3:
            text = reorder_clauses(text, random)
        if random.random() < 0.6:
            text = shorten(text, random, min_words=4)
        text = self._asked(self._damage_text(text, random), source, random)
        return _asking(source, "description", text, random)

    def _query(self, source: _Source, random: Random) -> Example:
        text = random.choice(source.queries)
        if random.random() >= self.options.clean:
            text = self._damage_text(text, random)
        return _asking(source, "query", text, random)

    def _keywords(self, source: _Source, random: Random) -> Example:
        if random.random() < 0.3 and len(source.texts) >= 2:
            pair = random.sample(source.texts, 2)
            text = ", ".join(shorten(part, random, min_words=3) for part in pair)
            text = self._damage_text(text, random)
        else:
            count = min(len(source.words), random.randint(2, 7))
            # Weighted sampling without replacement (Efraimidis and Spirakis 2006).
            keyed = sorted(
                ((random.random() ** (1 / weight), i) for i, weight in enumerate(source.word_weights)),
                reverse=True,
            )
            picked = [i for _, i in keyed[:count]]
            if random.random() < 0.5:
                picked.sort()
            words = [source.words[i] for i in picked]
            if random.random() < 0.5:
                glue = random.choices(("of", "in", "the", "with", "and", "from", "that", "for"), k=len(words))
                words = [w for g, word in zip(glue, words, strict=True) for w in (g, word)][1:]
            text = " ".join(words)
            if random.random() < 0.25:
                text = insert_words(text, self._strangers, random.randint(1, 2), random)
            if random.random() < 0.4:
                text = self._asked(text, source, random)
        return _asking(source, "keywords", text, random)

    def _mention(self, source: _Source, random: Random) -> Example:
        surface = random.choice(source.entity.surfaces)
        bare = surface.split(" (")[0]
        text = bare if random.random() < 0.7 else damage_name(bare, random)
        left, right = random.choice(_SENTENCES)
        if source.texts and random.random() < 0.7:
            clue = shorten(random.choice(source.texts), random, min_words=4)
            if random.random() < 0.5:
                left = f"{clue} {left}".strip()
            else:
                right = f"{right} {clue}".strip()
        mention = Mention(text if random.random() < 0.8 else text.lower(), left=left, right=right)
        return Example(source.entity.title, "mention", mention=mention)

    def _invented(self, random: Random) -> Example:
        """Ask for a name that no entity has, which must be copied, not remembered."""
        count = random.choices((1, 2, 3, 4), weights=(2, 4, 3, 1))[0]
        words = random.sample(self._name_words, min(count, len(self._name_words)))
        if random.random() < 0.4:
            word = random.choice(self._strangers)
            words[random.randrange(len(words))] = word[0].upper() + word[1:]
        title = " ".join(words)
        return Example(title, "invented", query=_typed(title, random))

    def _damage_text(self, text: str, random: Random) -> str:
        if random.random() < 0.5:
            text = drop_words(text, random.uniform(0.05, 0.35), random)
        if random.random() < 0.15:
            text = insert_words(text, self._strangers, random.randint(1, 2), random)
        if random.random() < 0.15:
            text = typo(text, random)
        return text

    def _asked(self, text: str, source: _Source, random: Random) -> str:
        if text[:1].isupper() and not text[:2].isupper() and random.random() < 0.7:
            text = text[0].lower() + text[1:]
        if source.entity.kind and random.random() < 0.35:
            kind = source.entity.kind.replace("_", " ")
            return random.choice(_KIND_QUESTIONS).format(text, kind=kind)
        return random.choice(_QUESTIONS).format(text)


def damage_name(text: str, random: Random) -> str:
    """Return a name as people mistype it: one or two slips, a lost bracket, a moved or lost word."""
    draw = random.random()
    words = text.split()
    if " (" in text and random.random() < 0.5:
        text = text.split(" (")[0]
    if draw < 0.12 and len(words) > 2:
        return drop_words(text, 1 / len(words), random)
    if draw < 0.20 and len(words) > 1:
        random.shuffle(words)
        return " ".join(words)
    text = typo(text, random)
    return typo(text, random) if len(text) > 9 and random.random() < 0.3 else text


def _asking(source: _Source, recipe: str, text: str, random: Random) -> Example:
    entity = source.entity
    return Example(entity.title, recipe, query=_typed(text, random), entity_id=entity.entity_id)


def _text(source: _Source, random: Random) -> str:
    """Return a text beside a query: names and descriptions most often, as in an index."""
    entity = source.entity
    if source.queries and random.random() < _QUERY_AS_TEXT:
        return random.choice(source.queries)
    if entity.description and random.random() < 0.5:
        return entity.description
    return entity.title if random.random() < 0.6 else random.choice(entity.surfaces)


def _typed(text: str, random: Random) -> str:
    """Return a text with letter case and accents as people type; never empty."""
    out = recase(text, random)
    if random.random() < 0.5:
        out = strip_accents(out)
    return out.strip() or text


def _sources(entities: Sequence[TrainingEntity], queries: Mapping[str, Sequence[str]]) -> list[_Source]:
    bags: list[list[str]] = []
    for entity in entities:
        texts = [entity.description, *queries[entity.entity_id], *entity.aliases, entity.kind]
        words = [w for text in texts for w in _WORD.findall(text) if w.lower() not in _STOPWORDS]
        bags.append(list({word.lower(): word for word in words}.values()))
    frequency = Counter(word.lower() for bag in bags for word in bag)
    name_owners = Counter(
        word for entity in entities for word in {w.lower() for s in entity.surfaces for w in _WORD.findall(s)}
    )
    sources = []
    for entity, bag in zip(entities, bags, strict=True):
        asked = tuple(queries[entity.entity_id])
        told = tuple(text for text in (entity.description, *asked) if text)
        parts = {w for w in _WORD.findall(entity.title) if len(w) >= 4 and name_owners[w.lower()] == 1}
        sources.append(
            _Source(
                entity=entity,
                texts=told,
                queries=asked,
                words=tuple(bag),
                # Rare words tell entities apart: weight by inverse document frequency.
                word_weights=tuple(math.log(1 + len(entities) / frequency[w.lower()]) for w in bag),
                partial=tuple(sorted(parts - {entity.title})),
            )
        )
    return sources


# Words of the template for answers behind the query, if a checkpoint was taught with its own template.
_AS_JSON = " as json"
_TITLE_KEYS = ("title", "name", "entity", "answer", "subject", "result")
_KIND_KEYS = ("kind", "type", "category")
# Shares of documents with a kind, if it is known, and of those that call the title "title".
_WITH_KIND = 0.5
_PLAIN_KEYS = 0.6


def with_answers(config: CheckpointConfig) -> CheckpointConfig:
    """Return a config with a template for JSON answers, unless the checkpoint has its own or none at all."""
    return _with_template(config, "answer_prompt", "json", _AS_JSON)


def _with_template(
    config: CheckpointConfig, field: str, name: str, words: str, **changes: Any
) -> CheckpointConfig:
    """Return a config with the default template and these words behind the query, called by a new name."""
    default = config.prompt(None)
    if getattr(config, field) is not None or config.is_default_built_in:
        return config
    template = replace(default, name=name, suffix=words + default.suffix, **changes)
    named: Any = {field: name}
    return replace(config, prompts={**config.prompts, name: template}, **named)


def document_schema(document: str) -> str:
    """Return the schema that a prompt shows for a document of `answer_document`."""
    properties = {name: {"type": "string"} for name in json.loads(document)}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return json.dumps(schema, separators=(",", ":"))


def answer_document(title: str, kind: str, random: Random) -> str:
    """Return a JSON document with a title in it, and its kind if that is known."""
    plain = random.random() < _PLAIN_KEYS
    document = {_TITLE_KEYS[0] if plain else random.choice(_TITLE_KEYS): title}
    if kind and random.random() < _WITH_KIND:
        document[_KIND_KEYS[0] if plain else random.choice(_KIND_KEYS)] = kind
    return json.dumps(document, ensure_ascii=False)


# Words of the template for texts behind the text, if a checkpoint was taught with its own template.
_WITH_LINKS = " with links"
_PIECE = re.compile(r"\s*\S+|\s+")


class TextLink(NamedTuple):
    """Characters [start, end) of a text that stand for a title."""

    start: int
    end: int
    title: str


@dataclass(frozen=True, slots=True)
class LinkedText:
    """A text with its links."""

    text: str  # the text
    links: tuple[TextLink, ...]  # links in order, without overlaps
    chosen: int  # number of the link that a window of the text must have

    def annotated(self, begin: int, end: int) -> str:
        """Return characters [begin, end) as a model writes them; links that reach beyond are left out."""
        pieces, at = [], begin
        for link in self.links:
            if begin <= link.start and link.end <= end:
                title = spelled_title(link.title.encode()).decode()
                pieces += [_copied(self.text[at : link.start]), "["]
                pieces += [_copied(self.text[link.start : link.end]), "](", title, ")"]
                at = link.end
        return "".join([*pieces, _copied(self.text[at:end])])

    def window(self, fits: Callable[[int, int], bool]) -> tuple[int, int] | None:
        """Return the widest stretch of whole words around the chosen link that fits; None without any.

        `fits` says it of characters [begin, end); longer stretches do not fit if shorter ones do not.
        """
        lengths = range(len(self.text) + 1)
        num_fitting = bisect_left(lengths, True, key=lambda length: not fits(*self._around(length)))
        return self._around(num_fitting - 1) if num_fitting else None

    def _around(self, num_chars: int) -> tuple[int, int]:
        """Return the chosen link and its surroundings, without parts of words or of other links."""
        link = self.links[self.chosen]
        begin, end = max(link.start - num_chars, 0), min(link.end + num_chars, len(self.text))
        words = [(found.start(), found.end()) for found in _PIECE.finditer(self.text)]
        begin = min((place for place, _ in words if begin <= place <= link.start), default=link.start)
        end = max((place for _, place in words if link.end <= place <= end), default=link.end)
        for other in self.links:
            if other.start < begin < other.end:
                begin = other.end
            if other.start < end < other.end:
                end = other.start
        return begin, end


def linked_texts(mentions: Sequence[LabelledMention]) -> list[LinkedText]:
    """Return for each mention its text with all links that are known of it, itself the chosen one.

    If links overlap, the chosen one stays, then the first in the order given.
    """
    known: dict[str, list[TextLink]] = {}
    own = []
    for labelled in mentions:
        start = len(labelled.mention.left)
        link = TextLink(start, start + len(labelled.mention.mention), labelled.title)
        known.setdefault(labelled.text, []).append(link)
        own.append((labelled.text, link))
    return [_linked(text, link, known[text]) for text, link in own]


def with_annotations(config: CheckpointConfig) -> CheckpointConfig:
    """Return a config with a template for texts with links, unless the checkpoint has its own or none."""
    return _with_template(config, "annotate_prompt", "annotate", _WITH_LINKS, lowercase=False)


def _linked(text: str, chosen: TextLink, links: Sequence[TextLink]) -> LinkedText:
    kept = [chosen]
    for link in links:
        if all(link.end <= other.start or other.end <= link.start for other in kept):
            kept.append(link)
    kept.sort(key=lambda link: link.start)
    return LinkedText(text, tuple(kept), kept.index(chosen))


def _copied(text: str) -> str:
    return spelled_text(text.encode()).decode()
