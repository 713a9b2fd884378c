"""Labelled sets: what their files hold and how their labels are found in an index."""

from __future__ import annotations

import contextlib
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.evaluation.datasets.index_entities import IndexResolver, read_redirects
from genret.retrieval.evaluation.datasets.labels import FileQuery, LabelAnswer, SetSpec, find_answers
from genret.retrieval.evaluation.datasets.readers import read_set
from genret.retrieval.evaluation.labelled_sets import LabelledQuery, LabelledSet
from genret.retrieval.index.reader import Index
from genret.retrieval.types import Mention
from tests.evaluation_sets import DictResolver, labelled_set, write_lines
from tests.index_fixtures import build, character_tokenizer


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("queries:data/queries.tsv", SetSpec("queries", "queries", "data/queries.tsv")),
        ("queries:data/q.tsv#test", SetSpec("q-test", "queries", "data/q.tsv", split="test")),
        ("q=queries:a#b/c.jsonl.gz#dev", SetSpec("q", "queries", "a#b/c.jsonl.gz", split="dev")),
        ("mentions:el/lgl.dev.jsonl.gz", SetSpec("lgl.dev", "mentions", "el/lgl.dev.jsonl.gz")),
        ("mentions:/a=b/c.jsonl", SetSpec("c", "mentions", "/a=b/c.jsonl")),
        ("mentions:with:colon.jsonl", SetSpec("with-colon", "mentions", "with:colon.jsonl")),
        ("AY2=kilt:aida.jsonl", SetSpec("AY2", "kilt", "aida.jsonl")),
        ("beir:sets/scifact", SetSpec("scifact", "beir", "sets/scifact")),
        ("beir:sets/nfcorpus/:dev", SetSpec("nfcorpus-dev", "beir", "sets/nfcorpus/", qrels="dev")),
        ("beir:x:y/dev.tsv", SetSpec("x", "beir", "x", qrels="y/dev.tsv")),
        ("db=trec:topics.tsv:qrels.txt", SetSpec("db", "trec", "topics.tsv", qrels="qrels.txt")),
        ("trec:my topics.txt:q", SetSpec("my-topics-q", "trec", "my topics.txt", qrels="q")),
    ],
)
def test_a_set_is_named_and_found(text: str, expected: SetSpec) -> None:
    assert SetSpec.parse(text) == expected


OTHER_FORMS = ["", "queries", "queries:", "queries:x#", "queries:#test", "csv:file", "name=", "name=queries"]
OTHER_FORMS += ["a b=queries:x", "=queries:x", "trec:topics.tsv", "trec:topics.tsv:", "trec::qrels", "beir:"]


@pytest.mark.parametrize("text", OTHER_FORMS)
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^set: "):
        SetSpec.parse(text)


ENTITIES = DictResolver({"e1": "Lion", "e2": "Tiger", "e3": "New York", "e4": "Mercury", "e5": "Mercury"})


def _read(text: str, limit: int | None = None) -> LabelledSet:
    spec = SetSpec.parse(text)
    return read_set(SetSpec(spec.name, spec.format, spec.path, spec.qrels, limit, spec.split), ENTITIES)


def _refusal(text: str) -> str:
    with pytest.raises(SourceError) as caught:
        _read(text)
    return str(caught.value)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_queries_with_graded_answers(tmp_path: Path, ending: str) -> None:
    cats = [{"title": "Lion", "grade": 2}, {"entity_id": "e2"}, {"title": "Cat"}]
    cats.append({"title": "Dog", "grade": 0})
    rows = [
        {"id": "a 1", "query": " big  cat ", "gold": cats},
        "",
        {"id": 7, "query": "planet", "gold": [{"title": "Mercury"}]},
        {"query": "how many", "gold": []},
        {"query": "why", "gold": None},
    ]
    found = _read(f"queries:{write_lines(tmp_path / f'q.jsonl{ending}', rows)}")
    assert found.queries == (
        LabelledQuery("a 1", "big cat", gold={"e1": 2, "e2": 1, "missing:Cat": 1, "missing:Dog": 0}),
        LabelledQuery("7", "planet", gold={"e4": 1}, namesakes={"e5": "e4"}),
    )
    assert found.kind == "queries"
    assert (len(found.missing), found.num_unjudged) == (1, 2)


def test_queries_of_a_table_and_its_splits(tmp_path: Path) -> None:
    lines = ["query\tentity_id\tsplit", "king of the jungle\te1\ttest", "striped cat\te2\tdev"]
    lines += ["cat\te1\ttest", "cat\te2\ttest"]
    file = write_lines(tmp_path / "q.tsv", lines)
    found = _read(f"queries:{file}#test")
    assert found.queries == (
        LabelledQuery("2", "king of the jungle", gold={"e1": 1}),
        LabelledQuery("4", "cat", gold={"e1": 1, "e2": 1}),
    )
    assert len(_read(f"queries:{file}").queries) == 3
    message = f"{file}: no line of the split 'train'; splits there: dev, test"
    assert _refusal(f"queries:{file}#train") == message


def test_a_table_with_ids_titles_and_grades(tmp_path: Path) -> None:
    lines = ["id\tquery\ttitle\tgrade", "q1\tcat\tLion\t2", "q2\tcat\tTiger\t1", "q1\tcat\tTiger\t0"]
    found = _read(f"queries:{write_lines(tmp_path / 'q.tsv.gz', lines)}")
    assert [(q.query_id, q.gold) for q in found.queries] == [("q1", {"e1": 2, "e2": 0}), ("q2", {"e2": 1})]


OWN = "expected an id of its own"
HALF_GRADE = {"query": "x", "gold": [{"title": "A", "grade": 0.5}]}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            ["[1]"],
            "JSON objects, or a header with query and entity_id or title between tabs, got [1]",
        ),
        (['{"query": "x"', ""], ", line 1: expected a JSON object, got Expecting ',' delimiter at column 14"),
        ([{"query": "x", "gold": [{}]}], ", line 1, field 'gold[0]': expected title or entity_id, got {}"),
        ([{"query": 3}], ", line 1, field 'query': expected text, got 3"),
        ([{"id": True, "query": "x"}], ", line 1, field 'id': expected text, got True"),
        ([{"query": " "}], ", line 1, field 'query': expected text that is not empty, got ' '"),
        ([{"query": "x", "gold": "Lion"}], ", line 1, field 'gold': expected a list, got 'Lion'"),
        ([HALF_GRADE], ", line 1, field 'gold[0].grade': expected an integer, got 0.5"),
        ([{"id": "a", "query": "x"}] * 2, ", line 2, field 'id': expected an id of its own, got 'a'"),
        (['{"query": "\\ud800"}'], "half a surrogate pair"),
        ([{"query": "x", "gold": []}], ": expected queries with answers, got 1 queries without any"),
        (["query\ttitle\tquery", "a\tb\tc"], ", line 1: expected names of columns that differ"),
        (["query\ttitle", "a"], ", line 2: expected 2 fields separated by tabs, got 1"),
        (["query\ttitle", "a\t"], ", line 2, field 'entity_id': expected entity_id or title, got ''"),
        (["query\ttitle\tgrade", "a\tb\tgood"], ", line 2, field 'grade': expected an integer, got 'good'"),
        (["id\tquery\ttitle", "1\ta\tb", "1\tc\td"], f", line 3, field 'id': {OWN}, got '1'"),
        ([""], ": the file is empty"),
    ],
)
def test_malformed_queries_are_refused(tmp_path: Path, rows: list[Any], message: str) -> None:
    file = write_lines(tmp_path / "q.jsonl", rows)
    text = _refusal(f"queries:{file}")
    assert text.startswith(str(file))
    assert message in text


MENTIONS: list[Any] = [
    {"id": "d/0", "doc": "d", "left": "The ", "mention": "Lion", "right": " roars", "title": "Lion"},
    {"id": "d/1", "doc": "d", "mention": "it", "title": None, "nil": True},
    {"mention": "Big Apple", "entity_id": "e3"},
    {"mention": "Oz", "title": "Land of Oz"},
]


def test_mentions_with_and_without_an_entity(tmp_path: Path) -> None:
    found = _read(f"mentions:{write_lines(tmp_path / 'm.jsonl', MENTIONS)}")
    lion = Mention("Lion", "The ", " roars")
    assert found.queries == (
        LabelledQuery("d/0", "Lion", mention=lion, gold={"e1": 1}, document="d"),
        LabelledQuery("d/1", "it", mention=Mention("it"), is_nil=True, document="d"),
        LabelledQuery("3", "Big Apple", mention=Mention("Big Apple"), gold={"e3": 1}),
        LabelledQuery("4", "Oz", mention=Mention("Oz"), gold={"missing:Land%20of%20Oz": 1}),
    )
    assert found.kind == "mentions"
    assert (len(found.missing), found.num_unjudged) == (1, 0)


YORK = {"title": "New York"}
KILT: list[Any] = [
    {
        "id": "k1",
        "input": "which cats?",
        "output": [
            {"answer": "both", "provenance": [{"title": "Lion", "wikipedia_id": "17"}, {"title": "Tiger"}]},
            {"answer": "no page"},
            {"provenance": [{"title": "Lynx"}]},
            {"provenance": [{"title": "Tiger"}, {"title": "Lion", "wikipedia_id": "17"}, {"title": "Tiger"}]},
            {"provenance": []},
        ],
    },
    {"id": 2, "input": "in [START_ENT] New York [END_ENT] we", "output": [{"provenance": [YORK]}]},
    {"id": "k3", "input": "unknown", "output": [{"answer": "x"}]},
    {"id": "k4", "input": "unknown"},
]


def test_kilt_has_evidence_sets_and_mentions(tmp_path: Path) -> None:
    found = _read(f"kilt:{write_lines(tmp_path / 'k.jsonl', KILT)}")
    both, lynx = frozenset(["e1", "e2"]), frozenset(["missing:Lynx"])
    assert found.queries == (
        LabelledQuery("k1", "which cats?", gold={"e1": 1, "e2": 1, "missing:Lynx": 1}, evidence=(both, lynx)),
        LabelledQuery("2", "New York", Mention("New York", "in ", " we"), {"e3": 1}, (frozenset(["e3"]),)),
    )
    assert found.kind == "kilt"
    assert (len(found.missing), found.num_unjudged) == (1, 2)


NEITHER = "expected title or entity_id, null where no entity is meant"
ONE = "field 'input': expected one [START_ENT] text [END_ENT], or none"
LION = {"mention": "x", "title": "Lion"}
HALF_TITLED = {"id": "a", "input": "x", "output": [{"provenance": [{"title": "A"}, {}]}]}


@pytest.mark.parametrize(
    ("format_", "row", "message"),
    [
        ("mentions", {"mention": "x"}, f"field 'title': {NEITHER}, got 'neither'"),
        ("mentions", {"title": "x"}, "field 'mention': expected text, got None"),
        ("mentions", {**LION, "left": 3}, "field 'left': must be text, got int"),
        ("mentions", {"mention": "x", "title": ""}, "field 'title': expected text that is not empty, got ''"),
        ("mentions", {"mention": "x", "title": 3}, "field 'title': expected text, got 3"),
        ("mentions", {**LION, "id": "d/0"}, "field 'id': expected an id of its own, got 'd/0'"),
        ("mentions", {**LION, "doc": []}, "field 'doc': expected text, got []"),
        ("kilt", {"input": "x"}, "field 'id': expected text, got None"),
        ("kilt", {"id": "k1", "input": "x"}, "field 'id': expected an id of its own, got 'k1'"),
        ("kilt", {"id": "a"}, "field 'input': expected text, got None"),
        ("kilt", {"id": "a", "input": "x", "output": {}}, "field 'output': expected a list, got {}"),
        ("kilt", {"id": "a", "input": "x", "output": [3]}, "field 'output[0]': expected an object, got 3"),
        ("kilt", HALF_TITLED, "field 'output[0].provenance[1]': expected title or wikipedia_id, got {}"),
        ("kilt", {"id": "a", "input": "[END_ENT] a [START_ENT]"}, f"{ONE}, got '[END_ENT] a [START_ENT]'"),
        ("kilt", {"id": "a", "input": "[START_ENT] [END_ENT]"}, f"{ONE}, got '[START_ENT] [END_ENT]'"),
    ],
)
def test_bad_mentions_and_kilt_are_refused(tmp_path: Path, format_: str, row: Any, message: str) -> None:
    file = write_lines(tmp_path / "any.jsonl", [{"mentions": MENTIONS, "kilt": KILT}[format_][0], row])
    assert _refusal(f"{format_}:{file}") == f"{file}, line 2, {message}"


def _beir(folder: Path, qrels: list[str], corpus: list[Any] | None = None, ending: str = "") -> Path:
    queries = [{"_id": "q1", "text": "cats"}, {"_id": "q2", "text": "dogs"}]
    write_lines(folder / f"queries.jsonl{ending}", queries)
    write_lines(folder / "qrels" / f"test.tsv{ending}", ["query-id\tcorpus-id\tscore", *qrels])
    if corpus is not None:
        write_lines(folder / f"corpus.jsonl{ending}", corpus)
    return folder


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_beir_by_id_and_by_title(tmp_path: Path, ending: str) -> None:
    corpus = [{"_id": "d1", "title": "Lion", "text": "…"}, {"_id": "d2", "title": "", "text": "…"}]
    corpus.append({"_id": "d9", "title": 3})
    qrels = ["q1\td1\t2", "q1\td2\t1", "q1\te2\t1", "q1\td1\t2"]
    found = _read(f"beir:{_beir(tmp_path / 'cats', qrels, corpus, ending)}")
    assert found.queries == (LabelledQuery("q1", "cats", gold={"e1": 2, "missing:d2": 1, "e2": 1}),)
    assert (found.name, found.kind, len(found.missing), found.num_unjudged) == ("cats", "queries", 1, 1)
    without = _read(f"beir:{_beir(tmp_path / 'none', qrels)}")
    assert without.queries[0].gold == {"missing:d1": 2, "missing:d2": 1, "e2": 1}


def test_beir_has_splits_and_files_of_judgments(tmp_path: Path) -> None:
    folder = _beir(tmp_path / "cats", ["q1\te1\t1"])
    write_lines(folder / "qrels" / "dev.tsv", ["query-id\tcorpus-id\tscore", "q2\te2\t1"])
    other = write_lines(tmp_path / "other.tsv", ["corpus-id\tscore\tquery-id\tnote", "e3\t1\tq2\tx"])
    assert [q.gold for q in _read(f"beir:{folder}:dev").queries] == [{"e2": 1}]
    assert [q.gold for q in _read(f"beir:{folder}:{other}").queries] == [{"e3": 1}]
    assert _refusal(f"beir:{folder}:train") == (
        f"{folder / 'qrels' / 'train'}.tsv: no such file; splits there: dev, test"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q3\te1\t1", "field 'query-id': expected an id of {queries}, got 'q3'"),
        ("q1\te1\tx", "field 'score': expected an integer, got 'x'"),
        ("q1\t\t1", "field 'corpus-id': expected text that is not empty, got ''"),
        ("q1 e1 1", "expected 3 fields separated by tabs, got 1"),
        ("q1\te1\t2", "the document 'e1' of the query 'q1' has the grade 1 already, got 2"),
    ],
)
def test_malformed_judgments_are_refused(tmp_path: Path, line: str, message: str) -> None:
    folder = _beir(tmp_path / "cats", ["q1\te1\t1", line])
    where = f"{folder / 'qrels' / 'test.tsv'}, line 3"
    expected = message.format(queries=folder / "queries.jsonl")
    separator = ", " if expected.startswith("field") else ": "
    assert _refusal(f"beir:{folder}") == f"{where}{separator}{expected}"


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    assert _refusal(f"beir:{tmp_path / 'x'}").endswith("x: expected a folder with queries.jsonl and qrels/")
    assert _refusal(f"beir:{tmp_path}") == f"{tmp_path / 'queries.jsonl'}: no such file"
    folder = _beir(tmp_path / "cats", [])
    write_lines(folder / "qrels" / "test.tsv", ["q1\te1\t1"])
    assert "expected a header with query-id, corpus-id, score, got q1\te1\t1" in _refusal(f"beir:{folder}")
    write_lines(folder / "queries.jsonl", [{"_id": "q1", "text": "a"}, {"_id": "q1", "text": "b"}])
    assert _refusal(f"beir:{folder}").endswith("line 2, field '_id': expected an id of its own, got 'q1'")


TOPICS = {
    "lines": ["q 1\tbig cats", "q2\tcities"],
    "json": [{"qid": "q 1", "title": "big cats"}, {"qid": "q2", "query": "cities"}],
    "classic": [
        *("<top>", "<num> Number: q 1", "<title> Topic: big", "cats"),
        *("<desc> Description:", "Cats that are <b>big.", "</top>"),
        "<top><num>q2</num><title>cities</title><narr>none</narr></top>",
    ],
}
QRELS = ["q%201 0 e1 2", "q%201 0 New%20York 0", "q%201 0 Lynx%20lynx 1", "q2 0 e3 1"]


@pytest.mark.parametrize("form", list(TOPICS))
def test_topics_of_every_form(tmp_path: Path, form: str) -> None:
    topics = write_lines(tmp_path / f"{form}.txt.gz", TOPICS[form])
    found = _read(f"trec:{topics}:{write_lines(tmp_path / 'qrels.txt', QRELS)}")
    assert found.queries == (
        LabelledQuery("q 1", "big cats", gold={"e1": 2, "e3": 0, "missing:Lynx%20lynx": 1}),
        LabelledQuery("q2", "cities", gold={"e3": 1}),
    )
    assert (found.kind, len(found.missing)) == ("queries", 1)


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("topics", ["q1 no tab"], "line 1: expected id, tab and text, got q1 no tab"),
        ("topics", ["q1\ta", "q1\tb"], "line 2, field 'id': expected an id of its own, got 'q1'"),
        ("topics", ["<num>1"], "line 1: expected <top>, got <num>"),
        (
            "topics",
            ["<top>", "<num>1", "<top>"],
            "line 3: expected </top> for the <top> in line 1, got <top>",
        ),
        ("topics", ["<top>", "<title>x"], "line 1: expected </top> behind <top>, got the end of the file"),
        ("topics", ["<top>", "<num>1", "</top>"], "line 1, field 'title': expected text that is not empty"),
        ("topics", [{"id": "a"}], "line 1, field 'query': expected text, got None"),
        ("qrels", ["q1 e1 1"], "line 1: expected 4 fields: query, 0, document, grade, got 3"),
        ("qrels", ["q9 0 e1 1"], "line 1, field 'query-id': expected an id of {topics}, got 'q9'"),
    ],
)
def test_malformed_files_of_trec_are_refused(
    tmp_path: Path, name: str, lines: list[Any], message: str
) -> None:
    contents = {"topics": ["q1\ta"], "qrels": ["q1 0 e1 1"], name: lines}
    files = {file: write_lines(tmp_path / f"{file}.txt", contents[file]) for file in contents}
    refusal = _refusal(f"trec:{files['topics']}:{files['qrels']}")
    assert refusal.startswith(f"{files[name]}, {message.format(**files)}")


def test_the_first_judged_queries_are_taken(tmp_path: Path) -> None:
    found = _read(f"kilt:{write_lines(tmp_path / 'k.jsonl', KILT)}", limit=1)
    assert [q.query_id for q in found.queries] == ["k1"]
    file = write_lines(tmp_path / "m.jsonl", [{"mention": "x", "title": None}])
    assert _refusal(f"mentions:{file}") == f"{file}: no mention has a title or an entity_id"


def test_the_digest_is_that_of_the_files(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "k.jsonl", KILT)
    same, digest = write_lines(tmp_path / "l.jsonl", KILT), _read(f"kilt:{file}").digest
    assert _read(f"kilt:{same}").digest == digest
    assert _read(f"kilt:{write_lines(same, KILT[:2])}").digest != digest
    folder = _beir(tmp_path / "cats", ["q1\te1\t1"])
    before = _read(f"beir:{folder}").digest
    _beir(folder, ["q1\te1\t2"])
    assert _read(f"beir:{folder}").digest != before


@pytest.mark.parametrize("format_", ["kilt", "mentions", "queries"])
def test_a_missing_file_is_named(tmp_path: Path, format_: str) -> None:
    assert _refusal(f"{format_}:{tmp_path / 'none'}") == f"{tmp_path / 'none'}: no such file"
    assert _refusal(f"{format_}:{tmp_path}") == f"{tmp_path}: this is a directory; expected a file"


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_bytes(b'{"query": "a", "gold": [{"title": "b"}]}\r\n{"query": "\xff"}\r\n')
    assert _refusal(f"queries:{tmp_path / 'q.jsonl'}").endswith(
        "line 2: expected UTF-8, got byte 12 that is none"
    )


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
_KEYS = ["id", "query", "gold", "input", "output", "mention", "title", "left", "doc", "provenance", "grade"]


_SLOW = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(suppress_health_check=_SLOW, max_examples=150)
@given(
    st.sampled_from(["queries", "kilt", "mentions"]),
    st.lists(st.dictionaries(st.sampled_from(_KEYS), _JSON, max_size=6), min_size=1, max_size=4),
)
def test_whatever_the_fields_hold_the_refusal_is_one(tmp_path: Path, format_: str, rows: list[Any]) -> None:
    file = write_lines(tmp_path / "any.jsonl", rows)
    with contextlib.suppress(SourceError):  # any other error fails
        assert _read(f"{format_}:{file}").queries


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
    resolver = IndexResolver(index)
    assert resolver.by_ids(["a", "zz", "New  York", "a"]) == ["a", None, "New York", "a"]
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
    with pytest.raises(SourceError, match=f"^{re.escape(f'{file}, {message}')}$"):
        read_redirects(file)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_index_says_what_its_catalogue_says(tmp_path: Path, seed: int) -> None:
    random_ = random.Random(seed)
    names = [f"name {i}" for i in range(40)]
    rows = [(f"id{i}", random_.choice(names), random_.sample(names, random_.randrange(3))) for i in range(60)]
    lines = ["entity_id\ttitle\taliases", *("\t".join((i, t, "|".join(a))) for i, t, a in rows)]
    build(tmp_path, lines, character_tokenizer("name 0123456789"), evidence=None)
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
    (found,) = find_answers([query], resolver)
    assert found.gold == {"b": 2, "d": 1}
    assert found.namesakes == {"c": "b"}
    assert found.evidence == (frozenset("bd"),)


@pytest.mark.parametrize("order", [1, -1])
def test_a_label_by_id_and_one_by_title_that_mean_one_entity_are_one(order: int) -> None:
    resolver = DictResolver({"b": "Mercury", "c": "Mercury"})
    answers = [LabelAnswer("c", None, 2), LabelAnswer(None, "Mercury", 1)][::order]
    (found,) = find_answers([_query(*answers)], resolver)
    assert list(found.gold.values()) == [2]
    assert set(found.gold) | set(found.namesakes) == {"b", "c"}
    assert set(found.namesakes.values()) == set(found.gold)


def test_answers_the_index_lacks_are_counted_once_a_query() -> None:
    answers = [(None, "A b", 1), ("x", "A b", 2), (None, "C", 0), ("e 1", None, 1)]
    query = _query(*(LabelAnswer(*answer) for answer in answers))
    found, again = find_answers([query, query], DictResolver({}))
    assert found.gold == {"missing:A%20b": 2, "missing:C": 0, "missing:e%201": 1}
    assert again == found
    assert labelled_set([found, again]).missing == ["missing:A%20b", "missing:e%201"] * 2


def test_ids_that_contradict_the_titles_are_those_of_another_catalogue() -> None:
    resolver = DictResolver({"1": "Lion", "2": "Tiger", "3": "Lynx"})
    by_chance = _query(LabelAnswer("1", "Tiger"), LabelAnswer("2", "Lynx"), LabelAnswer("3", "Puma"))
    (found,) = find_answers([by_chance], resolver)
    assert set(found.gold) == {"2", "3", "missing:Puma"}
    ours = _query(LabelAnswer("1", "Lion"), LabelAnswer("2", "Tiger"), LabelAnswer("3", "Lynx lynx"))
    (found,) = find_answers([ours], resolver)
    assert set(found.gold) == {"1", "2", "3"}
