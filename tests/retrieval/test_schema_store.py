"""Grammars kept between requests: what makes another one, and what does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from decoding.grammar.leaves.leaf_factory import Leaves
from decoding.grammar.vocabulary import Vocabulary
from retrieval.answers.answer_types import AnswerRequest
from retrieval.answers.schemas import CompiledSchema, SchemaStore
from retrieval.answers.title_holes import IndexSet, NamedIndex, TitleSlots
from retrieval.errors import InputError
from retrieval.filters.entity_filter import FilterStore
from retrieval.index.reader import Index
from tests.index_fixtures import build, character_tokenizer

SCHEMA = (
    '{"type": "object", "properties": {"a": {"type": "integer"}, "d": {"type": "string", "format": "date"}}}'
)
VOCABULARY = Vocabulary([*(bytes([byte]) for byte in range(256)), b'"}', b'": ', None], 258, 259)


@pytest.fixture
def store() -> SchemaStore:
    return SchemaStore(Leaves(VOCABULARY))


def no_indexes() -> IndexSet:
    return IndexSet({}, lambda indexes: TitleSlots(Leaves(VOCABULARY)))


def writes(schema: CompiledSchema, text: str) -> bool:
    grammar = schema.grammar
    state = grammar.advance_bytes(grammar.start, text.encode())
    return state >= 0 and grammar.is_complete(state)


def test_how_a_schema_is_spelled_makes_no_other_grammar_and_the_order_of_properties_does(
    store: SchemaStore,
) -> None:
    def prepared(text: str) -> CompiledSchema:
        return store.prepare(AnswerRequest("-", text), no_indexes())

    first = prepared(SCHEMA)
    for same in (SCHEMA.replace(" ", ""), SCHEMA.replace(" ", "\n\t "), SCHEMA.replace('"a"', '"\\u0061"')):
        assert prepared(same) is first
    other = prepared('{"properties": {"d": {"format": "date", "type": "string"}, "a": {"type": "integer"}}}')
    assert other is not first
    assert other.digest != first.digest
    assert store.stats.compilations == 2
    assert writes(first, '{"a": 1, "d": "2020-02-29"}')
    assert writes(other, '{"d": "2020-02-29", "a": 1}')
    assert not writes(other, '{"a": 1, "d": "2020-02-29"}')


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ({"whitespace": "compact"}, '{"a":1}'),
        ({"whitespace": "flexible"}, '{\n  "a" : 1\n}'),
        ({"property_order": "any"}, '{"d": "2020-02-29", "a": 1}'),
        ({"formats": "annotate"}, '{"d": "no day"}'),
        ({"extra_properties": "allowed"}, '{"b": 1}'),
    ],
    ids=lambda value: "".join(value.values()) if isinstance(value, dict) else "",
)
def test_every_option_makes_a_grammar_of_its_own(
    store: SchemaStore, options: dict[str, Any], written: str
) -> None:
    plain = store.prepare(AnswerRequest("-", SCHEMA), no_indexes())
    other = store.prepare(AnswerRequest("-", SCHEMA, **options), no_indexes())
    assert not writes(plain, written)
    assert writes(other, written)
    assert store.prepare(AnswerRequest("-", SCHEMA, **options), no_indexes()) is other
    assert store.prepare(AnswerRequest("-", SCHEMA), no_indexes()) is plain


def test_what_changes_the_writing_alone_makes_no_other_grammar(store: SchemaStore) -> None:
    plain = store.prepare(AnswerRequest("-", SCHEMA), no_indexes())
    for more in ({"method": "beam"}, {"max_tokens": 9}, {"temperature": 2.0}, {"forced_spans": False}):
        assert store.prepare(AnswerRequest("-", SCHEMA, **more), no_indexes()) is plain


def test_titles_are_those_of_the_index_that_a_request_means(store: SchemaStore, tmp_path: Path) -> None:
    titles = '{"type": "string", "x-genret-index": "titles"}'
    tokenizer = character_tokenizer("ab")
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    with (
        Index.open(build(tmp_path / "one", ["entity_id\ttitle", "1\ta"], tokenizer).index) as one,
        Index.open(build(tmp_path / "two", ["entity_id\ttitle", "1\tb"], tokenizer).index) as two,
    ):
        holes = TitleSlots(Leaves(VOCABULARY))
        indexes = IndexSet({}, lambda them: holes.among((n.name, n.index, n.filters) for n in them))
        for name, index in (("one", one), ("two", two)):
            indexes = indexes.with_index(NamedIndex(name, index, FilterStore(index, "cpu", 1 << 20)))
        found = {asked: store.prepare(AnswerRequest("-", titles), indexes, asked) for asked in ("one", "two")}
        assert [writes(found["one"], text) for text in ('"a"', '"b"')] == [True, False]
        assert [writes(found["two"], text) for text in ('"a"', '"b"')] == [False, True]


def test_refusals_are_kept_and_named_schemas_are_found(store: SchemaStore) -> None:
    for _ in range(3):
        with pytest.raises(InputError, match="#/pattern: pattern: a back-reference"):
            store.prepare(AnswerRequest("-", r'{"type": "string", "pattern": "(a)\\1"}'), no_indexes())
    assert store.stats.compilations == 1
    store.name_schema("mine", SCHEMA, no_indexes())
    named = store.prepare(AnswerRequest("-", schema_name="mine"), no_indexes())
    assert named is store.prepare(AnswerRequest("-", SCHEMA), no_indexes())
    assert store.stats.compilations == 2


def test_the_bound_is_checked() -> None:
    for bad in (-1, True, 1.5):
        with pytest.raises(InputError, match="grammar_cache"):
            SchemaStore(Leaves(VOCABULARY), bad)  # type: ignore[arg-type]
