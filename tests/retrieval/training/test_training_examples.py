"""What the example generator draws: right labels, no test query, the mixture over time."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from genret.retrieval.training.examples import RECIPES, ExampleGenerator, ExampleOptions, Mixture, damage_name
from genret.retrieval.training.training_data import TrainingEntity, TrainingQuery

NILE = ("an-Nil", "River Nile")
ENTITIES = [
    TrainingEntity("1", "Nile", NILE, "Long north-flowing river of Egypt and Sudan", "river"),
    TrainingEntity("2", "Mercury (planet)", ("Mercury",), "Innermost and smallest planet", "planet"),
    TrainingEntity("3", "Zürich", (), "Largest city of Switzerland, on a lake", "city"),
]
QUERIES = [
    TrainingQuery("where did moses float in a basket", "1"),
    TrainingQuery("closest world to our star", "2"),
    TrainingQuery("Forbidden testword QUESTION", "2"),
    TrainingQuery("forbidden devword question", "3", "dev"),
    TrainingQuery("forbidden testword question", "3", "test"),
]
ONLY = {recipe: Mixture(**{name: float(name == recipe) for name in RECIPES}) for recipe in RECIPES}


def draw(options: ExampleOptions, count: int = 400, start: int = 0, queries: bool = True) -> list:
    generator = ExampleGenerator(ENTITIES, QUERIES if queries else (), options)
    random = Random(11)
    return [generator.draw(start + i, random) for i in range(count)]


def text_of(example) -> str:  # type: ignore[no-untyped-def]
    if example.mention is not None:
        return f"{example.mention.left} {example.mention.mention} {example.mention.right}"
    return example.query


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_gives_a_text_and_a_title(recipe: str) -> None:
    examples = draw(ExampleOptions(first=ONLY[recipe], later=ONLY[recipe]))
    assert {example.recipe for example in examples} == {recipe}
    for example in examples:
        assert text_of(example).strip()
        assert (example.query is None) == (recipe == "mention")
    if recipe != "invented":
        surfaces = {surface for entity in ENTITIES for surface in entity.surfaces}
        titles = {entity.title for entity in ENTITIES}
        assert {example.title for example in examples} <= (surfaces if recipe == "name" else titles)
        # without a training query of its own the third entity is never asked for by query
        missing = {"Zürich"} if recipe == "query" else set()
        assert {example.title for example in examples} >= titles - missing


def test_dev_and_test_queries_are_never_seen() -> None:
    for example in draw(ExampleOptions(), count=3000):
        assert "testword" not in text_of(example).lower()
        assert "devword" not in text_of(example).lower()
        assert "forbidden" not in text_of(example).lower()


def test_alias_targets_can_be_switched_off() -> None:
    options = ExampleOptions(first=ONLY["name"], later=ONLY["name"], alias_target=0.0)
    assert {example.title for example in draw(options)} == {entity.title for entity in ENTITIES}


def test_names_come_first_and_meaning_later() -> None:
    options = ExampleOptions(ramp_examples=1000)
    early = Counter(example.recipe for example in draw(options, count=600, start=0))
    late = Counter(example.recipe for example in draw(options, count=600, start=10_000))
    assert early["name"] + early["invented"] > late["name"] + late["invented"]
    assert late["query"] > early["query"]


def test_titles_alone_are_enough() -> None:
    generator = ExampleGenerator([TrainingEntity("x", "K2")])
    random = Random(0)
    assert {generator.draw(i, random).title for i in range(50)} >= {"K2"}


def test_the_same_seed_draws_the_same() -> None:
    assert draw(ExampleOptions()) == draw(ExampleOptions())


def test_damaged_names_keep_something() -> None:
    random = Random(2)
    for name in ("Nile", "Mercury (planet)", "Johann Sebastian Bach", "C"):
        assert all(damage_name(name, random).strip() for _ in range(200))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: ExampleOptions(alias_target=1.5),
        lambda: ExampleOptions(ramp_examples=-1),
        lambda: Mixture(name=-1),
    ],
)
def test_impossible_options_are_refused(wrong) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="got"):
        wrong()


def test_an_empty_catalogue_is_refused() -> None:
    with pytest.raises(ValueError, match="entities"):
        ExampleGenerator([])
