"""Shapes and vocabularies made by hand, and an oracle for masks."""

from __future__ import annotations

import json
import random
from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property

import numpy as np

from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.json_grammar import Grammar
from genret.decoding.grammar.leaves.dfa_leaf import DfaLeaf
from genret.decoding.grammar.leaves.leaf import Leaf, SparseLeaf
from genret.decoding.grammar.leaves.table_walk import TableWalker
from genret.decoding.grammar.regular.byte_dfa import ByteDfa
from genret.decoding.grammar.regular.json_spelling import spell_any_text
from genret.decoding.grammar.regular.number_set import NumberSet
from genret.decoding.grammar.shapes import Option, ValueNode
from genret.decoding.grammar.vocabulary import Vocabulary

COMPACT = GrammarOptions(whitespace="compact")
SPACED = GrammarOptions(whitespace="spaced")
FLEXIBLE = GrammarOptions(whitespace="flexible", max_indent=3)
WHITESPACES = (COMPACT, SPACED, FLEXIBLE)


def byte_vocabulary(pieces: Iterable[str | bytes] = (), seed: int = 0, random_pieces: int = 0) -> Vocabulary:
    """All single bytes, an end token, a special token, the given pieces and some random ones; shuffled ids.

    The model has a few logits more than there are tokens, and one text belongs to two tokens.
    """
    rng = random.Random(seed)
    texts: list[bytes | None] = [bytes([byte]) for byte in range(256)]
    texts += [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    alphabet = b'{}[],:"\\ \n-0123456789.eEtrufalsn/abcd' + bytes([0xC3, 0xA9, 0xF0, 0x9F, 0x98, 0x80])
    texts += [bytes(rng.choices(alphabet, k=rng.randint(2, 5))) for _ in range(random_pieces)]
    texts += [b'"', b"<special>"]
    rng.shuffle(texts)
    texts[texts.index(b"<special>")] = None
    return Vocabulary([*texts, None], len(texts), len(texts) + 7)


# Separated by lines, because blanks are part of them; "\\n" stands for a line break.
_PIECES = r"""
{" "} ": ",  }} ]} }] ]] [[ [{ [{" }, },{" "] [" "," },{ 12 123 1, 0] 1} 2]} "a "a" a": true false
null tru e, null, true} ame "name age ok \\n \\u00 é 日本 hello d"} d", d"] ""
[] {} {}} []] -1 1.5 1e e5 }}}}} ]]]]] \ud8 3d\ud e0
"""
JSON_PIECES = (*_PIECES.split(), '": ', '", "', ", ", ": ", '": "', " world", "  ", "\n  ", "\n")


class Maker:
    """Leaves of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._walker = TableWalker(vocabulary)
        self._kept: dict[Hashable, Leaf] = {}

    @cached_property
    def string(self) -> Leaf:
        return self.dense(spell_any_text())

    def strings(self, key: Hashable, texts: Iterable[str], labelled: bool = False) -> Leaf:
        """Texts one by one; under a table where the key says so."""
        spelled = [json.dumps(text, ensure_ascii=False).encode() for text in texts]
        return self.texts(key, spelled, labelled)

    def texts(self, key: Hashable, spelled: Sequence[bytes], labelled: bool = False) -> Leaf:
        leaf = SparseLeaf((key, tuple(spelled)), {t: (i if labelled else 0) for i, t in enumerate(spelled)})
        return self._kept.setdefault(leaf.key, leaf)

    def dense(self, dfa: ByteDfa) -> Leaf:
        leaf = DfaLeaf(dfa, self._walker)
        return self._kept.setdefault(leaf.key, leaf)

    @cached_property
    def integer(self) -> Leaf:
        return self.dense(NumberSet.of(integers=True).spelled())

    @cached_property
    def number(self) -> Leaf:
        return self.dense(NumberSet.of().spelled())

    @cached_property
    def boolean(self) -> Leaf:
        return self.texts("bool", [b"true", b"false"])

    @cached_property
    def null(self) -> Leaf:
        return self.texts("null", [b"null"])


class Members:
    """Objects with declared properties, each at most once: in their order, or in any."""

    def __init__(
        self,
        maker: Maker,
        members: Sequence[tuple[str, ValueNode]],
        required: Iterable[str] = (),
        any_order: bool = False,
    ) -> None:
        self._maker = maker
        self._members = list(members)
        self._required = frozenset(i for i, (name, _) in enumerate(members) if name in set(required))
        self._any_order = any_order
        self._leaves: dict[Hashable, tuple[Leaf, list[int]] | None] = {}

    def start(self) -> Hashable:
        return frozenset()

    def _open(self, written: frozenset[int]) -> list[int]:
        if self._any_order:
            return [i for i in range(len(self._members)) if i not in written]
        following = max(written, default=-1) + 1
        waiting = sorted(self._required - written)
        last = waiting[0] if waiting else len(self._members) - 1
        return list(range(following, last + 1))

    def can_close(self, progress: Hashable) -> bool:
        return self._required <= progress

    def keys(self, progress: Hashable) -> Leaf | None:
        open_members = self._open(progress)
        if not open_members:
            return None
        key = ("keys", tuple(open_members), id(self))
        return self._maker.strings(key, [self._members[i][0] for i in open_members], labelled=True)

    def after_key(self, progress: Hashable, label: int) -> tuple[Option, ...]:
        member = self._open(progress)[label]
        return (Option(self._members[member][1], progress | {member}),)

    def after_value(self, progress: Hashable, label: int) -> Hashable:
        return progress

    def shortest(self, progress: Hashable) -> int:
        total = 1
        for i in self._required - progress:
            name, value = self._members[i]
            total += 2 + len(json.dumps(name, ensure_ascii=False).encode()) + value.shortest
        return total


class Items:
    """Arrays of `least` to `most` items; each may be what any of the options says."""

    def __init__(self, options: Sequence[ValueNode], least: int = 0, most: int | None = None) -> None:
        self._options = options
        self._least = least
        self._most = most

    def _next(self, count: int) -> int:
        top = self._least if self._most is None else self._most
        return min(count + 1, max(top, 1)) if self._most is None else count + 1

    def start(self) -> Hashable:
        return 0

    def can_close(self, progress: Hashable) -> bool:
        return progress >= self._least

    def items(self, progress: Hashable) -> tuple[Option, ...]:
        if self._most is not None and progress >= self._most:
            return ()
        return tuple(Option(value, self._next(progress)) for value in self._options)

    def after_value(self, progress: Hashable, label: int) -> Hashable:
        return progress

    def shortest(self, progress: Hashable) -> int:
        item = min((value.shortest for value in self._options), default=0)
        return 1 + max(0, self._least - progress) * (1 + item)


class DistinctItems:
    """Arrays of strings out of a list, none of them twice."""

    def __init__(self, maker: Maker, texts: Sequence[str], least: int = 0) -> None:
        self._maker, self._texts, self._least = maker, list(texts), least

    def start(self) -> Hashable:
        return frozenset()

    def can_close(self, progress: Hashable) -> bool:
        return len(progress) >= self._least

    def items(self, progress: Hashable) -> tuple[Option, ...]:
        rest = [text for text in self._texts if text not in progress]
        if not rest:
            return ()
        leaf = self._maker.strings("distinct", rest, labelled=True)
        return (Option(value_of(leaf), (progress, tuple(rest))),)

    def after_value(self, progress: Hashable, label: int) -> Hashable:
        written, rest = progress
        return written | {rest[label]}

    def shortest(self, progress: Hashable) -> int:
        written = progress if isinstance(progress, frozenset) else progress[0]
        rest = sorted(len(text.encode()) + 3 for text in self._texts if text not in written)
        return 1 + sum(rest[: max(0, self._least - len(written))])


def value_of(*alternatives: object) -> ValueNode:
    """A value node of leaves and shapes."""
    node = ValueNode()
    fill(node, *alternatives)
    return node


def fill(node: ValueNode, *alternatives: object) -> None:
    """Fill a value node that others may refer to already."""
    node.leaves = tuple(a for a in alternatives if hasattr(a, "step"))
    node.arrays = tuple(a for a in alternatives if hasattr(a, "items"))
    node.objects = tuple(a for a in alternatives if hasattr(a, "keys"))
    lengths = [len(leaf.shortest(0)) for leaf in node.leaves]
    # An array or object that is empty, or whose first member needs no comma.
    for shape in (*node.arrays, *node.objects):
        lengths.append(1 + shape.shortest(shape.start()) - (0 if shape.can_close(shape.start()) else 1))
    node.shortest = min(lengths)


def zoo(maker: Maker) -> dict[str, ValueNode]:
    """Documents of all kinds."""
    string, integer, number = value_of(maker.string), value_of(maker.integer), value_of(maker.number)
    boolean, null = value_of(maker.boolean), value_of(maker.null)
    person = Members(maker, [("name", string), ("age", integer), ("ok", boolean)], ["name", "age", "ok"])
    optional = Members(maker, [("a", integer), ("b", string), ("ab", null), ("é", boolean)])
    free = Members(maker, [("a", integer), ("b", string), ("ab", boolean)], ["ab"], any_order=True)
    tree = ValueNode()
    fill(
        tree,
        maker.null,
        Members(maker, [("l", tree), ("r", tree)]),
        Items([tree]),
    )
    enum = maker.texts("mixed", [b"1", b"12", b"-3.5", b'"a"', b'"ab"', b"true", b"null"])
    union = value_of(
        Members(maker, [("kind", value_of(maker.strings("k1", ["one"]))), ("x", integer)], ["kind", "x"]),
        Members(
            maker, [("kind", value_of(maker.strings("k2", ["one", "two"]))), ("x", string)], ["kind", "x"]
        ),
        Members(maker, [("kind", string), ("y", boolean)], ["kind"]),
        Items([integer], 1, 3),
        Items([value_of(maker.strings("k3", ["q"])), value_of(Items([null]))], 0, None),
    )
    any_value = ValueNode()
    fill(any_value, maker.string, maker.number, maker.boolean, maker.null, Items([any_value]))
    lists = value_of(
        Items([value_of(Items([integer], 1, 2)), value_of(Items([number], 2, 3))], 1, 3),
        Items([value_of(Items([boolean], 0, 2)), value_of(Items([integer], 3, 3))], 2, 4),
    )
    return {
        "integer": integer,
        "number": number,
        "string": string,
        "enum": value_of(enum),
        "enum or number": value_of(enum, maker.number),
        "enum or string": value_of(maker.strings("e", ["a", "abc", "x y"]), enum, maker.string),
        "person": value_of(person),
        "optional": value_of(optional),
        "free order": value_of(free),
        "tree": tree,
        "union": union,
        "anything": any_value,
        "lists": lists,
        "distinct": value_of(DistinctItems(maker, ["a", "ab", "b", 'q"'], 2)),
        "nested": value_of(
            Members(
                maker,
                [("p", value_of(person)), ("t", value_of(Items([value_of(optional)], 1, 2)))],
                ["p", "t"],
            )
        ),
    }


def unpacked(grammar: Grammar, state: int) -> set[int]:
    """The tokens of a mask."""
    mask = grammar.mask(state)
    assert mask.dtype == np.uint32
    assert not mask.flags.writeable
    assert len(mask) == -(-grammar.vocab_size // 32)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def brute_force(grammar: Grammar, state: int) -> set[int]:
    """The tokens that can be followed byte by byte."""
    vocabulary = grammar.vocabulary
    texts = [(t, vocabulary.bytes_of(t)) for t in range(vocabulary.vocab_size)]
    allowed = {t for t, text in texts if text is not None and grammar.advance_bytes(state, text) >= 0}
    return allowed | ({vocabulary.end_token_id} if grammar.is_complete(state) else set())
