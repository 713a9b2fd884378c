"""Which strings of an answer came out of which sets: only what lies on a way to the end counts."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from genret.decoding.grammar.json_grammar import Grammar
from genret.decoding.grammar.leaves.leaf import SparseLeaf, TitleSlotLeaf, TitleSlotName
from genret.decoding.grammar.shapes import ValueNode
from tests.grammar_shapes import FLEXIBLE, Items, Maker, Members, byte_vocabulary, fill, value_of

MAKER = Maker(byte_vocabulary())


class Hole(SparseLeaf):
    """A set of a few texts; a text's number is its place, or places."""

    is_empty = False

    def __init__(self, index: str, texts: Sequence[str]) -> None:
        spelled = [json.dumps(text, ensure_ascii=False).encode() for text in texts]
        super().__init__(("hole", index), dict.fromkeys(spelled, 0))
        self.name = TitleSlotName(index)
        self._texts: dict[int, list[int]] = {}
        for number, text in enumerate(spelled):
            state = 0
            for byte in text:
                state = self.step(state, byte)
            self._texts.setdefault(state, []).append(number)

    def members(self, state: int) -> tuple[int, ...]:
        return tuple(self._texts[state])


PEOPLE = Hole("people", ["Ada", "Alan", 'A "q" ü', "Ada"])
PLACES = Hole("places", ["Ada", "Oslo"])


def found_in(value: ValueNode, text: str) -> list[tuple[str, str, tuple[int, ...], str]]:
    grammar = Grammar(value, MAKER.vocabulary, FLEXIBLE)
    return [
        (
            hole.pointer,
            hole.name.index,
            hole.members,
            text.encode()[hole.first_byte : hole.last_byte].decode(),
        )
        for hole in grammar.holes(text.encode())
    ]


def test_fakes_are_holes() -> None:
    assert isinstance(PEOPLE, TitleSlotLeaf)
    assert not isinstance(MAKER.string, TitleSlotLeaf)


def test_holes_at_the_top_in_arrays_and_in_objects() -> None:
    person, place = value_of(PEOPLE), value_of(PLACES)
    assert found_in(person, '"Alan"') == [("", "people", (1,), '"Alan"')]
    assert found_in(value_of(Items([person])), '["Ada", "Alan"]') == [
        ("/0", "people", (0, 3), '"Ada"'),
        ("/1", "people", (1,), '"Alan"'),
    ]
    inner = value_of(Members(MAKER, [("n", person), ("k", value_of(MAKER.string))]))
    value = value_of(Members(MAKER, [("a/b~", value_of(Items([inner]))), ("é", place)]))
    text = '{"a/b~": [{}, {"n": "A \\"q\\" ü", "k": "Ada"}], "é": "Oslo"}'
    assert found_in(value, text) == [
        ("/a~1b~0/1/n", "people", (2,), '"A \\"q\\" ü"'),
        ("/é", "places", (1,), '"Oslo"'),
    ]


def test_an_alternative_that_died_claims_nothing() -> None:
    """Both write the name; the kind behind it says whose it was."""
    kinds = {kind: value_of(MAKER.strings("kind", [kind])) for kind in ("person", "place")}
    value = value_of(
        Members(MAKER, [("name", value_of(PEOPLE)), ("kind", kinds["person"])], ["name", "kind"]),
        Members(MAKER, [("name", value_of(PLACES)), ("kind", kinds["place"])], ["name", "kind"]),
    )
    assert found_in(value, '{"name":"Ada","kind":"place"}') == [("/name", "places", (0,), '"Ada"')]
    assert found_in(value, '{"name":"Ada","kind":"person"}') == [("/name", "people", (0, 3), '"Ada"')]


def test_an_alternative_that_died_far_above_claims_nothing() -> None:
    """The lists are alike until a number says which of two kinds the whole was."""
    inner = [value_of(Items([value_of(hole)])) for hole in (PEOPLE, PLACES)]
    value = value_of(
        Members(MAKER, [("l", inner[0]), ("n", value_of(MAKER.texts("one", [b"1"])))], ["l", "n"]),
        Members(MAKER, [("l", inner[1]), ("n", value_of(MAKER.texts("two", [b"2", b"12"])))], ["l", "n"]),
    )
    nested = value_of(Items([value]))
    text = '[{"l":["Ada"],"n":2},{"l":["Ada","Ada"],"n":1},{"l":["Ada"],"n":12}]'
    assert [(pointer, index) for pointer, index, _, _ in found_in(nested, text)] == [
        ("/0/l/0", "places"),
        ("/1/l/0", "people"),
        ("/1/l/1", "people"),
        ("/2/l/0", "places"),
    ]


def test_alternatives_that_both_live_both_claim() -> None:
    value = value_of(PEOPLE, PLACES, MAKER.string)
    assert [index for _, index, _, _ in found_in(value, '"Ada"')] == ["people", "places"]
    assert [index for _, index, _, _ in found_in(value, '"Oslo"')] == ["places"]
    assert found_in(value, '"Bergen"') == []


def test_holes_in_recursion() -> None:
    tree = ValueNode()
    fill(tree, PEOPLE, Items([tree]))
    text = '[[["Ada"]],"Alan",[]]'
    assert [pointer for pointer, *_ in found_in(tree, text)] == ["/0/0/0", "/1"]
    text = "[" * 10_000 + '"Ada"' + "]" * 10_000
    assert [pointer for pointer, *_ in found_in(tree, text)] == ["/0" * 10_000]


@pytest.mark.parametrize(
    "text", ["", "[", "[1]", '["Ada"', '["Ada"]]', '["Oslo"]', "{}", '"Ada"', "]", "\x00"]
)
def test_what_is_no_answer_is_refused(text: str) -> None:
    grammar = Grammar(value_of(Items([value_of(PEOPLE)])), MAKER.vocabulary)
    with pytest.raises(ValueError, match="expected a complete answer"):
        grammar.holes(text.encode())


def test_numbers_end_with_the_text() -> None:
    assert Grammar(value_of(MAKER.integer), MAKER.vocabulary).holes(b"12") == ()
    with pytest.raises(ValueError, match="expected a complete answer"):
        Grammar(value_of(MAKER.integer), MAKER.vocabulary).holes(b"-")
