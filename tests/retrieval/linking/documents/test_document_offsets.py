"""Offsets in code points, bytes and UTF-16 units agree with Python's own encoders."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.linking.documents.text_document import Document, DocumentPlace, OffsetIndex, Span

ENCODINGS: dict[str, tuple[str, int]] = {
    "codepoint": ("utf-32-le", 4),
    "byte": ("utf-8", 1),
    "utf16": ("utf-16-le", 2),
}
TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
LONG = "a\r\ne\u0301 \U0001f469\u200d\U0001f680 中 ß"


def count(text: str, unit: str) -> int:
    encoding, size = ENCODINGS[unit]
    return len(text.encode(encoding)) // size


@pytest.mark.parametrize("unit", list(ENCODINGS))
@given(text=TEXTS, repeats=st.sampled_from([1, 60, 400]))
def test_both_ways(unit: str, text: str, repeats: int) -> None:
    text *= repeats  # beyond the checkpoints
    index = OffsetIndex(text, unit)
    places = range(0, len(text) + 1, max(1, len(text) // 50))
    assert index.length == count(text, unit)
    for position in (*places, len(text)):
        units = count(text[:position], unit)
        assert index.units_before(position) == units
        assert index.position_of(units) == position


@pytest.mark.parametrize("unit", list(ENCODINGS))
@pytest.mark.parametrize("repeats", [1, 300])
def test_offsets_inside_a_code_point_are_none(unit: str, repeats: int) -> None:
    text = LONG * repeats
    index = OffsetIndex(text, unit)
    begins = {}
    units = 0
    for position, character in enumerate(text):
        begins[units] = position
        units += count(character, unit)
    begins[units] = len(text)
    assert [index.position_of(at) for at in range(units + 1)] == [begins.get(at) for at in range(units + 1)]


@given(before=TEXTS, text=TEXTS, data=st.data())
def test_a_part_places_its_spans_in_the_whole_document(before: str, text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    part = Document("s", 1, "d", text, offset=len(before), byte_offset=len(before.encode()))
    whole = before + text
    place = part.place(Span(start, end))
    assert place[:2] == (len(before) + start, len(before) + end)
    assert whole[place.start : place.end] == text[start:end]
    assert whole.encode()[place.start_byte : place.end_byte] == text[start:end].encode()


def test_documents_are_equal_and_travel_whatever_was_placed() -> None:
    document = Document("s", 1, "d", "ñandú", (Span(0, 5),))
    assert document.place(Span(0, 5)) == DocumentPlace(0, 5, 0, 7)
    assert document == Document("s", 1, "d", "ñandú", (Span(0, 5),))
    assert pickle.loads(pickle.dumps(document)) == document
