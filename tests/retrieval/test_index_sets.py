"""Sets of indexes that schemas may name: immutable, sharing what is the same, stamped by versions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.grammar.leaves.leaf import TitleSlotError, TitleSlotName
from decoding.grammar.leaves.leaf_factory import Leaves
from decoding.grammar.vocabulary import Vocabulary
from retrieval.answers.title_holes import IndexSet, NamedIndex, TitleSlots
from retrieval.errors import InputError
from retrieval.filters.entity_filter import FilterStore
from retrieval.index.reader import Index
from tests.index_fixtures import build, character_tokenizer

TOKENIZER = character_tokenizer("abcd")
VOCABULARY = Vocabulary([*(bytes([byte]) for byte in range(256)), None], 256, 257)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with Index.open(build(tmp_path_factory.mktemp("sets"), ["a", "b"], TOKENIZER).index) as opened:
        yield opened


def named(name: str, index: Index) -> NamedIndex:
    return NamedIndex(name, index, FilterStore(index, "cpu", 1 << 20), lambda query, predicate, k: [])


def index_set(*indexes: NamedIndex) -> IndexSet:
    base = TitleSlots(Leaves(VOCABULARY))

    def open_holes(asked: IndexSet) -> TitleSlots:
        return base.among((one.name, one.index, one.filters) for one in asked)

    return IndexSet({one.name: one for one in indexes}, open_holes)


def test_a_set_with_one_index_more_leaves_the_first_one_as_it_is(index: Index, tmp_path: Path) -> None:
    with Index.open(build(tmp_path, ["c", "d"], TOKENIZER).index) as other:
        first = index_set(named("wiki", index))
        second = first.with_index(named("films", other))
        replaced = second.with_index(named("wiki", other))
        assert [one.name for one in replaced] == ["wiki", "films"], "its place stays"
        assert (first.index("wiki"), replaced.index("wiki")) == (index, other)
        assert (first.index("titles"), replaced.index("titles")) == (index, other)
        assert "films" in second
        assert "films" not in first
        for unknown in (lambda: first.index("films"), lambda: first.holes(TitleSlotName("films"))):
            with pytest.raises(TitleSlotError, match="there is no index 'films'"):
                unknown()
        with pytest.raises(InputError, match="nothing finds titles of the index 'films'"):
            first.finder("films")
        assert second.finder("films")("q", None, 1) == []
        assert first.holes(TitleSlotName("wiki")).key != replaced.holes(TitleSlotName("wiki")).key


def test_an_empty_set_has_no_titles() -> None:
    empty = index_set()
    assert empty.first_name == "titles"
    assert empty.opened_holes is None
    with pytest.raises(TitleSlotError):
        empty.index("titles")
    assert empty.stamp('{"x-genret-index": "titles"}', "titles") == ()


def test_sets_share_what_is_known_of_the_same_version(index: Index) -> None:
    wiki, films = named("wiki", index), named("films", index)
    first = index_set(wiki)
    leaf = first.holes(TitleSlotName("wiki"))
    assert first.opened_holes is not None
    shared = first.opened_holes.among([("wiki", wiki.index, wiki.filters), ("films", index, films.filters)])
    assert shared(TitleSlotName("wiki")) is leaf
    assert shared(TitleSlotName("films")) is not leaf


def test_a_stamp_holds_the_versions_that_a_schema_may_ask_for(index: Index) -> None:
    wiki, films, quoted = (named(name, index) for name in ("wiki", "films", 'a "b"'))
    indexes = index_set(wiki, films)
    plain = '{"type": "object", "properties": {"wikis": {}, "tit les": {}}}'
    assert indexes.stamp(plain, "films") == ()
    assert indexes.stamp('{"x-genret-index": "films"}', "wiki") == (films.serial,)
    titles = '{"x-genret-index": "titles"}'
    assert indexes.stamp(titles, "films") == (films.serial,)
    assert indexes.stamp(titles, "titles") == indexes.stamp(titles, "wiki") == (wiki.serial,)
    assert indexes.stamp('{"x-genret-index": "\\u0077iki"}', "films") == (wiki.serial, films.serial)
    assert index_set(quoted, wiki).stamp(plain, "wiki") == (quoted.serial,), "it may stand there in escapes"
    newer = indexes.with_index(named("wiki", index))
    assert newer.stamp(titles, "wiki") != indexes.stamp(titles, "wiki")
    assert newer.stamp('{"x-genret-index": "films"}', "wiki") == (films.serial,)


@given(st.text(min_size=1, max_size=6), st.booleans())
def test_no_index_that_a_schema_names_is_missing_from_its_stamp(name: str, ascii_only: bool) -> None:
    one = NamedIndex(name, None, None)  # type: ignore[arg-type]  # nothing looks into it
    indexes = IndexSet({name: one}, lambda asked: TitleSlots(Leaves(VOCABULARY)))
    schema = json.dumps({"x-genret-index": name}, ensure_ascii=ascii_only)
    assert indexes.stamp(schema, "another") == (one.serial,)
