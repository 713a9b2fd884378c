"""Files of past queries: every format, bad lines, and the queries of an index against a plain count."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genret.index_builder import past_queries
from genret.index_builder.build import BuildSummary
from genret.index_builder.build_options import EvidenceOptions
from genret.index_builder.past_queries import PastQueries, QueryFile
from genret.retrieval.errors import SourceError
from tests.corpus_shards import write_records
from tests.index_fixtures import build as build_lines
from tests.index_fixtures import character_tokenizer, past_queries_of, write_titles

TOKENIZER = character_tokenizer("abcdefgh xyz")
TITLES = ["entity_id\ttitle\taliases", "1\tabc\tcab|bad", "2\tabc\t", "3\tc\ta", "4\tbcd\t"]


def build(folder: Path, *files: QueryFile | Path, **options: object) -> BuildSummary:
    queries = tuple(file if isinstance(file, QueryFile) else QueryFile(file) for file in files)
    return build_lines(folder, TITLES, TOKENIZER, evidence=EvidenceOptions(queries=queries), **options)


@pytest.mark.parametrize("name", ["q.tsv", "q.csv", "q.jsonl", "q.parquet"])
def test_every_format_is_read(tmp_path: Path, name: str) -> None:
    rows: list[dict[str, object]] = [
        {"Query": "Some  river", "entity_id": "1", "count": 2, "split": "train", "more": "x"},
        {"Query": "some town", "entity_id": "3", "count": 1, "split": "dev", "more": "x"},
        {"Query": "Some river", "entity_id": "1", "count": 3, "split": "train", "more": "x"},
        {"Query": "another", "entity_id": "1", "count": 9, "split": "train", "more": "x"},
    ]
    file = Path(write_records(tmp_path / name, rows))
    summary = build(tmp_path, QueryFile(file, "train"))
    assert past_queries_of(summary.index) == {"1": [("another", 9), ("Some river", 5)]}
    assert summary.manifest.evidence.queries == 2
    assert [source.name for source in summary.manifest.history[-1].sources] == ["titles.tsv", name]
    assert summary.manifest.history[-1].options["evidence"] == {"queries": [f"{name}#train"]}
    both = build(tmp_path, QueryFile(file, "train"), QueryFile(file, "dev"))
    assert past_queries_of(both.index)["3"] == [("some town", 1)]
    assert past_queries_of(build(tmp_path, file).index) == past_queries_of(both.index)


def test_a_title_stands_for_all_who_have_it_and_an_alias_where_no_title_does(tmp_path: Path) -> None:
    file = write_titles(tmp_path / "q.tsv", ["query\ttitle", "one\tabc", "two\tcab", "", "three\t c "])
    summary = build(tmp_path, file)
    assert past_queries_of(summary.index) == {
        "1": [("one", 1), ("two", 1)],
        "2": [("one", 1)],
        "3": [("three", 1)],
    }


def test_bad_lines_are_told_with_their_file_and_line_and_may_be_allowed(tmp_path: Path) -> None:
    lines = ["query\tentity_id\tcount", "ok\t1\t1", "\t1\t1", "x\t\t1", "lost\t99\t1"]
    file = write_titles(tmp_path / "q.tsv", [*lines, "y\t1\t0", "z\t1\ttwo", "a\tb"])
    rejects = tmp_path / "bad.tsv"
    with pytest.raises(SourceError) as caught:
        build(tmp_path, file, rejects=rejects)
    told = str(caught.value)
    assert f"{file}: 6 bad rows (allowed: 0)" in told
    assert f"{file}, line 3: no query" in told
    assert f"{file}, line 5: query for an unknown entity (entity_id '99'): 'lost'" in told
    assert "--max-bad-rows 6" in told
    assert not (tmp_path / "it.index" / "versions").exists()
    header, *rows = (line.split("\t") for line in rejects.read_text().splitlines())
    assert header[:3] == ["file", "line", "reason"]
    assert [row[1] for row in rows] == list("345678")
    reasons = ["no query", "no entity_id", "query for an unknown entity", "bad value", "bad value"]
    assert [row[2] for row in rows] == [*reasons, "too few fields"]
    summary = build(tmp_path, file, rejects=rejects, max_bad_rows=6)
    assert summary.resumed_shards == 1, "what was tokenised is taken up"
    assert past_queries_of(summary.index) == {"1": [("ok", 1)]}
    assert summary.rejected["query for an unknown entity"] == 1


@pytest.mark.parametrize(
    ("lines", "split", "message"),
    [
        (None, None, "no such file; past queries are read from files"),
        (["question\tentity_id", "a\t1"], None, r"needs the column 'query' and one of .*'question'"),
        (["query\tname", "a\t1"], None, r"needs the column 'query' and one of 'entity_id' and 'title'"),
        (["query\tentity_id", "a\t1"], "dev", "the split 'dev' is asked for, but there is no column 'split'"),
        (["query\tquery\tentity_id", "a\tb\t1"], None, "query"),
        (["question,entity_id", "a,1"], None, r"needs the column 'query' .*'question', 'entity_id'"),
    ],
)
def test_files_that_are_no_queries_are_refused_before_anything_is_read(
    tmp_path: Path, lines: list[str] | None, split: str | None, message: str
) -> None:
    file = tmp_path / "q.csv"
    if lines is not None:
        write_titles(file, lines)
    with pytest.raises(SourceError, match=message):
        build(tmp_path, QueryFile(file, split))
    assert not (tmp_path / "it.index").exists()


def test_a_split_that_no_line_has_is_named(tmp_path: Path) -> None:
    file = write_titles(tmp_path / "q.tsv", ["query\tentity_id\tsplit", "a\t1\ttrain", "b\t1\tdev"])
    with pytest.raises(SourceError, match="no line of the split 'test'; splits there: dev, train"):
        build(tmp_path, QueryFile(file, "test"))
    assert not (tmp_path / "it.index").exists(), "it is told before anything is read"


@given(data=st.data())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_queries_are_put_together_as_a_plain_count_does(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    num_entities = data.draw(st.sampled_from([1, 3, 64, 65, 1000]))
    line = st.tuples(
        st.integers(0, num_entities - 1),
        st.sampled_from(["a", "b", "ä", "\U0001f600", "c d"]),
        st.integers(1, 9),
    )
    batches = data.draw(st.lists(st.lists(line, min_size=1, max_size=20), max_size=5))
    past = PastQueries(tmp_path_factory.mktemp("past"), num_entities)
    wanted: dict[int, Counter[str]] = {}
    for batch in batches:
        entities, queries, counts = zip(*batch, strict=True)
        past.add(np.array(entities), queries, counts)
        for entity, query, count in batch:
            wanted.setdefault(entity, Counter())[query] += count
    assert bool(past) == bool(batches)
    assert list(past.by_entity()) == [
        (entity, sorted(wanted[entity].items(), key=lambda one: (-one[1], one[0])))
        for entity in sorted(wanted)
    ]


def test_batches_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f"query {i % 7}\t{1 + i % 4}\t{i}" for i in range(1, 500)]
    file = write_titles(tmp_path / "q.tsv", ["query\tentity_id\tcount", *rows])
    whole = build(tmp_path, file)
    monkeypatch.setattr(past_queries, "_BATCH", 10)
    assert build(tmp_path, file).version == whole.version
