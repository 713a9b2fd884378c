"""What a formula says of strings alone, as a set of texts: for keys, which are strings."""

from __future__ import annotations

from decoding.grammar.errors import UnsupportedSchemaError
from decoding.grammar.regular.text_set import TextSet
from decoding.grammar.schema.formula import (
    And,
    ExactlyOne,
    Formula,
    JsonType,
    Not,
    Or,
    Place,
    Reference,
    TextFromHole,
    TextIn,
    TypeIs,
)
from decoding.grammar.schema.translation import Translation


def texts_of(formula: Formula, t: Translation, place: Place, open_targets: tuple[str, ...] = ()) -> TextSet:
    """The texts that a formula lets through.

    Args:
        formula: Of a schema for keys.
        t: Resolves references.
        place: Where the schema is asked for, for errors.
        open_targets: References that are being followed.

    Raises:
        UnsupportedSchemaError: keys would come out of an index, or a reference leads back to itself.
        AutomatonLimitError: the set needs too many states.
    """
    t.budget.check_time()
    if isinstance(formula, TextIn):
        return formula.texts
    if isinstance(formula, TypeIs):
        return TextSet.everything() if formula.types & JsonType.STRING else TextSet.nothing()
    if isinstance(formula, And | Or | ExactlyOne):
        return _joined(formula, [texts_of(part, t, place, open_targets) for part in formula.parts])
    if isinstance(formula, Not):
        return ~texts_of(formula.part, t, place, open_targets)
    if isinstance(formula, Reference):
        return _followed(formula.target, t, place, open_targets)
    if isinstance(formula, TextFromHole):
        raise UnsupportedSchemaError(
            place.keyword, formula.place.pointer, "keys cannot be taken from an index"
        )
    return TextSet.everything()


def _joined(formula: And | Or | ExactlyOne, parts: list[TextSet]) -> TextSet:
    if isinstance(formula, And):
        joined = TextSet.everything()
        for part in parts:
            joined = joined & part
        return joined
    once, twice = TextSet.nothing(), TextSet.nothing()
    for part in parts:
        twice = twice | (once & part)
        once = once | part
    return once if isinstance(formula, Or) else once - twice


def _followed(target: str, t: Translation, place: Place, open_targets: tuple[str, ...]) -> TextSet:
    if target in open_targets:
        raise UnsupportedSchemaError(
            place.keyword, place.pointer, "a reference leads back to itself without looking into the value"
        )
    spot, scope = t.targets[target]
    was_only_texts, t.only_texts = t.only_texts, True
    try:
        formula = t.formula(spot.schema, spot.pointer, scope)
    finally:
        t.only_texts = was_only_texts
    return texts_of(formula, t, place, (*open_targets, target))
