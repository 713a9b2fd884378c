"""Compiles the schemas of answers and keeps their grammars, for one model.

`SchemaStore` holds named schemas, and the grammars of all that were asked for. `AnswerEngine` holds the
shared parts of a model's schemas: its vocabulary, the leaves over it, the indexes that they may name.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar, cast
from weakref import WeakSet

from genret.decoding.answering.speller import Speller
from genret.decoding.bounded_cache import CacheCounts
from genret.decoding.grammar.compile_options import GrammarOptions, compile_budget, current_budget
from genret.decoding.grammar.errors import GrammarError, SchemaLimitError, VocabularyError
from genret.decoding.grammar.grammar_cache import GrammarCache
from genret.decoding.grammar.holes.text_leaf import TextSearcher
from genret.decoding.grammar.json_grammar import Grammar, compile_schema
from genret.decoding.grammar.leaves.leaf import TitleSlotLeaf, TitleSlotName, TitleSlotOpener
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from genret.decoding.grammar.schema.schema_document import canonical_text, parse_document
from genret.decoding.grammar.vocabulary import Vocabulary
from genret.retrieval.answers.answer_types import AnswerRequest, schema_text
from genret.retrieval.answers.schema_explanation import user_error
from genret.retrieval.answers.title_holes import FIRST_INDEX, Finder, IndexSet, NamedIndex, TitleSlots
from genret.retrieval.answers.validation import AnswerValidator
from genret.retrieval.arguments import check_count, check_text
from genret.retrieval.errors import GenretError, InputError, ModelError
from genret.retrieval.filters.entity_filter import FilterStore
from genret.retrieval.index.reader import Index
from genret.retrieval.loaded_model import DEFAULT_GRAMMAR_CACHE_BYTES
from genret.retrieval.text import TextTokenizer

# A validator holds the schema as Python values, some times as large as its text.
_VALIDATOR_BYTES_PER_CHARACTER = 16


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class CompiledSchema:
    """A compiled schema: `digest` is that of its canonical text, `shown` its text in a prompt.

    `shortlist` is the size of shortlists that does for its titles, None without titles; `text_bytes` is the
    memory of the validator, about.
    """

    grammar: Grammar
    validator: AnswerValidator
    digest: str
    shown: str
    shortlist: int | None
    text_bytes: int

    @property
    def num_bytes(self) -> int:
        """Memory that it holds alone, masks that were added later included."""
        return self.grammar.num_bytes + self.text_bytes


class SchemaStore:
    """Grammars of one model, for any number of threads; see `GrammarCache` for `max_bytes`."""

    def __init__(self, leaves: Leaves, max_bytes: int = DEFAULT_GRAMMAR_CACHE_BYTES) -> None:
        check_count("grammar_cache", max_bytes)
        self._leaves = leaves
        self._cache: GrammarCache[CompiledSchema] = GrammarCache(max_bytes)
        self._named: dict[str, str] = {}
        self._kept: dict[_Asked, CompiledSchema] = {}  # named ones, which no other schema displaces
        self._alive: WeakSet[CompiledSchema] = WeakSet()
        self._lock = threading.Lock()

    @property
    def stats(self) -> CacheCounts:
        """Counters of the cache of grammars."""
        return self._cache.stats

    @property
    def alive_bytes(self) -> int:
        """Memory of all compiled schemas, those included that only requests still hold."""
        with self._lock:
            return sum(schema.num_bytes for schema in self._alive)

    def name_schema(self, name: str, schema: str | Mapping[str, object] | bool, indexes: IndexSet) -> None:
        """Give a schema a name, and compile it as requests to the first index ask for it by default.

        InputError, whose field is the name, if the name is empty or taken, or the schema cannot be used.
        """
        check_text("schema", name)
        if not name.strip():
            raise InputError("schema", "a name must not be empty")
        if name in self._named:
            raise InputError("schema", f"two schemas are named {name!r}")
        request = AnswerRequest("-", schema_text(schema))
        self._keep(request, indexes)
        self._named[name] = str(request.schema)

    def prepare_named(self, indexes: IndexSet) -> None:
        """Compile the named schemas over other indexes; InputError names one that cannot be used."""
        for name in self._named:
            try:
                self._keep(AnswerRequest("-", schema_name=name), indexes)
            except InputError as error:
                raise InputError(name, error.message) from error

    def _keep(self, request: AnswerRequest, indexes: IndexSet) -> None:
        compiled = self.prepare(request, indexes, indexes.first_name)
        with self._lock:
            self._kept[self._asked(request, indexes, indexes.first_name)] = compiled

    def find(
        self, request: AnswerRequest, indexes: IndexSet, titles: str = FIRST_INDEX
    ) -> CompiledSchema | None:
        """Return the schema of a request if it is compiled, None if not; takes microseconds.

        Raises as `prepare` does, if the schema was refused before.
        """
        asked = self._asked(request, indexes, titles)
        try:
            return self._cache.find(asked) or self._kept.get(asked)
        except GrammarError as error:
            raise _refusal(request, error) from error

    def prepare(self, request: AnswerRequest, indexes: IndexSet, titles: str = FIRST_INDEX) -> CompiledSchema:
        """Return the schema of a request, compiled unless it is known; it calls the index `titles` "titles".

        Raises:
            SchemaRejectedError: the schema cannot be used; names keyword and JSON pointer.
            InputError: there is no schema of that name.
        """
        found = self.find(request, indexes, titles)
        if found is not None:
            return found
        asked = self._asked(request, indexes, titles)
        text, options = asked.text, asked.options
        try:
            with compile_budget(options.limits):
                return self._cache.get(
                    asked, len(text), asked.canonical, partial(self._compile, text, options, indexes, titles)
                )
        except GrammarError as error:
            raise _refusal(request, error) from error

    def narrowed(
        self, schema: CompiledSchema, request: AnswerRequest, titles: str, holes: TitleSlotOpener
    ) -> tuple[CompiledSchema, float]:
        """Compile a request's schema again over the sets of titles that `holes` opens, for it alone.

        Returns:
            The schema, and the CPU time of compiling it without opening the sets, milliseconds.

        Raises:
            SchemaRejectedError: nothing is valid over these sets.
        """

        def open_hole(name: TitleSlotName) -> TitleSlotLeaf:
            with current_budget().stopped():
                return holes(_meant(name, titles))

        try:
            with compile_budget(request.options.limits) as budget:
                grammar = _measured(
                    compile_schema(self._text(request), self._leaves, request.options, open_hole)
                )
        except GrammarError as error:
            raise _refusal(request, error) from error
        return replace(schema, grammar=grammar), budget.spent_s * 1e3

    def settle(self, schema: CompiledSchema) -> None:
        """Count the growth of a grammar, once an answer was written under it."""
        self._cache.settle(schema)

    def forget(self, named: NamedIndex) -> None:
        """Drop the grammars that may be over a version of an index."""
        self._cache.discard(lambda key: isinstance(key, _Asked) and named.serial in key.versions)
        with self._lock:
            for asked in [asked for asked in self._kept if named.serial in asked.versions]:
                del self._kept[asked]

    def _asked(self, request: AnswerRequest, indexes: IndexSet, titles: str) -> _Asked:
        text = self._text(request)
        return _Asked(text, request.options, titles, indexes.stamp(text, titles))

    def _text(self, request: AnswerRequest) -> str:
        if request.schema_name is None:
            return str(request.schema)
        if request.schema_name not in self._named:
            known = ", ".join(sorted(self._named)) or "none"
            raise InputError("schema_name", f"no schema named {request.schema_name!r}; known: {known}")
        return self._named[request.schema_name]

    def _compile(self, text: str, options: GrammarOptions, indexes: IndexSet, titles: str) -> CompiledSchema:
        def open_hole(name: TitleSlotName) -> TitleSlotLeaf:
            return indexes(_meant(name, titles))

        grammar = _measured(compile_schema(text, self._leaves, options, open_hole))
        canonical = canonical_text(parse_document(text, options.limits))
        compiled = CompiledSchema(
            grammar,
            AnswerValidator(text, options.formats),
            f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}",
            shown(text),
            default_shortlist(text),
            len(text) * _VALIDATOR_BYTES_PER_CHARACTER,
        )
        with self._lock:
            self._alive.add(compiled)
        return compiled


def _refusal(request: AnswerRequest, error: GrammarError) -> GenretError:
    return user_error(error, "schema" if request.schema_name is None else "schema_name")


def shown(schema: str) -> str:
    """Return a valid schema in few characters, without the keywords that only this library reads.

    SmolLM2 is less sure of its answers where they stay.
    """
    value = json.loads(schema, object_hook=_without_own_keywords)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# Titles to choose from where a schema asks for several of one set.
_SEVERAL_TITLES = 10
_REPEATING = frozenset(
    ["items", "additionalItems", "unevaluatedItems", "contains", "$ref", "$dynamicRef", "$recursiveRef"]
)


def default_shortlist(schema: str) -> int | None:
    """Return how many of the likeliest titles do for a valid schema, None for one without titles.

    One is enough where no set of titles can be asked for twice.
    """
    found: list[dict[str, object]] = []
    json.loads(schema, object_hook=found.append)
    titles = [value for value in found if isinstance(value.get("x-genret-index"), str)]
    sets = {(value["x-genret-index"], value.get("x-genret-filter")) for value in titles}
    if len(sets) < len(titles) or any(_REPEATING & value.keys() for value in found):
        return _SEVERAL_TITLES if titles else None
    return 1 if titles else None


def _without_own_keywords(value: dict[str, object]) -> dict[str, object]:
    return {name: inner for name, inner in value.items() if not name.startswith("x-genret-")}


def _meant(name: TitleSlotName, titles: str) -> TitleSlotName:
    """Return a set of titles with the index's own name in place of "titles"."""
    return replace(name, index=titles) if name.index == FIRST_INDEX else name


def _measured(grammar: Grammar) -> Grammar:
    """Find the shortest answer, which every request asks for, within the budget of time for compiling."""
    try:
        grammar.tokens_to_finish(grammar.start)
    except RecursionError:
        raise SchemaLimitError("", "#", "the shortest answer is nested too deeply") from None
    return grammar


@dataclass(frozen=True, slots=True)
class _Asked:
    """The key of a grammar in the words of a request."""

    text: str
    options: GrammarOptions
    titles: str
    versions: tuple[int, ...]

    def canonical(self) -> tuple[Hashable, int]:
        """Return the key that ignores the schema's spelling, and its size."""
        text = canonical_text(parse_document(self.text, self.options.limits))
        return replace(self, text=text), len(text)


T = TypeVar("T")


class AnswerEngine:
    """The shared parts of a model's schemas, made on first use. Safe to use from many threads."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        end_token_id: int,
        vocab_size: int,
        grammar_cache_bytes: int = DEFAULT_GRAMMAR_CACHE_BYTES,
    ) -> None:
        self._tokenizer = tokenizer
        self._end_token_id = end_token_id
        self._vocab_size = vocab_size
        self._grammar_cache_bytes = grammar_cache_bytes
        self._parts: dict[str, object] = {}
        self._lock = threading.RLock()
        self._indexes = IndexSet((), lambda: self.title_slots)

    @property
    def indexes(self) -> IndexSet:
        """The indexes that schemas may name now."""
        return self._indexes

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens as bytes; ModelError if the tokenizer cannot write JSON."""
        return self._made("vocabulary", self._new_vocabulary)

    @property
    def leaves(self) -> Leaves:
        """Leaves of strings, numbers and keys over the vocabulary."""
        return self._made("leaves", lambda: Leaves(self.vocabulary))

    @property
    def schemas(self) -> SchemaStore:
        """Named schemas and grammars."""
        return self._made("schemas", lambda: SchemaStore(self.leaves, self._grammar_cache_bytes))

    @property
    def speller(self) -> Speller:
        """Tokenises forced bytes as the tokenizer would."""
        return self._made("speller", lambda: Speller(self._tokenizer.encode_bytes, self.vocabulary))

    @property
    def title_slots(self) -> TitleSlots:
        """The titles of the indexes."""
        return self._made("title_slots", lambda: TitleSlots(self.leaves))

    @property
    def searcher(self) -> TextSearcher:
        """Finds tokens of titles that are chosen for one request."""
        return self._made("searcher", lambda: TextSearcher(self.vocabulary))

    def add_index(self, name: str, index: Index, filters: FilterStore, find: Finder | None = None) -> None:
        """Let schemas name an index; the first one added is also called "titles".

        Another index of that name is replaced, and its grammars forgotten; answers that are being written
        stay with the one they have. `find` is for shortlists; None: there are none over this index.
        """
        with self._lock:
            replaced = [named for named in self._indexes if named.name == name]
            self.adopt(self._indexes.with_index(NamedIndex(name, index, filters, find)))
            for named in replaced:
                self.forget(named)

    def adopt(self, indexes: IndexSet) -> None:
        """Let schemas of coming requests name these indexes."""
        with self._lock:
            self._indexes = indexes

    def forget(self, named: NamedIndex) -> None:
        """Drop everything kept of a version of an index that is no longer asked for."""
        with self._lock:
            if "schemas" in self._parts:
                self.schemas.forget(named)
            if "title_slots" in self._parts:
                self.title_slots.forget(named)

    def warm_up(self, indexes: IndexSet | None = None) -> None:
        """Make and compile everything for these indexes (None: those of now), so that no request waits."""
        self.leaves.warm_up()
        self.title_slots.warm_up(indexes or self._indexes)

    def _made(self, name: str, make: Callable[[], T]) -> T:
        """Return a part, made by the first thread that asks for it while all others wait."""
        part = self._parts.get(name)
        if part is None:
            with self._lock:
                part = self._parts.get(name)
                if part is None:
                    part = self._parts[name] = make()
        return cast("T", part)

    def _new_vocabulary(self) -> Vocabulary:
        try:
            return Vocabulary.from_tokenizer(self._tokenizer.serialized, self._end_token_id, self._vocab_size)
        except VocabularyError as error:
            raise ModelError(f"{self._tokenizer.name}: {error}") from error
