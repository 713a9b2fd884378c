"""`shortlist`, and `auto` in an order of the request's, against enumeration: every title scored by itself.

The evidence is vectors alone, searched one by one; and those of an index, opened, asked, or done without.
"""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genret import Mention, RetrievalResult, Retriever, RetrieveRequest
from genret.decoding.cancellation import CancelToken
from genret.decoding.errors import DecodingCancelledError
from genret.index_builder.build_options import VectorBuildOptions
from genret.retrieval.errors import (
    EvidenceMissingError,
    GenretError,
    IndexChecksumError,
    InputError,
    MissingExtraError,
    ModelError,
)
from genret.retrieval.evidence.evidence import Evidence
from genret.retrieval.index.reader import Index
from genret.retrieval.ranking.ranker import Ranker
from genret.retrieval.ranking.rankings import DEFAULT_RANKING
from genret.retrieval.vectors.embedder import VectorMethod
from tests.checkpoints import CATALOGUE, make_index
from tests.entity_oracle import EntityOracle
from tests.fake_vectors import MadeUpVectors
from tests.fakes import TableModel, likely_titles, recorded
from tests.table_retrievers import CONFIG, TOKENIZER, CountingModel, answers, without_costs

KINDS = ("city", "river", "work")


def catalogue(seed: int) -> str:
    """Forty entities, most with aliases, of which some have the same text."""
    draw = np.random.default_rng(seed)
    words = ["Nile", "Paris", "Ham", "Mercury", "Amazon", "river", "of", "Light"]
    lines = ["entity_id\ttitle\taliases\tkind"]
    for number in range(40):
        forms = [" ".join(draw.choice(words, size=draw.integers(1, 4))) for _ in range(draw.integers(1, 5))]
        lines.append(f"E{number}\t{forms[0]}\t{'|'.join(forms[1:])}\t{KINDS[number % 3]}")
    return "\n".join(lines) + "\n"


CATALOGUES = {
    "twelve": CATALOGUE,
    "forty": catalogue(0),
    "plain": "title\nNile\nParis\nBerlin\nAmazon\nHam\n",
}


class Setting:
    """An index, a model and vectors, with what they say of every entity."""

    def __init__(self, folder: Path, text: str) -> None:
        place = make_index(folder, TOKENIZER, text, rendering=CONFIG.rendering)
        self.index = Index.open(place)
        self.model = CountingModel(likely_titles(self.index, seed=3, boost=4.0))
        self.vectors = MadeUpVectors(self.index)
        self.retriever = Retriever(self.index, self.model, TOKENIZER, CONFIG, ranker=self.vectors.opened())
        self.blind = Retriever(self.index, self.model, TOKENIZER, CONFIG, is_named=False)

    def oracle(self, request: RetrieveRequest) -> EntityOracle:
        prompt = CONFIG.prompt(None).encode(TOKENIZER, request.query)
        made = self.retriever.filters.make(request.restriction)
        return EntityOracle.of(self.index, self.model, prompt, made)

    def answer(self, *requests: RetrieveRequest) -> list[RetrievalResult]:
        return answers(self.retriever, *requests)


@pytest.fixture(scope="module", params=list(CATALOGUES))
def setting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return Setting(tmp_path_factory.mktemp("index"), CATALOGUES[request.param])


@pytest.fixture(scope="module")
def twelve(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return Setting(tmp_path_factory.mktemp("twelve"), CATALOGUE)


QUERIES = st.sampled_from(["one", "a river", "who wrote hamlet"])
COMMON: dict[str, Any] = {
    "query": QUERIES,
    "k": st.integers(1, 60),
    "shortlist_size": st.none() | st.integers(1, 45),
    "vector_weight": st.none() | st.sampled_from([0.0, 0.5, 20.0]),
}
FILTERS = st.none() | st.sampled_from(
    [(), ("E1", "Q1", "Nile"), *(tuple(f"E{n}" for n in range(m, 40, 3)) for m in (0, 1))]
)


def check_scores(
    setting: Setting, request: RetrieveRequest, result: RetrievalResult, scored: Sequence[int]
) -> None:
    """Every candidate has the score of its own, and the list is the best of those scored."""
    oracle = setting.oracle(request)
    alike = setting.vectors.all_similarities(request.evidence_text)
    ranks = {rank for number in scored for rank in oracle.forms(number)}
    scores = {n: oracle.logprob(n) + request.similarity_weight * float(alike[n]) for n in scored}
    for number, found in zip(oracle.numbers(result.candidates), result.candidates, strict=True):
        logprob = oracle.logprob(number)
        assert found.logprob == pytest.approx(logprob, abs=1e-4)
        assert found.score == pytest.approx(scores[number], abs=1e-4)
        assert found.similarity == pytest.approx(float(alike[number]), abs=1e-5)
        assert found.probability == pytest.approx(math.exp(logprob) / oracle.mass(ranks), rel=1e-3)
        assert found.surface == oracle.surface(number)
        assert found.title == setting.index.entity(number).title
    assert result.num_scored == len(ranks)
    found_scores = [found.score for found in result.candidates]
    assert found_scores == sorted(found_scores, reverse=True)
    assert len({found.entity_id for found in result.candidates}) == len(result.candidates)
    assert len(result.candidates) == min(request.k, len(scored))
    best_scores = sorted(scores.values(), reverse=True)[: request.k]
    assert found_scores == pytest.approx(best_scores, abs=1e-4)


@settings(max_examples=30, deadline=None)
@given(fields=st.fixed_dictionaries(COMMON), ids=FILTERS)
def test_shortlist_is_the_best_of_what_is_proposed(
    setting: Setting, fields: dict[str, Any], ids: tuple[str, ...] | None
) -> None:
    request = RetrieveRequest(method="shortlist", allow_ids=ids, **fields)
    (result,) = setting.answer(request)
    oracle = setting.oracle(request)
    allowed = oracle.entities
    alike = setting.vectors.all_similarities(request.query)
    proposed = sorted(allowed, key=lambda number: -alike[number])[: request.proposals]
    check_scores(setting, request, result, proposed)
    is_everything = len(allowed) <= request.proposals
    assert result.certified == (True if is_everything else None)
    assert (result.method, result.shortlist_size) == ("shortlist", len(proposed))
    ranks = {rank for number in proposed for rank in oracle.forms(number)}
    assert result.mass_lower == pytest.approx(oracle.mass(ranks), rel=1e-3)
    assert (result.mass, result.num_draws, result.num_steps, result.seed) == (None, 0, 0, None)


BEAMS = st.fixed_dictionaries(
    {
        "beam_size": st.none() | st.integers(1, 30),
        "exact": st.booleans(),
        "decoder": st.none() | st.just("beam"),
    }
)


@settings(max_examples=30, deadline=None)
@given(fields=st.fixed_dictionaries(COMMON), beams=BEAMS, ids=FILTERS)
def test_auto_lists_what_is_decoded_and_what_is_proposed(
    setting: Setting, fields: dict[str, Any], beams: dict[str, Any], ids: tuple[str, ...] | None
) -> None:
    request = RetrieveRequest(method="auto", allow_ids=ids, **fields, **beams)
    if request.is_ranked:
        request = replace(request, vector_weight=0.0)
    (result,) = setting.answer(request)
    oracle = setting.oracle(request)
    allowed = oracle.entities
    logprobs = {number: oracle.logprob(number) for number in allowed}
    assert result.method == "auto"
    assert (result.nothing_fits, result.missing_evidence) == (None, ())
    assert not any(candidate.shares for candidate in result.candidates)
    if len(allowed) <= (request.shortlist_size or 100):
        check_scores(setting, request, result, allowed)
        assert (result.certified, result.num_steps) == (True, 0)
        return
    alone = replace(request, method="beam", decoder=None, shortlist_size=None, vector_weight=None)
    (decoded,) = setting.answer(alone)
    alike = setting.vectors.all_similarities(request.query)
    proposed = sorted(allowed, key=lambda number: -alike[number])[: request.proposals]
    listed = set(oracle.numbers(decoded.candidates))
    weight = request.similarity_weight
    scores = {number: logprobs[number] + weight * float(alike[number]) for number in allowed}
    assert len(result.candidates) >= min(request.k, len({*proposed, *listed}))
    last = result.candidates[-1].score if len(result.candidates) == request.k else -math.inf
    found = dict(zip(oracle.numbers(result.candidates), result.candidates, strict=True))
    for number, candidate in found.items():
        assert candidate.logprob == pytest.approx(logprobs[number], abs=1e-4)
        assert candidate.score == pytest.approx(scores[number], abs=1e-4)
        assert candidate.similarity == pytest.approx(float(alike[number]), abs=1e-5)
    for number in {*proposed, *listed} - set(found):
        assert scores[number] <= last + 1e-4
    assert [c.score for c in result.candidates] == sorted((c.score for c in result.candidates), reverse=True)
    assert result.shortlist_size == len(proposed)
    assert result.num_steps == decoded.num_steps
    # What the beams found is not asked again: nothing is, where they found every form.
    rows = {tuple(setting.index.row_token_ids(rank)) for e in allowed for rank in oracle.forms(e)}
    beginnings = {row[:length] for row in rows for length in range(1, len(row))}
    assert 0 <= result.num_nodes - decoded.num_nodes <= len(beginnings)
    if weight:
        assert result.certified is False
    elif decoded.certified:
        assert result.certified
    if result.certified:
        oracle.assert_is_ranking(oracle.numbers(result.candidates), request.k, tolerance=1e-4)


def test_vectors_are_asked_once_for_a_batch(twelve: Setting) -> None:
    twelve.vectors.asked.clear()
    twelve.answer(
        *(RetrieveRequest(f"q{n}", method="auto", shortlist_size=2 + n) for n in range(3)),
        RetrieveRequest("everything", method="auto"),
        RetrieveRequest("few", method="auto", shortlist_size=3, filter="kind = 'city'"),
        RetrieveRequest("other", method="auto", shortlist_size=3, shortlist_query="words"),
        RetrieveRequest("beam", method="beam"),
    )
    assert twelve.vectors.asked == [["q0", "q1", "q2", "everything", "few", "words"]]


@pytest.mark.parametrize(
    "problem", [None, IndexChecksumError("vectors.faiss", "its size is 3 bytes, expected 4")]
)
def test_shortlist_without_vectors_says_why_and_the_others_go_on(
    twelve: Setting, problem: GenretError | None
) -> None:
    ranker = None
    if problem is not None:
        evidence = Evidence(twelve.index, problems={"vectors": problem})
        ranker = Ranker(evidence, DEFAULT_RANKING, DEFAULT_RANKING)
    retriever = Retriever(twelve.index, twelve.model, TOKENIZER, CONFIG, ranker=ranker)
    wanted = EvidenceMissingError if problem is None else IndexChecksumError
    assert retriever.vectors is None
    assert list(retriever.ranker.problems) == ([] if problem is None else ["vectors"])
    request = RetrieveRequest("one", method="shortlist", shortlist_size=3)
    filtered = replace(request, filter="kind != 'city'")
    retriever.check_method(filtered)  # nobody knows yet how many it allows
    for ask in (retriever.check_method, retriever.prompt_tokens):
        with pytest.raises(wanted):
            ask(request)
    with pytest.raises(wanted):
        retriever.retrieve("one", method="shortlist", shortlist_size=3)
    replies = retriever.retrieve_batch(
        [request, filtered, replace(request, method="auto"), replace(request, k=2, shortlist_size=12)]
    )
    assert [type(reply) for reply in replies] == [wanted, wanted, RetrievalResult, RetrievalResult]
    assert str(replies[0]) == str(replies[1])
    assert replies[0] is not replies[1], "each has an error of its own"
    if problem is None:
        assert "has no evidence that proposes entities; add some with: genret update" in str(replies[0])
    else:
        assert str(replies[0]) == str(problem)
    for reply in replies[2:]:
        assert isinstance(reply, RetrievalResult)
        assert reply.missing_evidence == (() if problem is None else ("vectors",))
    assert [getattr(reply, "method", None) for reply in replies[2:]] == ["beam", "shortlist"]


class FailingVectors(MadeUpVectors):
    """Vectors whose encoder gives nothing usable for some texts."""

    BROKEN = ("broken", "also broken")

    def embed(self, texts: Sequence[str]) -> Any:
        if set(texts) & set(self.BROKEN):
            raise ModelError("models/odd: the encoder gives vectors that are not finite for 1 of 1 texts")
        return super().embed(texts)


def test_a_text_that_cannot_be_embedded_fails_alone(
    twelve: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    failing = FailingVectors(twelve.index)
    retriever = Retriever(twelve.index, twelve.model, TOKENIZER, CONFIG, ranker=failing.opened())
    good = RetrieveRequest("one", method="shortlist", shortlist_size=3)
    few = replace(good, filter="kind = 'city'", vector_weight=5.0)
    shortlist = replace(good, query="broken")
    by_disc = replace(good, query="also broken", method="auto", decoder="disc", seed=2)
    decoded = [replace(shortlist, method="auto"), by_disc]
    broken_few = replace(few, query="broken")
    with caplog.at_level("WARNING"):
        replies = retriever.retrieve_batch([good, shortlist, *decoded, broken_few, few])
        retriever.retrieve_batch(decoded)
    assert isinstance(replies[1], ModelError)
    assert "models/odd" in str(replies[1])
    results = [reply for reply in replies if isinstance(reply, RetrievalResult)]
    assert len(results) == 5
    # Those concerned are answered as without vectors, the others as if nothing had happened.
    assert [r.missing_evidence for r in results] == [(), *[("vectors",)] * 3, ()]
    blind = twelve.blind.retrieve_batch([*decoded, broken_few])
    seeing = [replace(without_costs(r), missing_evidence=()) for r in results[1:4]]
    assert seeing == [without_costs(r) for r in blind]
    assert [r.method for r in results] == ["shortlist", "beam", "disc", "shortlist", "shortlist"]
    sound = twelve.answer(good, few)
    assert [without_costs(r) for r in (results[0], results[4])] == [without_costs(r) for r in sound]
    (record,) = caplog.records
    assert "a request is answered without vectors: models/odd: the encoder gives" in record.getMessage()


class LeavingVectors(MadeUpVectors):
    """While a query is embedded, others are cancelled."""

    leaving: dict[str, CancelToken]

    def embed(self, texts: Sequence[str]) -> Any:
        for text in texts:
            if text in self.leaving:
                self.leaving[text].cancel()
        return super().embed(texts)


@pytest.mark.parametrize("method", ["shortlist", "auto"])
def test_who_leaves_while_evidence_is_asked_is_not_computed(twelve: Setting, method: str) -> None:
    vectors = LeavingVectors(twelve.index)
    retriever = Retriever(twelve.index, twelve.model, TOKENIZER, CONFIG, ranker=vectors.opened())
    prompts = twelve.model.prompts
    prompts.clear()
    stay, leave = (RetrieveRequest(query, method=method, shortlist_size=3) for query in ("one", "two"))
    token = CancelToken()
    vectors.leaving = {"one": token}
    result, left = retriever.retrieve_batch([stay, leave], [None, token])
    assert isinstance(left, DecodingCancelledError)
    assert prompts == [1]
    assert without_costs(result) == without_costs(twelve.answer(stay)[0])
    prompts.clear()
    token = CancelToken()
    vectors.leaving = {"two": token}
    assert isinstance(retriever.retrieve_batch([leave], [token])[0], DecodingCancelledError)
    assert not prompts


def test_who_leaves_while_entities_are_compared_gets_no_answer(twelve: Setting) -> None:
    vectors = LeavingVectors(twelve.index)
    vectors.leaving = {}
    retriever = Retriever(twelve.index, twelve.model, TOKENIZER, CONFIG, ranker=vectors.opened())
    compute, search, token, compared = vectors.similarities, vectors.search, CancelToken(), []

    vectors.search = lambda vector, _, allowed: search(vector, 1, allowed)  # type: ignore[method-assign]

    def similarities(vector: Any, entities: Any) -> Any:
        compared.append(vector.tolist())
        if len(compared) == 3:  # both were proposed for: these are entities that the decoder found
            token.cancel()
        return compute(vector, entities)

    vectors.similarities = similarities  # type: ignore[method-assign]
    one, two = (RetrieveRequest(query, k=12, shortlist_size=1, vector_weight=1.0) for query in ("one", "two"))
    first, second = retriever.retrieve_batch([one, two], [None, token])
    assert isinstance(first, RetrievalResult)
    assert isinstance(second, DecodingCancelledError)
    one_vector, two_vector = vectors.embed(["one", "two"]).tolist()
    assert compared == [one_vector, two_vector, one_vector]


def test_mentions_ask_the_vectors_with_the_mention_alone(twelve: Setting) -> None:
    twelve.vectors.asked.clear()
    mention = Mention("Amazon", left="rain over the ", right=" basin")
    twelve.retriever.link(mention, shortlist_size=2)
    twelve.retriever.link(mention, shortlist_size=2, shortlist_query="the river")
    assert twelve.vectors.asked == [["Amazon"], ["the river"]]
    beam = twelve.retriever.mention_request(mention, RetrieveRequest("-", method="beam"))
    assert beam.shortlist_query is None
    auto = twelve.retriever.mention_request(mention, RetrieveRequest("-"))
    assert auto.query == "rain over the [Amazon] basin"


def test_warm_up_asks_for_a_shortlist_where_there_are_vectors(twelve: Setting) -> None:
    twelve.vectors.asked.clear()
    twelve.retriever.warm_up()
    assert ["warm-up"] in twelve.vectors.asked
    twelve.blind.warm_up()


def test_timings_add_up(twelve: Setting) -> None:
    times = twelve.answer(RetrieveRequest("one", shortlist_size=3))[0].timings
    parts = (times.shortlist_ms, times.prefill_ms, times.decode_ms, times.score_ms)
    assert all(part > 0 for part in parts)
    assert times.total_ms == pytest.approx(sum(parts))


def test_aliases_beyond_the_bound_are_left_out_and_nothing_is_certified(
    twelve: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole,) = twelve.answer(RetrieveRequest("one", k=12, vector_weight=0.0))
    monkeypatch.setattr("genret.retrieval.methods.scored_methods.MAX_SCORED_FORMS", 14)
    retriever = Retriever(
        twelve.index, twelve.model, TOKENIZER, CONFIG, ranker=twelve.vectors.opened(), is_named=False
    )
    for size in (12, 11):
        (cut,) = retriever.retrieve("one", k=12, shortlist_size=size, beam_size=100, vector_weight=0.0)
        assert cut.certified is False
        assert cut.num_scored < whole.num_scored
        assert {c.entity_id for c in cut.candidates} == {c.entity_id for c in whole.candidates}
        assert all(c.surface == c.title for c in cut.candidates)


MODEL = TableModel.random(TOKENIZER.vocab_size, seed=1)


@pytest.fixture
def folder(tmp_path: Path, trigrams: VectorMethod) -> Path:
    """An index with vectors and no other evidence."""
    wish = VectorBuildOptions(trigrams)
    return make_index(tmp_path, TOKENIZER, rendering=CONFIG.rendering, vectors=wish, evidence=None)


def opened_with_vectors(folder: Path, encoder: str | None = None) -> Retriever:
    index = Index.open(folder)
    ranker = Ranker.open(index, encoder)
    return Retriever(index, MODEL, TOKENIZER, CONFIG, ranker=ranker)


def test_an_index_with_vectors_proposes_what_is_alike(folder: Path) -> None:
    with opened_with_vectors(folder) as retriever:
        assert retriever.vectors is not None
        assert retriever.ranker.problems == {}
        (result,) = retriever.retrieve("mercury planett", k=2, method="shortlist", shortlist_size=2)
        assert {c.entity_id for c in result.candidates} == {"Q10", "Q11"}
        for candidate in result.candidates:
            assert candidate.similarity > 0.3
        (auto,) = retriever.retrieve("mercury planett", k=12, shortlist_size=2)
        assert {"Q10", "Q11"} <= {c.entity_id for c in auto.candidates}
        assert all(c.similarity is not None for c in auto.candidates)
        assert all(set(c.shares) <= {"vectors", "model"} for c in auto.candidates)
        retriever.warm_up()


def test_an_encoder_that_lies_elsewhere_must_be_the_one_that_made_the_vectors(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("trigrams", "another"):
        (tmp_path / name).mkdir()
    with opened_with_vectors(folder, str(tmp_path / "trigrams")) as retriever:
        assert retriever.ranker.problems == {}
    with (
        caplog.at_level(logging.WARNING),
        opened_with_vectors(folder, str(tmp_path / "another")) as retriever,
    ):
        assert list(retriever.ranker.problems) == ["vectors"]
        assert retriever.retrieve("one", shortlist_size=2)[0].missing_evidence == ("vectors",)
    (record,) = caplog.records
    assert "the vectors of" in record.getMessage()


PROBLEMS = {
    "missing": EvidenceMissingError("the index has no vectors"),
    "damaged": IndexChecksumError("vectors.faiss", "expected 1, got 2"),
    "extra": MissingExtraError("faiss", "vectors"),
    "input": InputError("encoder", "expected a model"),
}


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_an_error_asked_for_again_holds_no_frames_of_those_before(twelve: Setting, name: str) -> None:
    problem = PROBLEMS[name]
    ranker = Ranker(Evidence(twelve.index, problems={"vectors": problem}), DEFAULT_RANKING, DEFAULT_RANKING)
    retriever = Retriever(twelve.index, MODEL, TOKENIZER, CONFIG, ranker=ranker, is_named=False)
    depths = []
    for _ in range(4):
        with pytest.raises(type(problem)) as caught:
            retriever.retrieve("one", method="shortlist", shortlist_size=2)
        depths.append(len(traceback.extract_tb(caught.value.__traceback__)))
        assert caught.value is not problem
        assert str(caught.value) == str(problem)
        assert vars(caught.value) == vars(problem)
    assert len(set(depths)) == 1
    assert problem.__traceback__ is None


@pytest.mark.parametrize("method", ["auto", "shortlist"])
@pytest.mark.parametrize("denied", [(), ("Q3", "Q7", "Q8")])
def test_every_entity_is_compared_once_and_no_text_is_embedded(
    twelve: Setting, monkeypatch: pytest.MonkeyPatch, method: str, denied: tuple[str, ...]
) -> None:
    vectors = MadeUpVectors(twelve.index)
    compared = recorded(monkeypatch, vectors, "similarities")
    retriever = Retriever(twelve.index, MODEL, TOKENIZER, CONFIG, ranker=vectors.opened(), is_named=False)
    (found,) = retriever.retrieve(["one"], k=12, method=method, vector_weight=3.0, deny_ids=denied)
    assert sum(len(entities) for _, entities in compared) == 12 - len(denied)
    assert vectors.asked == [["one"]]
    assert len(found.candidates) == 12 - len(denied)
