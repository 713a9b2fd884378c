"""Methods of an evaluation: their names, what they may answer, in which order, and from which seed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genret.index_builder.build_options import EvidenceOptions, VectorBuildOptions
from genret.retrieval.errors import IndexChecksumError, InputError, ModelError
from genret.retrieval.evaluation.evaluate_command import DEFAULT_METHODS, _default_methods
from genret.retrieval.evaluation.labelled_sets import LabelledQuery, RankedAnswers
from genret.retrieval.evaluation.methods.evaluated_method import MethodMaker, MethodSpec
from genret.retrieval.index.reader import Index
from genret.retrieval.prompts import PromptTemplate
from genret.retrieval.ranking.ranker import Ranker
from genret.retrieval.retriever import Retriever
from genret.retrieval.types import Mention
from genret.retrieval.vectors.embedder import VectorMethod
from tests.checkpoints import make_checkpoint, make_index
from tests.evaluation_sets import answer, answered, mention_set, query_set
from tests.fake_vectors import MadeUpVectors
from tests.fakes import likely_titles


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("unconstrained", MethodSpec("unconstrained", "unconstrained")),
        ("unconstrained:5", MethodSpec("unconstrained:5", "unconstrained", beams=5)),
        ("trie", MethodSpec("trie", "trie")),
        ("greedy", MethodSpec("greedy", "greedy", beams=1)),
        ("disc:4+adaptive", MethodSpec("disc:4+adaptive", "disc", draws=4, adaptive=True)),
        ("beam", MethodSpec("beam", "beam")),
        ("beam:20", MethodSpec("beam:20", "beam", beams=20)),
        ("exact", MethodSpec("exact", "exact")),
        ("evidence", MethodSpec("evidence", "evidence", size=100)),
        ("vectors", MethodSpec("vectors", "vectors", size=100)),
        ("bm25-shortlist", MethodSpec("bm25-shortlist", "bm25-shortlist", size=50)),
        ("bm25-shortlist:7", MethodSpec("bm25-shortlist:7", "bm25-shortlist", size=7)),
        ("bm25", MethodSpec("bm25", "bm25")),
        ("run:a:b.run", MethodSpec("run:a:b.run", "run", file="a:b.run")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_name_means(text: str, expected: MethodSpec) -> None:
    assert MethodSpec.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected one of unconstrained"),
        ("dics:2", "got 'dics:2'"),
        ("disc", "expected one of"),
        ("disc:", "expected one of"),
        ("disc:2+fast", "expected one of"),
        ("trie:3", "expected one of"),
        ("run:", "expected one of"),
        ("disc:0", r"K must be in \[1, 256\], got 0"),
        ("disc:2/257", r"SAMPLES must be in \[1, 256\], got 257"),
        ("disc:2x65", r"BEAMS must be in \[1, 64\], got 65"),
        ("beam:1001", r"BEAMS must be in \[1, 1,000\], got 1001"),
        ("bm25-shortlist:0", r"N must be in \[1, 10,000\], got 0"),
        ("bm25-shortlist+weight:1", "bm25-shortlist takes no weight"),
        ("shortlist:2001", r"N must be in \[1, 2,000\], got 2001"),
        ("shortlist+disc", "shortlist takes no disc"),
        ("shortlist+weight:-1", "expected one of"),
        ("shortlist+weight:", "expected one of"),
        ("shortlist+weight:1000.5", r"W must be in \[0, 1,000\], got 1000.5"),
        ("auto+weight:1+weight:2", "says the same twice"),
        ("auto+beam", "expected one of"),
        ("disc:2+top:0", "M must be in"),
        ("disc:2+top:5+top:6", "says the same twice"),
        ("disc:2x2+adaptive", "adaptive excludes"),
        ("disc:2+adaptive+top:5", "adaptive excludes"),
    ],
)
def test_refusals_name_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(InputError, match=f"^method: .*{message}"):
        MethodSpec.parse(text)


@given(
    draws=st.integers(1, 256),
    beams=st.none() | st.integers(1, 64),
    samples=st.none() | st.integers(1, 256),
    top=st.none() | st.integers(1, 10_000),
)
def test_every_setting_of_disc_is_read_back(
    draws: int, beams: int | None, samples: int | None, top: int | None
) -> None:
    text = f"disc:{draws}"
    text += "" if beams is None else f"x{beams}"
    text += "" if samples is None else f"/{samples}"
    text += "" if top is None else f"+top:{top}"
    expected = MethodSpec(text, "disc", beams=beams, draws=draws, samples=samples or 1, top_m=top)
    assert MethodSpec.parse(text) == expected


@given(
    family=st.sampled_from(["shortlist", "auto", "auto+disc"]),
    size=st.none() | st.integers(1, 2000),
    weight=st.none() | st.decimals(0, 1000, places=3),
)
def test_settings_of_a_shortlist_are_read_back(family: str, size: int | None, weight: Decimal | None) -> None:
    name, plus, decoder = family.partition("+")
    text = name + ("" if size is None else f":{size}") + plus + decoder
    text += "" if weight is None else f"+weight:{weight}"
    size = size or {"shortlist": 100, "auto": 0}[name]
    number = None if weight is None else float(weight)
    assert MethodSpec.parse(text) == MethodSpec(text, name, size=size, weight=number, decoder=decoder or None)


DISC = ("disc:1", "disc:3", "disc:2x2", "disc:2/4", "disc:2+adaptive", "disc:2+top:5")
CONSTRAINED = (
    "trie",
    "greedy",
    *DISC,
    "beam",
    "beam:2",
    "exact",
    "bm25-shortlist",
    "bm25-shortlist:1",
    "bm25",
)
FREE = ("unconstrained", "unconstrained:1", "unconstrained:4")
QUERIES = (*query_set().queries, *mention_set().queries)


class Passes:
    """What methods answer to QUERIES from a seed, once for all tests that look at it."""

    def __init__(self, retriever: Retriever) -> None:
        self.maker = MethodMaker(retriever, 10, 4)
        self.method = cache(self.maker.make)
        self.of = cache(self.again)

    def again(self, name: str, seed: int) -> list[RankedAnswers]:
        return self.method(name).answer(QUERIES, seed, lambda _: None)


@pytest.fixture(scope="module")
def passes(retriever: Retriever) -> Passes:
    return Passes(retriever)


@pytest.mark.parametrize("name", [*CONSTRAINED, *FREE])
def test_one_ranking_per_query_in_order(retriever: Retriever, name: str) -> None:
    counts: list[int] = []
    rankings = answer(retriever, name, QUERIES, report=counts.append)
    assert [ranking.query_id for ranking in rankings] == [query.query_id for query in QUERIES]
    assert counts == sorted(counts)
    assert counts[-1] == len(QUERIES)
    for ranking in rankings:
        assert ranking.error is None
        assert ranking.seconds > 0
        scores = [entity.score for entity in ranking.entities]
        assert scores == sorted(scores, reverse=True)
        assert len({entity.entity_id for entity in ranking.entities}) == len(ranking.entities) <= 10


@pytest.mark.parametrize("name", CONSTRAINED)
def test_constrained_methods_answer_what_exists(retriever: Retriever, passes: Passes, name: str) -> None:
    assert passes.method(name).is_constrained
    for seed in range(3):
        for ranking in passes.of(name, seed):
            for entity in ranking.entities:
                known = retriever.index.entity_by_id(entity.entity_id)
                assert known.title == entity.title


@pytest.mark.parametrize("name", FREE)
def test_free_text_counts_as_a_title_or_an_alias(retriever: Retriever, passes: Passes, name: str) -> None:
    assert not passes.method(name).is_constrained
    num_invalid = 0
    for seed in range(3):
        for ranking in passes.of(name, seed):
            for entity in ranking.entities:
                if entity.is_valid:
                    assert retriever.index.entity_by_id(entity.entity_id) is not None
                else:
                    num_invalid += 1
                    assert passes.maker.titles.named(entity.title, 1.0).entities == []
                    assert entity.entity_id == f"invalid:{entity.title}"
    assert num_invalid  # a random model writes no titles, so that there was something to look at


@pytest.mark.parametrize("name", [*CONSTRAINED, *FREE])
def test_a_seed_gives_one_answer(passes: Passes, name: str) -> None:
    is_random = passes.method(name).is_random
    first, *others = (answered(passes.of(name, seed)) for seed in range(4 if is_random else 2))
    assert answered(passes.again(name, 0)) == first
    if not is_random:
        assert all(found == first for found in others)
    elif name != "disc:2/4":  # whose lists hold nearly all that exists
        assert any(found != first for found in others)


@pytest.mark.parametrize("name", ["disc:2", "disc:2/4", "beam", "exact", "bm25-shortlist", "bm25"])
def test_batches_change_no_answer(retriever: Retriever, name: str) -> None:
    alone = answered(answer(retriever, name, QUERIES, batch_size=1))
    together = answered(answer(retriever, name, QUERIES, batch_size=len(QUERIES)))
    backwards = answered(answer(retriever, name, QUERIES[::-1], batch_size=3))
    assert alone == together == backwards[::-1]


def test_queries_draw_independently(retriever: Retriever) -> None:
    same = tuple(LabelledQuery(f"q{i}", "the prince of denmark") for i in range(40))
    assert len(set(answered(answer(retriever, "disc:1", same)))) > 1


@pytest.mark.parametrize("name", ["unconstrained", "trie", "disc:2", "beam", "bm25-shortlist", "bm25"])
def test_long_queries_lose_their_end_and_empty_ones_are_errors(retriever: Retriever, name: str) -> None:
    long = "prince of denmark " * 500
    queries = (
        LabelledQuery("short", "prince of denmark"),
        LabelledQuery("long", long),
        LabelledQuery("marked", "x" * 5000, Mention("x" * 5000, left="a " * 5000, right="b " * 5000)),
        LabelledQuery("empty", " "),
    )
    rankings = answer(retriever, name, queries)
    assert [ranking.query_id for ranking in rankings] == ["short", "long", "marked", "empty"]
    assert [ranking.error for ranking in rankings[:3]] == [None, None, None]
    if name == "bm25":  # nothing is asked of a model, so nothing is wrong with no words
        assert (rankings[3].entities, rankings[3].error) == ((), None)
    else:
        assert rankings[3].error == "query: must not be empty"


def test_a_cut_query_is_the_longest_beginning_that_fits(retriever: Retriever) -> None:
    from genret.retrieval.evaluation.methods.retriever_methods import QueryPrompts
    from genret.retrieval.loaded_model import Limits
    from genret.retrieval.types import RetrieveRequest

    limit = Limits.of(retriever.model).prompt_tokens(retriever.trie.max_depth)
    text = "the quick brown fox " * 100
    asked = QueryPrompts(retriever).ask(LabelledQuery("q", text), RetrieveRequest("?"))
    assert text.startswith(asked.request.query)
    assert len(asked.prompt) == limit


def test_a_shortlist_of_bm25_holds_what_bm25_proposes(retriever: Retriever) -> None:
    proposed = answer(retriever, "bm25", QUERIES, k=3)
    listed = answer(retriever, "bm25-shortlist:3", QUERIES)
    assert list(map(set, answered(proposed))) == list(map(set, answered(listed)))


@pytest.mark.parametrize("name", ["unconstrained", "trie", "disc:1", "beam", "bm25-shortlist"])
def test_time_begins_with_the_text(retriever: Retriever, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = MethodMaker(retriever, 10, 1).make(name)
    encode = PromptTemplate.encode

    def slow(*arguments: object) -> list[int]:
        time.sleep(0.3)
        return encode(*arguments)  # type: ignore[arg-type]

    method.answer(QUERIES[:1], 0, lambda _: None)
    monkeypatch.setattr(PromptTemplate, "encode", slow)
    asked = LabelledQuery("fresh", f"a question to {name}")  # the tokens of one asked before are kept
    assert method.answer([asked], 0, lambda _: None)[0].seconds > 0.3


def test_what_free_text_is_looked_up_in_is_made_before_the_clock_runs(retriever: Retriever) -> None:
    maker = MethodMaker(retriever, 10, 4)
    maker.make("unconstrained").answer((), 0, lambda _: None)
    assert {"_titles", "_aliases"} <= set(vars(maker.titles))


def test_a_shortlist_pays_for_its_filters_in_every_pass(retriever: Retriever) -> None:
    retriever.filters.cache.clear()
    made = []
    for _ in range(2):
        before = retriever.filters.stats.misses
        answer(retriever, "bm25-shortlist:3", QUERIES)
        made.append(retriever.filters.stats.misses - before)
    assert made[0] == made[1] > 0


def test_mentions_are_asked_by_their_template(retriever: Retriever) -> None:
    mention = mention_set().queries[0].mention
    (linked,) = retriever.link([mention], k=10, method="beam")
    ours = answered(answer(retriever, "beam", mention_set().queries[:1]))
    assert ours == [tuple(candidate.entity_id for candidate in linked.candidates)]


def test_generate_needs_a_model_of_transformers(retriever: Retriever) -> None:
    fake = Retriever(retriever.index, likely_titles(retriever.index), retriever.tokenizer, retriever.config)
    assert len(answer(fake, "disc:2", QUERIES)) == len(answer(fake, "bm25", QUERIES)) == len(QUERIES)
    with pytest.raises(InputError, match="'trie' needs a model of transformers"):
        MethodMaker(fake, 10, 4).make("trie")


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
    return MadeUpVectors(bare.index)


@pytest.fixture
def with_vectors(bare: Retriever, vectors: MadeUpVectors) -> Retriever:
    model = likely_titles(bare.index)
    return Retriever(bare.index, model, bare.tokenizer, bare.config, ranker=vectors.opened())


@pytest.mark.parametrize(
    ("name", "k", "listed"), [("vectors", 5, 5), ("vectors:3", 10, 3), ("vectors:1", 1, 1)]
)
def test_vectors_alone_rank_by_similarity(
    with_vectors: Retriever, vectors: MadeUpVectors, name: str, k: int, listed: int
) -> None:
    for query, ranking in zip(QUERIES, answer(with_vectors, name, QUERIES, k=k), strict=True):
        alike = vectors.all_similarities(query.text)
        order = sorted(range(len(alike)), key=lambda number: -alike[number])[:listed]
        expected = [(e.entity_id, e.title) for e in map(with_vectors.index.entity, order)]
        assert [(e.entity_id, e.title) for e in ranking.entities] == expected
        assert [e.score for e in ranking.entities] == alike[order].tolist()
        assert ranking.error is None
        assert ranking.seconds > 0


@pytest.mark.parametrize("name", ["vectors", "shortlist:3", "auto:3+weight:2"])
def test_batches_change_no_answer_of_evidence(with_vectors: Retriever, name: str) -> None:
    alone = answered(answer(with_vectors, name, QUERIES, batch_size=1))
    backwards = answered(answer(with_vectors, name, QUERIES[::-1], batch_size=3))
    assert alone == backwards[::-1]


def test_nothing_is_like_no_words(with_vectors: Retriever) -> None:
    queries = (LabelledQuery("a", "nile"), LabelledQuery("b", " "), LabelledQuery("c", "\t"))
    sizes = [len(ranking.entities) for ranking in answer(with_vectors, "vectors", queries)]
    assert sizes == [10, 0, 0]
    assert answered(answer(with_vectors, "vectors", queries[1:])) == [(), ()]


def test_a_shortlist_holds_what_the_vectors_propose(with_vectors: Retriever) -> None:
    proposed = answered(answer(with_vectors, "vectors:3", QUERIES))
    listed = answered(answer(with_vectors, "shortlist:3", QUERIES))
    assert [set(ids) for ids in listed] == [set(ids) for ids in proposed]
    assert listed != proposed
    # A weight that no log-probability comes up to leaves the order of the vectors.
    assert answered(answer(with_vectors, "shortlist:3+weight:1000", QUERIES)) == proposed


def test_auto_ranks_what_beams_and_vectors_find(with_vectors: Retriever) -> None:
    both = answer(with_vectors, "auto:3+weight:0", QUERIES, k=100)
    listed = answered(both)
    for name in ("shortlist:3", "beam"):
        found = answered(answer(with_vectors, name, QUERIES))
        assert all(set(some) <= set(every) for some, every in zip(found, listed, strict=True))
    for ranking in both:
        logprobs = [entity.logprob for entity in ranking.entities if entity.logprob is not None]
        assert len(logprobs) == len(ranking.entities)
        assert logprobs == sorted(logprobs, reverse=True)


def test_auto_by_disc_draws(with_vectors: Retriever) -> None:
    maker = MethodMaker(with_vectors, 10, 4)
    assert maker.make("auto:1+disc").is_random
    passes = [answered(answer(with_vectors, "auto:1+disc", QUERIES, seed)) for seed in (0, 0, 1, 2)]
    assert passes[0] == passes[1]
    assert any(found != passes[0] for found in passes[2:])
    assert not maker.make("auto").is_random


def test_of_a_mention_its_words_are_asked(with_vectors: Retriever, vectors: MadeUpVectors) -> None:
    words = sorted(query.text for query in mention_set().queries)
    for name in ("vectors", "shortlist:3", "auto:3"):
        vectors.asked.clear()
        answer(with_vectors, name, mention_set().queries)
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
    with pytest.raises(InputError, match=f"^method: .*{message}"):
        MethodMaker(bare, 10, 4).make(name)


@pytest.mark.parametrize("name", ["evidence", "shortlist:11", "auto:11+disc"])
def test_what_would_go_without_evidence_that_the_index_has_says_so(
    with_vectors: Retriever, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(with_vectors.ranker.problems, "names", IndexChecksumError("names.arrow", "differs"))
    with pytest.raises(InputError, match=r"needs evidence: names\.arrow: differs"):
        MethodMaker(with_vectors, 10, 4).make(name)


def test_evidence_alone_ranks_without_a_model(words: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words.model, "prefill", None)
    ranker = words.ranker
    for query, ranking in zip(QUERIES, answer(words, "evidence:9", QUERIES, k=3), strict=True):
        (asked,) = ranker.evidence.ask([query.text])
        numbers = ranker.evidence.propose(asked, 50)
        scores = ranker.alone.rank(ranker.evidence.features(asked, numbers)).scores
        best = sorted(zip(-scores, numbers.tolist(), strict=True))[:3]
        assert [e.entity_id for e in ranking.entities] == [words.index.entity(n).entity_id for _, n in best]
        assert [e.score for e in ranking.entities] == pytest.approx([-score for score, _ in best])
        assert all(e.logprob is None for e in ranking.entities)
    assert answered(answer(words, "evidence", (LabelledQuery("b", " "),))) == [()]
    assert [len(ids) for ids in answered(answer(words, "evidence:2", QUERIES))] == [2] * len(QUERIES)


def test_a_query_that_nothing_is_found_for_tells_why(
    with_vectors: Retriever, vectors: MadeUpVectors, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed = vectors.embed

    def failing(texts: Sequence[str]) -> Any:
        if "Paris" in texts:
            raise ModelError("models/odd: the encoder fails")
        return embed(texts)

    monkeypatch.setattr(vectors, "embed", failing)
    rankings = answer(with_vectors, "evidence", QUERIES)
    for query, ranking in zip(QUERIES, rankings, strict=True):
        failed = query.text == "Paris"
        assert ranking.error == ("models/odd: the encoder fails" if failed else None)
        assert (not ranking.entities) == failed


def test_auto_answers_in_the_order_of_the_ranking(words: Retriever) -> None:
    for query, ranking in zip(QUERIES[:6], answer(words, "auto", QUERIES), strict=False):
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
    assert _default_methods(str(index)) == (*DEFAULT_METHODS.split(), *added)


@pytest.mark.parametrize("name", ["shortlist", "shortlist:12", "auto"])
def test_where_all_entities_are_scored_no_evidence_is_needed(bare: Retriever, name: str) -> None:
    listed = answer(bare, name, QUERIES, k=100)
    assert all(len(ranking.entities) == bare.index.num_entities for ranking in listed)
