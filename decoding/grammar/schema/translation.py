"""Translates schemas to formulas with handlers, each of which translates a group of keywords.

A *handler* translates one keyword together with those that belong to it, such as all bounds on numbers. The
handlers are in `scalar_keywords`, `applicators` and `unevaluated`; `formula_table` lists them by keyword.
Compiled patterns are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from genret.decoding.bounded_cache import Remembered
from genret.decoding.grammar.compile_options import (
    AutomatonLimitError,
    GrammarOptions,
    naming_limits,
)
from genret.decoding.grammar.errors import InvalidSchemaError, SchemaError, UnsupportedSchemaError
from genret.decoding.grammar.regular.dfa import Dfa
from genret.decoding.grammar.regular.formats import FORMATS, Enforcement
from genret.decoding.grammar.regular.regex_compiler import compile_pattern
from genret.decoding.grammar.regular.regex_parser import PatternError, UnsupportedPatternError
from genret.decoding.grammar.schema.formula import ANYTHING, NOTHING, AllOf, Formula, Reference
from genret.decoding.grammar.schema.resources import RECURSIVE, Dialect, Resource, SchemaIndex, Spot
from genret.decoding.grammar.schema.schema_document import Json

Schema = dict[str, Json]


@dataclass(slots=True, eq=False)
class SchemaScope:
    """The context that the meaning of a schema depends on."""

    resource: Resource  # The resource it stands in
    handlers: Handlers  # The handlers of its dialect
    dynamic: Mapping[str, str]  # Meaning of `$dynamicRef` here: names, and the pointers of what they name
    number: int  # Number of `dynamic` among all that have been met; 0 for none
    # Whether formulas may hold for more values than the schema, as they must where they are negated and some
    # format is known only in part; otherwise they may hold for fewer.
    outer: bool

    @property
    def dialect(self) -> Dialect:
        """The dialect in use."""
        return self.resource.dialect


Handler = Callable[["Translation", Schema, str, str, SchemaScope], Formula]
"""Makes a formula of a schema, the first keyword of the group, the schema's pointer, and its scope."""
Handlers = Mapping[str, tuple[int, Handler]]
"""Handlers by keyword, with one bit for all keywords that a handler deals with at once."""
LATE = 1 << 32
"""From this bit on, handlers repeat names of properties that others bring; they come last, so that the order
of properties is that of the others."""


@dataclass(slots=True, eq=False)
class Translation:
    """Translates the schemas of one document."""

    index: SchemaIndex
    options: GrammarOptions
    handlers: Callable[[Dialect], Handlers]
    # Schemas that references lead to, by the references' targets.
    targets: dict[str, tuple[Spot, SchemaScope]] = field(default_factory=dict)
    only_texts: bool = False  # Whether only keys are asked about, so that containers say nothing
    # Pointers and scopes of schemas that are being translated to know when they hold.
    open_places: set[tuple[str, int, bool]] = field(default_factory=set)
    _inexact: dict[str, bool] = field(default_factory=dict)
    _inexact_texts: frozenset[tuple[str, str]] | None = None
    _scopes: dict[tuple[str, int, bool], SchemaScope] = field(default_factory=dict)
    _dynamics: dict[frozenset[tuple[str, str]], int] = field(default_factory=dict)

    @property
    def is_inexact(self) -> bool:
        """Whether only a part of the texts of some format or pattern in use is known, or wanted."""
        if self._inexact_texts is None:
            index, options = self.index, self.options
            found: set[tuple[str, str]] = set()
            if options.formats == "assert":
                subsets = [name for name in index.formats if FORMATS.get(name) is Enforcement.SUBSET]
                found = {("format", name) for name in subsets}
            if options.inexact == "narrow":
                found |= {("pattern", pattern) for pattern in index.patterns if _is_read_differently(pattern)}
            self._inexact_texts = frozenset(found)
        return bool(self._inexact_texts)

    def root_scope(self) -> SchemaScope:
        """The scope of the document."""
        return self._scope(self.index.root, {}, 0, False)

    def enter(self, resource: Resource, scope: SchemaScope) -> SchemaScope:
        """The scope inside a resource, coming from another scope."""
        return self._scope(resource, scope.dynamic, scope.number, scope.outer)

    def scope_of(self, schema: Schema, scope: SchemaScope) -> SchemaScope:
        """The scope inside a schema, which may be a resource of its own."""
        resource = self.index.embedded.get(id(schema), scope.resource)
        return scope if resource is scope.resource else self.enter(resource, scope)

    def flipped(self, scope: SchemaScope) -> SchemaScope:
        """The scope of a negated schema; the same one where all formats are known exactly."""
        if not self.is_inexact:
            return scope
        return self._scope(scope.resource, scope.dynamic, scope.number, not scope.outer)

    def _scope(self, resource: Resource, dynamic: Mapping[str, str], number: int, outer: bool) -> SchemaScope:
        if resource.dynamic and not resource.dynamic.keys() <= dynamic.keys():
            dynamic = {**resource.dynamic, **dynamic}
            number = self._dynamics.setdefault(frozenset(dynamic.items()), len(self._dynamics) + 1)
        key = (resource.pointer, number, outer)
        scope = self._scopes.get(key)
        if scope is None:
            scope = SchemaScope(resource, self.handlers(resource.dialect), dynamic, number, outer)
            self._scopes[key] = scope
        return scope

    def formula(self, schema: Json, pointer: str, scope: SchemaScope) -> Formula:
        """Translate one schema and all in it."""
        if schema is True:
            return ANYTHING
        if schema is False:
            return NOTHING
        return self.conditions(schema, pointer, self.scope_of(schema, scope))

    def conditions(self, schema: Schema, pointer: str, scope: SchemaScope) -> Formula:
        """Translate a schema's keywords one by one."""
        handlers = scope.handlers
        if "$ref" in schema and scope.resource.dialect.ref_stands_alone:
            return handlers["$ref"][1](self, schema, "$ref", pointer, scope)
        parts: list[Formula] = []
        done = 0
        late: list[tuple[str, Handler]] = []
        for keyword in schema:
            found = handlers.get(keyword)
            if found is None:
                continue
            bit, handler = found
            if done & bit:
                continue
            done |= bit
            if bit >= LATE:
                late.append((keyword, handler))
                continue
            part = handler(self, schema, keyword, pointer, scope)
            if type(part) is AllOf:
                parts += part.parts
            else:
                parts.append(part)
        for keyword, handler in late:
            parts.append(handler(self, schema, keyword, pointer, scope))
        if len(parts) == 1:
            return parts[0]
        return AllOf(tuple(parts)) if parts else ANYTHING

    def reference(self, spot: Spot, scope: SchemaScope) -> Formula:
        """Refer to a schema found from a scope."""
        if spot.schema is True:
            return ANYTHING
        if spot.schema is False:
            return NOTHING
        if scope.outer and not self._is_inexact(spot):
            scope = self.flipped(scope)
        inside = self.enter(spot.resource, scope)
        target = spot.pointer
        if inside.number or inside.outer:
            target += f" {inside.number}{'+' if inside.outer else ''}"
        self.targets.setdefault(target, (spot, inside))
        return Reference(target)

    def _is_inexact(self, spot: Spot) -> bool:
        """Whether a schema can reach texts that are known only in part; may say yes without need."""
        known = self._inexact.get(spot.pointer)
        if known is None:
            known = self._inexact[spot.pointer] = self._reaches_inexact(spot)
        return known

    def _reaches_inexact(self, spot: Spot) -> bool:
        waiting: list[tuple[Json, Resource]] = [(spot.schema, spot.resource)]
        seen = {spot.pointer}
        while waiting:
            value, resource = waiting.pop()
            if isinstance(value, list):
                waiting += [(inner, resource) for inner in value]
            if not isinstance(value, dict):
                continue
            resource = self.index.embedded.get(id(value), resource)
            if "$dynamicRef" in value or "$recursiveRef" in value:
                return True
            reference = value.get("$ref")
            if self._says_inexactly(value):
                return True
            if isinstance(reference, str):
                try:
                    found = self.index.locate(reference, resource, "$ref", spot.pointer)
                except SchemaError:
                    # It may stand where it means nothing; if it does mean something, it is refused there.
                    return True
                if found.pointer not in seen:
                    seen.add(found.pointer)
                    waiting.append((found.schema, found.resource))
            waiting += [(inner, resource) for inner in value.values()]
        return False

    def _says_inexactly(self, schema: Schema) -> bool:
        inexact = self._inexact_texts or ()
        said = ((keyword, schema.get(keyword)) for keyword in ("format", "pattern"))
        return any(isinstance(value, str) and (keyword, value) in inexact for keyword, value in said)

    def referred(self, schema: Schema, keyword: str, pointer: str, scope: SchemaScope) -> Spot:
        """The schema that `$ref`, `$dynamicRef` or `$recursiveRef` leads to."""
        place = f"{pointer}/{keyword}"
        spot = self.index.locate(schema[keyword], scope.resource, keyword, place)
        if keyword == "$ref" or not isinstance(spot.schema, dict):
            return spot
        if keyword == "$recursiveRef":
            name = RECURSIVE if spot.schema.get("$recursiveAnchor") is True else None
        else:
            name = spot.schema.get("$dynamicAnchor")
            if name is None or schema[keyword].rpartition("#")[2] != name:
                return spot
        outermost = scope.dynamic.get(name) if name is not None else None
        return self.index.spots[outermost] if outermost is not None else spot


_compiled = Remembered(
    lambda pattern, portable: compile_pattern(pattern, portable=portable),
    lambda dfa, pattern, portable: dfa.num_bytes + 4 * len(pattern),
)


def pattern_dfa(pattern: str, keyword: str, pointer: str, portable: bool = False) -> Dfa:
    """The texts that a regular expression finds something in; see `compile_pattern`.

    Raises:
        InvalidSchemaError: it is no regular expression.
        UnsupportedSchemaError: it uses what automata cannot do.
        SchemaLimitError: its automaton has too many states.
    """
    try:
        with naming_limits(keyword, pointer):
            return _compiled(pattern, portable)
    except UnsupportedPatternError as error:
        raise UnsupportedSchemaError(keyword, pointer, str(error)) from None
    except PatternError as error:
        raise InvalidSchemaError(keyword, pointer, str(error)) from None


def _is_read_differently(pattern: str) -> bool:
    """Whether some texts match in one reading and not in another; not if the pattern does not compile."""
    try:
        return _compiled(pattern, False) != _compiled(pattern, True)
    except (PatternError, AutomatonLimitError):
        return False
