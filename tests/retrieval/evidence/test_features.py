"""Features of candidates against one slow computation per feature, and proposals."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest

from genret.retrieval.evidence import evidence as evidence_module
from genret.retrieval.evidence.evidence import FEATURE_NUMBER, FEATURES, Evidence
from genret.retrieval.evidence.field import Counted
from genret.retrieval.evidence.postings import fold_all
from genret.retrieval.index.reader import Index
from tests.evidence_fixtures import PlainBm25, build_catalogue, evidence_of, made_up_texts, terms_of

NUM_ENTITIES = 40
QUERIES = [
    "old town",
    "The Old Town!",
    "what is the name of the queen of the old town by the river, that Red House?",
    "redd hous",
    "Straße Über 東京",
    "nothing like it",
    "?!",
    "???",  # a name of one entity, and no mention of it elsewhere
]


class World:
    """An index with evidence, and what it was made from."""

    def __init__(self, folder: Path) -> None:
        random = Random(7)
        titles = made_up_texts(NUM_ENTITIES, 1, 3)
        titles[3], titles[4] = "???", "Old Town"
        self.names: list[list[str]] = []
        self.texts: list[str] = []
        lines = []
        for number, title in enumerate(titles):
            aliases = made_up_texts(random.randint(0, 3), 100 + number, 2)
            described = made_up_texts(1, 200 + number, 9)[0] if number % 3 else ""
            plot = made_up_texts(1, 300 + number, 5)[0] if number % 2 else ""
            fame = "" if number == 5 else str(random.choice([0, 1, 10, 2500]))
            lines.append(f"E{number:02}\t{title}\t{'|'.join(aliases)}\t{described}\t{plot}\t{fame}")
            self.names.append(list(dict.fromkeys([title, *aliases])))
            self.texts.append("\n".join(dict.fromkeys(text for text in (described, plot) if text)))
        self.queries: dict[int, list[Counted]] = {
            number: [
                (text, random.randint(1, 9))
                for text in dict.fromkeys(made_up_texts(random.randint(1, 4), number))
            ]
            for number in range(0, NUM_ENTITIES, 4)
        }
        self.queries[4] = [("old town", 6), ("the town of the old", 1)]
        self.queries[8] = [("Old Town!", 2)]
        self.index = Index.open(build_catalogue(folder, lines, weight="fame"))
        line_of = [int(self.index.entity(number).entity_id[1:]) for number in range(NUM_ENTITIES)]
        self.names = [self.names[line] for line in line_of]
        self.texts = [self.texts[line] for line in line_of]
        self.without_weight = line_of.index(5)
        self.evidence = evidence_of(
            self.index, folder / "fields", ("description", "plot"), sorted(self.queries.items())
        )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("world"))
    with made.index:
        yield made


def _column(found: np.ndarray, name: str) -> list[float]:
    return found[:, FEATURE_NUMBER[name]].tolist()


def _common_subsequence(one: str, other: str) -> int:
    row = [0] * (len(other) + 1)
    for character in one:
        last = 0
        for at, theirs in enumerate(other, 1):
            last, row[at] = row[at], last + 1 if character == theirs else max(row[at], row[at - 1])
    return row[-1]


def _likeness(one: str, other: str) -> float:
    return 2 * _common_subsequence(one, other) / (len(one) + len(other)) if one or other else 1.0


def _padded(text: str) -> str:
    return " " + " ".join(re.findall(r"\w+", text)) + " "


def _name_features(world: World, query: str) -> dict[str, list[list[float]]]:
    """Return every feature of every name of every entity."""
    every = [name for names in world.names for name in names]
    words, letters = PlainBm25(every, "words"), PlainBm25(every, "letters")
    asked_letters = terms_of(query, "letters")
    of_all = math.fsum(map(letters.idf, asked_letters))
    (folded,) = fold_all([query])
    found: dict[str, list[list[float]]] = {}
    for mine in world.names:
        rows: dict[str, list[float]] = {}
        for name in mine:
            (plain,) = fold_all([name])
            shared = math.fsum(map(letters.idf, asked_letters & terms_of(name, "letters")))
            length = math.log(1 + len(plain))
            is_held = _padded(name).strip() and _padded(name) in _padded(query)
            for feature, value in {
                "words": words.score(query, terms_of(name, "words")),
                "letters": 1.0 if plain.startswith(folded) else shared / of_all,
                "likeness": _likeness(folded, plain),
                "beginning": float(plain.startswith(folded)),
                "mentioned": length if is_held else 0.0,
                "whole": float(plain == folded),
                "length": length,
            }.items():
                rows.setdefault(feature, []).append(value)
        for feature, values in rows.items():
            found.setdefault(feature, []).append(values)
    return found


@pytest.mark.parametrize("query", QUERIES)
def test_features_of_names_are_the_largest_of_each(world: World, query: str) -> None:
    (asked,) = world.evidence.ask([query])
    found = world.evidence.features(asked, np.arange(NUM_ENTITIES))
    slow = _name_features(world, query)
    factor = min(1.0, math.log(len(fold_all([query])[0].split())) / math.log(16))
    for name, rows in slow.items():
        if name == "length":
            continue
        best = [max(values) for values in rows]
        np.testing.assert_allclose(_column(found, f"names.{name}"), best, rtol=1e-4, atol=1e-6)
        long = _column(found, f"names.{name}_long")
        np.testing.assert_allclose(long, np.array(best) * factor, rtol=1e-4, atol=1e-6)
    for number, length in enumerate(_column(found, "names.length")):
        likest = max(slow["likeness"][number])
        alike = [
            value
            for value, likeness in zip(slow["length"][number], slow["likeness"][number], strict=True)
            if likeness > likest - 1e-6
        ]
        assert min(abs(length - value) for value in alike) < 1e-5
    np.testing.assert_allclose(
        _column(found, "names.length_long"), np.array(_column(found, "names.length")) * factor, rtol=1e-5
    )


@pytest.mark.parametrize("query", QUERIES)
def test_features_of_texts_and_past_queries_are_bm25(world: World, query: str) -> None:
    (asked,) = world.evidence.ask([query])
    found = world.evidence.features(asked, np.arange(NUM_ENTITIES))
    past = {number: "\n".join(text for text, _ in mine) for number, mine in world.queries.items()}
    texts = {number: text for number, text in enumerate(world.texts) if text}
    for kind, of_entity in (("texts", texts), ("queries", past)):
        for terms in ("words", "letters"):
            expected = np.zeros(NUM_ENTITIES)
            expected[list(of_entity)] = PlainBm25(of_entity.values(), terms).scores(query)
            np.testing.assert_allclose(_column(found, f"{kind}.{terms}"), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("without_same", [False, True])
def test_past_queries_are_compared_one_by_one(world: World, query: str, without_same: bool) -> None:
    (asked,) = world.evidence.ask([query])
    found = world.evidence.features(asked, np.arange(NUM_ENTITIES), without_same)
    lists = PlainBm25(["\n".join(text for text, _ in mine) for mine in world.queries.values()], "letters")
    letters = terms_of(query, "letters")
    of_all = math.fsum(map(lists.idf, letters))
    nearest, same = np.zeros(NUM_ENTITIES), np.zeros(NUM_ENTITIES)
    (folded,) = fold_all([query])
    for number, mine in world.queries.items():
        for text, count in mine:
            is_same = fold_all([text])[0] == folded
            share = math.fsum(map(lists.idf, letters & terms_of(text, "letters"))) / of_all
            if is_same and without_same:
                continue
            same[number] += count * is_same
            nearest[number] = max(nearest[number], share)
    np.testing.assert_allclose(_column(found, "queries.nearest"), nearest, rtol=1e-4, atol=1e-6)
    expected = [0.0] * NUM_ENTITIES if without_same else (same / max(same.sum(), 1)).tolist()
    np.testing.assert_allclose(_column(found, "queries.same"), expected, rtol=1e-5)


def test_without_the_same_query_its_words_are_not_there(world: World) -> None:
    """Entity 8 had this query alone, entity 4 another one too: its score is that of the other one alone."""
    (asked,) = world.evidence.ask(["old town"])
    found = world.evidence.features(asked, np.arange(NUM_ENTITIES), without_same=True)
    plain = world.evidence.features(asked, np.arange(NUM_ENTITIES))
    past = ["\n".join(text for text, _ in mine) for mine in world.queries.values()]
    for terms in ("words", "letters"):
        name = f"queries.{terms}"
        expected = PlainBm25(past, terms).score("old town", terms_of("the town of the old", terms))
        assert _column(found, name)[4] == pytest.approx(expected, rel=1e-4)
        assert _column(found, name)[8] == 0
        assert _column(plain, name)[8] > 0
        others = [number for number in range(NUM_ENTITIES) if number not in (4, 8)]
        assert (
            np.array(_column(found, name))[others].tolist() == np.array(_column(plain, name))[others].tolist()
        )


def test_weights_are_the_logs_of_the_chances_they_give(world: World) -> None:
    """Half of the queries are for entities drawn by weight, half for any."""
    (asked,) = world.evidence.ask(["harbour"])
    weights = world.index.weights
    found = np.array(_column(world.evidence.features(asked, np.arange(NUM_ENTITIES)), "weight.weight"))
    chances = 0.5 / NUM_ENTITIES + 0.5 * weights / weights.sum()
    np.testing.assert_allclose(found - found[0], np.log(chances / chances[0]), rtol=1e-5, atol=1e-6)
    assert weights[world.without_weight] == 1  # it has none


def test_any_order_and_any_block_gives_the_same_features(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (asked,) = world.evidence.ask(["the old town by the red river"])
    every = world.evidence.features(asked, np.arange(NUM_ENTITIES))
    chosen = np.array([30, 4, 3, 39, 8, 0])
    monkeypatch.setattr(evidence_module, "_BLOCK", 2)
    kept = [number for number, feature in enumerate(FEATURES) if str(feature) != "queries.same"]
    np.testing.assert_array_equal(world.evidence.features(asked, chosen)[:, kept], every[chosen][:, kept])
    assert world.evidence.features(asked, chosen[:0]).shape == (0, len(FEATURES))


def test_loops_are_compiled_once_many_queries_are_asked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence, compiled = Evidence(world.index), list[None]()
    monkeypatch.setattr(evidence_module, "compile_loops", lambda: compiled.append(None))
    most = evidence_module._PLAIN_QUERIES
    evidence.ask(["old town"] * (most - 1))
    evidence.ask(["red river"])
    assert not compiled
    evidence.ask(["red river"])
    assert compiled


def test_what_there_is_none_of_is_0(world: World, tmp_path: Path) -> None:
    only_names = Evidence(world.index, {"names": world.evidence.fields["names"]})
    (asked,) = only_names.ask(["old town"])
    found = only_names.features(asked, np.arange(NUM_ENTITIES))
    for number, feature in enumerate(FEATURES):
        assert found[:, number].any() == (feature.kind in ("names", "weight")), feature
    assert only_names.kinds == ("names", "weight")
    assert world.evidence.kinds == ("names", "texts", "queries", "weight")
    nothing = Evidence(world.index)
    (asked,) = nothing.ask(["old town"])
    assert not len(nothing.propose(asked, 10))
    found = nothing.features(asked, np.arange(3))
    found[:, FEATURE_NUMBER["weight.weight"]] = 0
    assert not found.any()


def _slow_best(scores: Sequence[float], size: int) -> set[int]:
    return {n for n in np.argsort(-np.array(scores), kind="stable")[:size].tolist() if scores[n] > 0}


def test_every_kind_proposes_by_words_and_by_letters(world: World) -> None:
    random = Random(1)
    for allowed in (None, np.array([random.random() < 0.4 for _ in range(NUM_ENTITIES)])):
        for query in ("the redd house", "king of the jungle book"):
            (asked,) = world.evidence.ask([query])
            found = world.evidence.propose(asked, 3, allowed)
            expected: set[int] = set()
            lists = (
                [(number, name) for number, names in enumerate(world.names) for name in names],
                [(number, text) for number, text in enumerate(world.texts) if text],
                [(n, "\n".join(text for text, _ in mine)) for n, mine in world.queries.items()],
            )
            for pairs in lists:
                for terms in ("words", "letters"):
                    scores = PlainBm25([text for _, text in pairs], terms).scores(query)
                    masked = [
                        np.float32(score).item() if allowed is None or allowed[number] else 0.0
                        for (number, _), score in zip(pairs, scores, strict=True)
                    ]
                    expected |= {pairs[place][0] for place in _slow_best(masked, 3)}
            assert set(found.tolist()) == expected
            assert found.tolist() == sorted(found.tolist())
