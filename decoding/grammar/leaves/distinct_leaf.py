"""Makes leaves that know which text was written, and can exclude texts: items of arrays that must differ.

Texts written as values are numbered by `Texts`. Texts that end within tokens are told apart only where it
matters (`AlikeExits`): a token that ends an item and begins the next can write a text twice only if it writes
more of the next item than its beginning.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Generic, TypeVar

from genret.decoding.grammar.leaves.leaf import (
    Exit,
    Leaf,
    LeafTokens,
    TitleSlotLeaf,
    TitleSlotName,
    TokenCache,
)
from genret.decoding.grammar.token_trie import TokenNode
from genret.decoding.grammar.vocabulary import Vocabulary

_STATE_BYTES = 250
_LEAF_BYTES = 1000
_KEPT_BYTES = 4 << 20


_Key = TypeVar("_Key", bound=Hashable)


class _Numbers(Generic[_Key]):
    """Numbers keys in the order they are met. Safe to use from several threads."""

    __slots__ = ("_lock", "keys", "known")

    def __init__(self, *keys: _Key) -> None:
        self.keys = list(keys)
        self.known = {key: number for number, key in enumerate(keys)}
        self._lock = threading.Lock()

    def of(self, key: _Key) -> int:
        """The number of a key, which is met now if it has not been before."""
        number = self.known.get(key)
        if number is None:
            with self._lock:
                number = self.known.get(key)
                if number is None:
                    number = len(self.keys)
                    self.keys.append(key)
                    self.known[key] = number  # last, so that a thread that finds it finds the key, too
        return number


class Writings:
    """States of a leaf together with the text written on the way to them."""

    def __init__(self, base: Leaf, texts: Texts, vocabulary: Vocabulary, alike: AlikeExits | None) -> None:
        # Splits exits where only repetition matters and texts are endlessly many; None: all are told apart.
        self.alike = alike
        self.base = base
        self.texts = texts  # Written here and in other leaves whose texts are compared
        self.vocabulary = vocabulary
        self.is_title_slot = isinstance(base, TitleSlotLeaf)
        self._pairs = _Numbers((0, 0))

    @property
    def num_bytes(self) -> int:
        """Approximate memory of the states and texts met so far."""
        return _STATE_BYTES * len(self._pairs.keys) + self.texts.num_bytes

    def state(self, inner: int, place: int) -> int:
        """The state of a pair of a state of the base and a place of the texts."""
        return self._pairs.of((inner, place))

    def pair(self, state: int) -> tuple[int, int]:
        """The state of the base and the place of the texts that a state stands for."""
        return self._pairs.keys[state]


class DistinctLeaf:
    """A leaf without some of its texts (`Leaf`); labels are numbers of texts.

    A prefix that leads to excluded texts only is not allowed either. Almost no prefix leads to excluded
    texts, so the tokens are the base's but for a few.

    Args:
        writings: States, shared by leaves with other excluded texts.
        excluded: Numbers of texts, also of texts that the base does not have.
    """

    is_shared = False

    def __init__(self, writings: Writings, excluded: frozenset[int]) -> None:
        self.key: Hashable = ("distinct", writings, excluded)
        self.writings = writings
        self.excluded = excluded
        self._base = writings.base
        self._texts = writings.texts
        # Ends of excluded texts; places on the way there with the base's states; places leading nowhere else.
        self._ended: set[int] = set()
        self._on_the_way: dict[int, int] = {}
        self._dead: set[int] = set()
        self._watched: set[int] = set()
        self._tokens = TokenCache(_KEPT_BYTES)
        for number in excluded:
            self._leave_out(self._texts.bytes_of(number))
        if excluded:
            self._find_dead()

    @property
    def is_empty(self) -> bool:
        """Whether no text is left: then there is no state either, and nothing may be asked."""
        return 0 in self._dead

    @property
    def num_bytes(self) -> int:
        """Approximate memory beyond the base; the leaf without exclusions also counts the texts."""
        own = _LEAF_BYTES + 100 * len(self._on_the_way) + self._tokens.size
        return own if self.excluded else own + self.writings.num_bytes

    def step(self, state: int, byte: int) -> int:
        """The state after one byte, -1 if it is not allowed."""
        inner, place = self.writings.pair(state)
        after = self._base.step(inner, byte)
        if after < 0 or self._texts.known(place, byte) in self._dead:
            return -1
        return self.writings.state(after, self._texts.after(place, byte))

    def edges(self, state: int) -> Mapping[int, int] | None:
        """All allowed bytes and the states they lead to, if they are few."""
        inner, place = self.writings.pair(state)
        listed = self._base.edges(inner)
        if listed is None:
            return None
        texts, dead = self._texts, self._dead
        return {
            byte: self.writings.state(after, texts.after(place, byte))
            for byte, after in listed.items()
            if texts.known(place, byte) not in dead
        }

    def label(self, state: int) -> int:
        """Number of the text written so far, -1 if it is no allowed text."""
        inner, place = self.writings.pair(state)
        if self._base.label(inner) < 0 or place in self._ended:
            return -1
        return self._texts.number(place)

    def goes_on(self, state: int) -> bool:
        """Whether any byte is allowed in the state."""
        inner, place = self.writings.pair(state)
        if place not in self._on_the_way:
            return self._base.goes_on(inner)
        return self._has_other_way(inner, place)

    def shortest(self, state: int) -> bytes:
        """A shortest text that leads from the state to a final one, of those the first in byte order."""
        return self._shortest(*self.writings.pair(state))

    def tokens(self, state: int, node: TokenNode) -> LeafTokens | None:
        """The tokens below a node that pass; None if `edges` lists all bytes."""
        key = (state, node.positions)
        kept = self._tokens.get(key)
        if kept is not None:
            return kept
        inner, place = self.writings.pair(state)
        if self._base.edges(inner) is not None:
            return None
        found = self._base.tokens(inner, node)
        if found is None:
            return None
        few, many = found.few, found.many
        removed = self._removed(node, place)
        if removed:
            without = set(removed)
            few = tuple(token for token in few if token not in without)
            if many is not None:
                many = many & ~self.writings.vocabulary.packed(removed)
                many.flags.writeable = False
        return self._tokens.put(key, LeafTokens(few, many, self._exits(found.exits, node, inner, place)))

    def watch(self, numbers: Iterable[int]) -> None:
        """Tell apart the states on the way to some texts, for `if_apart`."""
        for number in numbers:
            place = 0
            self._watched.add(place)
            for byte in self._texts.bytes_of(number):
                place = self._texts.known(place, byte)
                self._watched.add(place)

    def if_apart(self, state: int, text: bytes) -> int:
        """The state of the base behind some more bytes, if no excluded or watched text begins so; else -1.

        Unlike `step` it remembers nothing.
        """
        inner, place = self.writings.pair(state)
        for byte in text:
            inner, place = self._base.step(inner, byte), self._texts.known(place, byte)
            if inner < 0:
                return -1
        return -1 if place in self._on_the_way or place in self._watched else inner

    def _leave_out(self, text: bytes) -> None:
        """Mark the places on the way to a text, if the base has it."""
        state, place = 0, 0
        way = [(0, 0)]
        for byte in text:
            state = self._base.step(state, byte)
            if state < 0:
                return
            place = self._texts.after(place, byte)
            way.append((place, state))
        if self._base.label(state) >= 0:
            self._on_the_way.update(way)
            self._ended.add(place)

    def _find_dead(self) -> None:
        """Find the places from which only excluded texts can be reached, the longest first."""
        order = sorted(self._on_the_way, reverse=True)  # a place's number is above its prefixes'
        for place in order:
            state = self._on_the_way[place]
            is_whole = self._base.label(state) >= 0 and place not in self._ended
            if not is_whole and not self._has_other_way(state, place):
                self._dead.add(place)

    def _has_other_way(self, inner: int, place: int) -> bool:
        """Whether some byte leads on from a place to an allowed text."""
        listed = self._base.edges(inner)
        if listed is not None:
            return any(self._texts.known(place, byte) not in self._dead for byte in listed)
        # The first byte of the shortest text is almost always one.
        return any(
            self._texts.known(place, byte) not in self._dead
            for byte in chain(self._base.shortest(inner)[:1], range(256))
            if self._base.step(inner, byte) >= 0
        )

    def _shortest(self, inner: int, place: int) -> bytes:
        """The shortest text from a state of the base at a place; place -1 is one that no text was at."""
        text = self._base.shortest(inner)
        end = place
        for byte in text:
            end = self._texts.known(end, byte)
        if end not in self._ended:
            return text
        if self._base.label(inner) >= 0 and place not in self._ended:
            return b""
        listed = self._base.edges(inner)
        best: bytes | None = None
        free: set[int] = set()  # states off the way to excluded texts: most bytes lead to one of few
        for byte in sorted(listed) if listed is not None else range(256):
            after = self._base.step(inner, byte)
            following = self._texts.known(place, byte)
            if after < 0 or following in self._dead:
                continue
            if following not in self._on_the_way:
                if after in free:
                    continue
                free.add(after)
            if best is not None and 1 + len(self._base.shortest(after)) >= len(best):
                continue
            candidate = bytes([byte]) + self._shortest(after, following)
            if best is None or len(candidate) < len(best):
                best = candidate
        if best is None:
            raise ValueError("no text is left")
        return best

    def _removed(self, node: TokenNode, place: int) -> list[int]:
        """Tokens below a node that lead to dead places."""
        trie = node.trie
        return [
            token
            for child, following in self._on_the_way_below(node, place)
            if following in self._dead
            for position in child.positions
            for token in trie.tokens_view[
                trie.token_begin_view[position] : trie.token_begin_view[trie.end_view[position]]
            ]
        ]

    def _on_the_way_below(self, node: TokenNode, place: int) -> Iterator[tuple[TokenNode, int]]:
        """Iterate over the nodes below one that are on the way to excluded texts, with the texts' places."""
        waiting = [(node, place)] if place in self._on_the_way else []
        while waiting:
            at, here = waiting.pop()
            for byte, child in at.children.items():
                following = self._texts.known(here, byte)
                if following in self._on_the_way:
                    yield child, following
                    waiting.append((child, following))

    def _exits(self, exits: tuple[Exit, ...], node: TokenNode, inner: int, place: int) -> tuple[Exit, ...]:
        """The base's exits by number of the text; texts that need not be told apart are `SOME_TEXT`."""
        vocabulary, alike = self.writings.vocabulary, self.writings.alike
        by_number: dict[int, list[int]] = {}
        ended: set[int] = set()
        if alike is not None:
            # Excluded texts end at these places, and perhaps others, too.
            for child, following in self._on_the_way_below(node, place):
                if following in self._ended:
                    ended.update(child.positions)
        for label, rest in exits:
            positions = rest.positions
            if alike is not None:
                same, told = alike.parted(rest)
                by_number.setdefault(SOME_TEXT, []).extend([p for p in same if p not in ended])
                positions = told + tuple([p for p in same if p in ended])
            for position in positions:
                for written in self._written(node, position):
                    if self._label_of(inner, written) != label:
                        continue
                    end = self._texts.place_of(written, place)
                    if end not in self._ended:
                        by_number.setdefault(self._texts.number(end), []).append(position)
        return tuple(
            Exit(number, vocabulary.rest(by_number[number]))
            for number in sorted(by_number)
            if by_number[number]
        )

    def _written(self, node: TokenNode, position: int) -> list[bytes]:
        """The bytes from a node to a place of the trie, once for each position of the node above it."""
        trie = node.trie
        token = trie.tokens_view[trie.token_begin_view[position]]
        text = self.writings.vocabulary.written(token)[: trie.depth_view[position]]
        return [
            text[trie.depth_view[root] :] for root in node.positions if root < position < trie.end_view[root]
        ]

    def _label_of(self, inner: int, written: bytes) -> int:
        """The base's label behind some bytes."""
        for byte in written:
            inner = self._base.step(inner, byte)
            if inner < 0:
                return -1
        return self._base.label(inner)


class DistinctSlotLeaf(DistinctLeaf):
    """Members of a set that have not been written yet (`TitleSlotLeaf`)."""

    @property
    def _slot(self) -> TitleSlotLeaf:
        base = self._base
        if not isinstance(base, TitleSlotLeaf):
            raise TypeError("expected a leaf over a set")
        return base

    @property
    def name(self) -> TitleSlotName:
        """The set that the schema asked for."""
        return self._slot.name

    @property
    def is_empty(self) -> bool:
        """Whether no member is left."""
        return self._slot.is_empty or super().is_empty

    def members(self, state: int) -> tuple[int, ...]:
        """Numbers of the members that a final state stands for, ascending."""
        inner, _ = self.writings.pair(state)
        return self._slot.members(inner)


SOME_TEXT = -2
"""Label of some text that has not been written before, whichever it is."""

# Most nodes whose split places are kept.
_MAX_NODES = 1024
_BLANKS = rb"[ \n]*"
# A comma with at most the opening quote of the next item, or the end of the array and anything behind it.
_TELLS_NOTHING = re.compile(_BLANKS + rb"(?:," + _BLANKS + rb'"?\Z|\].*\Z|\Z)', re.DOTALL)
# Bytes that may follow an item at all.
_FOLLOWS = re.compile(_BLANKS + rb"(?:[,\]]|\Z)")


class AlikeExits:
    """Splits places behind ended texts by whether tokens there tell the texts apart."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        # By place: whether anything may follow, and whether some token tells texts apart.
        self._kinds: dict[int, tuple[bool, bool]] = {}
        self._parted: dict[tuple[int, ...], tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def parted(self, rest: TokenNode) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The places of a node where ended texts are alike, and those where they are told apart.

        Places behind which nothing may follow an item are left out.
        """
        found = self._parted.get(rest.positions)
        if found is None:
            kinds = [(place, *self._kind(place)) for place in rest.positions]
            alike = tuple(place for place, goes_on, tells in kinds if goes_on and not tells)
            told = tuple(place for place, goes_on, tells in kinds if goes_on and tells)
            if len(self._parted) >= _MAX_NODES:
                self._parted = {}
            found = self._parted[rest.positions] = (alike, told)
        return found

    def _kind(self, place: int) -> tuple[bool, bool]:
        found = self._kinds.get(place)
        if found is None:
            trie = self._vocabulary.trie
            depth = trie.depth_view[place]
            first, behind = trie.token_begin_view[place + 1], trie.token_begin_view[trie.end_view[place]]
            rests = [self._vocabulary.written(token)[depth:] for token in trie.tokens_view[first:behind]]
            possible = [rest for rest in rests if _FOLLOWS.match(rest)]
            tells = any(not _TELLS_NOTHING.match(rest) for rest in possible)
            found = self._kinds[place] = (bool(possible), tells)
        return found


# An entry of a dictionary with its key, and the key's place in the list, measured with tracemalloc.
_NODE_BYTES = 190


class Texts:
    """Numbers byte strings, and places within them, in the order they are met.

    A place is a prefix: 0 is the empty one. Safe to use from several threads.
    """

    __slots__ = ("_ends", "_places")

    def __init__(self) -> None:
        # A place is known by the one before it and the byte between; so no place is known by -1.
        self._places = _Numbers(-1)
        self._ends: _Numbers[int] = _Numbers()

    @property
    def num_bytes(self) -> int:
        """Approximate memory of all texts and prefixes."""
        return _NODE_BYTES * len(self._places.keys)

    def after(self, place: int, byte: int) -> int:
        """The place one byte further."""
        return self._places.of(place << 8 | byte)

    def known(self, place: int, byte: int) -> int:
        """The place one byte further, -1 if it has not been met."""
        return -1 if place < 0 else self._places.known.get(place << 8 | byte, -1)

    def place_of(self, text: bytes, place: int = 0) -> int:
        """The place behind a text, or behind some more bytes."""
        for byte in text:
            place = self.after(place, byte)
        return place

    def number(self, place: int) -> int:
        """The number of the text that ends at a place."""
        return self._ends.of(place)

    def bytes_of(self, number: int) -> bytes:
        """The text with a number."""
        place = self._ends.keys[number]
        written = bytearray()
        while place:
            place, byte = divmod(self._places.keys[place], 256)
            written.append(byte)
        written.reverse()
        return bytes(written)
