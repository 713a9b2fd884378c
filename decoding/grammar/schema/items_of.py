"""Array shapes for array cases."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from decoding.grammar.errors import SchemaLimitError, UnsupportedSchemaError
from decoding.grammar.leaves.leaf import Leaf
from decoding.grammar.schema.array_shape import ListShape
from decoding.grammar.schema.cases import ArrayCase, Conjunction, ItemQuota, joined, least_of
from decoding.grammar.schema.conflicts import item_value
from decoding.grammar.schema.emptiness import DraftArray
from decoding.grammar.schema.formula import Place
from decoding.grammar.schema.quota_array_shape import ItemCounter, QuotaArrayShape
from decoding.grammar.schema.unique_array_shape import MAX_LEAST, UniqueArrayShape
from decoding.grammar.shapes import ValueNode

if TYPE_CHECKING:
    from decoding.grammar.schema.algebra import NodeBuilder

MAX_QUOTAS = 5
MAX_STATES = 20_000


def array_shape(builder: NodeBuilder, case: ArrayCase) -> DraftArray:
    """The shape of an array case.

    Raises:
        UnsupportedSchemaError: it cannot be represented.
        SchemaLimitError: too much would have to be counted.
    """
    most = case.most
    if case.unique is not None and (most is None or most > 1):
        return _unique(builder, case, case.unique)
    if case.quotas:
        return _counted(builder, case)
    places = max([len(rule.prefix) for rule in case.rules], default=0)
    if most is not None and most <= places:
        places = most
    prefix = tuple(builder.node(item_value(case, place)) for place in range(places))
    rest = None if most == places else builder.node(item_value(case, places))
    return ListShape(prefix, rest, case.least, most)


def _unique(builder: NodeBuilder, case: ArrayCase, place: Place) -> UniqueArrayShape:
    """The shape of an array case with different items.

    Raises:
        UnsupportedSchemaError: items may be arrays or objects, or are counted besides.
        SchemaLimitError: more items must differ than are looked for.
    """
    if case.quotas:
        raise UnsupportedSchemaError(place.keyword, place.pointer, "it cannot be combined with counted items")
    if case.least > MAX_LEAST:
        reason = f"more than {MAX_LEAST} items must be there and differ"
        raise SchemaLimitError(place.keyword, place.pointer, reason)
    places: list[tuple[Leaf, ...]] = []
    most = case.most
    for n in range(max([len(rule.prefix) for rule in case.rules], default=0) + 1):
        if n == most:
            break
        cases = builder.expansion.cases(item_value(case, n))
        if not builder.is_scalar(cases):
            raise UnsupportedSchemaError(
                place.keyword, place.pointer, "items that may be arrays or objects cannot be compared"
            )
        scalars = builder.scalars(cases, canonical=True)
        if not scalars:
            most = least_of(most, n)
            break
        places.append(tuple(scalars))
    return UniqueArrayShape(builder.leaves, places or [()], case.least, most)


def _counted(builder: NodeBuilder, case: ArrayCase) -> QuotaArrayShape:
    """An array some of whose items are counted."""
    if len(case.quotas) > MAX_QUOTAS:
        raise _too_much(case.quotas[-1])
    starts = [len(rule.prefix) for rule in case.rules] + [quota.start for quota in case.quotas]
    places = [_ways(builder, case, place) for place in range(max(starts) + 1)]
    counters = [ItemCounter(quota.least, quota.most) for quota in case.quotas]
    shape = QuotaArrayShape(places, counters, case.least, case.most)
    if shape.num_states() > MAX_STATES:
        raise _too_much(case.quotas[-1])
    return shape


def _too_much(quota: ItemQuota) -> SchemaLimitError:
    return SchemaLimitError(
        quota.place.keyword, quota.place.pointer, "too many items would have to be counted"
    )


def _ways(builder: NodeBuilder, case: ArrayCase, place: int) -> list[tuple[tuple[int, ...], ValueNode]]:
    """Values of one place, each with what it adds to the quotas' counts."""
    value = item_value(case, place)
    kinds = [_kinds(builder, quota, place) for quota in case.quotas]
    ways = []
    for choice in product(*kinds):
        conjunction = value
        for _, more in choice:
            conjunction = joined(conjunction, more)
        node = builder.node(conjunction)
        if node is not builder.nothing:
            ways.append((tuple(counted for counted, _ in choice), node))
    return ways


def _kinds(builder: NodeBuilder, quota: ItemQuota, place: int) -> list[tuple[int, Conjunction]]:
    """What an item can be for a quota: counted or not, and what it must then be."""
    if place < quota.start:
        return [(0, ())]
    if quota.most is None:
        return [(0, ()), (1, quota.item)]
    others = (0, builder.expansion.atoms.negation(quota.item, quota.place))
    return [others] if quota.most == 0 else [others, (1, quota.item)]
