"""One text with links in it as an automaton over bytes.

States are made on demand, and from every one of them the text can be ended: a mention is opened only where
some place may close it, and goes on only as far as the last such place.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.grammar.vocabulary.token_node import TokenNode
from decoding.markup.boundaries import MentionRules, find_boundaries
from decoding.markup.spelling import CLOSE, OPEN, TITLE_CLOSE, TITLE_OPEN, spelled_text
from decoding.markup.titles import LinkTitles, TitlePlace

# Outside of links; in a mention; behind its bracket; in a title.
_OUTSIDE, _MENTION, _CLOSED, _TITLE = range(4)


class _Spot(NamedTuple):
    """A state.

    Attributes:
        kind: One of the four.
        at: Bytes of the spelled text that are written.
        begin: Character with which the mention begins; 0 outside of mentions.
        links: Links that were begun, where they are counted; else 0.
        place: In a title.
    """

    kind: int
    at: int
    begin: int
    links: int
    place: TitlePlace | None = None


class AnnotationAutomaton:
    """All annotations of one text.

    Args:
        text: The text; it can be encoded in UTF-8, and is not empty.
        titles: What links may name; none is opened where there is none.
        rules: What mentions may be.

    Raises:
        UnicodeEncodeError: the text has surrogates.
    """

    def __init__(self, text: str, titles: LinkTitles, rules: MentionRules) -> None:
        self._titles = titles
        self._max_links = rules.max_mentions if len(titles) else 0
        self._bounds = find_boundaries(text, rules)
        pieces = [spelled_text(character.encode()) for character in text]
        self._text = b"".join(pieces)
        self._places = [*itertools.accumulate(map(len, pieces), initial=0)]
        self._longest_mention = max(
            (self._places[last] - self._places[begin] for begin, last in enumerate(self._bounds.last_close)),
            default=0,
        )
        self._characters = {place: number for number, place in enumerate(self._places)}
        start = _Spot(_OUTSIDE, 0, 0, 0)
        self._spots = [start]
        self._numbers = {start: 0}

    @property
    def text(self) -> bytes:
        """The text without links, as it is spelled."""
        return self._text

    def step(self, state: int, byte: int) -> int:
        """The state after one byte, -1 if it is not allowed."""
        spot = self._spots[state]
        if spot.kind == _TITLE:
            after = self._step_in_title(spot, byte)
        else:
            after = self._ways(spot).get(byte)
        return -1 if after is None else self._number(after)

    def edges(self, state: int) -> Mapping[int, int] | None:
        """All allowed bytes and the states they lead to; None within titles, where there are many."""
        spot = self._spots[state]
        if spot.kind != _TITLE:
            return {byte: self._number(after) for byte, after in self._ways(spot).items()}
        assert spot.place is not None
        following = self._titles.next_bytes(spot.place)
        if following is None:
            return None
        listed = {*following, TITLE_CLOSE} if self._titles.ends(spot.place) else following
        found = {}
        for byte in sorted(listed):
            after = self._step_in_title(spot, byte)
            assert after is not None
            found[byte] = self._number(after)
        return found

    def ends(self, state: int) -> bool:
        """Whether the whole text is written."""
        spot = self._spots[state]
        return spot.kind == _OUTSIDE and spot.at == len(self._text)

    def copied(self, state: int) -> int | None:
        """Bytes of the text that are written, None inside of a link."""
        spot = self._spots[state]
        return spot.at if spot.kind == _OUTSIDE else None

    def written(self, state: int) -> int:
        """Bytes of the text that are written."""
        return self._spots[state].at

    def detour(self, state: int) -> bytes:
        """A shortest way out of a link: behind it, what is left of the text from some place on.

        Of those the first in byte order. Nothing outside of links.
        """
        spot = self._spots[state]
        if spot.kind == _OUTSIDE:
            return b""
        if spot.kind == _TITLE:
            assert spot.place is not None
            return self._titles.shortest(spot.place)
        title = bytes([TITLE_OPEN]) + self._titles.shortest(self._titles.start)
        if spot.kind == _CLOSED:
            return title
        text, at = self._text, spot.at
        last = self._places[self._bounds.last_close[spot.begin]]
        # Wherever the mention ends, the length of all that is to come is the same.
        while not self._may_close(spot.begin, at) or (at < last and text[at] < CLOSE):
            at += 1
        return text[spot.at : at] + bytes([CLOSE]) + title

    @property
    def longest_detour(self) -> int:
        """No way out of a link takes more bytes."""
        return self._longest_mention + 2 + self._titles.longest if len(self._titles) else 0

    def tokens(self, state: int, node: TokenNode) -> tuple[set[int], NDArray[np.uint32] | None]:
        """The tokens below a node of the vocabulary's trie that may come; many of them as a packed mask."""
        found: set[int] = set()
        many: NDArray[np.uint32] | None = None
        waiting = [(state, node)]
        while waiting:
            state, node = waiting.pop()
            edges = self.edges(state)
            if edges is not None:
                for byte, after in edges.items():
                    child = node.children.get(byte)
                    if child is not None:
                        found.update(child.tokens)
                        waiting.append((after, child))
                continue
            spot = self._spots[state]
            assert spot.place is not None  # everywhere else all bytes are listed
            inside = self._titles.tokens(spot.place, node)
            found.update(inside.few)
            if inside.many is not None:
                many = inside.many if many is None else many | inside.many
            waiting += [(self._number(self._behind(spot)), rest) for _, rest in inside.exits]
        return found, many

    def _number(self, spot: _Spot) -> int:
        number = self._numbers.get(spot)
        if number is None:
            number = self._numbers[spot] = len(self._spots)
            self._spots.append(spot)
        return number

    def _ways(self, spot: _Spot) -> dict[int, _Spot]:
        """What may follow outside of titles."""
        kind, at, begin, links, _ = spot
        ways: dict[int, _Spot] = {}
        if kind == _CLOSED:
            return {TITLE_OPEN: _Spot(_TITLE, at, 0, links, self._titles.start)}
        if kind == _OUTSIDE:
            character = self._characters.get(at)
            if at < len(self._text):
                ways[self._text[at]] = spot._replace(at=at + 1)
            if character is not None and self._bounds.opens[character] and links != self._max_links:
                counted = links + (self._max_links is not None)
                ways[OPEN] = _Spot(_MENTION, at, character, counted)
            return ways
        if at < self._places[self._bounds.last_close[begin]]:
            ways[self._text[at]] = spot._replace(at=at + 1)
        if self._may_close(begin, at):
            ways[CLOSE] = _Spot(_CLOSED, at, 0, links)
        return ways

    def _may_close(self, begin: int, at: int) -> bool:
        character = self._characters.get(at, -1)
        return (
            character >= 0
            and self._bounds.closes[character]
            and self._bounds.first_close[begin] <= character <= self._bounds.last_close[begin]
        )

    def _step_in_title(self, spot: _Spot, byte: int) -> _Spot | None:
        assert spot.place is not None
        if byte == TITLE_CLOSE and self._titles.ends(spot.place):
            return self._behind(spot)
        after = self._titles.step(spot.place, byte)
        return None if after is None else spot._replace(place=after)

    def _behind(self, spot: _Spot) -> _Spot:
        """Behind the title of a link."""
        return _Spot(_OUTSIDE, spot.at, 0, spot.links)
