"""Results as reprs, HTML, plain values, Arrow tables and pandas frames, all of which say the same."""

from __future__ import annotations

import json
import math
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.index_builder.rollback import Rollback
from genret.retrieval.answers.answer_types import AnswerResult
from genret.retrieval.complete_types import CompleteResult, Completion, MatchedSpan
from genret.retrieval.errors import InputError, MissingExtraError
from genret.retrieval.evaluation.evaluation import Evaluated
from genret.retrieval.explanation import Explanation, ExplanationNode
from genret.retrieval.index.reader import Index
from genret.retrieval.index.verification import Problem, VerificationReport, verify
from genret.retrieval.linking.link_answers import LinkAnswer, LinkCandidate
from genret.retrieval.score_types import ScoreResult, TitleScore
from genret.retrieval.tables import Shown, Tabular, arrow_schema, plain, to_arrow, to_pandas
from genret.retrieval.types import Candidate, Entity, RetrievalResult
from genret.service.client.reply import AnswerReply, CompleteReply, IndexRef, Reply, ScoreReply
from genret.service.errors import CallError
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.wire.json import message_to_dict
from genret.service.wire.replies import answer_to_proto, reply_to_proto, score_reply_to_proto
from tests.e2e.pages import code, rows, section
from tests.index_fixtures import build
from tests.service.test_convert import ANSWER_RESULTS, FINITE, INDEX, RESULTS, SCORE_RESULTS
from tests.table_retrievers import TOKENIZER

SCRIPT = "<script>alert('x')</script> & \"y\""
NAN = math.nan
FULL = Candidate(
    "<b>1</b>", SCRIPT, "s", -0.5, 0.25, {"<i>": SCRIPT, "year": 1990}, 1.5, 0.125, {"names": 1.5}
)
PLAIN = Candidate("2", "b", "b", NAN, None, {}, -math.inf)
RESULT = RetrievalResult(SCRIPT, "auto", (FULL, PLAIN), nothing_fits=0.25)
COMPLETED = CompleteResult(SCRIPT, (Completion("1", SCRIPT, "form"),))
ANY_RESULTS = RESULTS | ANSWER_RESULTS | SCORE_RESULTS


def without_nan(cells: Any) -> list[Any]:
    """Return the cells of a frame's column, with None where pandas has NaN."""
    return [None if isinstance(cell, float) and math.isnan(cell) else cell for cell in cells]


def expected_rows(results: list[Any]) -> list[dict[str, Any]]:
    """Return the rows of a table by what `to_dict` says."""
    rows = []
    for document in (result.to_dict() for result in results):
        if "candidates" in document:
            shared = {"query": document["query"], "method": document["method"]}
            rows += [{**shared, **one} for one in document["candidates"]]
        elif "scores" in document:
            rows += [{"query": document["query"], **one} for one in document["scores"]]
        else:
            rows.append(document)
    return rows


def read(cell: Any) -> Any:
    """Return a value of Arrow's, with metadata read from their JSON text wherever they stand."""
    if isinstance(cell, dict):
        return {
            name: json.loads(one) if name == "metadata" and isinstance(one, str) else read(one)
            for name, one in cell.items()
        }
    return [read(one) for one in cell] if isinstance(cell, list) else cell


@settings(max_examples=30)
@given(ANY_RESULTS)
def test_plain_values_are_those_of_json(result: Tabular) -> None:
    document = result.to_dict()
    assert json.loads(json.dumps(document, allow_nan=False)) == document


@settings(max_examples=30)
@given(
    st.lists(RESULTS, max_size=3) | st.lists(ANSWER_RESULTS, max_size=3) | st.lists(SCORE_RESULTS, max_size=3)
)
def test_tables_and_frames_hold_what_plain_values_say(results: list[Any]) -> None:
    expected = expected_rows(results)
    table, frame = to_arrow(results), to_pandas(results)
    assert [read(row) for row in table.to_pylist(maps_as_pydicts="strict")] == expected
    table.validate(full=True)
    assert list(frame.columns) == table.column_names
    for name in frame.columns:
        assert without_nan(frame[name]) == [row[name] for row in expected], name
    if results:
        assert table.schema == arrow_schema(type(results[0]))
        assert pa.concat_tables([one.to_arrow() for one in results]).equals(table)


def test_the_schema_is_the_same_for_nothing() -> None:
    empty = RetrievalResult("q", "beam", ())
    assert to_arrow([]).schema == empty.to_arrow().schema == RESULT.to_arrow().schema
    assert to_arrow([]).num_rows == empty.to_arrow().num_rows == len(empty.to_pandas()) == 0
    assert ScoreResult("q", ()).to_arrow().schema == arrow_schema(ScoreResult)
    assert [name for name in RESULT.to_arrow().column_names if RESULT.to_arrow()[name].null_count] == [
        "logprob",
        "probability",
        "score",
        "similarity",
    ]


@pytest.mark.parametrize(
    ("kind", "heading"), [(RetrievalResult, "column of candidates"), (ScoreResult, "column of scored titles")]
)
def test_the_page_has_the_columns_of_the_schema(kind: Any, heading: str) -> None:
    table = section("docs/numbers.md", "Results as tables").split(f"| {heading} |")[1].split("\n\n")[0]
    told = {
        name: (kind_of, not null.startswith("never"))
        for cell, kind_of, null in rows(f"| {heading} |{table}")
        for name in code(cell)
    }
    schema = {field.name: (str(field.type), field.nullable) for field in arrow_schema(kind)}
    assert told == schema
    assert list(told) == list(schema)


def test_parquet_takes_the_tables(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(RESULT.to_arrow(), tmp_path / "r.parquet")
    assert pq.read_table(tmp_path / "r.parquet").equals(RESULT.to_arrow())


@settings(max_examples=30)
@given(RESULTS, SCORE_RESULTS, ANSWER_RESULTS, FINITE)
def test_names_are_those_of_the_http_api(
    result: RetrievalResult, scored: ScoreResult, answer: AnswerResult, ms: float
) -> None:
    """Except for what only a server knows, and what a client knows: its query."""
    ref = IndexRef("i", "v", "d")
    pairs: list[tuple[dict[str, Any], dict[str, Any], set[str]]] = [
        (
            Reply(result, 1.0, ms, ref).to_dict(),
            message_to_dict(reply_to_proto(result, INDEX, 1, 2)),
            {"finish_reason"},
        ),
        (
            ScoreReply(scored, 1.0, ms, ref).to_dict(),
            message_to_dict(score_reply_to_proto(scored, INDEX, 1, 2)),
            set(),
        ),
        (
            AnswerReply(answer, 1.0, ms, ref).to_dict(),
            message_to_dict(answer_to_proto(answer, INDEX, 1, 2)),
            set(),
        ),
    ]
    for document, message, only_there in pairs:
        unset = {name for name, value in document.items() if value is None}
        assert document.keys() - {"query"} - unset == message.keys() - only_there - unset
        assert document["timings"].keys() == message["timings"].keys()
        assert document["index"] == message["index"]
        assert document["kv_usage"].keys() == message["kv_usage"].keys() - {"saved_bytes"}
    for own, sent in zip(pairs[0][0]["candidates"], pairs[0][1]["candidates"], strict=True):
        nothing = {name for name, value in own.items() if value is None}
        assert own.keys() - nothing == sent.keys() - nothing
        assert (own["rank"], own["entity_id"]) == (sent["rank"], sent["entity_id"])
    assert set(pb.RetrieveResponse.DESCRIPTOR.fields_by_name) >= pairs[0][0].keys() - {"query"}


def test_what_json_has_nothing_for_is_refused() -> None:
    assert plain({1: (Path("a"), NAN, math.inf, True)}) == {"1": ["a", None, None, True]}
    with pytest.raises(TypeError, match="a bytes is no value of JSON"):
        plain(b"x")


@pytest.mark.parametrize(
    ("results", "message"),
    [
        (
            [RESULT, CallError("NOT_FOUND", "gone")],
            r"results\[1\]: must be a RetrievalResult, got a CallError",
        ),
        ([RESULT, ScoreResult("q", ())], r"results\[1\]: must be a RetrievalResult, got a ScoreResult"),
        ([3], r"results\[0\]: must be a result, got a int"),
        (3, r"results\[0\]: must be a result, got a int"),
    ],
)
def test_what_is_no_result_is_named(results: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        to_arrow(results)


def test_replies_and_iterators_become_one_table() -> None:
    reply = Reply(RESULT, 0.0, 1.0, IndexRef("i", "v", "d"))
    assert to_arrow(iter([reply, reply])).equals(to_arrow([RESULT, RESULT]))
    assert len(to_pandas(iter([reply, RESULT]))) == 4


def test_without_pandas_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'generative-retrieval\[pandas\]'"):
        RESULT.to_pandas()
    assert RESULT.to_arrow().num_rows == 2


class Tags(HTMLParser):
    """The tags of a text, and its cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not attrs
        self.tags.append(tag)
        self.cells += [""] if tag in ("td", "th", "caption") else []

    def handle_data(self, data: str) -> None:
        self.cells[-1] += data


SHOWN: list[Shown] = [
    RESULT,
    FULL,
    RetrievalResult("q", "disc", (), mass=0.1, abstained=True),
    RetrievalResult("q" * 500, "beam", (PLAIN,) * 90, certified=False),
    Entity("1", SCRIPT, ("a",) * 40, {"x": SCRIPT}),
    ScoreResult(SCRIPT, (TitleScore(SCRIPT, -1.0, 1.0, 3, ("1",), (1.0,)),)),
    AnswerResult(SCRIPT, "greedy", json.dumps({"a": SCRIPT}), (), -1.0, 5),
    LinkAnswer(None, "s", (LinkCandidate("1", SCRIPT, None, None, 0.5),)),
    Reply(RESULT, 0.0, 1.0, IndexRef("i", "v", "d")),
    AnswerReply(AnswerResult("q", "greedy", "{}", (), -1.0, 5), 0.0, 1.0, IndexRef(SCRIPT, "v", "d")),
    COMPLETED,
    Completion("1", SCRIPT, SCRIPT, (MatchedSpan(0, 3),), 1, 2.5, -0.5),
    CompleteReply(COMPLETED, 0.0, 1.0, IndexRef("i", "v", "d")),
    VerificationReport(Path("p"), "v", 1, 2, 3, 4, (Problem("rows/3.tokens", SCRIPT),)),
    Rollback(Path(SCRIPT), "a", "b", 3),
    Evaluated((), None, {"sets": []}),
    Explanation((ExplanationNode(0, 1, 7, SCRIPT, -0.5, -1.0),) * 90),
]


@pytest.mark.parametrize("value", SHOWN, ids=lambda value: type(value).__name__)
def test_reprs_are_short_and_tables_are_escaped(value: Shown) -> None:
    text = repr(value)
    assert text.startswith(type(value).__name__ + "(")
    assert text.endswith(")")
    assert len(text.splitlines()) <= 3
    assert [len(line) for line in text.splitlines()] <= [181, 110, 111]
    html = value._repr_html_()
    assert "<script" not in html
    found = Tags(html)
    assert set(found.tags) <= {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    if SCRIPT in json.dumps(plain(value.to_dict()), ensure_ascii=False).replace('\\"', '"'):
        assert any(SCRIPT in cell or SCRIPT.replace('"', '\\"') in cell for cell in found.cells)
    json.dumps(value.to_dict(), allow_nan=False)


def test_a_repr_says_what_matters() -> None:
    munich = Candidate("city.munich", "Munich", "Munich", -0.25, None, {}, -0.25)
    assert repr(RetrievalResult("q", "beam", (munich,), certified=True)) == (
        "RetrievalResult(query='q', method='beam', certified=True, 1 candidate\n"
        "  1: title 'Munich', entity_id 'city.munich', logprob -0.25, score -0.25)"
    )
    assert repr(RetrievalResult("q", "disc", (), mass=0.0001, abstained=True)) == (
        "RetrievalResult(query='q', method='disc', mass=0.0001, abstained=True, 0 candidates)"
    )


def test_an_index_says_what_it_holds(tmp_path: Path) -> None:
    summary = build(tmp_path, ["title\tkind", "Hamlet\tbook"], TOKENIZER)
    assert "entities=1, rows=1" in repr(summary)
    tiny_index = Index.open(summary.index)
    assert "num_entities=" in repr(tiny_index)
    assert tiny_index.to_dict()["num_entities"] == tiny_index.num_entities
    assert "<td>num_rows</td>" in tiny_index._repr_html_()
    assert verify(tiny_index.path).to_dict()["problems"] == []


def test_every_class_that_is_shown_is_among_the_cases_or_a_report_of_a_build() -> None:
    def below(kind: type[Any]) -> set[str]:
        return {name for one in kind.__subclasses__() for name in {one.__name__} | below(one)}

    reports = {"BuildSummary", "UpdateSummary", "BuildPlan", "LinkSummary", "Tuned"}
    bases = {"Tabular", "TimedReply"}
    cases = {type(value).__name__ for value in SHOWN} | {"Index", "TitleScore", "AnswerEntity", "ScoreReply"}
    assert below(Shown) - bases <= cases | reports
