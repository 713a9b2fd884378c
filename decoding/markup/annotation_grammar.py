"""Says which tokens may come next in an annotated text, over one vocabulary, and where each leads.

Below the grammar over tokens lies an automaton over bytes: one text with links in it. States are made on
demand, and the text can be ended from each: a mention is opened only if some place may close it, and goes on
only as far as the last such place.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from genret.decoding.grammar.token_trie import TokenNode, fewest_tokens, fewest_tokens_from
from genret.decoding.grammar.vocabulary import Vocabulary, tokens_of
from genret.decoding.markup.link_syntax import (
    CLOSE,
    OPEN,
    TITLE_CLOSE,
    TITLE_OPEN,
    MentionRules,
    find_boundaries,
    spelled_text,
)
from genret.decoding.markup.link_titles import LinkTitles, TitlePlace

_MARKS = bytes([OPEN, CLOSE, TITLE_OPEN, TITLE_CLOSE])
_REFUSED = -1


class AnnotationGrammar:
    """The annotations of a text: itself, with any links that rules and titles allow.

    A `TokenGrammar` (`decoding.grammar.constraint`). Not to be shared between threads; `titles` may be.

    Args:
        text: Text of at least one character.
        titles: Titles that links may name; without any the text is copied.
        rules: Rules for mentions.

    Raises:
        VocabularyError: The vocabulary cannot write the text, or the brackets of links.
        UnicodeEncodeError: The text has surrogates.
        ValueError: The text is empty.

    Attributes:
        vocab_size: Logits of the model, V.
        copy: The spelled text without links.
    """

    start = 0
    finished = 1  # the state behind the end token

    def __init__(self, text: str, titles: LinkTitles, rules: MentionRules) -> None:
        if not text:
            raise ValueError("text: must have at least one character")
        self.vocabulary: Vocabulary = titles.searcher.vocabulary
        self.vocab_size = self.vocabulary.vocab_size
        spelled = spelled_text(text.encode()) + (_MARKS if len(titles) else b"")
        self.vocabulary.require(spelled, is_json=False)
        self._automaton = AnnotationAutomaton(text, titles, rules)
        self.copy: bytes = self._automaton.text
        self._copying = fewest_tokens_from(self.copy, self.vocabulary.root)
        # The maximum over all later places: a cut within a character may cost a token more.
        self._most_copying = [*itertools.accumulate(reversed(self._copying), max)][::-1]
        self._masks: dict[int, NDArray[np.uint32]] = {}
        self._moves: dict[tuple[int, int], int] = {}
        self._detours: dict[int, int] = {}

    def copied(self, state: int) -> int | None:
        """Bytes of `copy` that are written, None inside of a link."""
        return None if state == self.finished else self._automaton.copied(state)

    def mask(self, state: int) -> NDArray[np.uint32]:
        """Mask of the tokens that may come next: bit t % 32 of word t // 32 is token t.

        Shape: (ceil(V / 32),), uint32, read-only.
        """
        found = self._masks.get(state)
        if found is None:
            found = self._masks[state] = self._find_mask(state)
        return found

    def tokens(self, state: int) -> NDArray[np.int64]:
        """Ids of the tokens that may come next, ascending. Shape: (n,), int64."""
        return tokens_of(self.mask(state))

    def advance(self, state: int, token: int) -> int:
        """The state behind one token, -1 if it is not allowed; `finished` behind the end token."""
        key = state, token
        found = self._moves.get(key)
        if found is None:
            found = self._moves[key] = self._find_move(state, token)
        return found

    def advance_bytes(self, state: int, text: bytes) -> int:
        """The state behind some bytes, -1 if they are not allowed."""
        if state < 0 or state == self.finished:
            return state if state >= 0 and not text else _REFUSED
        for byte in text:
            state = self._automaton.step(state, byte)
            if state < 0:
                return _REFUSED
        return state

    def is_complete(self, state: int) -> bool:
        """Whether the whole text is written, so that only the end token may follow."""
        return state != self.finished and self._automaton.ends(state)

    def forced_bytes(self, state: int, limit: int = 1024) -> bytes:
        """The bytes that must follow, up to the next choice or the end."""
        written = bytearray()
        while state != self.finished and len(written) < limit:
            edges = self._automaton.edges(state)
            if edges is None or len(edges) != 1:
                break
            ((byte, state),) = edges.items()
            written.append(byte)
        return bytes(written)

    def tokens_to_finish(self, state: int) -> int:
        """Tokens that suffice to complete the text, end token included: those out of a link, and the copied
        rest.

        An upper bound that can always be kept: if it is n > 1, some allowed token leads to a state where it
        is at most n - 1.
        """
        if state == self.finished:
            return 0
        found = self._detours.get(state)
        if found is None:
            detour = self._automaton.detour(state)
            after = state
            for byte in detour:
                after = self._automaton.step(after, byte)
            cost = fewest_tokens(detour, self.vocabulary.root) if detour else 0
            found = self._detours[state] = cost + self._copying[self._automaton.written(after)] + 1
        return found

    def can_finish(self, state: int, tokens: int) -> bool:
        """Whether `tokens_to_finish` is at most `tokens`."""
        return self.tokens_to_finish(state) <= tokens

    def most_tokens_to_finish(self, state: int) -> int | None:
        """The most that `tokens_to_finish` can be behind an allowed token.

        A cheap bound: the rest of a mention or of a title takes no more tokens than bytes.
        """
        if state == self.finished:
            return 0
        automaton = self._automaton
        return automaton.longest_detour + self._most_copying[automaton.written(state)] + 1

    def fitting_tokens(self, state: int, left: int) -> NDArray[np.int64]:
        """Tokens of `tokens(state)` behind which fewer than `left` tokens can finish. Shape: (n,), int64."""
        tokens = self.tokens(state)
        # Moves are not kept: most of these tokens are never chosen.
        fits = [self.tokens_to_finish(self._find_move(state, token)) < left for token in tokens.tolist()]
        return tokens[np.array(fits, dtype=np.bool_)]

    def text(self, token_ids: Sequence[int]) -> bytes:
        """The bytes that tokens write; the end token writes none."""
        return b"".join(map(self.vocabulary.written, token_ids))

    def _find_mask(self, state: int) -> NDArray[np.uint32]:
        if state == self.finished:
            return self.vocabulary.nothing
        if self.is_complete(state):
            return self.vocabulary.packed([self.vocabulary.end_token_id])
        found, many = self._automaton.tokens(state, self.vocabulary.root)
        mask = self.vocabulary.packed(list(found))
        if many is not None:
            mask = mask | many
            mask.flags.writeable = False
        return mask

    def _find_move(self, state: int, token: int) -> int:
        if not 0 <= token < self.vocab_size:
            return _REFUSED
        if token == self.vocabulary.end_token_id:
            return self.finished if self.is_complete(state) else _REFUSED
        written = self.vocabulary.bytes_of(token)
        return _REFUSED if written is None else self.advance_bytes(state, written)


# Places of the text: outside of links, in a mention, behind its bracket, in a title.
_OUTSIDE, _MENTION, _CLOSED, _TITLE = range(4)


class _Spot(NamedTuple):
    """A state."""

    kind: int  # place of the text, one of the four
    at: int  # number of written bytes of the spelled text
    begin: int  # first character of the mention; 0 outside of mentions
    links: int  # number of links so far if they are counted; else 0
    place: TitlePlace | None = None  # place in a title


class AnnotationAutomaton:
    """The automaton over bytes of all annotations of one text; arguments as of `AnnotationGrammar`.

    Attributes:
        text: Spelled text without links.
    """

    def __init__(self, text: str, titles: LinkTitles, rules: MentionRules) -> None:
        self._titles = titles
        self._max_links = rules.max_mentions if len(titles) else 0
        self._bounds = find_boundaries(text, rules)
        pieces = [spelled_text(character.encode()) for character in text]
        self.text = b"".join(pieces)
        self._places = [*itertools.accumulate(map(len, pieces), initial=0)]
        lasts = enumerate(self._bounds.last_close)
        lengths = (self._places[last] - self._places[begin] for begin, last in lasts if last >= 0)
        self._longest_mention = max(lengths, default=0)
        self._characters = {place: number for number, place in enumerate(self._places)}
        start = _Spot(_OUTSIDE, 0, 0, 0)
        self._spots = [start, start]  # the second one is the grammar's, behind the end token
        self._numbers = {start: 0}

    def step(self, state: int, byte: int) -> int:
        """The state after one byte, -1 if it is not allowed."""
        spot = self._spots[state]
        if spot.kind == _TITLE:
            after = self._step_in_title(spot, byte)
        else:
            after = self._ways(spot).get(byte)
        return -1 if after is None else self._number(after)

    def edges(self, state: int) -> Mapping[int, int] | None:
        """All allowed bytes and the states they lead to; None if there are many, within titles."""
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
        return spot.kind == _OUTSIDE and spot.at == len(self.text)

    def copied(self, state: int) -> int | None:
        """Number of written bytes of the text, None inside of a link."""
        spot = self._spots[state]
        return spot.at if spot.kind == _OUTSIDE else None

    def written(self, state: int) -> int:
        """Number of written bytes of the text."""
        return self._spots[state].at

    def detour(self, state: int) -> bytes:
        """The first of the shortest ways out of a link, in byte order; nothing outside of links."""
        spot = self._spots[state]
        if spot.kind == _OUTSIDE:
            return b""
        if spot.kind == _TITLE:
            assert spot.place is not None
            return self._titles.shortest(spot.place)
        title = bytes([TITLE_OPEN]) + self._titles.shortest(self._titles.start)
        if spot.kind == _CLOSED:
            return title
        text, at = self.text, spot.at
        last = self._places[self._bounds.last_close[spot.begin]]
        # Wherever the mention ends, the length of all that is to come is the same.
        while not self._may_close(spot.begin, at) or (at < last and text[at] < CLOSE):
            at += 1
        return text[spot.at : at] + bytes([CLOSE]) + title

    @property
    def longest_detour(self) -> int:
        """The most bytes of a way out of a link."""
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
        """The next spots by byte, outside of titles."""
        kind, at, begin, links, _ = spot
        ways: dict[int, _Spot] = {}
        if kind == _CLOSED:
            return {TITLE_OPEN: _Spot(_TITLE, at, 0, links, self._titles.start)}
        if kind == _OUTSIDE:
            character = self._characters.get(at)
            if at < len(self.text):
                ways[self.text[at]] = spot._replace(at=at + 1)
            if character is not None and self._bounds.last_close[character] >= 0 and links != self._max_links:
                counted = links + (self._max_links is not None)
                ways[OPEN] = _Spot(_MENTION, at, character, counted)
            return ways
        if at < self._places[self._bounds.last_close[begin]]:
            ways[self.text[at]] = spot._replace(at=at + 1)
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
        """The spot behind the title of a link."""
        return _Spot(_OUTSIDE, spot.at, 0, spot.links)
