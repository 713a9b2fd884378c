"""Queries made from a catalogue: the same every time, in the shares of their recipes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from scipy import stats

from retrieval.evidence.evidence import Evidence
from retrieval.index.reader import Index
from retrieval.ranking.made_queries import NAME_RECIPES, SOURCES, MadeQuery, make_queries
from tests.evidence_fixtures import build_catalogue, evidence_of, made_up_texts

COLUMNS = ("description", "plot")
NUM_ENTITIES = 300


def _lines(has_weights: bool) -> list[str]:
    titles = made_up_texts(NUM_ENTITIES, 3, 4)
    texts = made_up_texts(NUM_ENTITIES, 4, 12)
    plots = made_up_texts(NUM_ENTITIES, 5, 12)
    return [
        f"E{number}\t{title} {number}\t{title}\t{text}\t{plot}\t{(1000 if number < 3 else 1) * has_weights}"
        for number, (title, text, plot) in enumerate(zip(titles, texts, plots, strict=True))
    ]


Made = tuple[Index, Evidence]


@pytest.fixture(scope="module", params=[False, True], ids=["no weights", "weights"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    folder = tmp_path_factory.mktemp("made")
    weight = "fame" if request.param else None
    with Index.open(build_catalogue(folder, _lines(request.param), weight=weight)) as index:
        past = [(number, [(f"asked {number}", 9), (f"seldom {number}", 1)]) for number in range(0, 300, 2)]
        yield index, evidence_of(index, folder / "fields", COLUMNS, past)


def _sources(made: list[MadeQuery]) -> Counter[str]:
    return Counter(
        "queries" if "past query" in one.recipe else "texts" if "texts" in one.recipe else "names"
        for one in made
    )


def test_the_same_seed_makes_the_same_queries(world: Made) -> None:
    index, evidence = world
    first = make_queries(index, evidence, COLUMNS, 200, seed=1)
    assert make_queries(index, evidence, COLUMNS, 200, seed=1) == first
    assert make_queries(index, evidence, COLUMNS, 200, seed=2) != first


@pytest.mark.parametrize("count", [1, 7, 200])
@pytest.mark.parametrize("columns", [(), COLUMNS[:1], COLUMNS])
def test_queries_are_never_empty_nor_too_many(world: Made, count: int, columns: tuple[str, ...]) -> None:
    index, evidence = world
    made = make_queries(index, evidence, columns, count)
    assert 0 < len(made) <= count
    for one in made:
        assert one.text.strip()
        assert 0 <= one.entity < index.num_entities
        assert one.recipe


@pytest.mark.statistical
def test_sources_and_recipes_have_their_shares(world: Made) -> None:
    """A chi-squared test of the recipes at alpha = 1e-4, seeded."""
    index, evidence = world
    made: list[MadeQuery] = []
    for seed in range(10):
        made += make_queries(index, evidence, COLUMNS, 400, seed)
    counts = _sources(made)
    assert counts["queries"] == 10 * round(400 * SOURCES["queries"])
    assert counts["texts"] <= 10 * round(400 * SOURCES["texts"])
    assert counts["texts"] > 0.8 * 400 * 10 * SOURCES["texts"]
    recipes = Counter(one.recipe for one in made)
    shares = {name: share for name, share, _ in NAME_RECIPES}
    assert sum(shares.values()) == 100
    expected = [counts["names"] * share / 100 for share in shares.values()]
    found = [recipes[name] for name in shares]
    assert stats.chisquare(found, expected).pvalue > 1e-4


def test_without_texts_and_past_queries_all_come_from_names(world: Made) -> None:
    index, evidence = world
    made = make_queries(index, Evidence(index, names=evidence.fields["names"]), (), 100)
    assert _sources(made) == {"names": 100}


@pytest.mark.statistical
def test_what_is_meant_more_often_is_drawn_more_often(world: Made) -> None:
    """Three of 300 entities have nine tenths of the weight: 45 % of the queries from names, else 1 %.

    Of 500 queries the standard deviation is 11; alpha < 1e-6.
    """
    index, evidence = world
    made = make_queries(index, Evidence(index, names=evidence.fields["names"]), (), 500)
    heavy = {number for number in range(300) if index.entity(number).entity_id in ("E0", "E1", "E2")}
    drawn = sum(one.entity in heavy for one in made)
    if index.weights is None:
        assert drawn < 30
        assert all(one.name for one in made)
    else:
        assert 225 - 60 < drawn < 225 + 60
        assert not any(one.name for one in made)


def test_past_queries_are_drawn_by_how_often_they_were_asked(world: Made) -> None:
    index, evidence = world
    made = make_queries(index, evidence, (), 400)
    past = [one for one in made if "past query" in one.recipe]
    assert all(one.text.split()[1] == str(one.entity) for one in past)
    often = sum(one.text.startswith("asked") for one in past)
    # 140 draws of 0.9: 126 with a standard deviation of 3.5.
    assert 105 <= often <= 140


def test_more_columns_of_texts_make_no_more_queries(tmp_path: Path) -> None:
    header = "title\t" + "\t".join(f"c{number}" for number in range(6))
    lines = [f"title {n}\t" + "\t".join(f"text {n} {c} of it" for c in range(6)) for n in range(50)]
    with Index.open(build_catalogue(tmp_path, lines, header)) as index:
        columns = tuple(f"c{number}" for number in range(6))
        evidence = evidence_of(index, tmp_path / "fields", columns)
        made = make_queries(index, evidence, columns, 400)
    counts = _sources(made)
    assert len(made) <= 400
    assert counts["texts"] <= 100
    assert len({one.text.casefold().split()[-1] for one in made if "texts" in one.recipe}) > 1
