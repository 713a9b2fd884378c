"""Schemas become formulas: what a keyword's function is given, and how they are found.

A *handler* translates one keyword together with those that belong to it, such as all bounds on numbers. The
functions are in `scalars`, `literals`, `objects`, `arrays`, `combinations` and `unevaluated`; `handlers` says
which is for what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from decoding.grammar.budget import CompileBudget
from decoding.grammar.options import GrammarOptions
from decoding.grammar.schema.dialects import Dialect
from decoding.grammar.schema.document import Json
from decoding.grammar.schema.formula import ANYTHING, NOTHING, And, Formula, Reference
from decoding.grammar.schema.resources import RECURSIVE, Resource, SchemaIndex, Spot

Schema = dict[str, Json]


@dataclass(slots=True, eq=False)
class Scope:
    """What the meaning of a schema depends on beside its text.

    Attributes:
        resource: Where it stands.
        handlers: Of its dialect.
        dynamic: What `$dynamicRef` means here: names, and the pointers of what they name.
        number: Of `dynamic`, among all that have been met; 0 for none.
    """

    resource: Resource
    handlers: Handlers
    dynamic: Mapping[str, str]
    number: int

    @property
    def dialect(self) -> Dialect:
        """The version of JSON Schema in use."""
        return self.resource.dialect


Handler = Callable[["Translation", Schema, str, str, Scope], Formula]
"""Makes a formula of a schema, the first keyword of the group, the schema's pointer, and its scope."""
Handlers = Mapping[str, tuple[int, Handler]]
"""Handlers by keyword, with one bit for all keywords that a handler deals with at once."""


@dataclass(slots=True, eq=False)
class Translation:
    """Translates the schemas of one document.

    Attributes:
        index: Its schemas.
        options: How they are read.
        budget: Polled in loops.
        handlers: By the name of a dialect.
        targets: Schemas that references lead to, by their formulas' names.
    """

    index: SchemaIndex
    options: GrammarOptions
    budget: CompileBudget
    handlers: Callable[[Dialect], Handlers]
    targets: dict[str, tuple[Spot, Scope]] = field(default_factory=dict)
    _scopes: dict[tuple[str, int], Scope] = field(default_factory=dict)
    _dynamics: dict[frozenset[tuple[str, str]], int] = field(default_factory=dict)

    def enter(self, resource: Resource, dynamic: Mapping[str, str], number: int) -> Scope:
        """The scope inside a resource, coming from one where dynamic names mean that."""
        if resource.dynamic and not resource.dynamic.keys() <= dynamic.keys():
            dynamic = {**resource.dynamic, **dynamic}
            number = self._dynamics.setdefault(frozenset(dynamic.items()), len(self._dynamics) + 1)
        scope = self._scopes.get((resource.pointer, number))
        if scope is None:
            scope = Scope(resource, self.handlers(resource.dialect), dynamic, number)
            self._scopes[resource.pointer, number] = scope
        return scope

    def formula(self, schema: Json, pointer: str, scope: Scope) -> Formula:
        """Translate one schema and all in it."""
        if schema is True:
            return ANYTHING
        if schema is False:
            return NOTHING
        if self.index.embedded and id(schema) in self.index.embedded:
            resource = self.index.embedded[id(schema)]
            if resource is not scope.resource:
                scope = self.enter(resource, scope.dynamic, scope.number)
        return self.conditions(schema, pointer, scope)

    def conditions(self, schema: Schema, pointer: str, scope: Scope) -> Formula:
        """Translate a schema's keywords one by one."""
        handlers = scope.handlers
        if "$ref" in schema and scope.resource.dialect.ref_stands_alone:
            return handlers["$ref"][1](self, schema, "$ref", pointer, scope)
        parts: list[Formula] = []
        done = 0
        for keyword in schema:
            found = handlers.get(keyword)
            if found is None:
                continue
            bit, handler = found
            if done & bit:
                continue
            done |= bit
            part = handler(self, schema, keyword, pointer, scope)
            if type(part) is And:
                parts += part.parts
            else:
                parts.append(part)
        if len(parts) == 1:
            return parts[0]
        return And(tuple(parts)) if parts else ANYTHING

    def reference(self, spot: Spot, scope: Scope) -> Formula:
        """Refer to a schema found from a scope."""
        if spot.schema is True:
            return ANYTHING
        if spot.schema is False:
            return NOTHING
        inside = self.enter(spot.resource, scope.dynamic, scope.number)
        target = f"{spot.pointer} {inside.number}" if inside.number else spot.pointer
        self.targets.setdefault(target, (spot, inside))
        return Reference(target)

    def referred(self, schema: Schema, keyword: str, pointer: str, scope: Scope) -> Spot:
        """Where `$ref`, `$dynamicRef` or `$recursiveRef` leads."""
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
