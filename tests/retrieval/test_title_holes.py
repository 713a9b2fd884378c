"""Titles of indexes inside JSON strings: named, filtered, shared, and mapped back to their entities."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from decoding.grammar.holes.text_leaf import TextLeaf
from decoding.grammar.leaves.leaf import TitleSlotError, TitleSlotLeaf, TitleSlotName
from decoding.grammar.leaves.leaf_factory import Leaves
from decoding.grammar.vocabulary import Vocabulary
from decoding.sorted_texts import TextBatches
from index_builder.build import build_index
from index_builder.build_options import BuildOptions
from index_builder.update import UpdateRequest, update_index
from retrieval.answers.title_holes import TitleSlots
from retrieval.filters.entity_filter import FilterStore
from retrieval.index.reader import Index
from retrieval.index.small_files import digest_bytes
from retrieval.index.verification import verify
from tests.index_fixtures import build, character_tokenizer, version_files
from tests.shared_titles import odd_titles

ALPHABET = 'abcdefgh "\\/é😀'
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


@pytest.fixture
def holes(index: Index) -> TitleSlots:
    return opened_holes(index)


def opened_holes(index: Index, name: str = "wiki", max_filtered_bytes: int = 1 << 20) -> TitleSlots:
    holes = TitleSlots(Leaves(VOCABULARY), max_filtered_bytes)
    holes.add(name, index, FilterStore(index, "cpu", 1 << 20))
    return holes


def written(title: str) -> bytes:
    return json.dumps(title, ensure_ascii=False).encode()


def after(leaf: TextLeaf, text: bytes) -> int:
    state = 0
    for byte in text:
        state = leaf.step(state, byte)
        if state < 0:
            break
    return state


def ids(index: Index, leaf: TextLeaf, title: str) -> set[str]:
    state = after(leaf, written(title))
    return set() if state < 0 else {index.entity(number).entity_id for number in leaf.members(state)}


def test_titles_are_written_and_aliases_are_not(index: Index, holes: TitleSlots) -> None:
    leaf = holes(TitleSlotName("wiki"))
    assert isinstance(leaf, TitleSlotLeaf)
    assert ids(index, leaf, "abc") == {"1", "2"}
    assert ids(index, leaf, "a") == {"3"}
    assert ids(index, leaf, 'a "b" c\\d') == {"4"}
    assert ids(index, leaf, "é😀") == {"5"}
    for other in ("cab", "a b", "ab", "abcd", ""):
        assert ids(index, leaf, other) == set()


def test_filters_are_those_of_requests(index: Index, holes: TitleSlots) -> None:
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


def opened_with(index: Index, vocabulary: Vocabulary) -> TitleSlots:
    holes = TitleSlots(Leaves(vocabulary))
    holes.add("wiki", index, FilterStore(index, "cpu", 1 << 20))
    return holes


def test_bytes_that_no_title_has_may_lack(index: Index, holes: TitleSlots) -> None:
    """As in SmolLM2, whose vocabulary lacks some control characters and two leads of rare scripts."""
    lacking = without(0x01, 0x04, 0xF1, 0xF2, ord("z"))
    assert not lacking.writable.is_everything
    found = opened_with(index, lacking)
    found.warm_up()
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
        (
            ord("b"),
            "wiki: the model's tokenizer cannot write the title 'abc': it has no token for the byte",
        ),
        (0xF0, "the title 'é😀': it has no token for the byte f0"),
        (ord("\\"), """the title 'a "b" c\\\\d': it has no token for the byte 5c"""),
    ],
)
def test_a_title_that_cannot_be_written_is_named(index: Index, byte: int, message: str) -> None:
    holes = opened_with(index, without(0x01, byte))
    holes.warm_up()
    for _ in range(2):
        with pytest.raises(TitleSlotError, match=re.escape(message)):
            holes(TitleSlotName("wiki"))


def test_a_tokenizer_of_characters_needs_those_of_the_titles(index: Index) -> None:
    def holes_of(characters: str) -> TitleSlots:
        tokens: list[bytes | None] = [character.encode() for character in characters]
        return opened_with(index, Vocabulary([*tokens, None], len(tokens), len(tokens) + 1))

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
    opened_with(index, VOCABULARY)(TitleSlotName("wiki"))
    assert passes == []
    holes = opened_with(index, without(0x01))
    for predicate in (None, "kind = 'x'", "kind = 'y'"):
        holes(TitleSlotName("wiki", predicate))
    assert passes == [True]


def test_equal_holes_are_one_object(holes: TitleSlots) -> None:
    leaf = holes(TitleSlotName("wiki"))
    assert holes(TitleSlotName("titles")) is leaf
    some = holes(TitleSlotName("wiki", "kind = 'x'"))
    assert holes(TitleSlotName("titles", " kind='x'")) is some
    assert some.key != leaf.key
    assert some.is_shared
    assert leaf.name == TitleSlotName("wiki")


def test_filtered_titles_are_kept_within_bounds(index: Index) -> None:
    holes = opened_holes(index, max_filtered_bytes=1)
    first = holes(TitleSlotName("wiki", "kind = 'x'"))
    assert holes(TitleSlotName("wiki", "kind = 'x'")) is first
    second = holes(TitleSlotName("wiki", "kind = 'y'"))
    assert holes(TitleSlotName("wiki", "kind = 'y'")) is second
    again = holes(TitleSlotName("wiki", "kind = 'x'"))
    assert again is not first
    assert again.key == first.key
    assert holes.num_bytes == again.num_bytes
    assert ids(index, first, "a") == {"3"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (TitleSlotName("other"), "^there is no index 'other'; there are: 'wiki'"),
        (TitleSlotName("wiki", "kind ="), "^at character 7: expected a value"),
        (TitleSlotName("wiki", "kinds = 'x'"), "unknown column 'kinds', did you mean 'kind'"),
        (TitleSlotName("wiki", "kind = 3"), "column 'kind' is string, got a number"),
        (TitleSlotName("wiki", " "), "^must not be empty"),
    ],
)
def test_what_cannot_be_opened_is_named(holes: TitleSlots, name: TitleSlotName, message: str) -> None:
    with pytest.raises(TitleSlotError, match=message) as caught:
        holes(name)
    assert caught.value.keyword == ("x-genret-index" if name.predicate is None else "x-genret-filter")


def test_there_may_be_no_index() -> None:
    with pytest.raises(TitleSlotError, match="there is no index 'titles'; there are: none"):
        TitleSlots(Leaves(VOCABULARY))(TitleSlotName("titles"))


def test_several_indexes(index: Index, tmp_path: Path) -> None:
    other = build(tmp_path, ["h", "gh"], TOKENIZER)
    with Index.open(other.index) as second:
        holes = opened_holes(index)
        holes.add("other", second, FilterStore(second, "cpu", 1 << 20))
        assert holes.index("titles") is index
        assert holes.index("other") is second
        leaf = holes(TitleSlotName("other"))
        assert ids(second, leaf, "gh") == {"gh"}
        assert ids(index, holes(TitleSlotName("titles")), "gh") == set()
        with pytest.raises(TitleSlotError, match="there are: 'wiki', 'other'"):
            holes(TitleSlotName("third"))
        holes.add("wiki", second, FilterStore(second, "cpu", 1 << 20))
        assert holes(TitleSlotName("wiki")).key == leaf.key
        holes.warm_up()


def test_an_index_of_the_older_format_says_what_to_do_and_an_update_does_it(tmp_path: Path) -> None:
    summary = build(tmp_path, ["title\tkind", "a\tx", "b\ty"], TOKENIZER, evidence=None)
    fresh = version_files(summary)
    folder = summary.index / "versions" / summary.version
    (folder / "title_order.arrow").unlink()
    files = tuple(entry for entry in summary.manifest.files if entry.name != "title_order.arrow")
    data = replace(summary.manifest, files=files, format_version=2).to_bytes()
    (folder / "manifest.json").write_bytes(data)
    folder.rename(folder.with_name(digest_bytes(data)))
    (summary.index / "CURRENT").write_text(digest_bytes(data) + "\n")
    with Index.open(summary.index) as old:
        holes = opened_holes(old, "old")
        holes.warm_up()
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
        assert ids(index, opened_holes(index)(TitleSlotName("titles", "kind = 'x'")), "a") == {"a"}


@pytest.mark.shared_data
def test_odd_real_titles_are_written_and_near_misses_are_not(tmp_path: Path) -> None:
    titles = sorted(set(odd_titles()))
    assert len(titles) > 500
    tokenizer = character_tokenizer("".join(titles))
    lines = [json.dumps({"title": title}) for title in titles]
    source = tmp_path / "titles.jsonl"
    source.write_text("\n".join(lines), encoding="utf-8")
    out = tmp_path / "odd.index"
    build_index(source, tokenizer, BuildOptions(out=out, max_title_tokens=100_000, max_bad_rows=100))
    with Index.open(out) as index:
        holes = opened_holes(index)
        holes.warm_up()
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
