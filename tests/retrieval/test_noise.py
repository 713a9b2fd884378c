"""Noise on query text: small, seeded, and never destructive."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genret.retrieval import noise

TEXTS = st.text(min_size=1, max_size=60).filter(lambda text: bool(text.strip()))
SEEDS = st.integers(0, 2**32)


def edit_distance(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]


@given(TEXTS, SEEDS)
def test_a_typo_is_one_slip(text: str, seed: int) -> None:
    assert edit_distance(text, noise.typo(text, Random(seed))) <= 2  # a swap of neighbours counts as two
    for damage in (noise.typo, noise.recase, noise.reorder_clauses, noise.shorten):
        assert damage(text, Random(seed)) == damage(text, Random(seed))


@given(st.from_regex(r"[a-z]{4,12}( [a-z]{4,12}){0,3}", fullmatch=True), SEEDS)
def test_a_typo_leaves_the_number_of_words_alone(text: str, seed: int) -> None:
    assert len(noise.typo(text, Random(seed)).split()) == len(text.split())


def test_short_words_are_spared() -> None:
    assert noise.typo("K2 on it", Random(1)) == "K2 on it"


def test_neighbours_are_symmetric_and_never_the_key_itself() -> None:
    for key, near in noise.NEIGHBOURS.items():
        assert key not in near
        assert all(key in noise.NEIGHBOURS[other] for other in near)


@pytest.mark.parametrize(
    ("text", "plain"), [("Zürich", "Zurich"), ("São Paulo", "Sao Paulo"), ("東京", "東京")]
)
def test_accents_are_stripped(text: str, plain: str) -> None:
    assert noise.strip_accents(text) == plain


@given(TEXTS, st.floats(0, 1), SEEDS)
def test_dropping_words_keeps_order_and_at_least_one(text: str, share: float, seed: int) -> None:
    words, kept = text.split(), noise.drop_words(text, share, Random(seed)).split()
    assert kept
    remaining = iter(words)
    assert all(word in remaining for word in kept)


@given(TEXTS, SEEDS)
def test_shortening_returns_a_run_of_words(text: str, seed: int) -> None:
    assert noise.shorten(text, Random(seed)) in " ".join(text.split()) or len(text.split()) <= 3


def test_reordering_keeps_the_clauses() -> None:
    text = "river of Egypt, longest in Africa, home of crocodiles"
    moved = noise.reorder_clauses(text, Random(3))
    assert sorted(moved.split(", ")) == sorted(text.split(", "))


def test_inserted_words_come_from_the_strangers() -> None:
    out = noise.insert_words("a b", ["x", "y"], 3, Random(0)).split()
    assert len(out) == 5
    assert [word for word in out if word in "ab"] == ["a", "b"]
