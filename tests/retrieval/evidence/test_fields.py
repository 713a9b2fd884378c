"""Words and letters of texts, and the fields that find texts by them."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from genret.retrieval.evidence import field as field_module
from genret.retrieval.evidence import loops, postings
from genret.retrieval.evidence.field import Field
from genret.retrieval.evidence.postings import (
    _MAX_TERMS,
    MAX_TEXT,
    Characters,
    Lookup,
    TermLists,
    Terms,
    fold,
    fold_all,
)
from tests.evidence_fixtures import PlainBm25, field_of, look_up, made_up_texts, queries_field_of

# Characters for which something special happens, beside any others.
_SPECIAL = (
    "aZ09 \n\t.,;!?'’´`ʼ-–_éÉøØłßẞæŒİıſΣςσ×÷ŉﬁ﷼ａＡ９　。、「」"
    "ヴがカハングル한국어हिन्दी؟،ابجاًШщёЙ𝔘🎈\u0301\u0327\u200b\u00a0\u2028\x85\x1c"
)
TEXTS = st.text(st.one_of(st.sampled_from(_SPECIAL), st.characters(codec="utf-8")), max_size=30)
_64 = (1 << 64) - 1


def _mixed(key: int) -> int:
    key = ((key ^ (key >> 29)) * 0x9E3779B97F4A7C15) & _64
    return (key ^ (key >> 32)) & 0xFFFFFFFF


def _word_hash(word: str) -> int:
    key, power = 0, 1
    for place, character in enumerate(word):
        key = (key + (ord(character) + 1) * power) & _64
        power = 0x100000001B3 if place == 0 else (power * 0x100000001B3) & _64
    return _mixed(key)


def _letters_hash(letters: str) -> int:
    first, second, third = map(ord, letters)
    return _mixed((first << 42) | (second << 21) | third)


def plain_words(folded: str) -> list[int]:
    return sorted({_word_hash(word) for word in folded.split(" ") if word})


def plain_letters(folded: str) -> list[int]:
    padded = f" {folded} "
    runs = [padded[i - 1 : i + 2] for i in range(1, len(padded) - 1)]
    return sorted({_letters_hash(run) for run in runs if run[1] != " "})


def _by_text(terms: Terms, count: int) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(count)]
    for text, term in zip(terms.text.tolist(), terms.term.tolist(), strict=True):
        found[text].append(term)
    return found


@given(TEXTS)
@example("ᄀ'ᅡ")
@example("ΟΔΟΣ")
@example("ŉ ´a")
def test_folding_twice_is_folding_once(text: str) -> None:
    (once,) = fold_all([text])
    assert fold_all([once]) == [once]
    assert fold(fold(text)) == fold(text)


@given(st.lists(TEXTS, max_size=6))
@example([])
@example(["", ""])
@example(["a", "é" * MAX_TEXT, "b c"])
def test_terms_are_those_of_plain_python(texts: list[str]) -> None:
    folded = fold_all(texts)
    characters = Characters(folded)
    assert _by_text(characters.words(), len(texts)) == [plain_words(text) for text in folded]
    assert _by_text(characters.letters(), len(texts)) == [plain_letters(text) for text in folded]


@given(st.lists(TEXTS, max_size=6))
def test_texts_of_a_block_do_not_influence_each_other(texts: list[str]) -> None:
    assert fold_all(texts) == [fold_all([text])[0] for text in texts]


@given(TEXTS)
def test_what_is_folded_has_single_blanks_inside_and_no_line_break(text: str) -> None:
    (folded,) = fold_all([text])
    assert folded == " ".join(folded.split(" "))
    assert "\n" not in folded
    assert folded == folded.strip(" ")
    assert bool(folded) == bool(text.strip())


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("Ærøskøbing, Denmark", "aeroskobing denmark"),
        ("Łódź", "lodz"),
        ("Groẞ-Gerau", "gross gerau"),
        ("İstanbul / ISPARTA", "istanbul isparta"),
        ("Rock ’n’ Roll", "rock n roll"),
        ("Côte d'Ivoire", "cote divoire"),
        ("Côte d´Ivoire", "cote divoire"),
        ("Côte d`Ivoire", "cote divoire"),
        ("ΟΔΟΣ οδος οδοσ", "οδοσ οδοσ οδοσ"),
        ("Ёлка Й", "елка и"),
        ("ＦＵＬＬ　Ｗｉｄｔｈ９", "full width9"),
        ("東京、日本。", "東京 日本"),
        ("がカ", "がカ"),
        ("हिन्दी", "हिन्दी"),
        ("한국어", "한국어"),
        ("ما عاصمة مصر؟", "ما عاصمة مصر"),
        ("مُحَمَّد", "محمد"),
        ("3×4", "3 4"),
        ("!!!", "!!!"),
        ("? !", "? !"),
    ],
)
def test_folding_by_example(text: str, folded: str) -> None:
    assert fold_all([text]) == [folded]


def test_of_a_long_text_its_beginning_counts() -> None:
    text = " ".join(f"w{number:05}" for number in range(MAX_TEXT))
    (folded,) = fold_all([text])
    assert folded == text[:MAX_TEXT].strip()
    words = Characters([folded, "w00001"]).words()
    assert len(words.term[words.text == 0]) == len(folded.split())
    assert words.term[words.text == 1] in words.term[words.text == 0]


def test_hundred_thousand_words_have_hardly_two_alike() -> None:
    words = Characters([f"word{number}" for number in range(100_000)]).words()
    # 2^32 hashes: 1.2 pairs of equal ones are expected, and more than 12 come once in 1e8.
    assert len(np.unique(words.term)) >= 100_000 - 12


QUERIES = [
    "the old town",
    "jungle book of the river king",
    "über",
    "strase",
    "nothing here at all",
    "東京 film",
    "a",
]


@pytest.fixture(params=[8, 64, 1 << 16], ids="blocks of {}".format)
def block_texts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    for module in (field_module, postings):
        monkeypatch.setattr(module, "BLOCK_TEXTS", request.param)
    return request.param


@pytest.fixture(params=["as installed", "numpy"])
def loops_used(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    loops.compile_loops()
    if request.param == "numpy":
        plain = plain_loops()
        for name in ("accumulate", "best_of_block", "overlaps"):
            monkeypatch.setattr(loops, name, plain[name])


def plain_loops() -> dict:
    """Return the loops as they are without numba."""
    source = Path(loops.__file__).read_text().split("\n@cache")[0]
    names: dict = {"__name__": "plain_loops"}
    exec(compile(source, loops.__file__, "exec"), names)
    return names


def _long_text(length: int, seed: int) -> str:
    return "".join(Random(seed).choices("abcdefghijklmnopqrstuvwxyz ", k=length))


@pytest.mark.parametrize("memory_bytes", [10_000, 100_000])
def test_how_much_memory_there_is_does_not_show(memory_bytes: int) -> None:
    texts = [*made_up_texts(20, seed=3), _long_text(3000, seed=4), "", "?!"]
    batches = [(np.arange(len(texts)), texts)]
    (whole,) = field_module.text_blocks(batches)
    (parts,) = field_module.text_blocks(batches, memory_bytes)
    assert parts.equals(whole)
    assert max(whole.column("letters_length")[0].as_py()) == 255  # the long text has ten times as many
    asked = [(np.arange(len(texts)), [[(text, 1)] for text in texts])]
    assert next(field_module.query_blocks(asked, memory_bytes)).equals(next(field_module.query_blocks(asked)))


def test_lists_are_made_in_the_memory_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(field_module, "_CHARACTERS", 1 << 14)  # at a hundred bytes each, 1.6 MB
    batches = [(np.arange(1000), [_long_text(500, seed) for seed in range(1000)])]
    peaks = []
    for limit in (1 << 30, 8_000_000):
        tracemalloc.start()
        assert len(list(field_module.text_blocks(batches, limit))) == 1
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[0] > 14_000_000
    assert peaks[1] < 8_000_000 + 1_600_000 + 2_400_000  # and the lists that are written


def _two(field: Field, query: str) -> list[tuple[str, TermLists, Lookup]]:
    words, letters = look_up(field, query)
    return [("words", field.words, words), ("letters", field.letters, letters)]


@pytest.mark.usefixtures("loops_used")
@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_search_is_bm25_over_sets(tmp_path: Path, block_texts: int, query: str, size: int) -> None:
    texts = [*made_up_texts(90, seed=1), *["the old town"] * 10]
    field = field_of(tmp_path, texts)
    for kind, lists, lookup in _two(field, query):
        every = lists.scores_of(lookup, np.arange(len(texts)))
        np.testing.assert_allclose(every, PlainBm25(texts, kind).scores(query), rtol=1e-5)
        found, scores = lists.search(lookup, size)
        best = [n for n in np.lexsort((np.arange(len(texts)), -every)).tolist() if every[n] > 0]
        assert found.tolist() == best[:size]  # equal ones in the order of their numbers
        np.testing.assert_array_equal(scores, every[found])


@pytest.mark.usefixtures("loops_used")
@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize("query", QUERIES)
def test_of_names_alike_the_heavy_ones_are_found_as_well(
    tmp_path: Path, block_texts: int, query: str, size: int
) -> None:
    texts = made_up_texts(150, seed=4)
    weight = np.random.default_rng(4).integers(0, 256, 150).astype(np.uint8)
    field = field_of(tmp_path, texts)
    for _, lists, lookup in _two(field, query):
        scores = lists.scores_of(lookup, np.arange(150))
        matching = np.flatnonzero(scores > 0)
        best, heavy = (
            sorted(matching.tolist(), key=lambda n: (-by[n], -int(weight[n]), n))[:size]
            for by in (scores, scores * (1 + weight.astype(np.float32) / 255))
        )
        found, told = lists.search(lookup, size, weight=weight)
        assert found.tolist() == [*best, *(n for n in heavy if n not in best)]
        np.testing.assert_array_equal(told, scores[found])


@pytest.mark.parametrize("owner", [None, [0, 0, 1, 3, 3, 4]])
def test_a_field_with_weights_proposes_the_heavy_namesake(tmp_path: Path, owner: list[int] | None) -> None:
    num_entities = 6 if owner is None else 5
    data = field_of(tmp_path, ["Springfield"] * 6, owner, num_entities)
    lookups = look_up(data, "springfield")
    assert data.propose(lookups, 1, None).tolist() == [0]
    for heaviest in (0, 1, 4):
        weights = np.ones(num_entities)
        weights[heaviest] = 1000.0
        weighted = Field(data.words, data.letters, data.owner, weights=weights)
        assert weighted.propose(lookups, 1, None).tolist() == [heaviest]
    for alike in (np.zeros(num_entities), np.full(num_entities, 7.0)):
        plain = Field(data.words, data.letters, data.owner, weights=alike)
        assert plain.propose(lookups, 1, None).tolist() == [0]


@pytest.mark.usefixtures("loops_used")
@pytest.mark.parametrize("has_owners", [False, True])
def test_a_filter_leaves_out_what_it_does_not_allow(
    tmp_path: Path, block_texts: int, has_owners: bool
) -> None:
    random = Random(2)
    texts = made_up_texts(80, seed=2)
    owner = sorted(random.randrange(40) for _ in texts) if has_owners else list(range(80))
    field = field_of(tmp_path, texts, owner if has_owners else None, num_entities=80)
    allowed = np.array([random.random() < 0.3 for _ in range(80)])
    for kind, lists, lookup in _two(field, "the old town of the king"):
        expected = np.array(PlainBm25(texts, kind).scores("the old town of the king"))
        every = [n for n in np.lexsort((np.arange(80), -expected)) if expected[n] > 0 and allowed[owner[n]]]
        found, scores = lists.search(lookup, 5, field.owner, allowed)
        np.testing.assert_allclose(scores, expected[every[:5]], rtol=1e-5)
        assert allowed[np.array(owner)[found]].all()
    proposed = field.propose(look_up(field, "the old town"), 100, allowed)
    assert allowed[proposed].all()
    assert proposed.tolist() == sorted(set(proposed.tolist()))
    assert not len(field.propose(look_up(field, "the old town"), 100, np.zeros(80, np.bool_)))


@pytest.mark.usefixtures("loops_used")
def test_of_many_terms_the_rarest_are_looked_up(tmp_path: Path, block_texts: int) -> None:
    rare = [f"rare{number}" for number in range(_MAX_TERMS)]
    texts = [*rare, *("common other" for _ in range(20)), " ".join(rare)]
    field = field_of(tmp_path, texts)
    query = " ".join(["common", "other", *rare])
    words, _ = look_up(field, query)
    found, scores = field.words.search(words, 1000)
    # The two words that most texts have are left out.
    assert sorted(found.tolist()) == [*range(_MAX_TERMS), len(texts) - 1]
    np.testing.assert_array_equal(field.words.scores_of(words, found), scores)
    assert (field.words.scores_of(words, np.arange(_MAX_TERMS, _MAX_TERMS + 20)) > 0).all()


@pytest.mark.parametrize("sizes", [(0, 1, 400, 5000), (0, 1, 30, 400)], ids=["most texts", "few texts"])
def test_numba_and_numpy_give_the_same_sums(sizes: tuple[int, ...]) -> None:
    loops.compile_loops()
    plain = plain_loops()
    rng = np.random.default_rng(3)
    length = rng.integers(0, 255, 5000).astype(np.uint8)
    lists = [np.sort(rng.choice(5000, size, replace=False)).astype(np.uint16) for size in sizes]
    text = np.concatenate(lists)
    end = np.cumsum([len(one) for one in lists])
    begin = end - [len(one) for one in lists]
    weights = rng.random(4).astype(np.float32)
    factor = np.linspace(2.2, 0.1, 256, dtype=np.float32)
    some = rng.integers(0, 5000, 150)
    places = np.concatenate([some, np.sort(some)]).astype(np.uint16)  # in any order, and rising
    weight = rng.integers(0, 256, 5000).astype(np.uint8)
    weight_factor = np.linspace(1, 2, 256, dtype=np.float32)
    outcomes = []
    for used in (vars(loops), plain):
        for least in ((0.0, np.inf), (0.5, np.inf), (0.8, 1.1)):
            totals = np.zeros(1 << 16, np.float32)
            used["accumulate"](text, begin, end, weights, totals)
            sums = np.zeros(300, np.float32)
            used["overlaps"](text, begin, end, weights, places, sums)
            kept = totals.copy()
            place, score = np.empty(1 << 16, np.int32), np.empty(1 << 16, np.float32)
            bounds = (np.float32(least[0]), np.float32(least[1]))
            factors = (length, factor, weight, weight_factor)
            count = used["best_of_block"]((text, begin, end, totals), factors, bounds, (place, score))
            order = np.argsort(place[:count])
            assert not totals.any()
            outcomes.append([kept, sums, place[:count][order], score[:count][order]])
    for one, other in zip(outcomes[:3], outcomes[3:], strict=True):
        for mine, theirs in zip(one, other, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    "owner", [None, [0, 0, 2, 2, 2, 5, 6, 6, 8, 9, 9, 9, 12, 13, 14, 15, 16, 17, 18, 19]]
)
def test_what_was_written_is_read(tmp_path: Path, block_texts: int, owner: list[int] | None) -> None:
    texts = made_up_texts(20, seed=4)
    field = field_of(tmp_path, texts, owner, num_entities=20)
    data = (tmp_path / "field.arrow").read_bytes()
    field_of(tmp_path, texts, owner, num_entities=20, batch=20)
    assert (tmp_path / "field.arrow").read_bytes() == data
    assert field.num_texts == 20
    assert (field.owner is None) == (owner is None)
    if owner is not None:
        assert field.owner.tolist() == owner
    for query, text in enumerate(texts):
        mine = query if owner is None else owner[query]
        assert mine in field.propose(look_up(field, text), 20, None)


def test_a_field_without_texts_proposes_nothing(tmp_path: Path) -> None:
    field = field_of(tmp_path, [], num_entities=3)
    assert field.num_texts == 0
    assert not len(field.propose(look_up(field, "the town"), 5, None))
    assert not field.scores_of(look_up(field, "the town"), np.array([0, 2])).any()


def test_long_texts_count_as_of_255_terms(tmp_path: Path) -> None:
    texts = [" ".join(f"w{n}" for n in range(count)) for count in (10, 255, 300, 2000)]
    field = field_of(tmp_path, texts)
    words, _ = look_up(field, "w1")
    np.testing.assert_allclose(
        field.words.scores_of(words, np.arange(4)), PlainBm25(texts, "words").scores("w1"), rtol=1e-5
    )


PAST = [
    (0, [("what is red", 3), ("red", 1)]),
    (2, [("Blue?", 7)]),
    (3, [("a", 1)] * 1),
    (9, [("the old town", 2)]),
]


def test_past_queries_come_back_with_their_counts(tmp_path: Path, block_texts: int) -> None:
    field = queries_field_of(tmp_path, PAST, 10)
    data = (tmp_path / "past.arrow").read_bytes()
    queries_field_of(tmp_path, PAST, 10)
    assert (tmp_path / "past.arrow").read_bytes() == data
    assert list(field.all_queries()) == PAST
    of = dict(PAST)
    wanted = [9, 1, 0, 3, 8]
    assert field.queries_of(np.array(wanted)) == [of.get(entity, []) for entity in wanted]
    assert field.queries_of(np.array([1, 4])) == [[], []]
    sampled = field.sample_queries(3, Random(1))
    assert sampled == field.sample_queries(3, Random(1))
    assert len(sampled) == 3
    assert all(of[entity] == mine for entity, mine in sampled)
    assert field.sample_queries(99, Random(1)) == PAST
    np.testing.assert_array_equal(field.propose(look_up(field, "blue"), 5, None), [2])


def test_past_queries_of_every_entity_need_no_owners(tmp_path: Path, block_texts: int) -> None:
    past = [(entity, [(f"query {entity}", entity + 1)]) for entity in range(20)]
    field = queries_field_of(tmp_path, past, 20)
    assert field.owner is None
    assert list(field.all_queries()) == past
    assert field.queries_of(np.array([19, 3])) == [past[19][1], past[3][1]]
