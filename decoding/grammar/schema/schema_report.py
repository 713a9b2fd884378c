"""Reports what becomes of every keyword of a schema, in a second pass that compiling does not pay for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from genret.decoding.grammar.compile_options import GrammarOptions, compile_budget
from genret.decoding.grammar.errors import SchemaError, SchemaLimitError
from genret.decoding.grammar.regular.formats import FORMATS, Enforcement
from genret.decoding.grammar.schema import keywords
from genret.decoding.grammar.schema.formula import ANYTHING
from genret.decoding.grammar.schema.formula_table import FormulaTable, handlers_of
from genret.decoding.grammar.schema.keywords import Keyword
from genret.decoding.grammar.schema.resources import UNDECLARED, SchemaIndex
from genret.decoding.grammar.schema.scalar_keywords import allows_type, is_only_integers
from genret.decoding.grammar.schema.schema_document import Json, parse_document, pointer_step
from genret.decoding.grammar.schema.translation import Schema, SchemaScope, Translation, pattern_dfa

_SUBJECTS = {
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "array": (
        *("items", "prefixItems", "additionalItems", "unevaluatedItems", "minItems", "maxItems"),
        *("contains", "minContains", "maxContains", "uniqueItems"),
    ),
    "object": (
        *("properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "required"),
        *("minProperties", "maxProperties", "propertyNames", "dependentRequired", "dependentSchemas"),
        "dependencies",
    ),
}
_SUBJECT_OF = {name: subject for subject, names in _SUBJECTS.items() for name in names}
_NEIGHBOURS = {
    "then": ("if",),
    "else": ("if",),
    "if": ("then", "else"),
    "minContains": ("contains",),
    "maxContains": ("contains",),
}
_OPENAPI = frozenset({"nullable", "discriminator", "xml", "externalDocs", "example"})
_DEFINITIONS = ("$defs", "definitions")
_ALL_NAMES = keywords.UNDECLARED | keywords.DRAFT_2019_09 | keywords.DRAFT_7 | keywords.DRAFT_4


def explain_schema(
    schema: str | bytes | Mapping[str, Any] | bool, options: GrammarOptions | None = None
) -> SchemaReport:
    """Report keyword by keyword what is enforced; refusals are listed and not raised.

    Raises:
        InvalidSchemaError: it is no schema at all.
        SchemaLimitError: it is larger or deeper than allowed.
        UnsupportedSchemaError: it is written in an unknown dialect.
        CompileTimeoutError: it took too long.
    """
    options = options or GrammarOptions()
    with compile_budget(options.limits):
        document = parse_document(schema, options.limits)
        translation = Translation(SchemaIndex(document, UNDECLARED), options, handlers_of)
        try:
            table = FormulaTable(schema, options)
            table.resolve_all()
        except SchemaError as error:
            report = _Explanation(translation, None).report(document)
            return report.with_refusal(error.keyword, error.pointer, error.reason)
        reached = frozenset(spot.pointer for spot, _ in table.translation.targets.values())
        return _Explanation(translation, reached).report(document)


class _Explanation:
    """Goes through a document in its order.

    The translation is apart from the compilation that may be under way. `reached` are the pointers that
    references lead to; None if these are not known.
    """

    def __init__(self, translation: Translation, reached: frozenset[str] | None) -> None:
        self._t = translation
        self._reached = reached
        self._unused = False
        self._entries: list[ReportEntry] = []

    def report(self, document: Json) -> SchemaReport:
        scope = self._t.root_scope()
        try:
            self._schema(document, "#", scope)
        except RecursionError:
            raise SchemaLimitError("", "#", "schemas are nested too deeply in one another") from None
        return SchemaReport(scope.dialect.name, tuple(self._entries))

    def _schema(self, schema: Json, pointer: str, scope: SchemaScope) -> None:
        if not isinstance(schema, dict):
            return
        scope = self._t.scope_of(schema, scope)
        for name, value in schema.items():
            place = f"{pointer}/{pointer_step(name)}"
            keyword = scope.dialect.keywords.get(name)
            if keyword is None:
                self._entries.append(ReportEntry(name, place, "annotation", _why_unknown(name, scope)))
                continue
            how, note = self._handling(schema, keyword, pointer, scope)
            self._entries.append(ReportEntry(name, place, how, note))
            self._inner(keyword, value, place, scope)

    def _inner(self, keyword: Keyword, value: Json, pointer: str, scope: SchemaScope) -> None:
        was_unused = self._unused
        for step, inner in keyword.inner(value) if keyword.holds else ():
            place = pointer + step
            self._unused |= keyword.name in _DEFINITIONS and not self._is_reached(place)
            self._schema(inner, place, scope)
            self._unused = was_unused

    def _is_reached(self, pointer: str) -> bool:
        reached = self._reached
        return reached is None or any(
            target == pointer or target.startswith(f"{pointer}/") for target in reached
        )

    def _handling(
        self, schema: Schema, keyword: Keyword, pointer: str, scope: SchemaScope
    ) -> tuple[Handling, str]:
        """The handling of one occurrence, and the reason."""
        name = keyword.name
        if keyword.role == "annotation":
            return "annotation", ""
        if self._unused:
            return "vacuous here", "nothing refers to this definition"
        if scope.dialect.ref_stands_alone and "$ref" in schema and name not in ("$ref", *_DEFINITIONS):
            return "vacuous here", f"stands beside $ref, which stands alone in {scope.dialect.name}"
        if keyword.role == "structure":
            return _structure(name, scope)
        if name == "format":
            annotated = self._format_note(schema["format"])
            if annotated:
                return "annotation", annotated
        vacuous = _vacuous_note(schema, name)
        if vacuous:
            return "vacuous here", vacuous
        return self._asked(schema, name, pointer, scope)

    def _patterns(self, by_pattern: Schema, pointer: str) -> tuple[Handling, str]:
        for pattern in by_pattern:
            try:
                pattern_dfa(pattern, "patternProperties", pointer)
            except SchemaError as error:
                return "refused", error.reason
        return ("enforced", "") if by_pattern else ("vacuous here", "every value passes")

    def _format_note(self, name: str) -> str:
        if self._t.options.formats == "annotate":
            return "formats are not asserted"
        return "" if name in FORMATS else "a format that JSON Schema does not define"

    def _asked(self, schema: Schema, name: str, pointer: str, scope: SchemaScope) -> tuple[Handling, str]:
        """Translate the keyword to learn whether it can be, and whether it says anything."""
        if name == "patternProperties":
            return self._patterns(schema[name], f"{pointer}/{name}")
        keyword = scope.dialect.keywords[name]
        if keyword.holds and name not in _LOOKING_INTO_SCHEMAS:
            # What stands inside is listed by itself.
            says_nothing = schema[name] in (True, {}) and name != "additionalProperties"
            return ("vacuous here", "every value passes") if says_nothing else ("enforced", "")
        found = scope.handlers.get(_ASKED_OF.get(name, name))
        if found is None:
            return "enforced", ""
        place = f"{pointer}/{name}"
        try:
            formula = found[1](self._t, schema, name, pointer, scope)
        except SchemaError as error:
            # What is wrong further down is said there.
            return ("refused", error.reason) if error.pointer == place else ("enforced", "")
        if formula == ANYTHING:
            return "vacuous here", "every value passes"
        if name == "format" and FORMATS[schema["format"]] is Enforcement.SUBSET:
            return "enforced", "only such texts are written, but not all there are"
        if name == "type" and scope.dialect.has_plain_integers and is_only_integers(schema):
            return "enforced", "1.0 is no integer in draft-04"
        return "enforced", ""


_LOOKING_INTO_SCHEMAS = frozenset({"propertyNames", "unevaluatedProperties", "unevaluatedItems"})
_ASKED_OF = {"minContains": "contains", "maxContains": "contains"}


def _structure(name: str, scope: SchemaScope) -> tuple[Handling, str]:
    if name == "$schema":
        return "enforced", f"read as {scope.dialect.name}"
    if name == "$vocabulary":
        return "annotation", "says something of dialects, and only in their metaschemas"
    return "enforced", "for references"


def _why_unknown(name: str, scope: SchemaScope) -> str:
    if name in _ALL_NAMES:
        return f"no keyword of {scope.dialect.name}"
    if name in _OPENAPI:
        return "a keyword of OpenAPI, not of JSON Schema"
    return "an extension" if name.startswith("x-") else "an unknown keyword"


def _vacuous_note(schema: Schema, name: str) -> str:
    """Why a keyword has nothing to say beside its neighbours; "" where it may have."""
    neighbours = _NEIGHBOURS.get(name)
    if neighbours is not None and not any(neighbour in schema for neighbour in neighbours):
        return f"says nothing without {' or '.join(neighbours)}"
    if name == "additionalItems" and not isinstance(schema.get("items"), list):
        return "says nothing where items is not an array"
    if name in ("exclusiveMinimum", "exclusiveMaximum") and isinstance(schema[name], bool):
        bound = name[len("exclusive") :].lower()
        if bound not in schema:
            return f"says nothing without {bound}"
        return "" if schema[name] else f"{bound} itself is allowed anyway"
    subject = _SUBJECT_OF.get(name)
    if subject is None or "type" not in schema or allows_type(schema, subject):
        return ""
    if subject == "number" and allows_type(schema, "integer"):
        return ""
    return f"speaks of {subject}s, and type allows none"


Handling = Literal["enforced", "annotation", "refused", "vacuous here"]


@dataclass(frozen=True, slots=True)
class ReportEntry:
    """One occurrence of a keyword."""

    keyword: str
    pointer: str  # Pointer to it, as a URI fragment
    # "enforced": every answer obeys it; "annotation": it says nothing about what is valid; "vacuous here": it
    # could, but not beside its neighbours; "refused": it cannot be enforced, so nothing is compiled.
    how: Handling
    note: str = ""  # The reason, where that is not plain


@dataclass(frozen=True, slots=True)
class SchemaReport:
    """All keywords of a schema, in its order."""

    dialect: str  # The version of JSON Schema it was read as
    entries: tuple[ReportEntry, ...]  # One per occurrence

    def counts(self) -> dict[Handling, int]:
        """Number of occurrences by how they are handled."""
        counts = Counter(entry.how for entry in self.entries)
        return {how: counts[how] for how in ("enforced", "annotation", "vacuous here", "refused")}

    def refusals(self) -> tuple[ReportEntry, ...]:
        """The occurrences that stand in the way of compiling."""
        return tuple(entry for entry in self.entries if entry.how == "refused")

    def table(self) -> list[tuple[str, str, str, str]]:
        """Rows to print: pointer, keyword, how it is handled, note."""
        return [(entry.pointer, entry.keyword, entry.how, entry.note) for entry in self.entries]

    def with_refusal(self, keyword: str, pointer: str, reason: str) -> SchemaReport:
        """The report with one occurrence refused, or one more entry where no keyword stands there."""
        refused = ReportEntry(keyword, pointer, "refused", reason)
        entries = tuple(refused if entry.pointer == pointer else entry for entry in self.entries)
        if refused not in entries:
            entries += (refused,)
        return SchemaReport(self.dialect, entries)
