"""From formulas to value nodes: the graph of everything that a schema allows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from json.encoder import encode_basestring

from decoding.grammar.budget import AutomatonLimitError, current_budget
from decoding.grammar.errors import (
    InvalidSchemaError,
    SchemaLimitError,
    UnsatisfiableSchemaError,
    VocabularyError,
)
from decoding.grammar.leaves.factory import Leaves
from decoding.grammar.leaves.hole import HoleError, HoleLeaf, HoleOpener
from decoding.grammar.leaves.leaf import Leaf
from decoding.grammar.options import GrammarOptions
from decoding.grammar.regular.number_range import written
from decoding.grammar.regular.number_set import NumberSet
from decoding.grammar.schema.atoms import Formulas
from decoding.grammar.schema.cases import Cases, Conjunction, ObjectCase
from decoding.grammar.schema.conflicts import member_value
from decoding.grammar.schema.emptiness import Draft, settle
from decoding.grammar.schema.expansion import Expansion
from decoding.grammar.schema.formula import Place, TextFromHole
from decoding.grammar.schema.items_of import array_shape
from decoding.grammar.schema.members import ENDLESS
from decoding.grammar.schema.members_of import object_shape
from decoding.grammar.shapes import ValueNode

_INTEGERS = NumberSet.of(integers=True)


def compile_value(
    formulas: Formulas, options: GrammarOptions, leaves: Leaves, holes: HoleOpener | None = None
) -> ValueNode:
    """Turn a schema's formulas into the graph of what may be written.

    Args:
        formulas: The schema.
        options: Order of properties, undeclared properties, limits.
        leaves: Of the vocabulary.
        holes: Opens the sets outside the schema; None: there are none.

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
    builder = NodeBuilder(formulas, options, leaves, holes)
    try:
        return builder.compiled()
    except RecursionError:
        raise SchemaLimitError("", "#", "its conditions are nested too deeply") from None


class NodeBuilder:
    """Makes the nodes of one schema, each conjunction's once.

    Args:
        formulas: The schema.
        options: How it is read.
        leaves: Of the vocabulary.
        holes: Opens sets outside the schema.
    """

    def __init__(
        self, formulas: Formulas, options: GrammarOptions, leaves: Leaves, holes: HoleOpener | None
    ) -> None:
        self.expansion = Expansion(formulas)
        self.options = options
        self.leaves = leaves
        self._root = formulas
        self._holes = holes
        self._nodes: dict[Conjunction, ValueNode] = {}
        self._drafts: list[Draft] = []
        self._size = 0
        self._unwritable: VocabularyError | None = None
        self.nothing = ValueNode(shortest=ENDLESS)
        self._nodes[self.expansion.atoms.nothing] = self.nothing

    def compiled(self) -> ValueNode:
        """The node of the whole schema, everything it leads to settled."""
        whole = self.expansion.atoms.conjunction(self._root.root)
        root = self.node(whole)
        waiting = self._drafts
        for draft in waiting:  # grows while it is read
            cases = draft.cases
            draft.arrays = [array_shape(self, case) for case in cases.arrays]
            for case in cases.objects:
                try:
                    draft.objects.append(object_shape(self, case))
                except AutomatonLimitError as error:
                    raise _too_large(_place_of(case), error) from None
            self.count(len(cases.arrays) + len(cases.objects))
        settle(waiting)
        if root.shortest >= ENDLESS:
            if self._unwritable is not None:
                raise self._unwritable
            place = self._culprit(whole, frozenset())
            keyword, pointer = (place.keyword, place.pointer) if place else ("", "#")
            raise UnsatisfiableSchemaError(keyword, pointer, "no value is valid under it")
        return root

    def _culprit(self, conjunction: Conjunction, seen: frozenset[Conjunction]) -> Place | None:
        """A condition that likely keeps a conjunction empty, that of a required member if there is one."""
        atoms = self.expansion.atoms
        for case in self.expansion.cases(conjunction).objects:
            for name in case.required:
                value = member_value(case, name)
                node = self._nodes.get(value)
                if value not in seen and (node is None or node.shortest >= ENDLESS):
                    place = self._culprit(value, seen | {value})
                    return place or next((rule.place for rule in case.rules), None)
        return atoms.place_of(conjunction)

    def count(self, more: int) -> None:
        """Count nodes and shapes.

        Raises:
            SchemaLimitError: they are more than the limit.
        """
        self._size += more
        limit = self.options.limits.nodes
        if self._size > limit:
            raise SchemaLimitError("", "#", f"it expands to more than {limit:,} values and containers")
        if not self._size & 63:
            current_budget().check_time()

    def node(self, conjunction: Conjunction) -> ValueNode:
        """The node of a conjunction; its containers are filled in later."""
        node = self._nodes.get(conjunction)
        if node is None:
            try:
                node = self._new(self.expansion.cases(conjunction))
            except AutomatonLimitError as error:
                raise _too_large(self.expansion.atoms.place_of(conjunction), error) from None
            self._nodes[conjunction] = node
        return node

    def _new(self, cases: Cases) -> ValueNode:
        self.count(1)
        scalars = self.scalars(cases)
        shortest = min((len(leaf.shortest(0)) for leaf in scalars), default=ENDLESS)
        node = ValueNode(tuple(scalars), (), (), shortest)
        if cases.arrays or cases.objects:
            self._drafts.append(Draft(node, cases))
        return node

    def scalars(self, cases: Cases, canonical: bool = False) -> list[Leaf]:
        """The leaves of scalar alternatives; what the vocabulary cannot write is left out.

        Args:
            cases: The alternatives.
            canonical: Whether every value is to have one spelling only.
        """
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
                        self._add_writable(found, partial(leaves.literals, bit))
        if numbers is not None:
            plain = canonical or (self._root.plain_integers and (numbers - _INTEGERS).is_empty)
            self._add_writable(found, lambda: leaves.numbers(numbers, plain))
        if texts is not None:
            self._add_writable(found, lambda: leaves.texts(texts, canonical))
        found.extend(leaf for leaf in map(self.hole, cases.holes) if not leaf.is_empty)
        return found

    def can_write(self, key: str) -> bool:
        """Whether the vocabulary can write a key."""
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
        """Remember why something valid cannot be written, to be said where nothing else is left."""
        self._unwritable = self._unwritable or error

    def _add_writable(self, found: list[Leaf], make: Callable[[], Leaf]) -> None:
        """Add a leaf unless the vocabulary cannot write any of its texts."""
        try:
            found.append(make())
        except VocabularyError as error:
            self.leave_out(error)

    def hole(self, hole: TextFromHole) -> HoleLeaf:
        """The leaf of a set outside the schema.

        Raises:
            InvalidSchemaError: there is no such set.
        """
        place = hole.place
        if self._holes is None:
            raise InvalidSchemaError(place.keyword, place.pointer, "no indexes are open to take strings from")
        try:
            return self._holes(hole.name)
        except HoleError as error:
            pointer = f"{place.pointer.removesuffix(place.keyword)}{error.keyword}"
            raise InvalidSchemaError(error.keyword, pointer, str(error)) from None

    def is_scalar(self, cases: Cases) -> bool:
        """Whether no array and no object is allowed, as far as this can be told at sight."""
        return not cases.arrays and not cases.objects


def _place_of(case: ObjectCase) -> Place | None:
    """A place that had to do with the keys of a case."""
    for rule in case.rules:
        if rule.patterns:
            return rule.place
    return case.quotas[0].place if case.quotas else None


def _too_large(place: Place | None, error: AutomatonLimitError) -> SchemaLimitError:
    keyword, pointer = (place.keyword, place.pointer) if place else ("", "#")
    return SchemaLimitError(keyword, pointer, str(error))
