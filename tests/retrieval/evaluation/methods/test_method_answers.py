"""Methods on tiny models of both kinds: what they may answer, in which order, and from which seed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from genret.retrieval.errors import InputError
from genret.retrieval.evaluation.labelled_sets import LabelledQuery, RankedAnswers
from genret.retrieval.evaluation.methods.evaluated_method import MethodMaker
from genret.retrieval.prompts import PromptTemplate
from genret.retrieval.retriever import Retriever
from genret.retrieval.types import Mention
from tests.checkpoints import make_checkpoint, make_index
from tests.evaluation_fixtures import answered, make_method, mention_set, query_set
from tests.fakes import likely_titles

DISC = ("disc:1", "disc:3", "disc:2x2", "disc:2/4", "disc:2+adaptive", "disc:2+top:5")
CONSTRAINED = ("trie", *DISC, "beam", "beam:2", "exact", "bm25-shortlist", "bm25-shortlist:1", "bm25")
FREE = ("unconstrained", "unconstrained:1", "unconstrained:4")
QUERIES = (*query_set().queries, *mention_set().queries)


@pytest.fixture(scope="module", params=["llama", "bart"])
def retriever(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Retriever]:
    folder = tmp_path_factory.mktemp(request.param)
    checkpoint = make_checkpoint(folder / "model", request.param)
    with Retriever.open(make_index(folder, checkpoint), checkpoint) as opened:
        yield opened


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


def answer(
    retriever: Retriever,
    name: str,
    queries: tuple[LabelledQuery, ...] = QUERIES,
    seed: int = 0,
    batch_size: int = 4,
    report: Callable[[int], None] = lambda _: None,
) -> list[RankedAnswers]:
    return make_method(name, retriever, k=10, batch_size=batch_size).answer(queries, seed, report)


@pytest.mark.parametrize("name", [*CONSTRAINED, *FREE])
def test_one_ranking_per_query_in_order(retriever: Retriever, name: str) -> None:
    counts: list[int] = []
    rankings = answer(retriever, name, report=counts.append)
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
                assert known is not None
                assert known.title == entity.title


@pytest.mark.parametrize("name", FREE)
def test_free_text_counts_only_as_a_title_or_an_alias(
    retriever: Retriever, passes: Passes, name: str
) -> None:
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
    alone = answered(answer(retriever, name, batch_size=1))
    together = answered(answer(retriever, name, batch_size=len(QUERIES)))
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
    assert limit is not None
    text = "the quick brown fox " * 100
    asked = QueryPrompts(retriever).ask(LabelledQuery("q", text), RetrieveRequest("?"))
    assert text.startswith(asked.request.query)
    assert len(asked.prompt) == limit


def test_a_shortlist_of_bm25_holds_what_bm25_proposes(retriever: Retriever) -> None:
    proposed = make_method("bm25", retriever, k=3, batch_size=4).answer(QUERIES, 0, lambda _: None)
    listed = answer(retriever, "bm25-shortlist:3")
    assert list(map(set, answered(proposed))) == list(map(set, answered(listed)))


@pytest.mark.parametrize("name", ["unconstrained", "trie", "disc:1", "beam", "bm25-shortlist"])
def test_the_time_of_a_query_begins_with_its_text(
    retriever: Retriever, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = make_method(name, retriever, k=10, batch_size=1)
    encode = PromptTemplate.encode

    def slow(*arguments: object) -> list[int]:
        time.sleep(0.3)
        return encode(*arguments)  # type: ignore[arg-type]

    method.answer(QUERIES[:1], 0, lambda _: None)
    monkeypatch.setattr(PromptTemplate, "encode", slow)
    assert method.answer(QUERIES[:1], 0, lambda _: None)[0].seconds > 0.3


def test_what_free_text_is_looked_up_in_is_made_before_the_clock_runs(retriever: Retriever) -> None:
    maker = MethodMaker(retriever, 10, 4)
    maker.make("unconstrained").answer((), 0, lambda _: None)
    assert {"_titles", "_aliases"} <= set(vars(maker.titles))


def test_a_shortlist_pays_for_its_filters_in_every_pass(retriever: Retriever) -> None:
    retriever.filters.clear()
    made = []
    for _ in range(2):
        before = retriever.filters.stats.misses
        answer(retriever, "bm25-shortlist:3")
        made.append(retriever.filters.stats.misses - before)
    assert made[0] == made[1] > 0


def test_mentions_are_asked_by_their_template(retriever: Retriever) -> None:
    mention = mention_set().queries[0].mention
    assert mention is not None
    (linked,) = retriever.link([mention], k=10, method="beam")
    ours = answered(answer(retriever, "beam", mention_set().queries[:1]))
    assert ours == [tuple(candidate.entity_id for candidate in linked.candidates)]


def test_generate_needs_a_model_of_transformers(retriever: Retriever) -> None:
    fake = Retriever(retriever.index, likely_titles(retriever.index), retriever.tokenizer, retriever.config)
    assert len(answer(fake, "disc:2")) == len(answer(fake, "bm25")) == len(QUERIES)
    with pytest.raises(InputError, match="'trie' needs a model of transformers"):
        make_method("trie", fake, 10, 4)
