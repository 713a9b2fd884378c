"""Words and letter trigrams: the vectorised code against plain Python, for many scripts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from retrieval.evidence.postings import MAX_TEXT, Characters, Terms, fold, fold_all

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
        ("", ""),
        ("  ", ""),
    ],
)
def test_folding_by_example(text: str, folded: str) -> None:
    assert fold_all([text]) == [folded]


def test_no_texts_have_no_terms() -> None:
    assert fold_all([]) == []
    for terms in (Characters([]).words(), Characters([]).letters(), Characters(["", ""]).words()):
        assert len(terms.term) == len(terms.text) == 0


def test_of_a_long_text_its_beginning_counts() -> None:
    text = " ".join(f"w{number:05}" for number in range(MAX_TEXT))
    (folded,) = fold_all([text])
    assert folded == text[:MAX_TEXT].strip()
    words = Characters([folded, "w00001"]).words()
    assert len(words.term[words.text == 0]) == len(folded.split())
    assert words.term[words.text == 1] in words.term[words.text == 0]


def test_one_word_of_the_greatest_length_beside_short_ones() -> None:
    texts = ["a", "é" * MAX_TEXT, "b c"]
    folded = fold_all(texts)
    assert _by_text(Characters(folded).words(), 3) == [plain_words(text) for text in folded]
    assert _by_text(Characters(folded).letters(), 3) == [plain_letters(text) for text in folded]


def test_hundred_thousand_words_have_hardly_two_alike() -> None:
    words = Characters([f"word{number}" for number in range(100_000)]).words()
    # 2^32 hashes: 1.2 pairs of equal ones are expected, and more than 12 come once in 1e8.
    assert len(np.unique(words.term)) >= 100_000 - 12
