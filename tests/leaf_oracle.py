"""Which tokens a leaf lets through, found token by token and byte by byte."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from genret.decoding.grammar.leaves.leaf import FEW_TOKENS, Leaf, LeafTokens, TokenWalk
from genret.decoding.grammar.regular.byte_dfa import ByteDfa
from genret.decoding.grammar.token_trie import TokenNode
from genret.decoding.grammar.vocabulary import Vocabulary, read_token_bytes
from tests.shared_titles import shared_file

Answer = TypeVar("Answer")
BYTES: list[bytes | None] = [bytes([byte]) for byte in range(256)]
# Tokens within strings and over their ends, pieces of escapes and of characters; two write the same.
_PIECES = r"""
ab abc abcdefgh aaaa bbbbb " "a "ab a" ab" "" ", b", ab", c", "," "} a"} x"} "] b"] ": é éx 日本 a😀b 😀 é"
\ \\ a\ \" \"a \n \nab \n" \n", \u \u0 \u00 \u000 \u001 \u0001 \u001f \u001f" \ud83d \ude00a 00 e9x
12 1, 12] 23 ab
"""
_PARTS = [b"\xc3a", b'\xa9",', b"\xe6\x97", b"\xa5ab", b"\xf0\x9f\x98", b"\x9f\x98\x80", b'\x80"']
_STRING_TOKENS = [None, *BYTES, *(piece.encode() for piece in _PIECES.split()), *_PARTS, b"", None]
STRING_VOCABULARY = Vocabulary(_STRING_TOKENS, 0, len(_STRING_TOKENS) + 5)
# Ids of the tokens that stay inside; by label, (what is written behind the end, id).
Found = tuple[set[int], dict[int, set[tuple[bytes, int]]]]


def tokens_in(mask: NDArray[np.uint32]) -> list[int]:
    """The tokens of a packed mask, ascending."""
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def after(leaf: Leaf | ByteDfa, text: bytes, state: int = 0) -> int:
    """The state behind some bytes, -1 if they are not allowed."""
    for byte in text:
        state = leaf.step(state, byte)
        if state < 0:
            break
    return state


def label_of(leaf: Leaf, text: bytes, state: int = 0) -> int:
    """The label of a text, -1 if it is not in the leaf."""
    state = after(leaf, text, state)
    return -1 if state < 0 else leaf.label(state)


def steps_of(leaf: Leaf, state: int) -> dict[int, int]:
    """The states behind all bytes that are allowed, asked one by one."""
    return {byte: behind for byte in range(256) if (behind := leaf.step(state, byte)) >= 0}


def shortest_ways(leaf: Leaf, start: int = 0) -> dict[int, bytes]:
    """The shortest bytes that lead to every state, the lowest of them; the nearest states come first."""
    ways = {start: b""}
    waiting = [start]
    for state in waiting:  # grows while it is read
        for byte, behind in steps_of(leaf, state).items():
            if behind not in ways:
                ways[behind] = ways[state] + bytes([byte])
                waiting.append(behind)
    return ways


def in_threads(ask: Callable[[], Answer], number: int = 8) -> list[Answer]:
    """Return the answers of threads that ask at the same moment."""
    barrier = threading.Barrier(number)

    def wait_and_ask(_: int) -> Answer:
        barrier.wait()
        return ask()

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(wait_and_ask, range(number)))


def oracle_tokens(vocabulary: Vocabulary, leaf: Leaf, state: int, prefix: bytes = b"") -> Found:
    """Ask for every byte of every token that begins with a prefix and goes on behind it."""
    inside: set[int] = set()
    exits: dict[int, set[tuple[bytes, int]]] = {}
    for token in range(vocabulary.vocab_size):
        text = vocabulary.bytes_of(token)
        if text is None or text == prefix or not text.startswith(prefix):
            continue
        now = state
        for place in range(len(prefix), len(text)):
            now = leaf.step(now, text[place])
            if now < 0:
                break
            label = leaf.label(now)
            if label >= 0 and place + 1 < len(text):
                exits.setdefault(label, set()).add((text[place + 1 :], token))
        if now >= 0:
            inside.add(token)
    return inside, exits


def walked_tokens(leaf: Leaf, state: int, node: TokenNode) -> Found:
    """Ask a leaf for its tokens; where it lists its bytes, follow them."""
    found = leaf.tokens(state, node)
    if found is not None:
        return tokens_of(found)
    inside: set[int] = set()
    exits: dict[int, set[tuple[bytes, int]]] = {}
    edges = leaf.edges(state)
    assert edges is not None
    for byte, child in node.children.items():
        after = edges.get(byte, -1)
        if after < 0:
            continue
        inside.update(child.tokens)
        if leaf.label(after) >= 0:
            exits.setdefault(leaf.label(after), set()).update(tokens_below(child))
        more, ends = walked_tokens(leaf, after, child)
        inside |= more
        for label, rests in ends.items():
            exits.setdefault(label, set()).update(rests)
    return inside, {label: rests for label, rests in exits.items() if rests}


def tokens_of(found: LeafTokens) -> Found:
    """What a leaf has found, in the oracle's form."""
    inside = set(found.few)
    assert list(found.few) == sorted(inside)
    assert not (found.few and found.many is not None)
    if found.many is not None:
        assert not found.many.flags.writeable
        inside = set(tokens_in(found.many))
    labels = [exit.label for exit in found.exits]
    assert labels == sorted(set(labels))
    for exit in found.exits:
        assert exit.rest.tokens == ()
    return inside, {exit.label: tokens_below(exit.rest) for exit in found.exits}


def check_tokens(
    vocabulary: Vocabulary, leaf: Leaf, state: int, prefixes: Iterable[bytes] = (b"",), may_lack: bool = False
) -> None:
    """Compare a leaf's tokens behind some prefixes with the oracle's; some prefixes may begin no token."""
    for prefix in prefixes:
        node = node_at(vocabulary, prefix)
        if node is None and may_lack:
            continue
        assert node is not None
        assert walked_tokens(leaf, state, node) == oracle_tokens(vocabulary, leaf, state, prefix)


def comparable(walked: TokenWalk, nested: bool = False) -> tuple[list[int], dict[int, list[int]]]:
    """The tokens and exits of a walk in order; below nested positions, lists may name a token twice."""
    tokens, mask, exits = walked
    if tokens is None:
        assert mask is not None
        tokens = tokens_in(mask)
        assert nested or len(tokens) > FEW_TOKENS
    tokens = sorted(set(tokens) if nested else tokens)
    return tokens, {label: sorted(places) for label, places in exits.items()}


def tokens_below(node: TokenNode, prefix: bytes = b"") -> set[tuple[bytes, int]]:
    """Everything below a node of the trie, the node itself left out."""
    found: set[tuple[bytes, int]] = set()
    for byte, child in node.children.items():
        text = prefix + bytes([byte])
        assert list(child.tokens) == sorted(set(child.tokens))
        found |= {(text, token) for token in child.tokens}
        found |= tokens_below(child, text)
    return found


def node_at(vocabulary: Vocabulary, prefix: bytes) -> TokenNode | None:
    """The node some bytes lead to."""
    node: TokenNode | None = vocabulary.root
    for byte in prefix:
        node = node.children.get(byte) if node is not None else None
    return node


def random_leaf_dfa(rng: np.random.Generator, alphabet: bytes, num_labels: int = 2) -> ByteDfa:
    """A random automaton over some bytes; not of the empty language, nor with the empty text."""
    while True:
        size = int(rng.integers(2, 9))
        edges = rng.integers(-2, size, size=(size, len(alphabet))).tolist()
        rows = [sorted((b, b, to) for b, to in zip(alphabet, row, strict=True) if to >= 0) for row in edges]
        labels = rng.integers(-2, num_labels, size=size).clip(-1).tolist()
        labels[0] = -1
        automaton = ByteDfa.from_rows(rows, labels)
        if not automaton.is_empty:
            return automaton


def random_vocabulary(rng: np.random.Generator, alphabet: bytes, size: int) -> Vocabulary:
    """Tokens of up to five letters, some twice, some without bytes, some special; id 0 ends the text."""
    texts: list[bytes | None] = [None]
    for _ in range(size):
        length = int(rng.choice([0, 1, 1, 2, 2, 3, 4, 5]))
        texts.append(bytes(rng.choice(list(alphabet), size=length).tolist()))
        if rng.random() < 0.1:
            texts.append(texts[int(rng.integers(len(texts)))])
        if rng.random() < 0.05:
            texts.append(None)
    texts += [bytes([letter]) for letter in alphabet]
    return Vocabulary(texts, 0, len(texts) + int(rng.integers(0, 40)))


def real_vocabulary(name: str, padded: int = 0) -> Vocabulary:
    """The vocabulary of a real tokenizer, or skip the test; one id more than it has ends the text."""
    texts = read_token_bytes(shared_file("tokenizers", f"{name}.tokenizer.json").read_text())
    return Vocabulary(texts, len(texts), len(texts) + 1 + padded)
