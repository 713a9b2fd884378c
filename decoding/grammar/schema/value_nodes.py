"""Compiles formulas to value nodes: the graph of everything that a schema allows.

Every case of an object or an array becomes a shape. A least fixpoint over the graph then tells which values
can be written at all, and in how few bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from json.encoder import encode_basestring

from genret.decoding.grammar.compile_options import (
    AutomatonLimitError,
    GrammarOptions,
    check_time,
)
from genret.decoding.grammar.errors import (
    InvalidSchemaError,
    SchemaLimitError,
    UnsatisfiableSchemaError,
    UnsupportedSchemaError,
    VocabularyError,
)
from genret.decoding.grammar.leaves.leaf import Leaf, TitleSlotError, TitleSlotLeaf, TitleSlotOpener
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from genret.decoding.grammar.regular.byte_dfa import ByteDfa
from genret.decoding.grammar.regular.dfa import Dfa
from genret.decoding.grammar.regular.number_set import NumberSet, written
from genret.decoding.grammar.schema.array_shapes import (
    MAX_LEAST,
    ListShape,
    QuotaArrayShape,
    UniqueArrayShape,
)
from genret.decoding.grammar.schema.case_expansion import Expansion, item_value, member_value
from genret.decoding.grammar.schema.cases import (
    ArrayCase,
    Cases,
    Conjunction,
    ItemQuota,
    ObjectCase,
    joined,
    least_of,
)
from genret.decoding.grammar.schema.formula import Place, TextFromSlot
from genret.decoding.grammar.schema.formula_table import FormulaTable
from genret.decoding.grammar.schema.members import (
    KeyLeaves,
    KeyMemory,
    Member,
    Members,
    spelled_classes,
)
from genret.decoding.grammar.schema.object_shapes import CountedObjectShape, RecordShape
from genret.decoding.grammar.schema.value_texts import ObjectKeys, ValueTexts
from genret.decoding.grammar.shapes import ENDLESS, ArrayShape, ObjectShape, ValueNode

_INTEGERS = NumberSet.of(integers=True)


def compile_value(
    formulas: FormulaTable, options: GrammarOptions, leaves: Leaves, holes: TitleSlotOpener | None = None
) -> ValueNode:
    """Turn a schema's formulas into the graph of what may be written; `holes` opens the sets outside of it.

    Returns:
        The node of the whole value. All nodes and shapes that it leads to can be completed.

    Raises:
        UnsatisfiableSchemaError: nothing is valid.
        UnsupportedSchemaError: something cannot be represented.
        InvalidSchemaError: a hole cannot be opened.
        SchemaLimitError: it expands to too many alternatives, nodes or states.
        VocabularyError: what is valid cannot be written by the vocabulary.
        CompileTimeoutError: time is up.
    """
    builder = _NodeBuilder(formulas, options, leaves, holes)
    try:
        return builder.compiled()
    except RecursionError:
        raise SchemaLimitError("", "#", "its conditions are nested too deeply") from None


class _NodeBuilder:
    """Makes the nodes of one schema, each conjunction's once; arguments are those of `compile_value`."""

    def __init__(
        self, formulas: FormulaTable, options: GrammarOptions, leaves: Leaves, holes: TitleSlotOpener | None
    ) -> None:
        self.expansion = Expansion(formulas)
        self.options = options
        self.leaves = leaves
        self._root = formulas
        self._holes = holes
        self._nodes: dict[Conjunction, ValueNode] = {}
        self._unfilled: list[tuple[ValueNode, Cases]] = []
        self._size = 0
        self._unwritable: VocabularyError | None = None
        self.nothing = ValueNode(shortest=ENDLESS)
        self._nodes[self.expansion.atoms.nothing] = self.nothing

    def compiled(self) -> ValueNode:
        """The node of the whole schema; everything it leads to is settled."""
        whole = self.expansion.atoms.conjunction(self._root.root)
        root = self.node(whole)
        for node, cases in self._unfilled:  # grows while it is read
            node.arrays = tuple([_array_shape(self, case) for case in cases.arrays])
            node.objects = tuple([_object_shape(self, case) for case in cases.objects])
            self.count(len(cases.arrays) + len(cases.objects))
        _settle([node for node, _ in self._unfilled])
        if root.shortest >= ENDLESS:
            if self._unwritable is not None:
                raise self._unwritable
            place = self._culprit(whole, frozenset())
            raise UnsatisfiableSchemaError.at(place, "no value is valid under it")
        return root

    def _culprit(self, conjunction: Conjunction, seen: frozenset[Conjunction]) -> Place | None:
        """The place of a condition that likely keeps a conjunction empty, best that of a required member."""
        for case in self.expansion.cases(conjunction).objects:
            for name in case.required:
                value = member_value(case, name)
                node = self._nodes.get(value)
                if value not in seen and (node is None or node.shortest >= ENDLESS):
                    place = self._culprit(value, seen | {value})
                    return place or next((rule.place for rule in case.rules), None)
        return self.expansion.atoms.place_of(conjunction)

    def count(self, more: int) -> None:
        """Count nodes and shapes; raise SchemaLimitError when they are more than the limit."""
        self._size += more
        limit = self.options.limits.nodes
        if self._size > limit:
            raise SchemaLimitError.at(None, f"it expands to more than {limit:,} values and containers")
        if not self._size & 63:
            check_time()

    def node(self, conjunction: Conjunction) -> ValueNode:
        """The node of a conjunction; its containers are filled in later."""
        node = self._nodes.get(conjunction)
        if node is None:
            try:
                node = self._new(self.expansion.cases(conjunction))
            except AutomatonLimitError as error:
                raise SchemaLimitError.at(self.expansion.atoms.place_of(conjunction), str(error)) from None
            self._nodes[conjunction] = node
        return node

    def _new(self, cases: Cases) -> ValueNode:
        self.count(1)
        scalars = self.scalars(cases)
        shortest = min((len(leaf.shortest(0)) for leaf in scalars), default=ENDLESS)
        node = ValueNode(tuple(scalars), (), (), shortest)
        if cases.arrays or cases.objects:
            self._unfilled.append((node, cases))
        return node

    def scalars(self, cases: Cases, canonical: bool = False) -> list[Leaf]:
        """The leaves of scalars that the vocabulary can write; `canonical` asks for one spelling of each."""
        found: list[Leaf] = []
        leaves = self.leaves
        numbers, texts = cases.numbers, cases.texts
        if self.options.inexact == "narrow":
            canonical = True
            numbers = None if numbers is None else written(numbers)
        if cases.literals:
            try:
                found.append(leaves.literals(cases.literals))
            except VocabularyError:
                for bit in (1, 2, 4):
                    if cases.literals & bit:
                        self.add_writable(found, partial(leaves.literals, bit))
        if numbers is not None:
            plain = canonical or (self._root.plain_integers and (numbers - _INTEGERS).is_empty)
            self.add_writable(found, lambda: leaves.numbers(numbers, plain))
        if texts is not None:
            self.add_writable(found, lambda: leaves.texts(texts, canonical))
        found.extend(leaf for leaf in map(self.hole, cases.holes) if not leaf.is_empty)
        return found

    def can_write(self, key: str) -> bool:
        """Whether the vocabulary can write a key; if not, remember why."""
        vocabulary = self.leaves.vocabulary
        if vocabulary.writable.is_everything:
            return True
        try:
            vocabulary.require(encode_basestring(key).encode())
        except VocabularyError as error:
            self.leave_out(error)
            return False
        return True

    def leave_out(self, error: VocabularyError) -> None:
        """Remember why something valid cannot be written, to say so where nothing else is left."""
        self._unwritable = self._unwritable or error

    def add_writable(self, found: list[Leaf], make: Callable[[], Leaf]) -> None:
        """Add a leaf, or remember why the vocabulary cannot write any of its texts."""
        try:
            found.append(make())
        except VocabularyError as error:
            self.leave_out(error)

    def hole(self, hole: TextFromSlot) -> TitleSlotLeaf:
        """The leaf of a set outside the schema; raises InvalidSchemaError where there is none."""
        place = hole.place
        if self._holes is None:
            raise InvalidSchemaError.at(place, "no indexes are open to take strings from")
        try:
            return self._holes(hole.name)
        except TitleSlotError as error:
            pointer = f"{place.pointer.removesuffix(place.keyword)}{error.keyword}"
            raise InvalidSchemaError(error.keyword, pointer, str(error)) from None


def _place_of(case: ObjectCase) -> Place | None:
    """A place that had to do with the keys of a case."""
    for rule in case.rules:
        if rule.patterns:
            return rule.place
    return case.quotas[0].place if case.quotas else None


MAX_QUOTAS = 6


def _object_shape(builder: _NodeBuilder, case: ObjectCase) -> ObjectShape:
    try:
        return _shape_of_members(builder, case)
    except AutomatonLimitError as error:
        raise SchemaLimitError.at(_place_of(case), str(error)) from None


def _shape_of_members(builder: _NodeBuilder, case: ObjectCase) -> ObjectShape:
    if len(case.quotas) > MAX_QUOTAS:
        reason = f"more than {MAX_QUOTAS} kinds of members must be among the others"
        raise SchemaLimitError.at(case.quotas[-1].place, reason)
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
    key_leaves = KeyLeaves(builder.leaves, names, classes)
    members = Members(named, free, key_leaves)
    ordered = builder.options.property_order == "schema"
    if case.quotas or case.most is not None or case.least > len(required):
        # A member with a free key may satisfy a quota, which writing the key again could undo.
        may_count = any(len(member.values) > 1 for member in free)
        memory = None
        if classes and (may_count or case.least > len(required) + 1):
            memory = KeyMemory(builder.leaves, key_leaves)
        return CountedObjectShape(members, case.least, case.most, len(case.quotas), ordered, memory)
    return RecordShape(members, ordered)


def _names(case: ObjectCase) -> list[str]:
    """All keys that the rules name: declared ones in their order, then others."""
    names: dict[str, None] = {}
    for rule in sorted(case.rules, key=lambda rule: not rule.declares):
        names.update(dict.fromkeys(rule.named))
    names.update(dict.fromkeys(case.required))
    return list(names)


def _named_values(builder: _NodeBuilder, case: ObjectCase, name: str) -> dict[int, ValueNode]:
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
    builder: _NodeBuilder, value: Conjunction, quotas: list[tuple[int, Conjunction]]
) -> dict[int, ValueNode]:
    """The nodes of a value, by the selection of quotas that it satisfies."""
    conjunctions = {0: value}
    for bit, more in quotas:
        conjunctions |= {
            known | bit: joined(conjunction, more) for known, conjunction in conjunctions.items()
        }
    return {satisfied: builder.node(conjunction) for satisfied, conjunction in conjunctions.items()}


def _free_members(
    builder: _NodeBuilder, case: ObjectCase, names: list[str]
) -> tuple[list[Member], tuple[Dfa, ...]]:
    """The members whose keys are given by classes, and the automata of the classes."""
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


def _supply(builder: _NodeBuilder, keys: Dfa, names: list[str]) -> tuple[int | None, bytes]:
    """The number of keys of a set, None without bound, and the shortest, quoted; some names left out."""
    writable = builder.leaves.vocabulary.writable_texts
    if writable is None:
        rest = keys - Dfa.of_texts(names) if names else keys
        return rest.count(), encode_basestring(rest.shortest() or "").encode()
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
    builder: _NodeBuilder, case: ObjectCase, names: list[str]
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
                for piece, inside in _halves(keys, pattern)
            ]
    for n, quota in enumerate(case.quotas):
        special = Dfa.everything() if quota.keys is None else quota.keys.automaton()
        parts = [
            (piece, found, quotas | inside << n)
            for keys, found, quotas in parts
            for piece, inside in _halves(keys, special)
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


def _halves(keys: Dfa, others: Dfa) -> list[tuple[Dfa, bool]]:
    """The keys within a set and those outside of it, but for empty halves."""
    return [half for half in ((keys & others, True), (keys - others, False)) if not half[0].is_empty]


def _with(found: list[Conjunction | None], n: int, value: Conjunction) -> list[Conjunction | None]:
    """The values that rules give, with one more pattern of rule `n` that matches."""
    own = found[n]
    return [*found[:n], value if own is None else joined(own, value), *found[n + 1 :]]


def _closed(builder: _NodeBuilder, case: ObjectCase, names: list[str]) -> bool:
    """Whether keys that the schema does not speak of are left out although it allows them."""
    if builder.options.extra_properties == "allowed" or case.quotas or case.least > len(names):
        return False
    declaring = [rule for rule in case.rules if rule.declares]
    if any(rule.says_additional for rule in declaring):
        return False
    return any(rule.named or rule.patterns for rule in declaring)


MAX_ITEM_QUOTAS = 5
MAX_STATES = 20_000


def _array_shape(builder: _NodeBuilder, case: ArrayCase) -> ArrayShape:
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


def _unique(builder: _NodeBuilder, case: ArrayCase, place: Place) -> UniqueArrayShape:
    if case.quotas:
        raise UnsupportedSchemaError.at(place, "it cannot be combined with counted items")
    if case.least > MAX_LEAST:
        raise SchemaLimitError.at(place, f"more than {MAX_LEAST} items must be there and differ")
    places: list[tuple[Leaf, ...]] = []
    most = case.most
    texts = ValueTexts(builder.expansion, builder.options, partial(_keys, builder), place)
    for n in range(max([len(rule.prefix) for rule in case.rules], default=0) + 1):
        if n == most:
            break
        cases = builder.expansion.cases(item_value(case, n))
        leaves = builder.scalars(cases, canonical=True)
        if cases.arrays or cases.objects:
            try:
                containers = texts.containers(cases)
            except AutomatonLimitError as error:
                raise SchemaLimitError.at(place, f"to compare its items, {error}") from None
            if not containers.is_empty:
                builder.add_writable(leaves, partial(builder.leaves.spelled, containers))
        if not leaves:
            most = least_of(most, n)
            break
        places.append(tuple(leaves))
    return UniqueArrayShape(builder.leaves, places or [()], case.least, most)


def _keys(builder: _NodeBuilder, case: ObjectCase) -> ObjectKeys:
    names = [name for name in _names(case) if case.names is None or case.names.accepts(name)]
    others = _key_classes(builder, case, names)
    return ObjectKeys(
        tuple(filter(builder.can_write, names)),
        any(_supply(builder, keys, names)[0] != 0 for keys, _, _ in others),
    )


def _counted(builder: _NodeBuilder, case: ArrayCase) -> QuotaArrayShape:
    too_much = SchemaLimitError.at(case.quotas[-1].place, "too many items would have to be counted")
    if len(case.quotas) > MAX_ITEM_QUOTAS:
        raise too_much
    starts = [len(rule.prefix) for rule in case.rules] + [quota.start for quota in case.quotas]
    places = [_ways(builder, case, place) for place in range(max(starts) + 1)]
    bounds = [(quota.least, quota.most) for quota in case.quotas]
    shape = QuotaArrayShape(places, bounds, case.least, case.most)
    if shape.num_states() > MAX_STATES:
        raise too_much
    return shape


def _ways(builder: _NodeBuilder, case: ArrayCase, place: int) -> list[tuple[tuple[int, ...], ValueNode]]:
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


def _kinds(builder: _NodeBuilder, quota: ItemQuota, place: int) -> list[tuple[int, Conjunction]]:
    """The ways an item can be for a quota: counted or not, and what it must then be."""
    if place < quota.start:
        return [(0, ())]
    if quota.most is None:
        return [(0, ()), (1, quota.item)]
    others = (0, builder.expansion.atoms.negation(quota.item, quota.place))
    return [others] if quota.most == 0 else [others, (1, quota.item)]


# Where so many kinds of objects may begin, the keys of all are made here: else one mask had to make them.
_MANY_ALTERNATIVES = 8


def _settle(nodes: list[ValueNode]) -> None:
    """Measure all nodes and leave out the containers that nothing can complete.

    A container costs at least a byte more than what is in it, so that costs only fall until every node has
    that of its shortest value; what is never reached is empty. Nodes mostly come before those they lead to.
    """
    order = nodes[::-1]
    news = True
    while news:
        news = False
        for number, node in enumerate(order):
            if not number & 255:
                check_time()
            shortest = min([shape.cost() for shape in (*node.arrays, *node.objects)])
            if shortest < node.shortest:
                node.shortest, news = shortest, True
    for node in order:
        node.arrays = tuple([shape for shape in node.arrays if shape.cost() < ENDLESS])
        node.objects = tuple([shape for shape in node.objects if shape.cost() < ENDLESS])
        for shape in (*node.arrays, *node.objects):
            shape.seal()
    for node in order:
        if len(node.objects) >= _MANY_ALTERNATIVES:
            for kind in node.objects:
                check_time()
                kind.keys(kind.start())
