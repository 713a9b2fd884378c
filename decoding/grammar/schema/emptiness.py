"""Which values can be written at all, and in how few bytes: a least fixpoint over the graph of nodes."""

from __future__ import annotations

from typing import Protocol

from decoding.grammar.budget import current_budget
from decoding.grammar.schema.cases import Cases
from decoding.grammar.schema.members import ENDLESS
from decoding.grammar.shapes import ArrayShape, ObjectShape, ValueNode

# Where so many kinds of objects may begin, the keys of all are made here: else one mask had to make them.
_MANY_ALTERNATIVES = 8


class _Measured(Protocol):
    def cost(self) -> int:
        """Fewest bytes of such a container, as far as the values in it are known; `ENDLESS`: none."""

    def seal(self) -> None:
        """Settle, once all values are known, what may come where."""


class DraftArray(_Measured, ArrayShape, Protocol):
    """An array shape in the making."""


class DraftObject(_Measured, ObjectShape, Protocol):
    """An object shape in the making."""


class Draft:
    """A node with containers, in the making.

    Attributes:
        node: The node; its `shortest` falls until it is settled.
        cases: What it allows.
        arrays: One shape for each of its array cases.
        objects: One shape for each of its object cases.
    """

    __slots__ = ("arrays", "cases", "node", "objects")

    def __init__(self, node: ValueNode, cases: Cases) -> None:
        self.node = node
        self.cases = cases
        self.arrays: list[DraftArray] = []
        self.objects: list[DraftObject] = []

    def lower(self) -> bool:
        """Measure the node again; whether that was news."""
        node = self.node
        shortest = node.shortest
        for array in self.arrays:
            shortest = min(shortest, array.cost())
        for shape in self.objects:
            shortest = min(shortest, shape.cost())
        news = shortest < node.shortest
        node.shortest = shortest
        return news


def settle(drafts: list[Draft]) -> None:
    """Measure all nodes and leave out the containers that nothing can complete.

    A container costs at least a byte more than what is in it, so that costs only fall until every node has
    that of its shortest value; what is never reached is empty.

    Args:
        drafts: Nodes, those that lead to others mostly before them.
    """
    order = drafts[::-1]
    budget = current_budget()
    news = True
    while news:
        news = False
        for number, draft in enumerate(order):
            if not number & 255:
                budget.check_time()
            if draft.lower():
                news = True
    for draft in order:
        node = draft.node
        arrays = [shape for shape in draft.arrays if shape.cost() < ENDLESS]
        objects = [shape for shape in draft.objects if shape.cost() < ENDLESS]
        for array in arrays:
            array.seal()
        for shape in objects:
            shape.seal()
        node.arrays, node.objects = tuple(arrays), tuple(objects)
    for draft in order:
        if len(draft.node.objects) >= _MANY_ALTERNATIVES:
            for kind in draft.node.objects:
                budget.check_time()
                kind.keys(kind.start())
