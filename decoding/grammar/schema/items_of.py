"""Array shapes for array cases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from decoding.grammar.errors import UnsupportedSchemaError
from decoding.grammar.schema.array_shape import ListShape
from decoding.grammar.schema.cases import ArrayCase
from decoding.grammar.schema.conflicts import item_value
from decoding.grammar.schema.emptiness import DraftArray

if TYPE_CHECKING:
    from decoding.grammar.schema.algebra import NodeBuilder


def array_shape(builder: NodeBuilder, case: ArrayCase) -> DraftArray:
    """The shape of an array case.

    Raises:
        UnsupportedSchemaError: it cannot be represented.
    """
    if case.quotas:
        place = case.quotas[0].place
        raise UnsupportedSchemaError(place.keyword, place.pointer, "it is not enforced")
    most = case.most
    if case.unique is not None and (most is None or most > 1):
        raise UnsupportedSchemaError(case.unique.keyword, case.unique.pointer, "it is not enforced")
    places = max((len(rule.prefix) for rule in case.rules), default=0)
    if most is not None and most <= places:
        places = most
    prefix = tuple(builder.node(item_value(case, place)) for place in range(places))
    rest = None if most == places else builder.node(item_value(case, places))
    return ListShape(prefix, rest, case.least, most)
