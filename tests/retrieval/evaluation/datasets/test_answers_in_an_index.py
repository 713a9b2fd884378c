"""Labels are found in an index: by id, title, alias and redirect, and as any of several namesakes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from genret.retrieval.errors import SourceError
from genret.retrieval.evaluation.datasets.index_entities import IndexResolver, read_redirects
from genret.retrieval.evaluation.datasets.labels import FileQuery, LabelAnswer, find_answers
from genret.retrieval.index.reader import Index
from tests.evaluation_sets import DictResolver, write_lines
from tests.index_fixtures import build, character_tokenizer

LINES = [
    "entity_id\ttitle\taliases",
    "a\tLion\tking|Leo",
    "b\tMercury\t",
    "c\tMercury\tplanet",
    "d\tLeo\t",
    "e\tkönig\tking",
    "New York\tBig Apple\tNYC|NYC ",
]


@pytest.fixture
def index(tmp_path: Path) -> Index:
    tokenizer = character_tokenizer("abcdefghijklmnopqrstuvwxyzöABCDEFGHIJKLMNOPQRSTUVWXYZ 0123456789")
    build(tmp_path, LINES, tokenizer)
    return Index.open(tmp_path / "it.index")


def test_titles_come_before_aliases(index: Index) -> None:
    found = IndexResolver(index).by_titles(
        ["Lion", "Mercury", "Leo", "king", " Big  Apple", "ko\u0308nig", "lion", "NYC", ""]
    )
    new_york = {"New York"}
    expected = [{"a"}, {"b", "c"}, {"d"}, {"a", "e"}, new_york, {"e"}, set(), new_york, set()]
    assert [set(ids) for ids in found] == expected
    assert all(len(ids) == len(set(ids)) for ids in found)


def test_ids_are_found_after_the_text_policy(index: Index) -> None:
    assert IndexResolver(index).by_ids(["a", "zz", "New  York", "a"]) == ["a", None, "New York", "a"]


def test_nothing_is_asked_for_nothing(index: Index) -> None:
    resolver = IndexResolver(index)
    assert (resolver.by_ids([]), resolver.by_titles([])) == ([], [])


def test_redirects_are_followed_where_no_entity_has_the_title(index: Index, tmp_path: Path) -> None:
    lines = ["Panthera\tlion 2", "lion 2\tLion", "Leo\tMercury", "x\ty", "y\tx", "gone\tno", "hg\tplanet"]
    redirects = read_redirects(write_lines(tmp_path / "redirects.tsv.gz", lines))
    resolver = IndexResolver(index, redirects)
    found = resolver.by_titles(["Panthera", "lion 2", "Leo", "x", "gone", "hg"])
    assert found == [("a",), ("a",), ("d",), (), (), ("c",)]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a\tb", "a"], "line 2: expected two fields, old title and title, got 1"),
        (["a\t"], "line 1, field 'new': expected text that is not empty, got ''"),
        (["a\tb", "a\tc"], "line 2: 'a' redirects to 'b' already"),
    ],
)
def test_malformed_redirects_are_refused(tmp_path: Path, lines: list[str], message: str) -> None:
    file = write_lines(tmp_path / "redirects.tsv", lines)
    with pytest.raises(SourceError) as caught:
        read_redirects(file)
    assert str(caught.value) == f"{file}, {message}"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_index_says_what_its_catalogue_says(tmp_path: Path, seed: int) -> None:
    random_ = random.Random(seed)
    names = [f"name {i}" for i in range(40)]
    rows = [(f"id{i}", random_.choice(names), random_.sample(names, random_.randrange(3))) for i in range(60)]
    lines = ["entity_id\ttitle\taliases", *("\t".join((i, t, "|".join(a))) for i, t, a in rows)]
    build(tmp_path, lines, character_tokenizer("name 0123456789"))
    titled = {n: {i for i, t, _ in rows if t == n} for n in names}
    aliased = {n: {i for i, _, a in rows if n in a} for n in names}
    with Index.open(tmp_path / "it.index") as index:
        found = IndexResolver(index).by_titles(names)
        order = index.entities.column("entity_id").to_pylist()
    for name, ids in zip(names, found, strict=True):
        assert set(ids) == (titled[name] or aliased[name])
        assert list(ids) == sorted(ids, key=order.index)


def test_an_index_without_ids_or_aliases_is_asked_alike(tmp_path: Path) -> None:
    build(tmp_path, ["Lion", "Tiger"], character_tokenizer("LionTger"))
    with Index.open(tmp_path / "it.index") as index:
        resolver = IndexResolver(index)
        assert resolver.by_titles(["Tiger", "tiger"]) == [("Tiger",), ()]
        assert resolver.by_ids(["Lion", "x"]) == ["Lion", None]


def _query(*answers: LabelAnswer, evidence: tuple[tuple[int, ...], ...] = ()) -> FileQuery:
    return FileQuery("q", "text", answers, evidence=evidence)


def test_of_namesakes_one_is_asked_for_and_any_is_right() -> None:
    resolver = DictResolver({"b": "Mercury", "c": "Mercury", "d": "Lion"})
    query = _query(LabelAnswer(None, "Mercury", 2), LabelAnswer(None, "Lion"), evidence=((0, 1),))
    (found,), missing = find_answers([query], resolver)
    assert found.gold == {"b": 2, "d": 1}
    assert found.namesakes == {"c": "b"}
    assert found.evidence == (frozenset("bd"),)
    assert missing == 0


@pytest.mark.parametrize("order", [1, -1])
def test_a_label_by_id_and_one_by_title_that_mean_one_entity_are_one(order: int) -> None:
    resolver = DictResolver({"b": "Mercury", "c": "Mercury"})
    answers = [LabelAnswer("c", None, 2), LabelAnswer(None, "Mercury", 1)][::order]
    (found,), _ = find_answers([_query(*answers)], resolver)
    assert list(found.gold.values()) == [2]
    assert set(found.gold) | set(found.namesakes) == {"b", "c"}
    assert set(found.namesakes.values()) == set(found.gold)


def test_answers_the_index_lacks_are_counted_once_a_query() -> None:
    answers = [(None, "A b", 1), ("x", "A b", 2), (None, "C", 0), ("e 1", None, 1)]
    query = _query(*(LabelAnswer(*answer) for answer in answers))
    (found, again), missing = find_answers([query, query], DictResolver({}))
    assert found.gold == {"missing:A%20b": 2, "missing:C": 0, "missing:e%201": 1}
    assert again == found
    assert missing == 4


def test_ids_that_contradict_the_titles_are_those_of_another_catalogue() -> None:
    resolver = DictResolver({"1": "Lion", "2": "Tiger", "3": "Lynx"})
    by_chance = _query(LabelAnswer("1", "Tiger"), LabelAnswer("2", "Lynx"), LabelAnswer("3", "Puma"))
    (found,), missing = find_answers([by_chance], resolver)
    assert (set(found.gold), missing) == ({"2", "3", "missing:Puma"}, 1)
    ours = _query(LabelAnswer("1", "Lion"), LabelAnswer("2", "Tiger"), LabelAnswer("3", "Lynx lynx"))
    (found,), missing = find_answers([ours], resolver)
    assert (set(found.gold), missing) == ({"1", "2", "3"}, 0)
