"""`auto` by the ranking of an index, against its parts: evidence, decoder, P(e | q) enumerated, ranking."""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genret import RetrievalResult, Retriever, RetrieveRequest
from genret.index_builder.build_options import EvidenceOptions, VectorBuildOptions
from genret.index_builder.past_queries import QueryFile
from genret.retrieval.errors import IndexChecksumError
from genret.retrieval.evidence.evidence import FEATURE_NUMBER, KINDS, EvidenceQuery
from genret.retrieval.filters.entity_filter import EntityFilter
from genret.retrieval.index.reader import Index
from genret.retrieval.methods import batches
from genret.retrieval.methods.decoded_methods import Decoded
from genret.retrieval.ranking.ranker import Ranker
from genret.retrieval.ranking.rankings import MODEL_LOGPROB, NO_MODEL, Ranked, Rankings
from genret.retrieval.sources.columns import ColumnMapping
from genret.retrieval.text import TextTokenizer
from genret.retrieval.vectors.embedder import VectorMethod
from tests.checkpoints import CATALOGUE, END, make_index, train_tokenizer
from tests.entity_oracle import EntityOracle
from tests.fakes import TableModel, likely_titles
from tests.index_fixtures import flip
from tests.table_retrievers import CONFIG, answers, without_costs

WORDS = [
    "Nile", "Paris", "Ham", "Mercury", "Amazon", "river", "of", "Light", "Texas", "planet", "Curie", "Hill",
]  # fmt: skip
NUM_ENTITIES = 120  # more than are scored without being proposed
QUESTIONS = ("nile river", "mercury planett", "who wrote Light of Paris", "texas", "zzz", "ham of light hill")


def catalogue(seed: int = 0) -> str:
    draw = random.Random(seed)

    def text(least: int, most: int) -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(least, most)))

    lines = ["entity_id\ttitle\taliases\tdescription\tkind\tfame"]
    for number in range(NUM_ENTITIES):
        aliases = "|".join(text(1, 3) for _ in range(draw.randint(0, 2)))
        fame = draw.choice([1, 3, 20, 100])
        lines.append(
            f"E{number}\t{text(1, 3)} {number % 17}\t{aliases}\t{text(2, 7)}\t{'ab'[number % 2]}\t{fame}"
        )
    return "\n".join(lines) + "\n"


TEXT = catalogue()
TOKENIZER = TextTokenizer(train_tokenizer([TEXT, CATALOGUE]), END, "tiny")
PAST = (
    "query\tentity_id\tcount\n"
    "nile river\tE3\t5\nthe nile\tE3\t1\ntexas\tE9\t2\ntexas\tE40\t6\nlight on a hill\tE77\t1\n"
)


class Setting:
    """A retriever over an index with evidence, with the parts of its answers.

    Args:
        folder: The index.
        has_fit: Whether its own ranking is used, rather than the library's weights.
    """

    def __init__(self, folder: Path, has_fit: bool = True) -> None:
        self.folder = folder
        self.index = Index.open(folder)
        self.model: TableModel = likely_titles(self.index, seed=3, boost=4.0)
        self.ranker = Ranker.open(self.index, fingerprint=lambda: "never weighed")
        if not has_fit:
            ranking, alone = (Rankings().of(name)[0] for name in ("never weighed", NO_MODEL))
            self.ranker = Ranker(self.ranker.evidence, ranking, alone)
        self.retriever = Retriever(
            self.index, self.model, TOKENIZER, CONFIG, ranker=self.ranker, is_named=False
        )
        self.rows = lru_cache(self._rows)

    def _rows(self, query: str) -> dict[int, float]:
        prompt = CONFIG.prompt(None).encode(TOKENIZER, query)
        return {
            r: self.model.logprob(prompt, self.index.row_token_ids(r)) for r in range(self.index.num_rows)
        }

    def allowed(self, request: RetrieveRequest) -> EntityFilter | None:
        return self.retriever.filters.make(request.restriction)

    def oracle(self, request: RetrieveRequest) -> EntityOracle:
        made = self.allowed(request)
        numbers = None if made is None else set(np.flatnonzero(made.allowed).tolist())
        return EntityOracle(self.index, self.rows(request.query), numbers)

    def asked(self, request: RetrieveRequest) -> EvidenceQuery:
        (asked,) = self.ranker.evidence.ask([request.evidence_text])
        return asked

    def found(self, request: RetrieveRequest) -> list[int]:
        """Return what any evidence proposes, or all entities that are allowed where they are few."""
        made = self.allowed(request)
        allowed = np.ones(NUM_ENTITIES, np.bool_) if made is None else made.allowed
        if allowed.sum() <= (request.shortlist_size or 100):
            return np.flatnonzero(allowed).tolist()
        found: list[int] = self.ranker.evidence.propose(
            self.asked(request), max(request.proposals, 50), allowed
        ).tolist()
        return found

    def features(self, request: RetrieveRequest, entities: Sequence[int]) -> np.ndarray[Any, Any]:
        """Return features; shares in past queries are those among all that the evidence finds."""
        asked, known = self.asked(request), self.found(request)
        others = [number for number in entities if number not in known]
        rows: dict[int, np.ndarray[Any, Any]] = {}
        for part in (known, others):
            table = self.ranker.evidence.features(asked, np.array(part, np.int64))
            rows.update(zip(part, table.astype(np.float64), strict=True))
        return np.array([rows[number] for number in entities]).reshape(len(entities), -1)

    def proposed(self, request: RetrieveRequest) -> list[int]:
        """Return the best entities by evidence alone, of all that any of it proposes."""
        found = self.found(request)
        scores = dict(
            zip(found, (self.features(request, found) @ self.ranker.alone.weights).tolist(), strict=True)
        )
        return sorted(scores, key=lambda number: (-scores[number], number))[: request.proposals]

    def scored(self, request: RetrieveRequest, decoded: Decoded) -> list[int]:
        """Return the entities proposed and decoded that are best by evidence and what the decoder found."""
        every = list(dict.fromkeys([*self.proposed(request), *decoded.entities]))
        worst = min(decoded.logprobs.values())
        found = [max(decoded.logprobs.get(entity, worst), -40.0) for entity in every]
        weights = self.ranker.ranking.weights
        scores = self.features(request, every) @ weights + weights[MODEL_LOGPROB] * np.array(found)
        order = sorted(range(len(every)), key=lambda i: -scores[i])
        return [every[i] for i in order[: max(request.k, request.shortlist_size or 10)]]

    def ranked(self, request: RetrieveRequest, entities: Sequence[int]) -> Ranked:
        """Return what the ranking says of entities, given log P(e | q) from an enumeration of their forms."""
        oracle = self.oracle(request)
        features = self.features(request, entities)
        return self.ranker.ranking.rank(features, [oracle.logprob(number) for number in entities])

    def answer(self, *requests: RetrieveRequest) -> list[RetrievalResult]:
        return answers(self.retriever, *requests)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, trigrams: VectorMethod) -> Path:
    place = tmp_path_factory.mktemp("ranked")
    (place / "past.tsv").write_text(PAST, encoding="utf-8")
    return make_index(
        place,
        TOKENIZER,
        TEXT,
        rendering=CONFIG.rendering,
        mapping=ColumnMapping(weight="fame"),
        evidence=EvidenceOptions(queries=(QueryFile(place / "past.tsv"),)),
        vectors=VectorBuildOptions(trigrams),
    )


@pytest.fixture(scope="module")
def setting(folder: Path) -> Setting:
    return Setting(folder)


@pytest.fixture(scope="module")
def decoded() -> Iterator[list[Decoded]]:
    """What decoders found, of every query since the list was cleared."""
    found: list[Decoded] = []

    def recording(decode: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        def run(*args: Any) -> list[Any]:
            outcomes = decode(*args)
            found.extend(outcome for outcome in outcomes if isinstance(outcome, Decoded))
            return outcomes

        return run

    with pytest.MonkeyPatch.context() as patch:
        for name in ("decode_by_beam", "decode_by_disc"):
            place = f"genret.retrieval.methods.batches.{name}"
            patch.setattr(place, recording(getattr(batches, name)))
        yield found


def check_ranked(
    setting: Setting, request: RetrieveRequest, result: RetrievalResult, entities: Sequence[int]
) -> None:
    """Fail unless an answer lists the best of some entities as the ranking says."""
    oracle = setting.oracle(request)
    possible = [number for number in entities if oracle.logprob(number) > -math.inf]
    ranked = setting.ranked(request, possible)
    place = {number: i for i, number in enumerate(possible)}
    listed = oracle.numbers(result.candidates)
    assert len(listed) == len(set(listed)) == min(request.k, len(possible))
    assert result.nothing_fits == pytest.approx(ranked.nothing, abs=1e-3)
    for number, found in zip(listed, result.candidates, strict=True):
        at = place[number]
        assert found.logprob == pytest.approx(oracle.logprob(number), abs=1e-4)
        assert found.surface == oracle.surface(number)
        assert found.score == pytest.approx(ranked.scores[at], abs=1e-3)
        assert found.probability == pytest.approx(ranked.probabilities[at], rel=2e-3, abs=1e-9)
        told = dict(zip(KINDS, ranked.shares[at].tolist(), strict=True))
        assert found.shares == pytest.approx({k: share for k, share in told.items() if share}, abs=1e-3)
        assert sum(found.shares.values()) == pytest.approx(found.score, abs=1e-6)
        sizes = [abs(share) for share in found.shares.values()]
        assert sizes == sorted(sizes, reverse=True)
        assert all(sizes)
    scores = [found.score for found in result.candidates]
    assert scores == sorted(scores, reverse=True)
    assert scores == pytest.approx(sorted(ranked.scores, reverse=True)[: request.k], abs=1e-3)
    if request.k >= len(possible):
        total = sum(found.probability or 0.0 for found in result.candidates)
        assert total + (result.nothing_fits or 0.0) == pytest.approx(1.0)
    assert result.num_scored == len({rank for number in entities for rank in oracle.forms(number)})
    assert (result.method, result.certified) == ("auto", None)


ALLOWED = st.none() | st.sampled_from(
    [(), ("E3",), tuple(f"E{n}" for n in range(0, NUM_ENTITIES, 7)), tuple(f"E{n}" for n in range(110))]
)
REQUESTS: dict[str, Any] = {
    "query": st.sampled_from(QUESTIONS),
    "k": st.integers(1, 200),
    "shortlist_size": st.none() | st.integers(1, 150),
    "shortlist_query": st.none() | st.sampled_from(QUESTIONS),
    "beam_size": st.none() | st.integers(1, 12),
    "decoder": st.none() | st.sampled_from(["beam", "disc"]),
    "filter": st.none() | st.sampled_from(["kind = 'a'", "fame > 50"]),
    "allow_ids": ALLOWED,
    "deny_ids": st.sampled_from([(), ("E3", "E9", "E40")]),
}


@settings(max_examples=40, deadline=None)
@given(fields=st.fixed_dictionaries(REQUESTS))
def test_candidates_are_the_evidences_best_and_the_decoders_in_the_order_of_the_ranking(
    setting: Setting, decoded: list[Decoded], fields: dict[str, Any]
) -> None:
    request = RetrieveRequest(**fields, seed=5, num_samples=8)
    allowed = setting.oracle(request).entities
    decoded.clear()
    (result,) = setting.answer(request)
    assert result.missing_evidence == ()
    if not allowed:
        assert (result.candidates, result.num_scored, result.mass_lower) == ((), 0, 0.0)
        assert (result.certified, result.mass) == (True, 0.0 if request.decoder == "disc" else None)
        return
    if len(allowed) <= (request.shortlist_size or 100):
        entities = allowed
        assert not decoded
        assert result.shortlist_size == len(allowed)
    else:
        entities = setting.scored(request, decoded[0])
        assert result.shortlist_size == len(setting.proposed(request))
    check_ranked(setting, request, result, entities)
    (whole,) = setting.answer(
        replace(request, method="shortlist", decoder=None, k=1000, shortlist_size=2000, beam_size=None)
    )
    exact = {c.entity_id: c for c in whole.candidates}
    for candidate in result.candidates:
        same = exact[candidate.entity_id]
        assert candidate.logprob == pytest.approx(same.logprob, abs=1e-5)
        assert candidate.similarity == pytest.approx(same.similarity, abs=1e-6)
        for name in ("title", "surface", "metadata"):
            assert getattr(candidate, name) == getattr(same, name)
    assert len(exact) == len(allowed)


def test_the_share_in_past_queries_is_that_among_all_that_the_evidence_finds(
    folder: Path, decoded: list[Decoded]
) -> None:
    setting = Setting(folder, has_fit=False)
    ids = dict(zip(("E9", "E40"), setting.index.entities.numbers(["E9", "E40"]).tolist(), strict=True))
    decoded.clear()
    places = [setting.proposed(RetrieveRequest("texas", shortlist_size=99)).index(n) for n in ids.values()]
    # One of the two is proposed, and the other one is left to the decoder.
    request = RetrieveRequest("texas", k=200, shortlist_size=max(places), beam_size=400)
    (result,) = setting.answer(request)
    assert set(ids.values()) <= {*setting.proposed(request), *decoded[0].entities}
    same = setting.features(request, list(ids.values()))[:, FEATURE_NUMBER["queries.same"]]
    assert same.tolist() == [0.25, 0.75]
    check_ranked(setting, request, result, setting.scored(request, decoded[0]))


@pytest.mark.parametrize("size", [4, 200])
@pytest.mark.parametrize(
    "options", [{}, {"temperature": 2.0}, {"adaptive": True}, {"min_mass": 1.0}, {"min_mass": 0.0}]
)
def test_neither_the_order_nor_what_is_scored_changes_what_disc_says_of_the_mass(
    setting: Setting, options: dict[str, Any], size: int
) -> None:
    alone = RetrieveRequest("texas", k=130, method="disc", seed=7, num_samples=8, **options)
    request = replace(alone, method="auto", decoder="disc", shortlist_size=size)
    drawn, ranked, ordered = setting.answer(alone, request, replace(request, vector_weight=0.0))
    assert (ordered.method, ordered.seed) == ("auto", 7)
    assert ranked.abstained == (options.get("min_mass") == 1.0) == (not ranked.candidates)
    own = {"candidates": (), "certified": None, "nothing_fits": None}
    assert replace(without_costs(ranked), **own) == replace(without_costs(ordered), **own)
    found = {c.entity_id for c in ranked.candidates}
    assert found == {c.entity_id for c in ordered.candidates}
    if size == 200:  # everything is scored, so that its probability is known
        mass = setting.oracle(request).mass()
        assert ordered.mass == ordered.mass_lower == ordered.mass_upper == pytest.approx(mass, rel=1e-4)
        assert (ordered.mass_stderr, ordered.num_draws, ordered.certified) == (0.0, 0, True)
        return
    assert ordered.certified is None
    for name in ("mass", "mass_stderr", "mass_upper", "num_draws", "num_accepted"):
        assert getattr(ordered, name) == getattr(drawn, name), name
    assert ordered.mass_lower >= drawn.mass_lower
    assert {c.entity_id for c in drawn.candidates} <= found or ordered.abstained


@pytest.mark.parametrize(
    "options",
    [{"exact": True}, {"aggregate": "sum"}, {"aggregate": "max"}, {"length_penalty": 0.7}],
)
@pytest.mark.parametrize("size", [5, 200])
def test_a_request_with_an_order_of_its_own_gets_that(
    setting: Setting, options: dict[str, Any], size: int
) -> None:
    request = RetrieveRequest("nile river", k=30, shortlist_size=size, beam_size=400, **options)
    (result,) = setting.answer(request)
    oracle, told = setting.oracle(request), setting.oracle(request).numbers(result.candidates)
    assert result.certified is True
    order = {"aggregate": request.aggregation, "length_penalty": request.length_penalty}
    oracle.assert_is_ranking(told, 30, **order, tolerance=1e-4)
    assert result.nothing_fits is None
    assert not any(candidate.shares for candidate in result.candidates)
    surfaces = [oracle.surface(number, request.length_penalty) for number in told]
    assert [candidate.surface for candidate in result.candidates] == surfaces


@pytest.mark.parametrize("decoder", ["beam", "disc"])
@pytest.mark.parametrize("size", [3, 200])
def test_an_explanation_has_the_ranks_of_the_ranked_list(setting: Setting, decoder: str, size: int) -> None:
    request = RetrieveRequest("mercury planett", decoder=decoder, seed=1, num_samples=4, shortlist_size=size)
    alone = replace(request, method=decoder, decoder=None, shortlist_size=None, explain=True)
    plain, explained, decoded = setting.answer(request, replace(request, explain=True), alone)
    assert explained.explanation.draws == decoded.explanation.draws
    assert [replace(node, candidate_rank=None) for node in explained.explanation.nodes] == [
        replace(node, candidate_rank=None) for node in decoded.explanation.nodes
    ]
    assert replace(
        without_costs(explained), explanation=None, num_nodes=plain.num_nodes, num_draws=0
    ) == replace(without_costs(plain), num_draws=0)
    ranks = {n.candidate_rank for n in explained.explanation.nodes if n.candidate_rank is not None}
    assert ranks
    assert ranks <= set(range(1, len(explained.candidates) + 1))
    texts = {}
    for node in explained.explanation.nodes:
        texts[len(texts)] = "" if node.parent is None else texts[node.parent] + node.text
        if node.candidate_rank is not None:
            named = explained.candidates[node.candidate_rank - 1]
            entity = setting.index.entity_by_id(named.entity_id)
            assert texts[len(texts) - 1].removesuffix(END).strip() in (entity.title, *entity.aliases)


def test_a_mixed_batch_answers_each_as_if_alone(setting: Setting) -> None:
    options: list[dict[str, Any]] = [
        {},
        {"method": "shortlist", "shortlist_size": 3},
        {"shortlist_size": 4, "k": 3},
        {"method": "beam"},
        {"method": "beam", "filter": "fame > 50"},
        {"method": "beam", "filter": "kind = 'a'", "deny_ids": ("E2", "E4")},
        {"method": "disc", "seed": 3},
        {"method": "disc", "seed": 4, "filter": "kind = 'b'"},
        {"decoder": "disc", "seed": 3, "shortlist_size": 2},
        {"exact": True},
        {"vector_weight": 2.0, "shortlist_size": 2},
        {"filter": "kind = 'a'"},
        {"shortlist_size": 5, "filter": "fame > 50"},
        {"allow_ids": ()},
        {"shortlist_query": "texas", "prompt": "mention"},
        {"explain": True},
        {"method": "shortlist"},
        {"method": "shortlist", "allow_ids": ()},
        {"shortlist_size": 4, "k": 3, "filter": "kind != 'a'", "vector_weight": 3.0},
    ]
    requests = [RetrieveRequest(QUESTIONS[n % 6], **fields) for n, fields in enumerate(options)]
    together = setting.answer(*requests)
    for request, reply in zip(requests, together, strict=True):
        (alone,) = setting.answer(request)
        assert without_costs(alone) == without_costs(reply)


def damaged(folder: Path, place: Path, kinds: Sequence[str]) -> Path:
    """Return a copy of an index in which the files of some evidence differ from the manifest."""
    copy = place / "damaged"
    shutil.copytree(folder, copy)
    for kind in kinds:
        (file,) = (copy / "versions").glob(f"*/{kind}.*")
        flip(file)
    return copy


@pytest.mark.parametrize(
    "kinds", [["names"], ["texts"], ["queries"], ["vectors"], ["ranking"], ["names", "ranking", "vectors"]]
)
def test_an_answer_goes_without_evidence_that_is_damaged(
    folder: Path, tmp_path: Path, decoded: list[Decoded], kinds: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    setting = Setting(damaged(folder, tmp_path, kinds))
    assert sorted(setting.ranker.problems) == sorted(kinds)
    assert len(caplog.records) == len(kinds)
    for problem in setting.ranker.problems.values():
        assert isinstance(problem, IndexChecksumError)
    request = RetrieveRequest("texas", k=200)
    decoded.clear()
    (result,) = setting.answer(request)
    assert result.missing_evidence == tuple(sorted(kinds))
    for candidate in result.candidates:
        assert not set(candidate.shares) & set(kinds)
        assert (candidate.similarity is None) == ("vectors" in kinds)
    check_ranked(setting, request, result, setting.scored(request, decoded[0]))
    (listed,) = setting.answer(replace(request, method="shortlist", shortlist_size=9))
    assert listed.missing_evidence == tuple(sorted(kinds))
    assert len(listed.candidates) == 9


def test_without_any_evidence_left_auto_is_its_decoder(
    setting: Setting, folder: Path, tmp_path: Path
) -> None:
    broken = Setting(damaged(folder, tmp_path, ["names", "texts", "queries", "vectors"]))
    asked = [RetrieveRequest("texas", k=4), RetrieveRequest("texas", k=4, decoder="disc", seed=2)]
    missing = ("names", "queries", "texts", "vectors")
    for request, result in zip(asked, broken.answer(*asked), strict=True):
        (alone,) = setting.answer(replace(request, method=request.decoding, decoder=None))
        assert replace(without_costs(result), missing_evidence=()) == without_costs(alone)
        assert result.missing_evidence == missing
    (few,) = broken.answer(RetrieveRequest("texas", filter="fame > 50"))
    assert (few.method, few.certified, few.nothing_fits) == ("auto", True, None)
    assert few.missing_evidence == missing
    with pytest.raises(IndexChecksumError):
        broken.retriever.retrieve("texas", method="shortlist")
    (beam,) = broken.answer(RetrieveRequest("texas", method="beam"))
    assert beam.missing_evidence == ()
