"""The texts of entities that get vectors, compared with those of one entity after another."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from genret.retrieval.errors import InputError
from genret.retrieval.index import reader as views
from genret.retrieval.index.reader import EntityTexts, Index
from genret.retrieval.sources.columns import ColumnMapping, ColumnType
from tests.index_fixtures import build, character_tokenizer

HEADER = "entity_id\ttitle\taliases\tkind\tdescription\trank"
LINES = (
    "e1\tHamlet\tThe Prince|hamlet\tplay\tA prince doubts\t1",
    "e2\tMacbeth\t\tplay\t\t2",
    "e3\tOthello\tMoor\tplay\tOthello\t3",
    "e4\tParis\tCity of Light|Lutetia\tcity\tLutetia\t4",
    "e5\tParis\tParis, Texas\tcity\tA city in Texas\t5",
    "e6\tÉire\tEire\tcountry\tplay\t6",
)


def texts_by_hand(index: Index, number: int, columns: tuple[str, ...]) -> list[str]:
    entity = index.entities.entity(number)
    said = [entity.title, *entity.aliases, *(entity.metadata[name] for name in columns)]
    return list(dict.fromkeys(text for text in said if isinstance(text, str) and text.strip()))


def all_by_hand(index: Index, columns: tuple[str, ...]) -> list[tuple[int, str]]:
    return [(n, text) for n in range(index.num_entities) for text in texts_by_hand(index, n, columns)]


def streamed(texts: EntityTexts, size: int = 1000) -> list[tuple[int, str]]:
    pairs = []
    for batch in texts.batches(size):
        assert 0 < len(batch.texts) == len(batch.numbers) <= size
        assert batch.numbers.dtype == np.int64
        pairs += list(zip(batch.numbers.tolist(), batch.texts, strict=True))
    return pairs


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    lines = (HEADER, *LINES)
    summary = build(
        tmp_path_factory.mktemp("views"),
        lines,
        character_tokenizer("".join(lines)),
        mapping=ColumnMapping(types={"rank": ColumnType.INT}),
    )
    return Index.open(summary.index)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """Many entities, some of whose aliases and descriptions repeat others; columns stored as dictionaries."""
    draw = random.Random(4)
    words = ["sun", "moon", "star", "sea", "hill"]
    lines = [HEADER]
    for i in range(3000):
        aliases = "|".join(draw.choices([*words, f"title {i}", f"t{i}"], k=draw.randrange(4)))
        description = draw.choice(["", " ", f"title {i}", *words, f"about {i}"])
        lines.append(f"e{i}\ttitle {i}\t{aliases}\t{draw.choice(words)}\t{description}\t{i}")
    tokenizer = character_tokenizer("".join(lines))
    return Index.open(build(tmp_path_factory.mktemp("large"), lines, tokenizer, evidence=None).index)


@pytest.mark.parametrize("columns", [(), ("description",), ("kind", "description"), ("kind", "kind")])
@pytest.mark.parametrize("block", [1, 4, 16_384])
def test_texts_are_those_of_every_entity(
    columns: tuple[str, ...], block: int, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "_BLOCK", block)
    texts = EntityTexts(index, columns)
    expected = all_by_hand(index, columns)
    assert streamed(texts) == expected
    assert streamed(texts, 2) == expected
    assert texts.count == len(expected)


def test_texts_of_some_entities_come_in_the_order_asked_for(large: Index) -> None:
    columns = ("kind", "description")
    texts = EntityTexts(large, columns)
    wanted = random.Random(1).choices(range(3000), k=50)  # some of them twice, perhaps
    wanted += wanted[:3]
    batch = texts.of(wanted)
    expected = [(n, text) for n in wanted for text in texts_by_hand(large, n, columns)]
    assert list(zip(batch.numbers.tolist(), batch.texts, strict=True)) == expected
    nothing = texts.of([])
    assert (len(nothing.numbers), nothing.texts) == (0, [])


@pytest.mark.parametrize("number", [-1, 3000])
def test_there_is_no_such_entity(number: int, large: Index) -> None:
    with pytest.raises(ValueError, match=f"expected 0 <= number < 3000, got {number}"):
        EntityTexts(large).of([5, number])


@pytest.mark.parametrize("size", [0, 1, 7, 500, 2999, 3000, 10**6])
def test_samples_are_spread_evenly(size: int, large: Index) -> None:
    texts = EntityTexts(large, ("description",))
    every = all_by_hand(large, ("description",))
    batch = texts.sample(size)
    pairs = list(zip(batch.numbers.tolist(), batch.texts, strict=True))
    assert len(pairs) == min(size, len(every))
    chosen = set(pairs)
    assert pairs == [pair for pair in every if pair in chosen]
    if 7 <= size < 3000:
        assert np.diff(batch.numbers).max() <= 6 * -(-3000 // size)  # an entity has at most six texts
    again = texts.sample(size)
    assert again.texts == batch.texts


def test_columns_that_hold_no_texts_are_refused(index: Index) -> None:
    for name in ("rank", "title", "nothing"):
        with pytest.raises(InputError, match=rf"expected one of \['kind', 'description'\], got '{name}'"):
            EntityTexts(index, ["kind", name])


def test_an_index_of_bare_titles(tmp_path: Path) -> None:
    lines = ("title", "Hamlet", "Macbeth")
    index = Index.open(build(tmp_path, lines, character_tokenizer("".join(lines))).index)
    assert streamed(EntityTexts(index)) == [(0, "Hamlet"), (1, "Macbeth")]
    with pytest.raises(InputError, match="the index has no columns of strings, got 'description'"):
        EntityTexts(index, ["description"])
