"""Object shapes for object cases."""

from __future__ import annotations

from json.encoder import encode_basestring  # what json.dumps(ensure_ascii=False) calls
from typing import TYPE_CHECKING

from decoding.grammar.budget import check_time
from decoding.grammar.errors import SchemaLimitError, VocabularyError
from decoding.grammar.regular.byte_dfa import ByteDfa
from decoding.grammar.regular.dfa import Dfa
from decoding.grammar.schema.cases import Conjunction, ObjectCase, joined
from decoding.grammar.schema.conflicts import member_value
from decoding.grammar.schema.counted_object_shape import CountedObjectShape
from decoding.grammar.schema.emptiness import DraftObject
from decoding.grammar.schema.key_leaves import FreeKeyLeaves, KeyMemory, NamedKeyLeaves
from decoding.grammar.schema.key_spelling import spelled_classes
from decoding.grammar.schema.members import Member, Members
from decoding.grammar.schema.record_shape import OrderedRecordShape, RecordShape
from decoding.grammar.shapes import ValueNode

if TYPE_CHECKING:
    from decoding.grammar.schema.algebra import NodeBuilder

MAX_QUOTAS = 6


def object_shape(builder: NodeBuilder, case: ObjectCase) -> DraftObject:
    """The shape of an object case.

    Raises:
        UnsupportedSchemaError: it cannot be represented.
        SchemaLimitError: it asks for too many kinds of members at once.
    """
    if len(case.quotas) > MAX_QUOTAS:
        place = case.quotas[-1].place
        reason = f"more than {MAX_QUOTAS} kinds of members must be among the others"
        raise SchemaLimitError(place.keyword, place.pointer, reason)
    names = _names(case)
    required = set(case.required)
    named = []
    for label, name in enumerate(names):
        if label & 255 == 255:
            check_time()
        values = _named_values(builder, case, name) if builder.can_write(name) else {}
        if values:
            size = len(encode_basestring(name).encode()) + 1
            named.append(Member(label, name, name in required, 1, size, values))
        elif name in required:
            named.append(Member(label, name, True, 1, 0, {0: builder.nothing}))
    free, classes = _free_members(builder, case, names)
    key_leaves = (
        FreeKeyLeaves(builder.leaves, names, classes) if classes else NamedKeyLeaves(builder.leaves, names)
    )
    key_leaves.prepare()
    members = Members(named, free, key_leaves)
    ordered = builder.options.property_order == "schema"
    if case.quotas or case.most is not None or case.least > len(required):
        memory = None
        if isinstance(key_leaves, FreeKeyLeaves) and (case.least > len(required) + 1 or _may_count(free)):
            memory = KeyMemory(builder.leaves, key_leaves)
        return CountedObjectShape(members, case.least, case.most, len(case.quotas), ordered, memory)
    return OrderedRecordShape(members) if ordered else RecordShape(members)


def _may_count(free: list[Member]) -> bool:
    """Whether a member with a free key may satisfy a quota, which writing the key again could undo."""
    return any(len(member.values) > 1 for member in free)


def _names(case: ObjectCase) -> list[str]:
    """All keys that are spoken of: declared ones in their order, then others."""
    if len(case.rules) == 1:
        names = dict.fromkeys(case.rules[0].named)
    else:
        names = {}
        for declares in (True, False):
            for rule in case.rules:
                if rule.declares is declares:
                    names.update(dict.fromkeys(rule.named))
    if case.required:
        names.update(dict.fromkeys(case.required))
    return list(names)


def _named_values(builder: NodeBuilder, case: ObjectCase, name: str) -> dict[int, ValueNode]:
    """Values of one key, by the quotas they satisfy; empty where the key is forbidden."""
    if case.names is not None and not case.names.accepts(name):
        return {}
    value = member_value(case, name)
    if not case.quotas:
        node = builder.node(value)
        return {} if node is builder.nothing else {0: node}
    quotas = [
        (1 << n, quota.value)
        for n, quota in enumerate(case.quotas)
        if quota.keys is None or quota.keys.accepts(name)
    ]
    return _by_quotas(builder, value, quotas)


def _by_quotas(
    builder: NodeBuilder, value: Conjunction, quotas: list[tuple[int, Conjunction]]
) -> dict[int, ValueNode]:
    """The nodes of a value that satisfies any selection of some quotas."""
    conjunctions = {0: value}
    for bit, more in quotas:
        conjunctions |= {
            known | bit: joined(conjunction, more) for known, conjunction in conjunctions.items()
        }
    return {satisfied: builder.node(conjunction) for satisfied, conjunction in conjunctions.items()}


def _free_members(
    builder: NodeBuilder, case: ObjectCase, names: list[str]
) -> tuple[list[Member], tuple[Dfa, ...]]:
    """Classes of keys that are not spoken of by name, and their automata."""
    parts = _key_classes(builder, case, names)
    members: list[Member] = []
    classes: list[Dfa] = []
    for label, (keys, value, quotas) in enumerate(parts, len(names)):
        values = _by_quotas(builder, value, quotas)
        classes.append(keys)
        supply, shortest = _supply(builder, keys, names)
        if supply == 0:
            continue
        size = len(shortest) + 1
        members.append(Member(label, None, False, supply, size, values))
    return members, tuple(classes)


def _supply(builder: NodeBuilder, keys: Dfa, names: list[str]) -> tuple[int | None, bytes]:
    """How many keys of a set there are, None without bound, and the shortest, quoted; some names left out."""
    writable = builder.leaves.vocabulary.writable_texts
    if writable is None:
        supply = keys.count()
        if supply is not None:
            supply -= sum(keys.accepts(name) for name in names)
            if supply == 0:
                return 0, b""
        shortest = next(text for text in keys.texts() if text not in names)
        return supply, encode_basestring(shortest).encode()
    spelled = spelled_classes((keys,))
    if names:
        spelled -= ByteDfa.literals((encode_basestring(name).encode(), 0) for name in names)
    if spelled.is_empty:
        return 0, b""
    spelled &= writable
    if spelled.is_empty:
        builder.leave_out(VocabularyError("the tokenizer cannot write any of the keys that are allowed"))
        return 0, b""
    return spelled.count(), spelled.shortest()


def _key_classes(
    builder: NodeBuilder, case: ObjectCase, names: list[str]
) -> list[tuple[Dfa, Conjunction, list[tuple[int, Conjunction]]]]:
    """Sets of keys that have the same values and count for the same quotas; names may be among them."""
    nothing = builder.expansion.atoms.nothing
    everything = Dfa.everything() if case.names is None else case.names.automaton()
    start: list[Conjunction | None] = [None] * len(case.rules)
    parts: list[tuple[Dfa, list[Conjunction | None], int]] = [(everything, start, 0)]
    for n, rule in enumerate(case.rules):
        for pattern, value in rule.patterns:
            parts = [
                (piece, _with(found, n, value) if inside else found, quotas)
                for keys, found, quotas in parts
                for piece, inside in ((keys & pattern, True), (keys - pattern, False))
                if not piece.is_empty
            ]
    for n, quota in enumerate(case.quotas):
        if quota.keys is None:
            parts = [(keys, found, quotas | 1 << n) for keys, found, quotas in parts]
            continue
        special = quota.keys.automaton()
        parts = [
            (piece, found, quotas | inside << n)
            for keys, found, quotas in parts
            for piece, inside in ((keys & special, 1), (keys - special, 0))
            if not piece.is_empty
        ]
    classes = []
    closed = _closed(builder, case, names)
    for keys, found, quotas in parts:
        if closed and not any(
            value is not None and rule.declares for rule, value in zip(case.rules, found, strict=True)
        ):
            continue
        both: Conjunction = ()
        for rule, own in zip(case.rules, found, strict=True):
            both = joined(both, rule.additional if own is None else own)
        if nothing[0] in both:
            continue
        counted = [(1 << n, quota.value) for n, quota in enumerate(case.quotas) if quotas >> n & 1]
        classes.append((keys, both, counted))
    return classes


def _with(found: list[Conjunction | None], n: int, value: Conjunction) -> list[Conjunction | None]:
    """What rules say, with one more pattern of rule `n` that matches."""
    own = found[n]
    return [*found[:n], value if own is None else joined(own, value), *found[n + 1 :]]


def _closed(builder: NodeBuilder, case: ObjectCase, names: list[str]) -> bool:
    """Whether keys that the schema does not speak of are left out although it allows them."""
    if builder.options.extra_properties == "allowed" or case.quotas or case.least > len(names):
        return False
    declaring = [rule for rule in case.rules if rule.declares]
    if any(rule.says_additional for rule in declaring):
        return False
    return any(rule.named or rule.patterns for rule in declaring)
