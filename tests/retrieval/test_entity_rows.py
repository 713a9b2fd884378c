"""Postings turned round, against a pass over all postings."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.retrieval.index.owners import EntityRows
from genret.retrieval.index.reader import Index
from genret.retrieval.text import TextTokenizer
from tests.checkpoints import END, make_index, train_tokenizer

TOKENIZER = TextTokenizer(train_tokenizer(), END, "tiny")
MANY = "|".join(f"a river {n}" for n in range(40))
CATALOGUES = {
    "one form each": "title\nNile\nParis\nBerlin\n",
    "aliases": f"title\taliases\nNile\t{MANY}\nParis\tNile|Lutetia\nNile delta\tNile\nAa\tZz|Mm\n",
}


@pytest.fixture(scope="module", params=list(CATALOGUES))
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("rows")
    return Index.open(make_index(folder, TOKENIZER, CATALOGUES[request.param]))


def postings(index: Index) -> dict[int, dict[int, str]]:
    """Entity -> its ranks, with the text of each."""
    found: dict[int, dict[int, str]] = {number: {} for number in range(index.num_entities)}
    for rank in range(index.num_rows):
        for number in index.entities_of(rank):
            found[number][rank] = index.surface(rank, number)
    return found


def test_every_row_of_an_entity_its_title_first(index: Index) -> None:
    rows = EntityRows(index)
    for number, ranks in postings(index).items():
        mine = rows.of(number)
        assert sorted(mine) == sorted(ranks)
        assert ranks[mine[0]] == index.entity(number).title


def test_of_one_row_each_nothing_is_cut(tmp_path: Path) -> None:
    with Index.open(make_index(tmp_path, TOKENIZER, CATALOGUES["one form each"])) as index:
        assert EntityRows(index).of_all([2, 0], 1) == ([[2], [0]], True)


@settings(max_examples=50, deadline=None)
@given(data=st.data(), most=st.integers(0, 60))
def test_what_is_cut_is_cut_evenly(index: Index, data: st.DataObject, most: int) -> None:
    entities = data.draw(st.permutations(range(index.num_entities)).flatmap(lambda p: st.just(p)))
    entities = entities[: data.draw(st.integers(0, len(entities)))]
    rows = EntityRows(index)
    whole = [rows.of(number) for number in entities]
    found, is_whole = rows.of_all(entities, most)
    assert is_whole == (found == whole)
    assert is_whole == (sum(map(len, whole)) <= max(most, len(entities)))
    longest = max(map(len, found), default=0)
    for mine, everything in zip(found, whole, strict=True):
        assert mine == everything[:longest]  # the same cut for all, and the title is kept
        assert mine
    if not is_whole:
        assert sum(map(len, found)) <= max(most, len(entities))
        assert longest == 1 or sum(min(len(e), longest + 1) for e in whole) > most
