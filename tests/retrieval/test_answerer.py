"""JSON answers end to end: tiny random checkpoints, every method, valid or refused under any schema."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import numpy as np
import pytest

from genret import Retriever
from genret.decoding.cancellation import CancelToken
from genret.decoding.errors import DecodingCancelledError
from genret.decoding.grammar import compile_options as compile_budget
from genret.decoding.grammar.compile_options import CompileLimits, GrammarOptions
from genret.retrieval.answers import schemas
from genret.retrieval.answers.answer_types import AnswerRequest, AnswerResult
from genret.retrieval.answers.answerer import Answerer, AnswerJob
from genret.retrieval.answers.schema_explanation import SchemaRejectedError
from genret.retrieval.answers.schemas import AnswerEngine, default_shortlist
from genret.retrieval.answers.title_holes import Finder, IndexSet
from genret.retrieval.answers.validation import AnswerValidator, InvalidAnswerError
from genret.retrieval.errors import InputError
from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.ranking.ranker import Ranker
from genret.retrieval.types import Entity
from tests.checkpoints import END, make_checkpoint, make_index
from tests.grammar_oracle import INTEGER, record
from tests.leaf_oracle import in_threads

QUERY = "who wrote hamlet"
TITLE = {"type": "string", "x-genret-index": "titles"}
CITY = {"type": "string", "x-genret-index": "titles", "x-genret-filter": "kind = 'city'"}
WORK = {"type": "string", "x-genret-index": "titles", "x-genret-filter": "kind = 'work'"}
SCHEMAS: dict[str, Any] = {
    "title": {"type": "object", "properties": {"title": TITLE}, "required": ["title"]},
    "city": CITY,
    "list": {"type": "array", "items": TITLE, "minItems": 2, "maxItems": 3, "uniqueItems": True},
    "two": record(work=WORK, where=CITY, n=INTEGER),
    "or null": {"anyOf": [TITLE, {"type": "null"}]},
    "text": record(text={"type": "string", "maxLength": 12}),
    "tree": record(["v"], v=INTEGER, next={"$ref": "#"}),
    "number": {"type": "number", "minimum": 1, "multipleOf": 0.5},
    "anything": True,
}
METHODS: list[dict[str, Any]] = [
    {"method": "greedy", "shortlist": 0},
    {"method": "greedy", "shortlist": None},
    {"method": "sample", "seed": 1, "shortlist": 0},
    {"method": "sample", "seed": 2, "forced_spans": False, "temperature": 2.0},
    {"method": "beam", "beam_size": 3, "shortlist": 0},
    {"method": "disc", "seed": 3, "num_draws": 2, "shortlist": 0},
]


def check(retriever: Retriever, schema: Any, result: AnswerResult) -> None:
    jsonschema.validate(result.value, schema)
    assert json.dumps(result.value, ensure_ascii=False) == result.text
    for found in result.entities:
        assert value_at(result.value, found.pointer) == found.title
        assert found.entities
        assert {entity.title for entity in found.entities} == {found.title}
        assert len(found.shares) == len(found.entities)
        assert sum(found.shares) == pytest.approx(1.0)
        for entity in found.entities:
            assert retriever.index.entity_by_id(entity.entity_id) == entity


def answers(answerer: Answerer, *jobs: AnswerJob) -> list[AnswerResult]:
    """Return the results of a batch; fail where a reply is an error."""
    replies = answerer.run(list(jobs))
    found = [reply for reply in replies if isinstance(reply, AnswerResult)]
    assert len(found) == len(jobs), replies
    return found


def value_at(document: Any, pointer: str) -> Any:
    for step in pointer.split("/")[1:]:
        document = document[int(step) if isinstance(document, list) else step]
    return document


@pytest.mark.parametrize("options", METHODS, ids=lambda options: "-".join(map(str, options.values())))
@pytest.mark.parametrize("name", SCHEMAS)
def test_answers_are_valid_and_their_titles_are_entities(
    retriever: Retriever, name: str, options: dict[str, Any]
) -> None:
    result = retriever.answer(QUERY, SCHEMAS[name], max_tokens=90, **options)
    check(retriever, SCHEMAS[name], result)
    assert result.num_tokens <= 90
    assert result.method == options["method"]
    assert result.seed == options.get("seed")
    assert result.num_forced == 0 or options.get("forced_spans", True)
    if name in ("title", "city"):
        assert len(result.entities) == 1
    if name == "list":
        assert 2 <= len(result.entities) <= 3
        assert len({found.title for found in result.entities}) == len(result.entities)
    for found in result.entities:
        if name in ("city", "two"):
            kind = "work" if found.pointer == "/work" else "city"
            assert {entity.metadata["kind"] for entity in found.entities} == {kind}


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_smallest_budget_that_is_accepted_gives_a_valid_answer(retriever: Retriever, name: str) -> None:
    refusal = answer_or_refusal(retriever, SCHEMAS[name], 1)
    least = 1
    if isinstance(refusal, InputError):
        least = int(refusal.message.split(" takes ")[1].split()[0])
    budgets = {1, max(least - 1, 1), least, least + 1, least + 2, least + 11}
    for budget, result in {b: answer_or_refusal(retriever, SCHEMAS[name], b) for b in budgets}.items():
        if isinstance(result, AnswerResult):
            check(retriever, SCHEMAS[name], result)
            assert result.num_tokens <= budget
        else:
            assert budget < least
            assert result.field == "max_tokens"
            assert f"takes {least} tokens; max_tokens is {budget}" in result.message


def answer_or_refusal(retriever: Retriever, schema: Any, budget: int) -> AnswerResult | InputError:
    try:
        return retriever.answer(QUERY, schema, max_tokens=budget)
    except InputError as error:
        return error


def test_the_same_seed_gives_the_same_answer_in_any_batch(retriever: Retriever) -> None:
    schema = SCHEMAS["two"]
    requests = [AnswerRequest(f"query {n}", schema, method="sample", seed=n) for n in range(4)]
    requests.append(AnswerRequest(QUERY, SCHEMAS["list"], method="greedy"))
    requests.append(AnswerRequest(QUERY, SCHEMAS["title"], method="disc", seed=5))
    answerer = retriever.answerer
    jobs = [answerer.job(request) for request in requests]
    together = answers(answerer, *jobs)
    alone = [answers(answerer, job)[0] for job in jobs]
    for one, other, request in zip(together, alone, requests, strict=True):
        assert one.text == other.text
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        check(retriever, json.loads(str(request.schema)), one)


def test_a_cancelled_request_leaves_the_others_alone(retriever: Retriever) -> None:
    cancelled = CancelToken()
    cancelled.cancel()
    for method in ("greedy", "beam", "disc"):
        request = AnswerRequest(QUERY, SCHEMAS["two"], method=method, seed=1)
        jobs = [retriever.answerer.job(request, token) for token in (None, cancelled)]
        fine, stopped = retriever.answerer.run(jobs)
        assert isinstance(fine, AnswerResult)
        assert isinstance(stopped, DecodingCancelledError)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "schema: #: the schema is not JSON"),
        ({"type": "strin"}, "schema: #/type: type: expected one of"),
        (
            {"type": "string", "x-genret-index": "films"},
            "#/x-genret-index: x-genret-index: there is no index 'films'",
        ),
        (
            {"items": {**TITLE, "x-genret-filter": "colour = 'red'"}},
            "#/items/x-genret-filter: x-genret-filter: at character 1: unknown column 'colour'",
        ),
        ({**TITLE, "x-genret-filter": "kind = 'dragon'"}, "no value is valid"),
        ({"type": "array", "items": {"type": "object"}, "uniqueItems": True, "minItems": 2}, "uniqueItems"),
        (False, "no value is valid"),
    ],
)
def test_schemas_that_cannot_be_used_are_refused_in_words(
    retriever: Retriever, schema: Any, message: str
) -> None:
    for _ in range(2):  # compiled, then remembered
        with pytest.raises(SchemaRejectedError, match=message):
            retriever.answer(QUERY, schema)


def test_named_schemas(retriever: Retriever) -> None:
    retriever.answerer.name_schema("title", SCHEMAS["title"])
    check(retriever, SCHEMAS["title"], retriever.answer(QUERY, schema_name="title"))
    with pytest.raises(InputError, match="schema: two schemas are named 'title'"):
        retriever.answerer.name_schema("title", True)
    with pytest.raises(InputError, match="schema_name: no schema named 'other'; known: title"):
        retriever.answer(QUERY, schema_name="other")
    with pytest.raises(SchemaRejectedError):
        retriever.answerer.name_schema("bad", {"type": 3})


def test_several_queries_come_back_in_order(retriever: Retriever) -> None:
    queries = [f"query {n}" for n in range(5)]
    results = retriever.answerer.answer_all(queries, SCHEMAS["city"], batch_size=2)
    assert [result.query for result in results] == queries
    with pytest.raises(InputError, match=r"queries\[1\]: must not be empty"):
        retriever.answerer.answer_all(["a", " "], SCHEMAS["city"])
    with pytest.raises(InputError, match="batch_size: must be an integer of at least 1, got 0"):
        retriever.answerer.answer_all(["a"], SCHEMAS["city"], batch_size=0)


def test_an_answer_that_is_not_valid_never_leaves(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What must never happen is made to happen: the last check looks at a document it does not allow."""

    def refuse(self: AnswerValidator, text: str) -> None:
        raise InvalidAnswerError("the answer is not valid: $ breaks 'type' at #/type")

    monkeypatch.setattr(AnswerValidator, "check", refuse)
    with pytest.raises(InvalidAnswerError, match="is not valid"):
        retriever.answer(QUERY, SCHEMAS["city"])


def test_a_prompt_without_room_for_an_answer_is_refused(retriever: Retriever) -> None:
    schema = {"type": "string", "minLength": 400}
    with pytest.raises(InputError, match="max_tokens: the shortest answer to this schema takes 40"):
        retriever.answer(QUERY, schema, max_tokens=100)
    if not retriever.model.is_encoder_decoder:
        with pytest.raises(InputError, match="the model has positions for"):
            retriever.answer(QUERY, schema, max_tokens=1000)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retriever]:
    """A checkpoint with room for the built-in prompt, which shows the schema."""
    checkpoint = make_checkpoint(tmp_path_factory.mktemp("long"), max_positions=1024)
    index = make_index(tmp_path_factory.mktemp("long-index"), checkpoint)
    with Retriever.open(index, checkpoint, device="cpu") as opened:
        yield opened


def job_of(retriever: Retriever, schema: Any, prompt: str | None = "json", query: str = QUERY) -> AnswerJob:
    return retriever.answerer.job(AnswerRequest(query, schema, prompt=prompt))


def test_the_prompt_shows_the_schema_in_few_characters(shown: Retriever) -> None:
    schema = {
        "type": "object",
        "properties": {"title": {**CITY, "description": "Größe </s>"}, "n": {"maximum": 1e3}},
        "required": ["title"],
    }
    job, decode = job_of(shown, schema), shown.tokenizer.decode
    text = (
        '{"type":"object","properties":{"title":{"type":"string","description":"Größe </s>"},'
        '"n":{"maximum":1000.0}},"required":["title"]}'
    )
    assert decode(job.prompt).endswith(f"\nSchema: {text}\nQuery: {QUERY}\nJSON:\n")
    assert shown.tokenizer.token_id(END) not in job.prompt, "what a schema says is no special token"
    assert decode(job.prompt[: job.num_shared]).endswith(f"\nSchema: {text}\nQuery:"), "run once per schema"
    assert job_of(shown, json.dumps(schema, indent=4)).prompt == job.prompt
    other = job_of(shown, {"type": "boolean"})
    assert decode(other.prompt[: other.num_shared]).endswith('\nSchema: {"type":"boolean"}\nQuery:')
    plain = job_of(shown, schema, prompt=None)
    assert "Schema" not in decode(plain.prompt), "a taught checkpoint has a prompt of its own"
    assert plain.num_shared == job_of(shown, {"type": "boolean"}, prompt=None).num_shared


def test_answers_behind_a_schema_that_is_run_once_are_those_of_whole_prompts(shown: Retriever) -> None:
    schemas = [SCHEMAS["text"], SCHEMAS["number"], SCHEMAS["text"]]
    jobs = [job_of(shown, schema, query=f"query {n}") for n, schema in enumerate(schemas)]
    together = answers(shown.answerer, *jobs)
    alone = answers(shown.answerer, *(replace(job, num_shared=0) for job in jobs))
    for one, other in zip(together, alone, strict=True):
        assert one.kv.shared_prefix_bytes > other.kv.shared_prefix_bytes == 0
        assert one.text == other.text
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


def test_a_schema_too_long_to_be_shown_is_refused_and_another_prompt_takes_it(shown: Retriever) -> None:
    schema = {"enum": [f"value {n}" for n in range(200)]}
    with pytest.raises(InputError) as refused:
        job_of(shown, schema)
    assert refused.value.field == "schema"
    assert re.fullmatch(
        r"too long for the prompt template 'json', which shows it: \d+ tokens, the model takes at most 960; "
        r"name a template without \{schema\}, such as json-brief",
        refused.value.message,
    )
    assert job_of(shown, schema, prompt=None).prompt
    with pytest.raises(InputError, match=r"query: too long: the prompt has \d+ tokens"):
        job_of(shown, {"type": "boolean"}, query="x y " * 1000)


def test_where_nobody_chose_a_prompt_a_long_schema_is_not_shown(
    shown: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown.answerer, "_config", CheckpointConfig())
    schema, decode = {"type": "boolean"}, shown.tokenizer.decode
    whole = job_of(shown, schema).num_shared
    for positions, is_shown in ((2 * whole, True), (2 * whole - 1, False)):
        monkeypatch.setattr(shown.answerer._prompts, "_max_tokens", positions)
        assert ("Schema" in decode(job_of(shown, schema, prompt=None).prompt)) is is_shown
        assert "Schema" in decode(job_of(shown, schema).prompt), "who names it gets it"


def test_titles_are_those_of_the_retriever_that_is_asked(retriever: Retriever, tmp_path: Path) -> None:
    folder = tmp_path / "films"
    checkpoint = Path(retriever.tokenizer.source)
    films = make_index(folder, checkpoint, "title\tentity_id\nAlien\tF1\nVertigo\tF2\n")
    other = retriever.open_another(films, name="films")
    assert other.answerer is retriever.answerer, "retrievers of one model share it"
    for schema, names in ((TITLE, {"films"}), ({**TITLE, "x-genret-index": "films"}, {"films"})):
        (found,) = other.answer(QUERY, schema).entities
        assert {found.index} == names
        assert found.title in ("Alien", "Vertigo")
    assert retriever.name == "index", "the name of its directory"
    (found,) = retriever.answer(QUERY, TITLE).entities
    assert found.index == retriever.name
    assert found.title not in ("Alien", "Vertigo")


def test_an_index_that_replaces_another_one_is_asked_from_then_on(
    retriever: Retriever, tmp_path_factory: pytest.TempPathFactory
) -> None:
    schema = {"type": "string", "x-genret-index": "changing"}
    catalogues = ["entity_id\ttitle\nA\tfirst\n", "entity_id\ttitle\nB\tsecond\n"]
    found = []
    for catalogue in catalogues:
        checkpoint = Path(retriever.tokenizer.source)
        index = make_index(tmp_path_factory.mktemp("changing"), checkpoint, catalogue)
        other = retriever.open_another(index, name="changing")
        found.append([entity.entity_id for entity in other.answer(QUERY, schema).entities[0].entities])
    assert found == [["A"], ["B"]]


def test_what_schemas_share_is_made_once_whoever_asks_first(retriever: Retriever) -> None:
    engine = AnswerEngine(retriever.tokenizer, retriever.index.end_token_id, retriever.model.vocab_size)
    seen = in_threads(lambda: (id(engine.schemas), id(engine.leaves)))
    assert set(seen) == {(id(engine.schemas), id(engine.leaves))}


@pytest.mark.parametrize("search", ["auto", "beam"])
@pytest.mark.parametrize("method", ["greedy", "beam", "disc"])
def test_titles_of_a_shortlist_are_those_of_a_search(
    retriever: Retriever, method: str, search: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one title there is no choice left; with several it is among them, under each hole's own filter.

    The search is `auto`, and `beam` in an index without evidence.
    """
    best = retriever.retrieve([QUERY], k=3, method=search)[0].candidates
    cities = retriever.retrieve([QUERY], k=2, method=search, filter="kind = 'city'")[0].candidates
    assert retriever.ranker.can_propose
    if search == "beam":
        monkeypatch.setattr(retriever, "ranker", Ranker.none(retriever.index))
    one = retriever.answer(QUERY, SCHEMAS["title"], method=method, seed=1, shortlist=1)
    assert best[0].entity_id in [entity.entity_id for entity in one.entities[0].entities]
    two = retriever.answer(QUERY, SCHEMAS["two"], method=method, seed=1, shortlist=2)
    check(retriever, SCHEMAS["two"], two)
    found = {entity.pointer: entity.entities for entity in two.entities}
    assert {entity.entity_id for entity in found["/where"]} <= {city.entity_id for city in cities}
    three = retriever.answer(QUERY, SCHEMAS["list"], method=method, seed=1, shortlist=3)
    check(retriever, SCHEMAS["list"], three)
    titles = {candidate.title for candidate in best}
    assert {entity.title for entity in three.entities} <= titles


AMAZON = {**TITLE, "x-genret-filter": "title = 'Amazon'"}
COMPANY = {**TITLE, "x-genret-filter": "title = 'Amazon' and kind = 'company'"}


@pytest.mark.parametrize("shortlist", [0, None, 1])
def test_entities_of_a_title_share_it_by_weight_among_those_that_the_filter_allows(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch, shortlist: int | None
) -> None:
    """A shortlist chooses titles: all allowed entities of the one that is written stand behind it."""

    def behind(schema: Any) -> dict[str, float]:
        (found,) = retriever.answer(QUERY, schema, shortlist=shortlist).entities
        ids = (entity.entity_id for entity in found.entities)
        return dict(zip(ids, found.shares, strict=True))

    assert list(behind(AMAZON).items()) == [("Q8", 0.5), ("Q9", 0.5)]
    weights = np.ones(retriever.index.num_entities)
    weights[retriever.index.entities.numbers(["Q9"])] = 3
    monkeypatch.setattr(retriever.index, "weights", weights)
    assert list(behind(AMAZON).items()) == [("Q9", 0.75), ("Q8", 0.25)]
    assert behind(COMPANY) == {"Q9": 1.0}


def test_a_checkpoint_that_was_taught_titles_alone_takes_the_likeliest_by_default(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    unset, one, every = (
        retriever.answer(QUERY, SCHEMAS["title"], shortlist=shortlist) for shortlist in (None, 1, 0)
    )
    assert (unset.text, unset.num_forced) == (one.text, one.num_forced)
    assert every.num_tokens - every.num_forced > one.num_tokens - one.num_forced == 1, "the end token alone"
    monkeypatch.setattr(schemas, "_SEVERAL_TITLES", 2)
    many = {**SCHEMAS["list"], "minItems": 3}  # more than a shortlist has
    with pytest.raises(SchemaRejectedError):
        retriever.answer(QUERY, many, shortlist=2)
    assert len(retriever.answer(QUERY, many).entities) == 3


@pytest.mark.parametrize(
    ("schema", "size"),
    [
        (SCHEMAS["text"], None),
        (record(["x-genret-index"], **{"x-genret-index": INTEGER}), None),
        (SCHEMAS["title"], 1),
        (record(work=WORK, where=CITY), 1),
        (record(one=CITY, other=CITY), 10),
        (SCHEMAS["list"], 10),
        (record(["v"], v=TITLE, next={"$ref": "#"}), 10),
    ],
)
def test_one_title_is_enough_where_no_set_can_be_asked_for_twice(schema: Any, size: int | None) -> None:
    assert default_shortlist(json.dumps(schema)) == size


def test_a_shortlist_that_is_too_short_is_refused_for_its_request_alone(retriever: Retriever) -> None:
    requests = [AnswerRequest(QUERY, SCHEMAS["list"], shortlist=size) for size in (1, 3)]
    short, fine = retriever.answerer.run([retriever.answerer.job(request) for request in requests])
    assert isinstance(short, SchemaRejectedError)
    assert "no value is valid" in str(short)
    assert isinstance(fine, AnswerResult)


def test_the_time_of_a_search_is_not_that_of_compiling(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search by a large model may take longer than a schema may: both have their own bounds."""
    request = AnswerRequest(QUERY, SCHEMAS["title"], shortlist=1)
    job = retriever.answerer.job(request)
    likeliest = IndexSet.finder
    options = GrammarOptions.for_writing(CompileLimits(seconds=0.5))
    now = 0.0
    clocks = SimpleNamespace(monotonic=lambda: now, thread_time=lambda: now)
    monkeypatch.setattr(compile_budget, "time", clocks)

    def slowly(indexes: IndexSet, name: str) -> Finder:
        def find(query: str, predicate: str | None, size: int) -> Sequence[Entity]:
            nonlocal now
            now += 0.6
            return likeliest(indexes, name)(query, predicate, size)

        return find

    monkeypatch.setattr(IndexSet, "finder", slowly)
    monkeypatch.setattr(AnswerRequest, "options", property(lambda _: options))
    assert answers(retriever.answerer, job)


def _fan(levels: int) -> dict[str, Any]:
    """A schema whose first definition is asked for 2^levels times."""
    defs: dict[str, Any] = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]}
        for n in range(levels)
    }
    return {"$defs": {**defs, f"d{levels}": {"type": "boolean"}}, "$ref": "#/$defs/d0"}


def _chain(length: int) -> dict[str, Any]:
    defs: dict[str, Any] = {
        f"d{n}": {"type": "array", "items": {"$ref": f"#/$defs/d{n + 1}"}, "minItems": 1}
        for n in range(length)
    }
    return {"$defs": {**defs, f"d{length}": {"type": "string"}}, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        ('{"type":"array","minItems":1000000000}', "max_tokens"),
        ('{"type":"array","minItems":1000000,"items":{"type":"string"}}', "max_tokens"),
        ('{"type":"object","minProperties":1000000000}', "schema"),
        ('{"type":"object","minProperties":20}', "max_tokens"),
        ('{"type":"array","uniqueItems":true,"minItems":50,"items":{"type":"integer"}}', "schema"),
        ('{"const":1e99999999999999999999}', "schema"),
        ('{"$ref":"#/allOf/' + "9" * 5000 + '","allOf":[true]}', "schema"),
        (json.dumps(_fan(40)), "schema"),
        (json.dumps(_chain(8000)), "schema"),
    ],
)
def test_it_is_refused_in_time(
    shown: Retriever, schema: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if field == "max_tokens":  # compiled to the end, on a slow machine too: a quarter of its time counts
        slow = SimpleNamespace(monotonic=time.monotonic, thread_time=lambda: time.thread_time() / 4)
        monkeypatch.setattr(compile_budget, "time", slow)
    begun = time.thread_time()
    with pytest.raises(InputError) as caught:
        shown.answer("who wrote hamlet", schema, max_tokens=60)
    assert caught.value.field == field
    assert time.thread_time() - begun < 15  # seconds; without the limits: hours


def test_a_schema_that_asks_twice_is_answered(shown: Retriever) -> None:
    assert isinstance(shown.answer("who wrote hamlet", _fan(3), max_tokens=60).value, bool)
