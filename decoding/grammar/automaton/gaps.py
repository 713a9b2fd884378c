"""What tokens write of the whitespace at one place of a container, and where they may go on behind it."""

from __future__ import annotations

from typing import NamedTuple

from decoding.grammar.automaton.whitespace import Whitespace
from decoding.grammar.vocabulary.token_node import TokenNode


class Gap(NamedTuple):
    """The whitespace that tokens write at one place.

    Attributes:
        tokens: Those that write nothing else before they end.
        rest: What others write behind it, none of it included, as one place of the trie: punctuation is read
            once for all the ways to write the whitespace.
    """

    tokens: tuple[int, ...]
    rest: TokenNode


def gap_at(node: TokenNode, whitespace: Whitespace, blanks: int, is_behind_separator: bool) -> Gap:
    """The whitespace behind a node of the trie; kept with the node, for all grammars.

    Args:
        node: Where the whitespace begins, or goes on.
        whitespace: The rules.
        blanks: What has been read of it.
        is_behind_separator: Whether it is behind a comma or a colon.
    """
    # One number: a tuple would be made and hashed at every place of every walk.
    key = whitespace.rules << 32 | blanks + 1 << 1 | is_behind_separator
    gap: Gap | None = node.gaps.get(key)
    if gap is None:
        gap = node.gaps[key] = _find(node, whitespace, blanks, is_behind_separator)
    return gap


def _find(node: TokenNode, whitespace: Whitespace, blanks: int, is_behind_separator: bool) -> Gap:
    tokens: list[int] = []
    places: list[TokenNode] = []
    waiting = [(node, blanks)]
    while waiting:
        place, state = waiting.pop()
        if not whitespace.must_come(state, is_behind_separator):
            places.append(place)
        for byte in whitespace.bytes_at(state, is_behind_separator):
            child = place.children.get(byte)
            after = whitespace.after(state, byte, is_behind_separator)
            if child is not None and after is not None:
                tokens += child.tokens
                waiting.append((child, after))
    going_on = [place for place in places if place.children]
    if len(going_on) == 1:
        return Gap(tuple(tokens), going_on[0])
    positions = sorted({position for place in going_on for position in place.positions})
    return Gap(tuple(tokens), TokenNode(node.trie, tuple(positions), has_tokens=False))
