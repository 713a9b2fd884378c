"""Holds a schema as formulas: the root's, and those that references lead to."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.errors import SchemaLimitError, UnsupportedSchemaError
from genret.decoding.grammar.schema import applicators, scalar_keywords
from genret.decoding.grammar.schema.formula import AllOf, AnyOf, ExactlyOne, Formula, NotOf, Reference
from genret.decoding.grammar.schema.resources import UNDECLARED, Dialect, SchemaIndex
from genret.decoding.grammar.schema.schema_document import Json, parse_document
from genret.decoding.grammar.schema.translation import LATE, Handler, Handlers, Translation
from genret.decoding.grammar.schema.unevaluated import unevaluated


class FormulaTable:
    """The formulas of one schema; those behind references are made once, when they are asked for.

    Raises SchemaError if the schema, text or parsed, cannot be read, CompileTimeoutError if it took too long.
    """

    def __init__(
        self, schema: str | bytes | Mapping[str, Any] | bool, options: GrammarOptions | None = None
    ) -> None:
        options = options or GrammarOptions()
        self.document: Json = parse_document(schema, options.limits)
        self._formulas: dict[str, Formula] = {}
        self._grounded: set[str] = set()
        try:
            index = SchemaIndex(self.document, UNDECLARED)
            self.translation = Translation(index, options, handlers_of)
            self._scope = self.translation.root_scope()
            self.root: Formula = self.translation.formula(self.document, "#", self._scope)
            if self.translation.targets:
                self._check_grounded(self.root, [])
        except RecursionError:
            raise _too_deep() from None

    @property
    def plain_integers(self) -> bool:
        """Whether `1.0` is no integer: in draft 4, where integers are a matter of spelling."""
        return self._scope.dialect.has_plain_integers

    def resolve(self, target: str) -> Formula:
        """The formula that a `Reference` of this table stands for.

        Raises:
            SchemaError: the schema behind it cannot be read.
        """
        if target not in self._grounded:
            try:
                self._check_grounded(Reference(target), [])
            except RecursionError:
                raise _too_deep() from None
        return self._formulas[target]

    def resolve_all(self) -> None:
        """Make the formulas behind all references that can be reached; raises as `resolve` does."""
        targets = self.translation.targets
        while len(self._grounded) < len(targets):
            for target in [target for target in targets if target not in self._grounded]:
                self.resolve(target)

    def _translated(self, target: str) -> Formula:
        formula = self._formulas.get(target)
        if formula is None:
            spot, scope = self.translation.targets[target]
            formula = self.translation.conditions(spot.schema, spot.pointer, scope)
            self._formulas[target] = formula
        return formula

    def _check_grounded(self, formula: Formula, path: list[str]) -> None:
        """Refuse references that lead back to themselves without looking into the value.

        A validator would never end on them, and the specification leaves open what they mean.
        """
        if isinstance(formula, AllOf | AnyOf | ExactlyOne):
            for part in formula.parts:
                self._check_grounded(part, path)
        elif isinstance(formula, NotOf):
            self._check_grounded(formula.part, path)
        elif isinstance(formula, Reference) and formula.target not in self._grounded:
            target = formula.target
            if target in path:
                raise UnsupportedSchemaError(
                    "$ref",
                    target.partition(" ")[0],
                    "the schema refers to itself without looking into the value, so it says nothing",
                )
            path.append(target)
            self._check_grounded(self._translated(target), path)
            path.pop()
            self._grounded.add(target)


def _too_deep() -> SchemaLimitError:
    return SchemaLimitError("", "#", "schemas are nested too deeply in one another")


_GROUPS: tuple[tuple[Handler, tuple[str, ...]], ...] = (
    (applicators.reference, ("$ref",)),
    (applicators.reference, ("$dynamicRef",)),
    (applicators.reference, ("$recursiveRef",)),
    (scalar_keywords.types, ("type",)),
    (scalar_keywords.numbers, tuple(scalar_keywords.NUMERIC)),
    (scalar_keywords.texts, ("minLength", "maxLength", "pattern", "format")),
    (scalar_keywords.hole, ("x-genret-index", "x-genret-filter")),
    (scalar_keywords.enumerated, ("enum",)),
    (scalar_keywords.constant, ("const",)),
    (applicators.properties, ("properties", "patternProperties", "additionalProperties")),
    (applicators.required, ("required",)),
    (applicators.property_count, ("minProperties", "maxProperties")),
    (applicators.property_names, ("propertyNames",)),
    (applicators.dependencies, ("dependentRequired",)),
    (applicators.dependencies, ("dependentSchemas",)),
    (applicators.dependencies, ("dependencies",)),
    (applicators.items, ("items", "prefixItems")),
    (applicators.item_count, ("minItems", "maxItems")),
    (applicators.contains, ("contains",)),
    (applicators.unique_items, ("uniqueItems",)),
    (applicators.all_of, ("allOf",)),
    (applicators.any_of, ("anyOf",)),
    (applicators.one_of, ("oneOf",)),
    (applicators.negation, ("not",)),
    (applicators.conditional, ("if",)),
)
_LATE: tuple[tuple[Handler, tuple[str, ...]], ...] = (
    (unevaluated, ("unevaluatedProperties",)),
    (unevaluated, ("unevaluatedItems",)),
)


@lru_cache(maxsize=16)
def handlers_of(dialect: Dialect) -> Handlers:
    """The handlers of a dialect's keywords."""
    return {
        name: (first << n, handler)
        for first, groups in ((1, _GROUPS), (LATE, _LATE))
        for n, (handler, names) in enumerate(groups)
        for name in names
        if name in dialect.keywords
    }
