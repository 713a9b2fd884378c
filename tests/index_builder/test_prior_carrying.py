"""Priors of changed catalogues, against priors enumerated anew: all that stays the same is carried over."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from index_builder.evidence_maker import carried_over
from retrieval.index.priors import Prior
from retrieval.index.reader import Index
from tests.entity_oracle import EntityOracle, with_weights
from tests.fakes import TableModel
from tests.index_fixtures import build, character_tokenizer

TOKENIZER = character_tokenizer("abc", lower=True)
Entity = tuple[str, str, str, float]  # id, title, aliases, weight


def drawn_entity(entity_id: str, rng: random.Random) -> Entity:
    def form() -> str:
        return "".join(rng.choices("abcABC", k=rng.choice((1, 2, 2, 3, 4))))

    aliases = "|".join(form() for _ in range(rng.choice((0, 0, 1, 3))))
    return entity_id, form(), aliases, rng.choice((1.0, 2.0, 5.0))


def changed(entities: Sequence[Entity], rng: random.Random) -> list[Entity]:
    """Remove, rename, weigh anew and add some."""
    kept = []
    for entity in entities:
        fate = rng.random()
        if fate < 0.1:
            continue
        if fate < 0.2:
            kept.append(drawn_entity(entity[0], rng))
        elif fate < 0.3:
            kept.append((*entity[:3], entity[3] + 1))
        else:
            kept.append(entity)
    return [*kept, *(drawn_entity(f"new{number}", rng) for number in range(rng.randint(0, 3)))]


def opened(folder: Path, entities: Sequence[Entity], has_weights: bool) -> Index:
    folder.mkdir()
    lines = ["entity_id\ttitle\taliases", *("\t".join(entity[:3]) for entity in entities)]
    index = Index.open(build(folder, lines, TOKENIZER).index)
    weight = {entity[0]: entity[3] for entity in entities}
    ids = [index.entity(number).entity_id for number in range(index.num_entities)]
    return with_weights(index, [weight[name] for name in ids] if has_weights else None)


@pytest.mark.parametrize("has_weights", [False, True])
@pytest.mark.parametrize("title_weight", [10.0, 0.5])
def test_what_is_carried_over_is_what_would_be_computed(
    tmp_path: Path, has_weights: bool, title_weight: float
) -> None:
    num_carried = num_missing = num_changed_shares = 0
    for seed in range(12):
        rng = random.Random(seed)
        before = [drawn_entity(f"E{number}", rng) for number in range(14)]
        after = changed(before, rng)
        old = opened(tmp_path / f"old{seed}", before, has_weights)
        new = opened(tmp_path / f"new{seed}", after, has_weights)
        model = TableModel.random(old.vocab_size, seed)
        oracles = [EntityOracle.of(index, model, (1,), title_weight=title_weight) for index in (old, new)]
        logprobs = np.array([oracles[0].logprob(entity) for entity in range(old.num_entities)], np.float32)
        numbers = {old.entity(number).entity_id: number for number in range(old.num_entities)}
        ids = [new.entity(number).entity_id for number in range(new.num_entities)]
        number_of_old = np.array([numbers.get(name, -1) for name in ids])
        prior = Prior("it", ("a",), "digest", title_weight, logprobs)
        carried = carried_over(prior, old, new, number_of_old)
        assert (carried.model, carried.queries, carried.prompts) == ("it", ("a",), "digest")
        for entity, (value, number) in enumerate(zip(carried.logprobs, number_of_old, strict=True)):
            now = oracles[1].logprob(entity)
            if np.isnan(value):
                num_missing += 1
                # The logits are random: an entity has the probability that it had with the same forms alone.
                assert number < 0 or now != pytest.approx(float(logprobs[number]), abs=1e-6)
                if number >= 0 and new.entity(entity).title == old.entity(int(number)).title:
                    num_changed_shares += 1
            else:
                num_carried += 1
                assert value == pytest.approx(now, abs=1e-5)
        old.close()
        new.close()
    assert min(num_carried, num_missing, num_changed_shares) > 10


def test_a_catalogue_of_one_name_each_is_carried_over(tmp_path: Path) -> None:
    old = Index.open(build(tmp_path, ["title", "a", "b", "cc"], TOKENIZER, "old.index").index)
    new = Index.open(build(tmp_path, ["title", "a", "ab", "b"], TOKENIZER, "new.index").index)
    assert old.is_one_to_one
    assert new.is_one_to_one
    titles = [[index.entity(number).title for number in range(3)] for index in (old, new)]
    logprobs = {"a": -1.0, "b": -2.0, "cc": -np.inf}
    values = np.array([logprobs[title] for title in titles[0]], np.float32)
    number_of_old = np.array([titles[0].index(title) if title in titles[0] else -1 for title in titles[1]])
    carried = carried_over(Prior("it", ("a",), "digest", 10.0, values), old, new, number_of_old)
    expected = np.array([logprobs.get(title, np.nan) for title in titles[1]], np.float32)
    assert np.array_equal(carried.logprobs, expected, equal_nan=True)
    old.close()
    new.close()
