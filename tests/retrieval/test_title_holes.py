"""Titles of indexes in JSON: sets of indexes, leaves under filters, schemas, grammars that are kept."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genret.decoding.grammar.holes.text_leaf import TextLeaf
from genret.decoding.grammar.leaves.leaf import TitleSlotError, TitleSlotLeaf, TitleSlotName
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from genret.decoding.grammar.vocabulary import Vocabulary
from genret.decoding.sorted_texts import TextBatches
from genret.index_builder.build import build_index
from genret.index_builder.build_options import BuildOptions
from genret.index_builder.update import UpdateRequest, update_index
from genret.retrieval.answers.answer_types import AnswerRequest
from genret.retrieval.answers.schemas import CompiledSchema, SchemaStore
from genret.retrieval.answers.title_holes import IndexSet, NamedIndex, TitleSlots
from genret.retrieval.errors import InputError
from genret.retrieval.filters.entity_filter import FilterStore
from genret.retrieval.index.reader import Index
from genret.retrieval.index.verification import verify
from tests.grammar_oracle import accepts
from tests.index_fixtures import build, character_tokenizer, version_files
from tests.leaf_oracle import after
from tests.shared_titles import odd_titles
from tests.vector_fixtures import as_format

ALPHABET = 'abcdefghxyz "\\/é😀'
TOKENIZER = character_tokenizer(ALPHABET)
LINES = [
    "entity_id\ttitle\taliases\tkind\tarea",
    "1\tabc\tcab\tx\t1.5",
    "2\tabc\t\ty\t2.5",
    "3\ta\ta b\tx\t",
    '4\ta "b" c\\d\t\tz\t-0.5',
    "5\té😀\t\ty\t7",
]
VOCABULARY = Vocabulary(
    [*(bytes([byte]) for byte in range(256)), b'"a', b"ab", b'c"', b'c",', b'\\"', None], 261, 262
)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with Index.open(build(tmp_path_factory.mktemp("holes"), LINES, TOKENIZER).index) as opened:
        yield opened


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    folder = tmp_path_factory.mktemp("places")
    with Index.open(build(folder, ["h", "gh", 'x"y', "xyz"], TOKENIZER).index) as opened:
        yield opened


@pytest.fixture
def holes(index: Index) -> IndexSet:
    return slots_over(wiki=index)


def slots_over(
    vocabulary: Vocabulary = VOCABULARY, max_filtered_bytes: int = 1 << 20, **indexes: Index
) -> IndexSet:
    return index_set(
        *(named(name, index) for name, index in indexes.items()),
        slots=TitleSlots(Leaves(vocabulary), max_filtered_bytes),
    )


def index_set(*indexes: NamedIndex, slots: TitleSlots | None = None) -> IndexSet:
    slots = slots or TitleSlots(Leaves(VOCABULARY))
    return IndexSet(indexes, lambda: slots)


def named(name: str, index: Index) -> NamedIndex:
    return NamedIndex(name, index, FilterStore(index, "cpu", 1 << 20), lambda query, predicate, k: [])


def warm_up(indexes: IndexSet) -> None:
    indexes._slots().warm_up(indexes)


def written(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def ids(index: Index, leaf: TextLeaf, title: str) -> set[str]:
    state = after(leaf, written(title))
    return set() if state < 0 else {index.entity(number).entity_id for number in leaf.members(state)}


def test_titles_are_written_and_aliases_are_not(index: Index, holes: IndexSet) -> None:
    leaf = holes(TitleSlotName("wiki"))
    assert isinstance(leaf, TitleSlotLeaf)
    assert ids(index, leaf, "abc") == {"1", "2"}
    assert ids(index, leaf, "a") == {"3"}
    assert ids(index, leaf, 'a "b" c\\d') == {"4"}
    assert ids(index, leaf, "é😀") == {"5"}
    for other in ("cab", "a b", "ab", "abcd", ""):
        assert ids(index, leaf, other) == set()


def test_filters_are_those_of_requests(index: Index, holes: IndexSet) -> None:
    leaf = holes(TitleSlotName("wiki", "kind = 'x'"))
    assert ids(index, leaf, "abc") == {"1"}
    assert ids(index, leaf, "a") == {"3"}
    assert ids(index, leaf, "é😀") == set()
    few = holes(TitleSlotName("wiki", "area > 2 and kind = 'y'"))
    assert ids(index, few, "abc") == {"2"}
    assert few.shortest(0) == b'"abc"'
    nothing = holes(TitleSlotName("wiki", "kind = 'none'"))
    assert nothing.is_empty
    assert not leaf.is_empty


def without(*missing: int) -> Vocabulary:
    """`VOCABULARY` without the tokens of some single bytes."""
    tokens: list[bytes | None] = [VOCABULARY.bytes_of(token) for token in range(VOCABULARY.vocab_size)]
    for byte in missing:
        tokens[byte] = None
    return Vocabulary(tokens, VOCABULARY.end_token_id, VOCABULARY.vocab_size)


def test_bytes_that_no_title_has_may_lack(index: Index, holes: IndexSet) -> None:
    """As in SmolLM2, whose vocabulary lacks some control characters and two leads of rare scripts."""
    lacking = without(0x01, 0x04, 0xF1, 0xF2, ord("z"))
    assert not lacking.writable.is_everything
    found = slots_over(lacking, wiki=index)
    warm_up(found)
    leaf, full = found(TitleSlotName("wiki")), holes(TitleSlotName("wiki"))
    for number in range(index.num_entities):
        title = index.entity(number).title
        assert ids(index, leaf, title) == ids(index, full, title) != set()
        text = written(title)
        for length in range(len(text)):
            state = after(leaf, text[:length])
            tokens, expected = leaf.tokens(state, lacking.root), full.tokens(state, VOCABULARY.root)
            assert (tokens.few, tokens.many) == (expected.few, expected.many)
    assert ids(index, found(TitleSlotName("wiki", "kind = 'x'")), "abc") == {"1"}


@pytest.mark.parametrize(
    ("byte", "message"),
    [
        (ord("b"), "wiki: the model's tokenizer cannot write the title 'abc': it has no token for the byte"),
        (0xF0, "the title 'é😀': it has no token for the byte f0"),
        (ord("\\"), """the title 'a "b" c\\\\d': it has no token for the byte 5c"""),
    ],
)
def test_a_title_that_cannot_be_written_is_named(index: Index, byte: int, message: str) -> None:
    holes = slots_over(without(0x01, byte), wiki=index)
    warm_up(holes)
    for _ in range(2):
        with pytest.raises(TitleSlotError, match=re.escape(message)):
            holes(TitleSlotName("wiki"))


def test_a_tokenizer_of_characters_needs_those_of_the_titles(index: Index) -> None:
    def holes_of(characters: str) -> IndexSet:
        tokens: list[bytes | None] = [character.encode() for character in characters]
        return slots_over(Vocabulary([*tokens, None], len(tokens), len(tokens) + 1), wiki=index)

    leaf = holes_of(ALPHABET + "{}[]:,")(TitleSlotName("wiki"))
    assert ids(index, leaf, "é😀") == {"5"}
    with pytest.raises(
        TitleSlotError, match=re.escape("the title 'é😀': it has no token for the character 'é'")
    ):
        holes_of(ALPHABET.replace("é", "") + "{}[]:,")(TitleSlotName("wiki"))


def test_titles_are_read_once_and_only_for_a_tokenizer_that_lacks_bytes(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[bool] = []
    plain = TextBatches.units

    def counted(self: TextBatches, of_bytes: bool) -> list[bytes]:
        passes.append(of_bytes)
        return plain(self, of_bytes)

    monkeypatch.setattr(TextBatches, "units", counted)
    slots_over(wiki=index)(TitleSlotName("wiki"))
    assert passes == []
    holes = slots_over(without(0x01), wiki=index)
    for predicate in (None, "kind = 'x'", "kind = 'y'"):
        holes(TitleSlotName("wiki", predicate))
    assert passes == [True]


def test_equal_holes_are_one_object(holes: IndexSet) -> None:
    leaf = holes(TitleSlotName("wiki"))
    assert holes(TitleSlotName("titles")) is leaf
    some = holes(TitleSlotName("wiki", "kind = 'x'"))
    assert holes(TitleSlotName("titles", " kind='x'")) is some
    assert some.key != leaf.key
    assert some.is_shared
    assert leaf.name == TitleSlotName("wiki")


def test_filtered_titles_are_kept_within_bounds(index: Index) -> None:
    holes = slots_over(max_filtered_bytes=1, wiki=index)
    first = holes(TitleSlotName("wiki", "kind = 'x'"))
    assert holes(TitleSlotName("wiki", "kind = 'x'")) is first
    second = holes(TitleSlotName("wiki", "kind = 'y'"))
    assert holes(TitleSlotName("wiki", "kind = 'y'")) is second
    again = holes(TitleSlotName("wiki", "kind = 'x'"))
    assert again is not first
    assert again.key == first.key
    assert holes._slots().num_bytes == again.num_bytes
    assert ids(index, first, "a") == {"3"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            TitleSlotName("other"),
            "^there is no index 'other'; there are: 'titles', for the one that is asked, and 'wiki'",
        ),
        (TitleSlotName("wiki", "kind ="), "^at character 7: expected a value"),
        (TitleSlotName("wiki", "kinds = 'x'"), "unknown column 'kinds', did you mean 'kind'"),
        (TitleSlotName("wiki", "kind = 3"), "column 'kind' is string, got a number"),
        (TitleSlotName("wiki", " "), "^must not be empty"),
    ],
)
def test_what_cannot_be_opened_is_named(holes: IndexSet, name: TitleSlotName, message: str) -> None:
    with pytest.raises(TitleSlotError, match=message) as caught:
        holes(name)
    assert caught.value.keyword == ("x-genret-index" if name.predicate is None else "x-genret-filter")


def test_an_index_of_the_older_format_says_what_to_do_and_an_update_does_it(tmp_path: Path) -> None:
    summary = build(tmp_path, ["title\tkind", "a\tx", "b\ty"], TOKENIZER, evidence=None)
    fresh = version_files(summary)
    as_format(summary, 2)
    with Index.open(summary.index) as old:
        holes = slots_over(old=old)
        warm_up(holes)
        for predicate in (None, "kind = 'x'"):
            with pytest.raises(
                TitleSlotError, match=r"the index 'old' is of format version 2.*genret update"
            ):
                holes(TitleSlotName("titles", predicate))
    updated = update_index(
        UpdateRequest(remove_ids=("absent",), ignore_missing=True), None, BuildOptions(out=summary.index)
    )
    assert updated.version != updated.parent
    assert updated.manifest.format_version == 6
    assert verify(summary.index).ok
    new = summary.index / "versions" / updated.version
    for name, content in fresh.items():
        assert name == "manifest.json" or (new / name).read_bytes() == content
    with Index.open(summary.index) as index:
        assert ids(index, slots_over(wiki=index)(TitleSlotName("titles", "kind = 'x'")), "a") == {"a"}


@pytest.mark.shared_data
def test_odd_real_titles_are_written_and_near_misses_are_not(tmp_path: Path) -> None:
    titles = sorted(set(odd_titles()))
    assert len(titles) > 500
    tokenizer = character_tokenizer("".join(titles))
    lines = [json.dumps({"title": title}) for title in titles]
    source = tmp_path / "titles.jsonl"
    source.write_text("\n".join(lines), encoding="utf-8")
    out = tmp_path / "odd.index"
    limits = {"max_title_tokens": 100_000, "max_bad_rows": 100}
    build_index(source, tokenizer, BuildOptions(out=out, evidence=None, **limits))
    with Index.open(out) as index:
        holes = slots_over(wiki=index)
        warm_up(holes)
        leaf = holes(TitleSlotName("titles"))
        known = {index.entity(number).title for number in range(index.num_entities)}
        for title in known:
            state = after(leaf, written(title))
            assert {index.entity(number).title for number in leaf.members(state)} == {title}
        rng = random.Random(0)
        for title in known:
            at = rng.randrange(len(title))
            for other in (title[:at], title + "x", title[:at] + "§" + title[at + 1 :], title.swapcase()):
                assert (after(leaf, written(other)) >= 0) == (other in known)


def test_a_set_with_one_index_more_leaves_the_first_one_as_it_is(index: Index, places: Index) -> None:
    first = index_set(named("wiki", index))
    second = first.with_index(named("films", places))
    replaced = second.with_index(named("wiki", places))
    assert [one.name for one in replaced] == ["wiki", "films"], "its place stays"
    assert (first.index("wiki"), replaced.index("wiki")) == (index, places)
    assert (first.index("titles"), replaced.index("titles")) == (index, places)
    assert [one.name for one in second] == ["wiki", "films"]
    assert [one.name for one in first] == ["wiki"]
    for unknown in (lambda: first.index("films"), lambda: first(TitleSlotName("films"))):
        with pytest.raises(TitleSlotError, match="there is no index 'films'"):
            unknown()
    with pytest.raises(TitleSlotError, match="and 'wiki', 'films'"):
        second(TitleSlotName("third"))
    assert ids(places, second(TitleSlotName("films")), "gh") == {"gh"}
    assert ids(index, second(TitleSlotName("titles")), "gh") == set()
    with pytest.raises(InputError, match="nothing finds titles of the index 'films'"):
        first.finder("films")
    assert second.finder("films")("q", None, 1) == []
    assert first(TitleSlotName("wiki")).key != replaced(TitleSlotName("wiki")).key
    assert replaced(TitleSlotName("wiki")).key == second(TitleSlotName("films")).key
    warm_up(replaced)


def test_an_empty_set_has_no_titles() -> None:
    empty = index_set()
    assert empty.first_name == "titles"
    with pytest.raises(TitleSlotError):
        empty.index("titles")
    with pytest.raises(TitleSlotError, match="there is no index 'titles'; there are: none"):
        empty(TitleSlotName("titles"))
    assert empty.stamp('{"x-genret-index": "titles"}', "titles") == ()


def test_sets_share_what_is_known_of_the_same_version(index: Index) -> None:
    wiki, films = named("wiki", index), named("films", index)
    first = index_set(wiki)
    leaf = first(TitleSlotName("wiki"))
    shared = first.with_index(films)
    assert shared(TitleSlotName("wiki")) is leaf
    assert shared(TitleSlotName("films")) is not leaf
    filtered = shared(TitleSlotName("wiki", "kind = 'x'"))
    first._slots().forget(wiki)
    assert shared(TitleSlotName("wiki", "kind = 'x'")) is not filtered


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
    indexes = index_set(one)
    schema = json.dumps({"x-genret-index": name}, ensure_ascii=ascii_only)
    assert indexes.stamp(schema, "another") == (one.serial,)


SCHEMA = (
    '{"type": "object", "properties": {"a": {"type": "integer"}, "d": {"type": "string", "format": "date"}}}'
)


@pytest.fixture
def store() -> SchemaStore:
    return SchemaStore(Leaves(VOCABULARY))


def prepared(store: SchemaStore, schema: str = SCHEMA, **options: Any) -> CompiledSchema:
    return store.prepare(AnswerRequest("-", schema, **options), index_set())


def test_how_a_schema_is_spelled_makes_no_other_grammar_and_the_order_of_properties_does(
    store: SchemaStore,
) -> None:
    first = prepared(store)
    for same in (SCHEMA.replace(" ", ""), SCHEMA.replace(" ", "\n\t "), SCHEMA.replace('"a"', '"\\u0061"')):
        assert prepared(store, same) is first
    turned = '{"properties": {"d": {"format": "date", "type": "string"}, "a": {"type": "integer"}}}'
    other = prepared(store, turned)
    assert other is not first
    assert other.digest != first.digest
    assert (store.stats.misses, store.stats.hits) == (2, 3)
    assert accepts(first.grammar, '{"a": 1, "d": "2020-02-29"}')
    assert accepts(other.grammar, '{"d": "2020-02-29", "a": 1}')
    assert not accepts(other.grammar, '{"a": 1, "d": "2020-02-29"}')


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
    plain, other = prepared(store), prepared(store, **options)
    assert not accepts(plain.grammar, written)
    assert accepts(other.grammar, written)
    assert prepared(store, **options) is other
    assert prepared(store) is plain


def test_what_changes_the_writing_alone_makes_no_other_grammar(store: SchemaStore) -> None:
    for more in ({"method": "beam"}, {"max_tokens": 9}, {"temperature": 2.0}, {"forced_spans": False}):
        assert prepared(store, **more) is prepared(store)


def test_a_named_schema_is_that_of_its_text(store: SchemaStore) -> None:
    store.name_schema("mine", SCHEMA, index_set())
    assert store.prepare(AnswerRequest("-", schema_name="mine"), index_set()) is prepared(store)
    assert store.stats.misses == 1


def test_the_bound_is_checked() -> None:
    for bad in (-1, True, 1.5):
        with pytest.raises(InputError, match="grammar_cache"):
            SchemaStore(Leaves(VOCABULARY), bad)  # type: ignore[arg-type]
