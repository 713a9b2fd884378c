"""Rows to ranked entities, under filters and with proofs, against enumeration under a table model."""

from __future__ import annotations

import itertools
import math
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from genret.decoding.beam_search import BeamResult, beam_search
from genret.decoding.errors import DecodingCancelledError
from genret.decoding.params import BeamParams
from genret.decoding.trie.title_trie import TitleTrie
from genret.retrieval.arguments import Restriction
from genret.retrieval.filters.entity_filter import FilterStore
from genret.retrieval.index.owners import Owners
from genret.retrieval.index.reader import Index
from genret.retrieval.methods import decoded_methods as beam_method
from genret.retrieval.methods.decoded_methods import EntityScore, Tally, credit, is_proven
from genret.retrieval.types import RetrievalResult, RetrieveRequest
from tests.checkpoints import make_index
from tests.entity_oracle import EntityOracle, owners, shares
from tests.fakes import SelfCancelling, TableModel, likely_titles, recorded
from tests.index_fixtures import build, character_tokenizer
from tests.table_retrievers import PROMPT, TOKENIZER, decode


def test_one_row_of_two_spellings_shows_each_entity_its_own(tmp_path: Path) -> None:
    tokenizer = character_tokenizer("abcdefghijklmnopqrstuvwxyz ", lower=True)
    lines = ["entity_id\ttitle\taliases", "film\tIt\t", "pronoun\tit\t", "office\tBureau\tIT"]
    with Index.open(build(tmp_path, lines, tokenizer).index) as index:
        (result,) = decode(index, likely_titles(index), RetrieveRequest("q", k=3, beam_size=9))
        (drawn,) = decode(index, likely_titles(index), RetrieveRequest("q", k=3, method="disc", seed=1))
    for candidates in (result.candidates, drawn.candidates):
        surfaces = {c.entity_id: c.surface for c in candidates}
        assert surfaces.items() >= {"film": "It", "pronoun": "it"}.items()
    assert {c.entity_id: c.title for c in result.candidates}["office"] == "Bureau"


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """One entity with sixty surface forms, and nineteen others."""
    aliases = "|".join(f"Nile {n}" for n in range(60))
    others = "".join(f"P{n}\tParis {n}\t\n" for n in range(19))
    catalogue = f"entity_id\ttitle\taliases\nN\tNile\t{aliases}\n{others}"
    return Index.open(make_index(tmp_path_factory.mktemp("crowded"), TOKENIZER, catalogue))


def nile_first(index: Index) -> TableModel:
    """Every title that begins like Nile is far likelier than any other."""
    base = likely_titles(index)
    nile = TOKENIZER.encode_titles(["Nile"], index.rendering)[0]

    def function(prompt: tuple[int, ...], written: tuple[int, ...]) -> Tensor:
        logits = base.logits(prompt, written).clone()
        if not written and prompt == PROMPT:
            logits[nile[0]] += 12.0
        return logits

    return TableModel(index.vocab_size, function)


@pytest.mark.parametrize("ids", [None, ("N", *(f"P{n}" for n in range(1, 19, 2)))])
def test_aliases_of_one_entity_do_not_crowd_out_the_others(
    crowded: Index, ids: tuple[str, ...] | None
) -> None:
    model = nile_first(crowded)
    allowed = None if ids is None else FilterStore(crowded, "cpu").make(Restriction(allow_ids=ids))
    narrow, everything = (
        decode(crowded, model, RetrieveRequest("q", k=5, beam_size=size), filters=[allowed])[0].candidates
        for size in (None, 500)
    )
    found = [candidate.entity_id for candidate in narrow]
    assert (found[0], len(found)) == ("N", 5)
    assert set(found) <= set(ids or found)
    assert found == [candidate.entity_id for candidate in everything]
    (three,) = decode(crowded, model, RetrieveRequest("q", k=5, beam_size=3))  # what was asked for stays
    assert (three.candidates[0].entity_id, three.certified) == ("N", False)
    assert len(three.candidates) < 5


def test_widening_leaves_other_queries_of_the_batch_alone(crowded: Index) -> None:
    model = nile_first(crowded)
    other = (12, 13)
    request = RetrieveRequest("q", k=5)
    (alone,) = decode(crowded, model, request, prompts=[other])
    together = decode(crowded, model, request, request, prompts=[PROMPT, other])
    assert together[1].candidates == alone.candidates
    assert together[1].certified == alone.certified
    assert together[0].num_steps > together[1].num_steps


def test_widening_stops_for_a_cancelled_query(crowded: Index) -> None:
    request = RetrieveRequest("q", k=5)
    late = SelfCancelling(8)  # the first search is over by then
    outcomes = decode(crowded, nile_first(crowded), request, request, cancel=[late, None])
    assert isinstance(outcomes[0], DecodingCancelledError)
    assert isinstance(outcomes[1], RetrievalResult)
    assert len(outcomes[1].candidates) == 5


def test_disc_with_one_draw_estimates_the_mass_from_weights(table_index: Path) -> None:
    index = Index.open(table_index)
    model = likely_titles(index)
    (many,) = decode(
        index, model, RetrieveRequest("q", k=12, method="disc", num_samples=200, num_draws=1, seed=1)
    )
    mass = EntityOracle.of(index, model, PROMPT).mass()
    assert abs(many.mass - mass) < 4.5 * many.mass_stderr
    assert many.mass_stderr < math.sqrt(mass * (1 - mass) / 200) / 2  # of 200 accept or reject outcomes
    (one,) = decode(index, model, RetrieveRequest("q", method="disc", num_samples=1, num_draws=1, seed=1))
    assert one.mass_stderr is None
    assert [c.probability for c in one.candidates] == [1.0]


LETTERS = character_tokenizer("abcd")
EVERYTHING = 100_000  # tokens: more than any catalogue here has


def catalogue(seed: int, num_entities: int, most_aliases: int) -> list[str]:
    """Random titles of a small alphabet; many entities share forms, and few have many."""
    rng = random.Random(seed)

    def form() -> str:
        return "".join(rng.choice("abcd") for _ in range(rng.choice((1, 2, 2, 3, 3, 5))))

    lines = ["entity_id\ttitle\taliases"]
    for number in range(num_entities):
        aliases = [form() for _ in range(rng.choice((0, 0, 1, most_aliases)))]
        lines.append(f"E{number}\t{form()}\t{'|'.join(aliases)}")
    return lines


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> list[Index]:
    """Without aliases, with a few, and with so many that one entity's fill a list."""
    sizes = [(0, 40, 0), (1, 12, 2), (2, 20, 4), (3, 30, 9)]
    return [
        Index.open(build(tmp_path_factory.mktemp("index"), catalogue(*size), LETTERS).index) for size in sizes
    ]


@cache
def random_model(index: Index, seed: int, scale: float = 2.0) -> TableModel:
    """One whose beams often go astray; tests share what it remembers of itself."""
    return likely_titles(index, seed, boost=4.0, scale=scale)


SCORINGS = [("sum", 0.0), ("max", 0.0), ("max", 1.0), ("max", 0.5), ("max", -1.0), ("max", 3.0)]


@settings(max_examples=150, deadline=None)
@given(
    which=st.integers(0, 3),
    seed=st.integers(0, 50),
    k=st.integers(1, 12),
    beam_size=st.none() | st.integers(1, 12),
    scoring=st.sampled_from(SCORINGS),
    budget=st.sampled_from([None, 0, 5, 40, 200, EVERYTHING]),
    num_allowed=st.none() | st.integers(1, 8),
)
def test_a_certified_list_is_right_and_exact_certifies_where_the_budget_allows(
    indexes: list[Index],
    which: int,
    seed: int,
    k: int,
    beam_size: int | None,
    scoring: tuple[str, float],
    budget: int | None,
    num_allowed: int | None,
) -> None:
    index = indexes[which]
    model = random_model(index, seed, 1.0 + seed % 3)
    allowed = None
    if num_allowed is not None:
        ids = tuple(f"E{number}" for number in random.Random(seed).sample(range(12), num_allowed))
        allowed = FilterStore(index, "cpu").make(Restriction(allow_ids=ids))
    request = RetrieveRequest(
        "q",
        k=k,
        beam_size=beam_size,
        aggregate=scoring[0],
        length_penalty=scoring[1],
        exact=budget is not None,
        exact_budget=budget,
    )
    (result,) = decode(index, model, request, filters=[allowed])
    oracle = EntityOracle.of(index, model, PROMPT, allowed)
    truth = oracle.scores(*scoring)
    scores = [c.score for c in result.candidates]
    assert scores == sorted(scores, reverse=True)
    for number, score in zip(oracle.numbers(result.candidates), scores, strict=True):
        assert score <= truth[number] + 1e-5
    if result.certified:
        oracle.assert_is_ranking(oracle.numbers(result.candidates), k, *scoring, tolerance=1e-5)
    if budget is not None:
        assert result.num_exact_nodes <= budget
        assert result.certified or result.num_exact_nodes == budget
    if budget is None:
        assert result.num_exact_nodes == 0
    assert result.num_exact_nodes <= result.num_nodes


def test_score_surface_and_logprob_of_a_candidate(indexes: list[Index]) -> None:
    index = indexes[2]
    model = likely_titles(index, seed=1)
    oracle = EntityOracle.of(index, model, PROMPT)
    for aggregate, penalty in SCORINGS:
        options: dict[str, Any] = {"aggregate": aggregate, "length_penalty": penalty}
        (result,) = decode(index, model, RetrieveRequest("q", k=20, beam_size=500, **options))
        assert result.certified
        assert len(result.candidates) == index.num_entities
        for number, candidate in zip(oracle.numbers(result.candidates), result.candidates, strict=True):
            expected = oracle.score(number, aggregate, penalty)
            assert candidate.score == pytest.approx(expected, abs=1e-5)
            assert candidate.logprob == pytest.approx(oracle.logprob(number), abs=1e-5)
            assert candidate.surface == oracle.surface(number, penalty)
            if aggregate == "sum":
                assert candidate.score == candidate.logprob


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 17, 60])
def test_a_budget_is_kept_to_the_token_and_used_up(
    indexes: list[Index], monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    """One search, whose beams are those of a search that is not exact; no token is paid for twice."""
    searches = recorded(monkeypatch, beam_method, "beam_search")
    spent = 0
    for index, seed, aggregate in itertools.product(indexes, range(6), ("sum", "max")):
        model = random_model(index, seed)
        options: dict[str, Any] = {"k": 4, "beam_size": 2, "aggregate": aggregate}
        (plain,) = decode(index, model, RetrieveRequest("q", **options))
        num_plain = len(searches)
        (exact,) = decode(index, model, RetrieveRequest("q", exact=True, exact_budget=budget, **options))
        exact_searches = [params for _, _, (params,), *_ in searches[num_plain:] if params.exact]
        assert len(exact_searches) == 1
        assert exact.num_exact_nodes <= budget
        assert exact.certified or exact.num_exact_nodes == budget
        if num_plain == len(searches) - num_plain == 1:  # neither list had to be longer
            assert exact.num_nodes == plain.num_nodes + exact.num_exact_nodes
        if plain.certified:
            assert exact.num_exact_nodes == 0
            assert exact.candidates == plain.candidates
        spent += exact.num_exact_nodes == budget
        searches.clear()
    assert spent > 0


def test_a_small_budget_proves_what_little_is_missing(indexes: list[Index]) -> None:
    """Fewer tokens than a beam search takes are of use already, and more of more use."""
    proven: list[int] = []
    below_beams = 0
    for budget in (0, 2, 4, 8, 16, 32, 64):
        results = [
            decode(index, random_model(index, seed), request)[0]
            for index in indexes
            for seed in range(8)
            for request in [RetrieveRequest("q", k=2, beam_size=2, exact=True, exact_budget=budget)]
        ]
        proven.append(sum(result.certified for result in results))
        below_beams += sum(
            result.certified
            and 0 < result.num_exact_nodes <= budget < result.num_nodes - result.num_exact_nodes
            for result in results
        )
    assert below_beams > 5
    assert proven == sorted(proven)
    assert proven[0] < proven[1] < proven[2] < proven[3]


@pytest.mark.parametrize("scoring", SCORINGS)
def test_certified_rows_never_prove_entities_with_fewer_tokens(
    indexes: list[Index], scoring: tuple[str, float]
) -> None:
    """Whatever number of rows one chooses, knowing the answer, to search for after the first list."""
    aggregate, penalty = scoring
    score, fewer = EntityScore(aggregate == "max", penalty), 0
    for index, seed in itertools.product(indexes, range(4)):
        shared = {rank: shares(mine) for rank, mine in owners(index).items()}
        model = random_model(index, seed, 1.0 + seed)
        options: dict[str, Any] = {"k": 3, "beam_size": 2, "aggregate": aggregate, "length_penalty": penalty}
        plain, exact = decode(
            index,
            model,
            RetrieveRequest("q", **options),
            RetrieveRequest("q", exact=True, exact_budget=EVERYTHING, **options),
        )
        assert exact.certified
        if plain.certified:
            continue
        params = [
            BeamParams(k, 2, penalty, exact=True, exact_budget=EVERYTHING)
            for k in range(1, index.num_rows + 1)
        ]
        trie = TitleTrie(index.trie_arrays(), model.vocab_size, model.device)
        enough = []
        for one, result in zip(
            params, beam_search(model.prefill([PROMPT] * len(params)), trie, params), strict=True
        ):
            assert isinstance(result, BeamResult)
            assert result.certified
            tallies: dict[int, Tally] = {}
            for row in result.hypotheses:
                credit(tallies, row, Owners(list(shared[row.row]), list(shared[row.row].values())))
            full = len(result.hypotheses) == one.k
            unseen = result.hypotheses[-1].score(penalty) if full else -math.inf
            if is_proven(index, tallies, 3, score, unseen, index.num_entities):
                enough.append(result.num_nodes)
        assert exact.num_nodes <= plain.num_nodes + min(enough)
        fewer += exact.num_nodes < plain.num_nodes + min(enough)
    assert fewer > 5


def test_a_budget_that_is_spent_still_gives_k_entities(indexes: list[Index]) -> None:
    index = indexes[3]
    for seed in range(10):
        model = random_model(index, seed, 3.0)
        (plain,) = decode(index, model, RetrieveRequest("q", k=8))
        (exact,) = decode(index, model, RetrieveRequest("q", k=8, exact=True, exact_budget=3))
        assert len(exact.candidates) >= len(plain.candidates)


def test_the_longest_list_is_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand rows of one entity, one of another: no list of rows holds both, and the search ends."""
    searches = recorded(monkeypatch, beam_method, "beam_search")
    letters = "".join(map(chr, range(0x4E00, 0x4E00 + 1101)))
    tokenizer = character_tokenizer(letters)
    lines = [
        "entity_id\ttitle\taliases",
        f"A\t{letters[0]}\t{'|'.join(letters[1:1100])}",
        f"B\t{letters[1100]}\t",
    ]
    with Index.open(build(tmp_path, lines, tokenizer).index) as index:
        last = index.row_token_ids(index.num_rows - 1)[0]
        base = likely_titles(index)

        def function(prompt: tuple[int, ...], written: tuple[int, ...]) -> Any:
            logits = base.logits(prompt, written).clone()
            if not written:
                logits[last] = -50.0
            return logits

        model = TableModel(index.vocab_size, function)
        assert index.surface(index.num_rows - 1) == letters[1100]
        request = RetrieveRequest("q", k=2, exact=True, exact_budget=10**6, aggregate="max")
        (result,) = decode(index, model, request)
    assert [candidate.entity_id for candidate in result.candidates] == ["A"]
    assert not result.certified
    assert len(searches) == 1


def test_exact_goes_on_for_those_that_asked_and_leaves_others_alone(indexes: list[Index]) -> None:
    index = indexes[3]
    model = likely_titles(index, seed=4, boost=4.0, scale=2.0)
    options: dict[str, Any] = {"k": 4, "beam_size": 2}
    requests = [
        RetrieveRequest("q", **options),
        RetrieveRequest("q", exact=True, **options),
        RetrieveRequest("q", length_penalty=1.0, **options),
        RetrieveRequest("q", length_penalty=1.0, exact=True, exact_budget=50, **options),
    ]
    together = decode(index, model, *requests)
    for request, reply in zip(requests, together, strict=True):
        (alone,) = decode(index, model, request)
        assert reply.candidates == alone.candidates
        assert reply.certified == alone.certified
        assert reply.num_exact_nodes == alone.num_exact_nodes
    assert together[1].num_exact_nodes > 0
    assert together[0].num_exact_nodes == 0


def test_a_deadline_ends_the_proof(indexes: list[Index]) -> None:
    index = indexes[3]
    model = likely_titles(index, seed=4, boost=4.0, scale=2.0)
    request = RetrieveRequest("q", k=10, beam_size=1, exact=True)
    late = SelfCancelling(8)  # titles have six tokens: the beam search is over
    cancelled, answered = decode(index, model, request, request, cancel=[late, None])
    assert isinstance(cancelled, DecodingCancelledError)
    assert answered.certified
    assert late.polls > 8
