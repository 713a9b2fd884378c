"""The order of titles by their bytes, however many are sorted at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.sorted_texts import TextBatches
from index_builder.title_sorting import title_order
from retrieval.index.entities import first_disorder

# Prefixes of one another, NUL bytes, texts that agree over several words.
PIECES = st.sampled_from([b"", b"\0", b"a", b"ab", b"\x01", b"\xff", b"abcdefgh", "é€😀".encode()])
TEXTS = st.lists(st.lists(PIECES, max_size=6).map(b"".join), min_size=1, max_size=50)


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.sampled_from([1, 2, 7, 1000]), st.sampled_from([1, 4, 1 << 16]))
def test_texts_are_in_the_order_of_bytes_and_equal_ones_of_numbers(
    texts: list[bytes], most: int, rows: int
) -> None:
    batches = TextBatches.of(texts, rows)
    order = title_order(batches, most)
    assert order.tolist() == sorted(range(len(texts)), key=lambda number: (texts[number], number))
    assert first_disorder(order, batches) is None


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.data())
def test_any_other_order_is_found_out(texts: list[bytes], data: st.DataObject) -> None:
    batches = TextBatches.of(texts, 4)
    order = title_order(batches, 1000)
    other = order.copy()
    place = data.draw(st.integers(0, len(texts) - 1))
    other[place] = data.draw(st.integers(0, len(texts) - 1))
    found = first_disorder(other, batches)
    assert (found is None) == (other.tolist() == order.tolist())


def test_words_of_texts_are_read_where_they_lie() -> None:
    batches = TextBatches.of([b"abc", b"", b"abcdefghij", b"x"], 4)
    words, taken = batches.words(batches_numbers := title_order(batches, 4), 0)
    texts = [batches.text(int(number)) for number in batches_numbers]
    assert texts == [b"", b"abc", b"abcdefghij", b"x"]
    assert [int(word).to_bytes(8, "big") for word in words] == [text[:8].ljust(8, b"\0") for text in texts]
    assert taken.tolist() == [0, 3, 8, 1]
    assert batches.lengths(batches_numbers).tolist() == [0, 3, 10, 1]


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.sampled_from([1, 4, 1 << 16]))
def test_bytes_and_characters_are_those_of_all_texts(texts: list[bytes], rows: int) -> None:
    whole = TextBatches.of(texts, rows)
    # A column may begin inside of its buffer, and end before it does.
    batches = TextBatches(
        [begins + 3 for begins in whole.offsets],
        [np.frombuffer(b"\x7fzz" + data.tobytes() + b"!", dtype=np.uint8) for data in whole.data],
        rows,
    )
    assert batches.units(of_bytes=True) == [bytes([byte]) for byte in sorted({*b"".join(texts)})]
    characters = {char for text in texts for char in text.decode("utf-8", "surrogateescape")}
    expected = [char.encode("utf-8", "surrogateescape") for char in sorted(characters)]
    assert batches.units(of_bytes=False) == expected
    for unit in batches.units(of_bytes=True):
        assert batches.first_with(unit) == next(text for text in texts if unit in text)


def test_batches_that_do_not_fit_are_refused() -> None:
    sound = TextBatches.of([b"ab", b"c"], 2)
    (offsets,), (data,) = sound.offsets, sound.data
    with pytest.raises(ValueError, match="a power of two"):
        TextBatches([offsets], [data], 3)
    with pytest.raises(ValueError, match="as many offsets as data"):
        TextBatches([offsets], [], 2)
    with pytest.raises(ValueError, match="batch 0: expected 4 texts, got 2"):
        TextBatches([offsets, offsets], [data, data], 4)
    with pytest.raises(ValueError, match="does not lie inside its 2 bytes"):
        TextBatches([offsets], [data[:2]], 2)
    with pytest.raises(ValueError, match="does not lie inside its 3 bytes"):
        TextBatches([offsets[::-1].copy()], [data], 2)
