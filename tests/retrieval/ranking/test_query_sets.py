"""Labelled queries of files: answers by id and by title, queries for nothing, unknown entities."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrieval.errors import InputError, SourceError
from retrieval.evaluation.datasets.labels import SetSpec
from retrieval.evaluation.datasets.readers import read_query_file
from retrieval.index.reader import Index
from retrieval.ranking.tuned_ranking import QuerySet, read_query_sets
from retrieval.sources.source_files import digest_file
from tests.evidence_fixtures import build_catalogue


@pytest.fixture
def index(tmp_path: Path) -> Index:
    lines = ["A\tMercury\tQuicksilver\t\t\t", "B\tMercury\t\t\t\t", "C\tVenus\tMorning star\t\t\t"]
    return Index.open(build_catalogue(tmp_path, lines))


def _read(tmp_path: Path, index: Index, lines: list[str], *splits: str, **options: int) -> list[QuerySet]:
    file = tmp_path / "labels.tsv"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_query_sets([f"{file}{split}" for split in splits or ("",)], index, **options)


def _ids(index: Index, one: QuerySet) -> list[tuple[str, list[str]]]:
    return [
        (query.text, sorted(index.entity(number).entity_id for number in query.entities))
        for query in one.queries
    ]


def test_answers_are_found_by_id_and_by_title(tmp_path: Path, index: Index) -> None:
    lines = [
        "query\tentity_id\ttitle",
        "hot planet\tC\t",
        "metal\t\tQuicksilver",
        "first\t\tMercury",
        "no\t\t",
    ]
    (one,) = _read(tmp_path, index, lines)
    # A title of several entities is right for each; an empty label says that there is none.
    assert _ids(index, one) == [("hot planet", ["C"]), ("metal", ["A"]), ("first", ["A", "B"]), ("no", [])]
    assert one.name == "labels.tsv"
    assert one.path is not None
    assert one.digest == digest_file(one.path).xxh3_128
    assert one.num_unknown == 0


def test_lines_of_one_query_are_one_query(tmp_path: Path, index: Index) -> None:
    (one,) = _read(tmp_path, index, ["query\tentity_id", "bright\tA", "bright\tC"])
    assert _ids(index, one) == [("bright", ["A", "C"])]


def test_splits_are_sets(tmp_path: Path, index: Index) -> None:
    lines = ["query\tentity_id\tsplit", "a\tA\tdev", "b\tB\ttest"]
    first, second = _read(tmp_path, index, lines, "#dev", "#test")
    assert (first.name, second.name) == ("labels.tsv#dev", "labels.tsv#test")
    assert _ids(index, first) == [("a", ["A"])]
    with pytest.raises(SourceError, match="no line of the split 'train'"):
        _read(tmp_path, index, lines, "#train")


def test_json_lines_say_nothing_by_an_empty_list(tmp_path: Path, index: Index) -> None:
    file = tmp_path / "labels.jsonl"
    file.write_text(
        '{"query": "a", "gold": [{"entity_id": "A"}, {"entity_id": "B", "grade": 0}]}\n'
        '{"query": "b", "gold": []}\n{"query": "c"}\n'
        '{"query": "d", "gold": [{"entity_id": "A", "grade": 0}]}\n'
    )
    (one,) = read_query_sets([str(file)], index)
    # Nothing is known of "c", and of "d" nothing that is right.
    assert _ids(index, one) == [("a", ["A"]), ("b", [])]


def test_unknown_entities_are_named_with_their_lines(tmp_path: Path, index: Index) -> None:
    lines = ["query\tentity_id", "a\tA", "b\tX", *(f"c{number}\tY" for number in range(9))]
    with pytest.raises(SourceError) as raised:
        _read(tmp_path, index, lines)
    text = str(raised.value)
    assert text.startswith("10 queries are for entities that the index ")
    assert f"{tmp_path / 'labels.tsv'}, line 3: 'b' is for 'X'" in text
    assert text.count("line") == 5
    (one,) = _read(tmp_path, index, lines, max_unknown=10)
    assert _ids(index, one) == [("a", ["A"])]
    assert one.num_unknown == 10


def test_of_many_queries_some_are_drawn(tmp_path: Path, index: Index) -> None:
    lines = ["query\tentity_id", *(f"q{number}\tA" for number in range(50))]
    (some,) = _read(tmp_path, index, lines, limit=7)
    assert len(some.queries) == 7
    assert _read(tmp_path, index, lines, limit=7) == [some]
    (others,) = _read(tmp_path, index, lines, limit=7, seed=1)
    assert others.queries != some.queries


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["query\tcolour", "a\tred"], "line 1: expected JSON objects, or a header with query"),
        (["query\tentity_id", "a"], "line 2: expected 2 fields"),
        (["query\tentity_id", "\tA"], "line 2, field 'query'"),
        (["query\tentity_id", "a\tA", "a\t"], "line 3, field 'entity_id': expected one label: line 2 has"),
        ([""], "the file is empty"),
    ],
)
def test_malformed_files_are_named(tmp_path: Path, index: Index, lines: list[str], said: str) -> None:
    with pytest.raises(SourceError, match=r"labels\.tsv") as raised:
        _read(tmp_path, index, lines)
    assert said in str(raised.value)


def test_what_names_no_file_is_an_error(tmp_path: Path, index: Index) -> None:
    for text in ("", "#dev", f"{tmp_path}/labels.tsv#"):
        with pytest.raises(InputError, match=r"FILE or FILE#SPLIT"):
            read_query_sets([text], index)
    with pytest.raises(SourceError, match="no such file"):
        read_query_sets([str(tmp_path / "gone.tsv")], index)


def test_evaluation_still_refuses_lines_without_a_label(tmp_path: Path) -> None:
    file = tmp_path / "labels.tsv"
    file.write_text("query\tentity_id\na\t\n")
    with pytest.raises(SourceError, match="line 2, field 'entity_id'"):
        read_query_file(SetSpec("labels", "queries", str(file)))
