"""Schemas of answers: named ones, and the grammars of all that were asked for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from decoding.grammar.budget import compile_budget, current_budget
from decoding.grammar.cache import CacheStats, GrammarCache
from decoding.grammar.compiler import compile_schema
from decoding.grammar.errors import GrammarError, SchemaLimitError
from decoding.grammar.grammar import Grammar
from decoding.grammar.leaves.factory import Leaves
from decoding.grammar.leaves.hole import HoleLeaf, HoleName, HoleOpener
from decoding.grammar.options import GrammarOptions
from decoding.grammar.schema.document import canonical_text, parse_document
from retrieval.answers.checks import schema_text
from retrieval.answers.errors import user_error
from retrieval.answers.index_set import IndexSet, NamedIndex
from retrieval.answers.types import AnswerRequest
from retrieval.answers.validation import AnswerValidator
from retrieval.arguments import check_text
from retrieval.errors import InputError
from retrieval.holes import FIRST_INDEX

DEFAULT_GRAMMAR_CACHE_BYTES = 256 * 2**20


# A validator holds the schema as Python values, some times as large as its text.
_VALIDATOR_BYTES_PER_CHARACTER = 16


@dataclass(frozen=True, slots=True, eq=False)
class CompiledSchema:
    """A schema that answers can be written under.

    Attributes:
        grammar: Its grammar.
        validator: The check of finished answers.
        digest: Of its canonical text.
        shown: Its text as a prompt shows it.
        text_bytes: Memory of the validator, about.
    """

    grammar: Grammar
    validator: AnswerValidator
    digest: str
    shown: str
    text_bytes: int

    @property
    def num_bytes(self) -> int:
        """Memory it holds alone, masks that were added later included."""
        return self.grammar.num_bytes + self.text_bytes


class SchemaStore:
    """Grammars of one model, for any number of threads.

    Args:
        leaves: Of the model's vocabulary.
        max_bytes: Bound on the memory of grammars kept; see `GrammarCache`.
    """

    def __init__(self, leaves: Leaves, max_bytes: int = DEFAULT_GRAMMAR_CACHE_BYTES) -> None:
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 0:
            raise InputError("grammar_cache", f"must be an integer of at least 0, got {max_bytes!r}")
        self._leaves = leaves
        self._cache: GrammarCache[CompiledSchema] = GrammarCache(max_bytes)
        self._named: dict[str, str] = {}

    @property
    def stats(self) -> CacheStats:
        """What the cache of grammars did and holds."""
        return self._cache.stats

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the schemas that were given one."""
        return tuple(self._named)

    def name_schema(
        self,
        name: str,
        schema: str | Mapping[str, object] | bool,
        indexes: IndexSet,
        titles: str = FIRST_INDEX,
    ) -> None:
        """Give a schema a name, and compile it as requests ask for it by default.

        Args:
            name: The name.
            schema: The schema.
            indexes: Those it may name.
            titles: The index that it calls "titles", in requests to the first index.

        Raises:
            InputError: the name is empty or taken, or the schema cannot be used; its field is the name.
        """
        check_text("schema", name)
        if not name.strip():
            raise InputError("schema", "a name must not be empty")
        if name in self._named:
            raise InputError("schema", f"two schemas are named {name!r}")
        request = AnswerRequest("-", schema_text(schema))
        self.prepare(request, indexes, titles)
        self._named[name] = str(request.schema)

    def prepare_named(self, indexes: IndexSet, titles: str = FIRST_INDEX) -> None:
        """Compile the named schemas over other indexes, those that are not known over them.

        Raises:
            InputError: one cannot be used; its field is the name.
        """
        for name in self.names:
            try:
                self.prepare(AnswerRequest("-", schema_name=name), indexes, titles)
            except InputError as error:
                raise InputError(name, error.message) from error

    def prepare(self, request: AnswerRequest, indexes: IndexSet, titles: str = FIRST_INDEX) -> CompiledSchema:
        """Return what a request needs to be answered, compiling its schema unless it is known.

        Args:
            request: The request.
            indexes: Those that its schema may name.
            titles: The index that its schema calls "titles".

        Raises:
            SchemaRejectedError: the schema cannot be used; names keyword and JSON pointer.
            InputError: there is no schema of that name.
        """
        text, options = self._text(request), request.options
        asked = _Asked(text, options, titles, indexes.stamp(text, titles))
        try:
            return self._cache.get(
                asked, len(text), asked.canonical, partial(self._compile, text, options, indexes, titles)
            )
        except GrammarError as error:
            raise user_error(error, "schema" if request.schema_name is None else "schema_name") from error

    def narrowed(
        self, schema: CompiledSchema, request: AnswerRequest, titles: str, holes: HoleOpener
    ) -> CompiledSchema:
        """Compile a request's schema over other sets of titles, for this request alone.

        Args:
            schema: Its schema, compiled.
            request: The request.
            titles: The index that its schema calls "titles".
            holes: Opens the sets.

        Raises:
            SchemaRejectedError: nothing is valid over these sets.
        """

        def open_hole(name: HoleName) -> HoleLeaf:
            with current_budget().stopped():
                return holes(_meant(name, titles))

        try:
            grammar = compile_schema(self._text(request), self._leaves, request.options, open_hole)
            _measured(grammar, request.options)
        except GrammarError as error:
            raise user_error(error, "schema" if request.schema_name is None else "schema_name") from error
        return replace(schema, grammar=grammar)

    def settle(self, schema: CompiledSchema) -> None:
        """Count what a grammar has grown by, once an answer was written under it."""
        self._cache.settle(schema)

    def forget(self, named: NamedIndex) -> None:
        """Drop the grammars over a version of an index, those it may be in among them."""
        self._cache.discard(lambda key: isinstance(key, _Asked) and named.serial in key.versions)

    def _text(self, request: AnswerRequest) -> str:
        if request.schema_name is None:
            return str(request.schema)
        if request.schema_name not in self._named:
            known = ", ".join(sorted(self._named)) or "none"
            raise InputError("schema_name", f"no schema named {request.schema_name!r}; known: {known}")
        return self._named[request.schema_name]

    def _compile(self, text: str, options: GrammarOptions, indexes: IndexSet, titles: str) -> CompiledSchema:
        def open_hole(name: HoleName) -> HoleLeaf:
            return indexes.holes(_meant(name, titles))

        grammar = _measured(compile_schema(text, self._leaves, options, open_hole), options)
        canonical = canonical_text(parse_document(text, options.limits))
        return CompiledSchema(
            grammar,
            AnswerValidator(text, options.formats),
            f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}",
            shown(text),
            len(text) * _VALIDATOR_BYTES_PER_CHARACTER,
        )


def shown(schema: str) -> str:
    """Return a valid schema in few characters and without the keywords that only this library reads.

    SmolLM2 is less sure of its answers where they stay.
    """
    value = json.loads(schema, object_hook=_without_own_keywords)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _without_own_keywords(value: dict[str, object]) -> dict[str, object]:
    return {name: inner for name, inner in value.items() if not name.startswith("x-genret-")}


def _meant(name: HoleName, titles: str) -> HoleName:
    """The set that a schema means, by the index's own name."""
    return replace(name, index=titles) if name.index == FIRST_INDEX else name


def _measured(grammar: Grammar, options: GrammarOptions) -> Grammar:
    """Find the shortest answer, which every request asks for, within the time that compiling may take."""
    try:
        with compile_budget(options.limits):
            grammar.tokens_to_finish(grammar.start)
    except RecursionError:
        raise SchemaLimitError("", "#", "the shortest answer is nested too deeply") from None
    return grammar


@dataclass(frozen=True, slots=True)
class _Asked:
    """Everything that a grammar depends on, in the words of a request."""

    text: str
    options: GrammarOptions
    titles: str
    versions: tuple[int, ...]

    def canonical(self) -> tuple[Hashable, int]:
        """What finds the grammar whatever its schema's spelling, and its size."""
        text = canonical_text(parse_document(self.text, self.options.limits))
        return replace(self, text=text), len(text)
