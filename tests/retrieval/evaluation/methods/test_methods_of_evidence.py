"""Methods that ask the evidence of an index: what they list, in which order, and what they need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from genret.index_builder.build_options import EvidenceOptions, VectorBuildOptions
from genret.retrieval.errors import IndexChecksumError, InputError, ModelError
from genret.retrieval.evaluation.evaluate_command import _default_methods
from genret.retrieval.evaluation.labelled_sets import LabelledQuery, RankedAnswers
from genret.retrieval.evaluation.methods.evaluated_method import DEFAULT_METHODS
from genret.retrieval.index.reader import Index
from genret.retrieval.ranking.ranker import Ranker
from genret.retrieval.retriever import Retriever
from genret.retrieval.vectors.embedder import VectorMethod
from tests.checkpoints import make_checkpoint, make_index
from tests.evaluation_fixtures import answered, make_method, mention_set, query_set
from tests.fake_vectors import MadeUpVectors
from tests.fakes import likely_titles

QUERIES = (*query_set().queries, *mention_set().queries)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retriever]:
    """A retriever without evidence."""
    folder = tmp_path_factory.mktemp("bare")
    checkpoint = make_checkpoint(folder / "model", "llama")
    with Retriever.open(make_index(folder, checkpoint, evidence=None), checkpoint) as opened:
        yield opened


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory, bare: Retriever) -> Iterator[Retriever]:
    """A retriever with evidence by words."""
    folder = tmp_path_factory.mktemp("words")
    index = Index.open(make_index(folder, bare.tokenizer, rendering=bare.config.rendering))
    model, ranker = likely_titles(index), Ranker.open(index)
    with Retriever(index, model, bare.tokenizer, bare.config, ranker=ranker) as opened:
        yield opened


@pytest.fixture
def vectors(bare: Retriever) -> MadeUpVectors:
    return MadeUpVectors.of(bare.index)


@pytest.fixture
def retriever(bare: Retriever, vectors: MadeUpVectors) -> Retriever:
    model = likely_titles(bare.index)
    return Retriever(bare.index, model, bare.tokenizer, bare.config, ranker=vectors.opened())


def answer(
    retriever: Retriever,
    name: str,
    queries: tuple[LabelledQuery, ...] = QUERIES,
    seed: int = 0,
    batch_size: int = 4,
    k: int = 10,
) -> list[RankedAnswers]:
    return make_method(name, retriever, k=k, batch_size=batch_size).answer(queries, seed, lambda _: None)


@pytest.mark.parametrize(
    ("name", "k", "listed"), [("vectors", 5, 5), ("vectors:3", 10, 3), ("vectors:1", 1, 1)]
)
def test_vectors_alone_rank_by_similarity(
    retriever: Retriever, vectors: MadeUpVectors, name: str, k: int, listed: int
) -> None:
    for query, ranking in zip(QUERIES, answer(retriever, name, k=k), strict=True):
        alike = vectors.all_similarities(query.text)
        order = sorted(range(len(alike)), key=lambda number: -alike[number])[:listed]
        expected = [(e.entity_id, e.title) for e in map(retriever.index.entity, order)]
        assert [(e.entity_id, e.title) for e in ranking.entities] == expected
        assert [e.score for e in ranking.entities] == alike[order].tolist()
        assert ranking.error is None
        assert ranking.seconds > 0


@pytest.mark.parametrize("name", ["vectors", "shortlist:3", "auto:3+weight:2"])
def test_batches_change_no_answer(retriever: Retriever, name: str) -> None:
    alone = answered(answer(retriever, name, batch_size=1))
    backwards = answered(answer(retriever, name, QUERIES[::-1], batch_size=3))
    assert alone == backwards[::-1]


def test_nothing_is_like_no_words(retriever: Retriever) -> None:
    queries = (LabelledQuery("a", "nile"), LabelledQuery("b", " "), LabelledQuery("c", "\t"))
    sizes = [len(ranking.entities) for ranking in answer(retriever, "vectors", queries)]
    assert sizes == [10, 0, 0]
    assert answered(answer(retriever, "vectors", queries[1:])) == [(), ()]


def test_a_shortlist_holds_what_the_vectors_propose(retriever: Retriever) -> None:
    proposed = answered(answer(retriever, "vectors:3"))
    listed = answered(answer(retriever, "shortlist:3"))
    assert [set(ids) for ids in listed] == [set(ids) for ids in proposed]
    assert listed != proposed
    # A weight that no log-probability comes up to leaves the order of the vectors.
    assert answered(answer(retriever, "shortlist:3+weight:1000")) == proposed


def test_auto_ranks_what_beams_and_vectors_find(retriever: Retriever) -> None:
    both = answer(retriever, "auto:3+weight:0", k=100)
    listed = answered(both)
    for found in (answer(retriever, "shortlist:3"), answer(retriever, "beam", k=10)):
        assert all(set(some) <= set(every) for some, every in zip(answered(found), listed, strict=True))
    for ranking in both:
        logprobs = [entity.logprob for entity in ranking.entities if entity.logprob is not None]
        assert len(logprobs) == len(ranking.entities)
        assert logprobs == sorted(logprobs, reverse=True)


def test_auto_by_disc_draws(retriever: Retriever) -> None:
    method = make_method("auto:1+disc", retriever, k=10, batch_size=4)
    assert method.is_random
    passes = [answered(method.answer(QUERIES, seed, lambda _: None)) for seed in (0, 0, 1, 2)]
    assert passes[0] == passes[1]
    assert any(found != passes[0] for found in passes[2:])
    assert not make_method("auto", retriever, 10, 4).is_random


def test_of_a_mention_its_words_are_asked(retriever: Retriever, vectors: MadeUpVectors) -> None:
    words = sorted(query.text for query in mention_set().queries)
    for name in ("vectors", "shortlist:3", "auto:3"):
        vectors.asked.clear()
        answer(retriever, name, mention_set().queries)
        assert sorted(text for texts in vectors.asked for text in texts) == words


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vectors", "'vectors' needs vectors: the index has none"),
        ("vectors:100", "'vectors:100' needs vectors: the index has none"),
        ("evidence", "'evidence' needs evidence: .*has no evidence"),
        ("shortlist:11", "'shortlist:11' needs evidence: .*has no evidence"),
        ("auto:11", "'auto:11' needs evidence: .*has no evidence"),
    ],
)
def test_what_needs_evidence_says_so(bare: Retriever, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        make_method(name, bare, 10, 4)
    assert refused.value.field == "method"


@pytest.mark.parametrize("name", ["evidence", "shortlist:11", "auto:11+disc"])
def test_what_would_go_without_evidence_that_the_index_has_says_so(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(retriever.ranker.problems, "names", IndexChecksumError("names.arrow", "differs"))
    with pytest.raises(InputError, match=r"needs evidence: names\.arrow: differs"):
        make_method(name, retriever, 10, 4)


def test_evidence_alone_ranks_by_the_weights_without_a_model(
    words: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words.model, "prefill", None)
    ranker = words.ranker
    for query, ranking in zip(QUERIES, answer(words, "evidence:9", k=3), strict=True):
        (asked,) = ranker.evidence.ask([query.text])
        numbers = ranker.evidence.propose(asked, 50)
        scores = ranker.alone.rank(ranker.evidence.features(asked, numbers)).scores
        best = sorted(zip(-scores, numbers.tolist(), strict=True))[:3]
        assert [e.entity_id for e in ranking.entities] == [words.index.entity(n).entity_id for _, n in best]
        assert [e.score for e in ranking.entities] == pytest.approx([-score for score, _ in best])
        assert all(e.logprob is None for e in ranking.entities)
    assert answered(answer(words, "evidence", (LabelledQuery("b", " "),))) == [()]
    assert [len(ids) for ids in answered(answer(words, "evidence:2"))] == [2] * len(QUERIES)


def test_a_query_that_nothing_is_found_for_tells_why(
    retriever: Retriever, vectors: MadeUpVectors, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed = vectors.embed

    def failing(texts: Sequence[str]) -> Any:
        if "Paris" in texts:
            raise ModelError("models/odd: the encoder fails")
        return embed(texts)

    monkeypatch.setattr(vectors, "embed", failing)
    rankings = answer(retriever, "evidence")
    for query, ranking in zip(QUERIES, rankings, strict=True):
        failed = query.text == "Paris"
        assert ranking.error == ("models/odd: the encoder fails" if failed else None)
        assert (not ranking.entities) == failed


def test_auto_answers_in_the_order_of_the_ranking(words: Retriever) -> None:
    for query, ranking in zip(QUERIES[:6], answer(words, "auto"), strict=False):
        (found,) = words.retrieve(query.text, k=10)
        assert found.nothing_fits is not None
        assert [e.entity_id for e in ranking.entities] == [c.entity_id for c in found.candidates]
        expected = [c.score for c in found.candidates]
        assert [e.score for e in ranking.entities] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("evidence", "has_vectors", "added"),
    [
        (None, False, ()),
        (EvidenceOptions(), False, ("evidence", "shortlist", "auto")),
        (EvidenceOptions(), True, ("evidence", "shortlist", "auto", "vectors")),
        (None, True, ("evidence", "shortlist", "auto", "vectors")),
    ],
)
def test_methods_that_are_asked_by_default_go_with_the_evidence(
    bare: Retriever,
    trigrams: VectorMethod,
    tmp_path: Path,
    evidence: EvidenceOptions | None,
    has_vectors: bool,
    added: tuple[str, ...],
) -> None:
    vectors = VectorBuildOptions(trigrams) if has_vectors else None
    made = {"rendering": bare.config.rendering, "evidence": evidence, "vectors": vectors}
    index = make_index(tmp_path, bare.tokenizer, **made)  # type: ignore[arg-type]
    assert _default_methods(str(index)) == (*DEFAULT_METHODS, *added)


@pytest.mark.parametrize("name", ["shortlist", "shortlist:12", "auto"])
def test_where_all_entities_are_scored_no_evidence_is_needed(bare: Retriever, name: str) -> None:
    listed = answer(bare, name, k=100)
    assert all(len(ranking.entities) == bare.index.num_entities for ranking in listed)
