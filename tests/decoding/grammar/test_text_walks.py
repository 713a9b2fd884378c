"""The compiled walk through a vocabulary's trie finds what the one in Python finds, for any vocabulary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.grammar.holes.text_places import START, TextRange, TextSearch, spelled
from decoding.grammar.vocabulary import Vocabulary
from decoding.sorted_texts import SortedTexts

TEXT = st.text(st.sampled_from('abc"\\\n\x01\x1fé😀'), max_size=8)
PIECE = st.one_of(
    TEXT.map(lambda text: spelled(text.encode())),
    TEXT.map(lambda text: spelled(text.encode()) + b'",'),
    st.binary(max_size=4),
    st.none(),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=20), st.lists(PIECE, max_size=60), st.data())
def test_walks_agree_on_any_trie_below_any_positions(
    texts: list[str], pieces: list[bytes | None], data: st.DataObject
) -> None:
    pytest.importorskip("numba")
    from decoding.grammar.holes.compiled_search import CompiledSearch

    goal = data.draw(st.sampled_from(texts))
    opening = [b'"' + spelled(goal.encode())[:2], b'"']
    tokens = [*pieces, *opening, None]
    vocabulary = Vocabulary(tokens, end_token_id=len(tokens) - 1, vocab_size=len(tokens))
    trie = vocabulary.trie
    compiled = CompiledSearch(vocabulary)
    assert compiled.num_bytes == 16 * (len(trie.byte) + 1)
    these = SortedTexts.of([text.encode() for text in texts])
    place = TextRange(0, len(these), 0, START)
    search = TextSearch(these)
    for byte in b'"' + spelled(goal.encode())[: data.draw(st.integers(0, 6))]:
        after = search.narrow(place, byte)
        assert after is not None
        assert compiled.narrow(these, place, byte) == after
        place = after
    roots = data.draw(st.lists(st.integers(0, len(trie.byte) - 1), max_size=3, unique=True))
    for positions in ((0,), tuple(roots)):
        expected = search.walk(place, trie, positions)
        found = compiled.walk(these, place, positions)
        written = found.tokens
        if found.mask is not None:
            bits = np.unpackbits(found.mask.view(np.uint8), bitorder="little")
            written = np.flatnonzero(bits).tolist()
        assert written is not None
        assert expected.tokens is not None
        assert set(written) == set(expected.tokens)
        assert sorted(found.exits) == sorted(expected.exits)
