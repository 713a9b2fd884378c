"""Lexical vectors: what scikit-learn makes of whole texts, whatever is kept of their words."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("sklearn")
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, HashingVectorizer, TfidfTransformer

from retrieval.errors import IndexFormatError
from retrieval.vectors import word_table
from retrieval.vectors.lexical import LexicalEmbedder, default_dimensions, split_words
from retrieval.vectors.word_table import NUM_FEATURES

TITLES = (
    "Hamlet",
    "Macbeth (play)",
    "The Tempest",
    "Maria Skłodowska-Curie",
    "Who Framed Roger Rabbit?",
    "São Paulo",
    "AC/DC",
    "東京都",
    "...And Justice for All",
    "Ça ira, ça ira",
    "Москва",
    "x" * 150,
)
ODD = ("", "   ", "!!!", "?", "a", "The Who", "TEMPEST the", "tempesst", "Zürich–Basel", "ａｂｃ", "\u0301")

EMBEDDER = LexicalEmbedder.fit(TITLES)


def n_grams(text: str) -> Iterator[str]:
    """The n-grams of a text, word by word, spelt out."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c)).lower()
    apart = "".join(" " if c in "!?().,/-–" else c for c in plain)
    words = apart.split() or plain.split()
    for whole in words:
        for begin in range(0, len(whole), 64):
            word = whole[begin : begin + 64]
            yield f" {word} "
            for i in range(len(word)):
                yield f" {word} "[i : i + 3]


def by_hand(texts: list[str], stop_weight: float = 1.0) -> tuple[Any, Any]:
    """Weighted n-grams and vectors by the pipeline of scikit-learn, one text at a time."""
    hashing = HashingVectorizer(analyzer=n_grams, n_features=NUM_FEATURES, norm=None)
    idf = TfidfTransformer(norm=None).fit(abs(hashing.transform(TITLES))).idf_
    arrays = EMBEDDER.arrays()
    signs = np.unpackbits(arrays["signs"])  # type: ignore[arg-type]
    ends: Any = np.cumsum(arrays["counts"])  # type: ignore[arg-type]
    rows, vectors = [], []
    for text in texts:
        row = np.zeros(NUM_FEATURES)
        for word in split_words(text):
            weight = stop_weight if word in ENGLISH_STOP_WORDS else 1.0
            row += weight * hashing.transform([word]).toarray()[0] * idf
        vector = np.zeros(EMBEDDER.dimensions)
        for feature in np.flatnonzero(row):
            for k in range(ends[feature - 1] if feature else 0, ends[feature]):
                vector[arrays["places"][k]] += row[feature] * (1 if signs[k] else -1)
        rows.append(row / (np.linalg.norm(row) or 1))
        vectors.append(vector / (np.linalg.norm(vector) or 1))
    return np.array(rows), np.array(vectors)


def test_vectors_are_those_of_the_whole_pipeline() -> None:
    texts = [*TITLES, *ODD]
    _, expected = by_hand(texts)
    vectors = EMBEDDER.embed_texts(texts)
    assert vectors.shape == (len(texts), 128)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_common_words_of_queries_count_for_less() -> None:
    queries = ["who framed Roger Rabbit", "The Who", "what is the tempest about"]
    _, expected = by_hand(queries, stop_weight=0.3)
    np.testing.assert_allclose(EMBEDDER.embed_queries(queries), expected, atol=1e-5)
    asked = EMBEDDER.embed_queries(queries[2:]) @ EMBEDDER.embed_texts(["The Tempest"]).T
    plain = EMBEDDER.embed_texts(queries[2:]) @ EMBEDDER.embed_texts(["The Tempest"]).T
    assert asked > plain
    # Where all words are common, they count as always.
    np.testing.assert_allclose(
        EMBEDDER.embed_queries(["The Who"]), EMBEDDER.embed_texts(["The Who"]), atol=1e-5
    )


def test_similarities_are_cosines_of_n_grams() -> None:
    texts = [*TITLES, *ODD]
    rows, _ = by_hand(texts)
    for query in ["the tempest of Hamlet", "tempesst", "skłodowska", "", "!!!"]:
        asked, _ = by_hand([query], stop_weight=0.3)
        found = EMBEDDER.similarities(query, texts)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, rows @ asked[0], atol=1e-5)
    assert EMBEDDER.similarities("Hamlet", []).shape == (0,)
    assert EMBEDDER.similarities("Hamlet", ["hamlet"]) == pytest.approx(1)


def test_a_projected_cosine_is_near_the_exact_one() -> None:
    words = [
        "red",
        "green",
        "blue",
        "night",
        "day",
        "river",
        "stone",
        "song",
        "of",
        "and",
        "the",
        "king",
        "queen",
    ]
    draw = random.Random(3)
    texts = [" ".join(draw.choices(words, k=4)) for _ in range(200)]
    exact = EMBEDDER.similarities(texts[0], texts)
    projected = EMBEDDER.embed_texts(texts) @ EMBEDDER.embed_queries(texts[:1])[0]
    # The error of one pair has a standard deviation of at most 1 / sqrt(128).
    assert np.sqrt(np.mean((exact - projected) ** 2)) < 0.1


def test_what_is_written_otherwise_is_the_same() -> None:
    same = [
        ("São Paulo", "SAO  paulo"),
        ("AC/DC", "ac dc"),
        ("Zürich–Basel", "zurich basel"),
        ("ａｂｃ", "ABC"),
    ]
    for one, other in same:
        np.testing.assert_array_equal(*EMBEDDER.embed_texts([one, other]))


def test_only_blank_texts_have_no_vector() -> None:
    vectors = EMBEDDER.embed_texts(ODD)
    lengths = np.linalg.norm(vectors, axis=1)
    assert [text for text, length in zip(ODD, lengths, strict=True) if not length] == ["", "   ", "\u0301"]
    np.testing.assert_allclose(lengths[lengths > 0], 1, atol=1e-5)
    assert EMBEDDER.embed_texts([]).shape == (0, 128)


@given(st.lists(st.text(max_size=40), max_size=8), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_neither_company_nor_order_matters(texts: list[str], draw: random.Random) -> None:
    together = EMBEDDER.embed_texts(texts)
    order = list(range(len(texts)))
    draw.shuffle(order)
    np.testing.assert_array_equal(EMBEDDER.embed_texts([texts[i] for i in order]), together[order])
    for text, vector in zip(texts, together, strict=True):
        np.testing.assert_array_equal(EMBEDDER.embed_texts([text])[0], vector)


def test_words_that_are_forgotten_come_back_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{title} number {i}" for i in range(30) for title in TITLES]
    expected = EMBEDDER.embed_texts(texts)
    similar = EMBEDDER.similarities("number of Hamlet", texts)
    monkeypatch.setattr(word_table, "_CAPACITY", 20)
    small = LexicalEmbedder.from_arrays(EMBEDDER.arrays())
    for begin in range(0, len(texts), 4):
        np.testing.assert_array_equal(
            small.embed_texts(texts[begin : begin + 4]), expected[begin : begin + 4]
        )
        np.testing.assert_array_equal(
            small.similarities("number of Hamlet", texts[begin : begin + 4]), similar[begin : begin + 4]
        )
    np.testing.assert_array_equal(small.embed_texts(texts), expected)  # more words than are ever kept
    np.testing.assert_array_equal(small.similarities("number of Hamlet", texts), similar)


def test_threads_see_the_same_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_table, "_CAPACITY", 64)
    shared = LexicalEmbedder.from_arrays(EMBEDDER.arrays())
    blocks = [[f"{title} {i}" for title in TITLES] for i in range(40)]
    expected = [EMBEDDER.embed_texts(block) for block in blocks]
    with ThreadPoolExecutor(4) as pool:
        for found, wanted in zip(pool.map(shared.embed_texts, blocks * 3), expected * 3, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_it_is_made_again_from_its_arrays() -> None:
    again = LexicalEmbedder.from_arrays(dict(EMBEDDER.arrays()))
    assert again.fingerprint == EMBEDDER.fingerprint
    assert again.dimensions == EMBEDDER.dimensions
    np.testing.assert_array_equal(again.embed_texts(TITLES), EMBEDDER.embed_texts(TITLES))
    assert sum(array.nbytes for array in EMBEDDER.arrays().values()) < 10_000_000


def test_fitting_is_seeded_and_the_fingerprint_tells_apart() -> None:
    prints = [
        LexicalEmbedder.fit(TITLES, 16).fingerprint,
        LexicalEmbedder.fit(TITLES, 16).fingerprint,
        LexicalEmbedder.fit(TITLES, 16, seed=1).fingerprint,
        LexicalEmbedder.fit(TITLES[1:], 16).fingerprint,
        LexicalEmbedder.fit(TITLES, 17).fingerprint,
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 4


@pytest.mark.parametrize("dimensions", [8, 300])
def test_any_length_of_vectors(dimensions: int) -> None:
    embedder = LexicalEmbedder.fit(TITLES, dimensions)
    assert embedder.dimensions == dimensions
    similar = embedder.embed_texts(TITLES) @ embedder.embed_queries(["hamlet"])[0]
    assert similar.argmax() == 0


@pytest.mark.parametrize(
    ("num_texts", "dimensions"),
    [(0, 768), (19_999, 768), (20_000, 384), (99_999, 384), (100_000, 128), (6_000_000, 128)],
)
def test_few_texts_get_longer_vectors(num_texts: int, dimensions: int) -> None:
    assert default_dimensions(num_texts) == dimensions


def test_without_a_sample_all_n_grams_weigh_the_same() -> None:
    embedder = LexicalEmbedder.fit([], 16)
    assert (embedder.arrays()["idf"] == 1).all()
    assert embedder.embed_texts(["Hamlet"]).any()


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("idf", None),
        ("idf", np.ones(NUM_FEATURES)),
        ("idf", np.ones(5, dtype=np.float32)),
        ("idf", np.full(NUM_FEATURES, np.nan, dtype=np.float32)),
        ("counts", np.ones(NUM_FEATURES, dtype=np.uint16)),
        ("signs", np.zeros(1, dtype=np.uint8)),
        ("dimensions", np.array([10], dtype=np.int32)),
        ("dimensions", np.zeros(0, dtype=np.int32)),
        ("more", np.zeros(1, dtype=np.int32)),
    ],
)
def test_arrays_of_something_else_are_refused(name: str, array: Any) -> None:
    arrays = {**EMBEDDER.arrays(), name: array}
    if array is None:
        del arrays[name]
    with pytest.raises(IndexFormatError, match="lexical vectors"):
        LexicalEmbedder.from_arrays(arrays)
