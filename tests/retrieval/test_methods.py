"""Rows to ranked entities, filtered or not, against enumeration of a small catalogue under a table model."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from genret.decoding.cancellation import CancelToken
from genret.decoding.disc import disc
from genret.decoding.errors import DecodingCancelledError
from genret.decoding.params import DiscParams
from genret.decoding.trie.title_trie import TitleTrie
from genret.retrieval.filters.entity_filter import EntityFilter, FilterMaker
from genret.retrieval.filters.predicate import parse
from genret.retrieval.filters.restriction import Restriction
from genret.retrieval.index.reader import Index
from genret.retrieval.text import TextTokenizer
from genret.retrieval.types import RetrievalResult, RetrieveRequest
from tests.checkpoints import END, make_index, train_tokenizer
from tests.decoded_runs import run_beam, run_disc
from tests.entity_oracle import EntityOracle, owners
from tests.fakes import TableModel, likely_titles
from tests.index_fixtures import build, character_tokenizer

PROMPT = (9, 10, 11)
TOKENIZER = TextTokenizer(train_tokenizer(), END, "tiny")

IDS = tuple(f"Q{n}" for n in range(1, 13))


def answer(
    index: Index,
    model: TableModel,
    requests: Sequence[RetrieveRequest],
    filters: Sequence[EntityFilter | None] | None = None,
    prompts: Sequence[Sequence[int]] | None = None,
) -> list[RetrievalResult]:
    trie = TitleTrie(index.trie_arrays(), model.vocab_size, model.device)
    nothing = [None] * len(requests)
    run = run_disc if requests[0].decoding == "disc" else run_beam
    session = model.prefill(prompts or [PROMPT] * len(requests))
    outcomes = run(session, trie, index, requests, nothing, nothing, filters)
    return [outcome for outcome in outcomes if isinstance(outcome, RetrievalResult)]


def beam(
    index: Index, model: TableModel, *requests: RetrieveRequest, prompts: Sequence[Sequence[int]] = (PROMPT,)
) -> list[RetrievalResult]:
    return answer(index, model, requests, prompts=prompts)


def sample(index: Index, model: TableModel, request: RetrieveRequest) -> RetrievalResult:
    (result,) = answer(index, model, [request])
    return result


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return Index.open(make_index(tmp_path_factory.mktemp("methods"), TOKENIZER))


@pytest.fixture(scope="module")
def model(index: Index) -> TableModel:
    return likely_titles(index)


def test_entities_that_share_a_title_share_its_probability(index: Index, model: TableModel) -> None:
    (result,) = beam(index, model, RetrieveRequest("q", k=12, beam_size=200))
    amazon = {c.entity_id: c for c in result.candidates if c.title == "Amazon"}
    row_of = {index.surface(rank): index.row_token_ids(rank) for rank in range(index.num_rows)}
    half, river = (math.exp(model.logprob(PROMPT, row_of[form])) for form in ("Amazon", "Amazon River"))
    assert amazon["Q8"].logprob == pytest.approx(math.log(half / 2 + river), abs=1e-5)
    assert set(amazon) == {"Q8", "Q9"}
    assert amazon["Q8"].metadata == {"kind": "river"}
    assert amazon["Q9"].metadata == {"kind": "company"}


def test_candidate_tells_title_and_surface_apart(index: Index, model: TableModel) -> None:
    (result,) = beam(index, model, RetrieveRequest("q", k=12, beam_size=200))
    for candidate in result.candidates:
        entity = index.entity_by_id(candidate.entity_id)
        assert entity is not None
        assert candidate.title == entity.title
        assert candidate.surface in (entity.title, *entity.aliases)


def test_one_row_of_two_spellings_shows_each_entity_its_own(tmp_path: Path) -> None:
    tokenizer = character_tokenizer("abcdefghijklmnopqrstuvwxyz ", lower=True)
    lines = ["entity_id\ttitle\taliases", "film\tIt\t", "pronoun\tit\t", "office\tBureau\tIT"]
    with Index.open(build(tmp_path, lines, tokenizer).index) as index:
        (result,) = beam(index, likely_titles(index), RetrieveRequest("q", k=3, beam_size=9))
        (drawn,) = [sample(index, likely_titles(index), RetrieveRequest("q", k=3, method="disc", seed=1))]
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
    assert nile is not None

    def function(prompt: tuple[int, ...], written: tuple[int, ...]) -> Tensor:
        logits = base.logits(prompt, written).clone()
        if not written and prompt == PROMPT:
            logits[nile[0]] += 12.0
        return logits

    return TableModel(index.vocab_size, function)


def test_aliases_of_one_entity_do_not_crowd_out_the_others(crowded: Index) -> None:
    model = nile_first(crowded)
    (result,) = beam(crowded, model, RetrieveRequest("q", k=5))
    assert result.candidates[0].entity_id == "N"
    assert len(result.candidates) == 5
    (everything,) = beam(crowded, model, RetrieveRequest("q", k=5, beam_size=500))
    assert [c.entity_id for c in everything.candidates] == [c.entity_id for c in result.candidates]


def test_a_beam_size_that_was_asked_for_stays(crowded: Index) -> None:
    (result,) = beam(crowded, nile_first(crowded), RetrieveRequest("q", k=5, beam_size=3))
    assert result.candidates[0].entity_id == "N"
    assert len(result.candidates) < 5
    assert not result.certified


def test_widening_leaves_other_queries_of_the_batch_alone(crowded: Index) -> None:
    model = nile_first(crowded)
    other = (12, 13)
    request = RetrieveRequest("q", k=5)
    (alone,) = beam(crowded, model, request, prompts=[other])
    together = beam(crowded, model, request, request, prompts=[PROMPT, other])
    assert together[1].candidates == alone.candidates
    assert together[1].certified == alone.certified
    assert together[0].num_steps > together[1].num_steps


def test_widening_stops_for_a_cancelled_query(crowded: Index) -> None:
    model = nile_first(crowded)
    trie = TitleTrie(crowded.trie_arrays(), model.vocab_size, model.device)
    session = model.prefill([PROMPT, PROMPT])
    cancelled = CancelToken()
    calls = 0

    class AfterAWhile(CancelToken):
        def check(self) -> None:
            nonlocal calls
            calls += 1
            if calls > 8:  # the first search is over by then
                cancelled.cancel()
            cancelled.check()

    requests = [RetrieveRequest("q", k=5), RetrieveRequest("q", k=5)]
    outcomes = run_beam(session, trie, crowded, requests, [AfterAWhile(), None], [None, None])
    assert isinstance(outcomes[0], DecodingCancelledError)
    assert isinstance(outcomes[1], RetrievalResult)
    assert len(outcomes[1].candidates) == 5


def test_catalogue_without_probability_is_no_match(index: Index) -> None:
    first = {index.row_token_ids(rank)[0] for rank in range(index.num_rows)}
    logits = torch.zeros(index.vocab_size)
    logits[sorted(first)] = -math.inf
    model = TableModel(index.vocab_size, lambda prompt, written: logits)
    (listed,) = beam(index, model, RetrieveRequest("q"))
    assert listed.no_match
    drawn = sample(index, model, RetrieveRequest("q", method="disc", seed=0))
    assert drawn.no_match
    assert drawn.mass == 0.0


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_disc_shares_are_those_of_the_samples(index: Index, model: TableModel, temperature: float) -> None:
    request = RetrieveRequest(
        "q", k=12, method="disc", num_samples=64, num_draws=3, temperature=temperature, seed=5
    )
    result = sample(index, model, request)
    trie = TitleTrie(index.trie_arrays(), model.vocab_size, model.device)
    params = DiscParams(num_samples=64, num_draws=3, temperature=temperature, seed=5, reject_early=False)
    (raw,) = disc(model.prefill([PROMPT]), trie, [params])
    assert not isinstance(raw, DecodingCancelledError)
    drawn = Counter(drawn.hypothesis.row for drawn in raw.samples)
    oracle = EntityOracle.of(index, model, PROMPT, temperature=temperature)
    counts = {c.entity_id: 64 * (c.probability or 0.0) for c in result.candidates}
    assert math.fsum(counts.values()) == pytest.approx(64)
    for candidate in result.candidates:
        forms = oracle.forms(oracle.number_of(candidate.entity_id), drawn)
        named, alone = (
            sum(drawn[r] for r in forms),
            sum(drawn[r] for r in forms if len(owners(index)[r]) == 1),
        )
        assert counts[candidate.entity_id] == pytest.approx(round(counts[candidate.entity_id]))
        assert max(alone, 1) <= round(counts[candidate.entity_id]) <= named
        expected = oracle.logprob(oracle.number_of(candidate.entity_id), drawn)
        assert candidate.logprob == pytest.approx(expected, abs=1e-5)
    assert result.num_accepted == sum(s.accepted for s in raw.samples)
    assert (result.mass, result.num_draws, result.seed) == (raw.mass, raw.num_draws, 5)


def test_disc_is_ranked_by_share_then_logprob(index: Index, model: TableModel) -> None:
    result = sample(index, model, RetrieveRequest("q", k=12, method="disc", num_samples=64, seed=2))
    keys = [(c.probability, c.logprob) for c in result.candidates]
    assert keys == sorted(keys, reverse=True)
    short = sample(index, model, RetrieveRequest("q", k=2, method="disc", num_samples=64, seed=2))
    assert short.candidates == result.candidates[:2]


@pytest.mark.statistical
def test_disc_posterior_is_the_restricted_distribution_by_entity(index: Index) -> None:
    """Chi-square of 8 x 256 samples of entities against P(e | q) / P_L(S), alpha = 0.001."""
    model = likely_titles(index, seed=3, boost=7.0)
    oracle = EntityOracle.of(index, model, PROMPT)
    mass = oracle.mass()
    expected = {name: math.exp(logprob) / mass for name, logprob in oracle.logprobs().items()}
    counts: dict[str, float] = defaultdict(float)
    masses = []
    for seed in range(8):
        request = RetrieveRequest("q", k=12, method="disc", num_samples=256, num_draws=32, seed=seed)
        result = sample(index, model, request)
        assert result.num_accepted == 256  # accepted draws are exact samples
        for candidate in result.candidates:
            counts[candidate.entity_id] += 256 * (candidate.probability or 0.0)
        assert result.mass is not None
        assert result.mass_stderr is not None
        masses.append((result.mass - mass) / result.mass_stderr)
    total = 8 * 256
    assert min(expected.values()) * total >= 5
    observed = [counts[name] for name in expected]
    assert chisquare(observed, [share * total for share in expected.values()]).pvalue > 0.001
    assert max(abs(z) for z in masses) < 4.5


def test_disc_with_one_draw_estimates_the_mass_from_weights(index: Index, model: TableModel) -> None:
    many = sample(
        index, model, RetrieveRequest("q", k=12, method="disc", num_samples=200, num_draws=1, seed=1)
    )
    mass = EntityOracle.of(index, model, PROMPT).mass()
    assert many.mass is not None
    assert many.mass_stderr is not None
    assert abs(many.mass - mass) < 4.5 * many.mass_stderr
    assert many.mass_stderr < math.sqrt(mass * (1 - mass) / 200) / 2  # of 200 accept or reject outcomes
    one = sample(index, model, RetrieveRequest("q", method="disc", num_samples=1, num_draws=1, seed=1))
    assert one.mass_stderr is None
    assert [c.probability for c in one.candidates] == [1.0]


def test_aliases_count_where_shared_titles_outnumber_them(tmp_path: Path) -> None:
    """Fewer rows than entities, and still one entity with two forms, which together are the likeliest."""
    tokenizer = character_tokenizer("xyz")
    lines = ["entity_id\ttitle\taliases", "A\tx\ty", *(f"B{n}\tz\t" for n in range(5))]
    with Index.open(build(tmp_path, lines, tokenizer).index) as index:
        assert index.num_rows < index.num_entities
        assert index.max_forms == 2
        firsts = {token: math.log(p) for token, p in zip("xyz", (0.33, 0.32, 0.35), strict=True)}
        likely = torch.full((index.vocab_size,), -40.0)
        for rank in range(index.num_rows):
            likely[index.row_token_ids(rank)[0]] = firsts[index.surface(rank)]
        end = torch.full((index.vocab_size,), -40.0)
        end[index.row_token_ids(0)[-1]] = 0.0
        model = TableModel(index.vocab_size, lambda _, written: end if written else likely)
        (result,) = beam(index, model, RetrieveRequest("q", k=1))
        assert [candidate.entity_id for candidate in result.candidates] == ["A"]
        assert result.certified


@pytest.fixture(scope="module")
def maker(index: Index) -> FilterMaker:
    return FilterMaker(index, "cpu")


def entity_ids(index: Index, allowed: EntityFilter) -> set[str]:
    return {index.entity(int(number)).entity_id for number in np.flatnonzero(allowed.allowed)}


@settings(max_examples=60, deadline=None)
@given(
    ids=st.sets(st.sampled_from(IDS), min_size=1),
    seed=st.integers(0, 20),
    k=st.integers(1, 13),
    beam_size=st.sampled_from([3, 8, 200]),
)
def test_beam_lists_the_best_allowed_entities(
    index: Index, maker: FilterMaker, ids: set[str], seed: int, k: int, beam_size: int
) -> None:
    allowed = maker.make(Restriction(allow_ids=tuple(ids)))
    model = likely_titles(index, seed, boost=4.0, scale=1.0 + seed % 3)
    (result,) = answer(index, model, [RetrieveRequest("q", k=k, beam_size=beam_size)], [allowed])
    oracle = EntityOracle.of(index, model, PROMPT, allowed)
    expected = oracle.logprobs()
    found = {c.entity_id: c.logprob for c in result.candidates}
    assert set(found) <= ids
    if beam_size == 200:
        assert result.certified
    if result.certified:
        assert oracle.numbers(result.candidates) == oracle.ranking()[:k]
    for candidate in result.candidates:
        assert candidate.logprob <= expected[candidate.entity_id] + 1e-5
        if beam_size == 200:
            assert candidate.logprob == pytest.approx(expected[candidate.entity_id], abs=1e-5)


def test_a_title_that_is_shared_counts_for_the_allowed_entity_alone(index: Index, maker: FilterMaker) -> None:
    allowed = maker.make(Restriction(parse("kind = 'company'")))
    model = likely_titles(index)
    (listed,) = answer(index, model, [RetrieveRequest("q", k=12)], [allowed])
    request = RetrieveRequest("q", k=12, method="disc", num_samples=64, seed=1)
    (drawn,) = answer(index, model, [request], [allowed])
    for result in (listed, drawn):
        assert [c.entity_id for c in result.candidates] == ["Q9"]
    assert drawn.candidates[0].probability == pytest.approx(1.0)
    assert listed.certified


def test_a_list_of_all_allowed_entities_is_short_and_proven(index: Index, maker: FilterMaker) -> None:
    allowed = maker.make(Restriction(parse("kind = 'city'")))
    (result,) = answer(index, likely_titles(index), [RetrieveRequest("q", k=10)], [allowed])
    assert {c.entity_id for c in result.candidates} == {"Q4", "Q5", "Q6"}
    assert result.certified


def test_aliases_of_an_allowed_entity_do_not_crowd_out_the_others(tmp_path: Path) -> None:
    aliases = "|".join(f"Nile {n}" for n in range(60))
    others = "".join(f"P{n}\tParis {n}\t\t{'yes' if n % 2 else 'no'}\n" for n in range(19))
    catalogue = f"entity_id\ttitle\taliases\tkeep\nN\tNile\t{aliases}\tyes\n{others}"
    with Index.open(make_index(tmp_path, TOKENIZER, catalogue)) as index:
        model = nile_first(index)
        allowed = FilterMaker(index, "cpu").make(Restriction(parse("keep = 'yes'")))
        requests = [RetrieveRequest("q", k=5), RetrieveRequest("q", k=5)]
        filtered, unfiltered = answer(index, model, requests, [allowed, None])
    found = [c.entity_id for c in filtered.candidates]
    assert found[0] == "N"
    assert len(found) == 5
    assert set(found) <= {"N", *(f"P{n}" for n in range(1, 19, 2))}
    assert len(unfiltered.candidates) == 5


@pytest.mark.statistical
@pytest.mark.parametrize("ids", [("Q8", "Q9", "Q10"), ("Q9", "Q11", "Q4", "Q1"), IDS])
def test_disc_samples_the_distribution_over_allowed_entities(
    index: Index, maker: FilterMaker, ids: tuple[str, ...]
) -> None:
    """Chi-square of 4 x 256 accepted draws, alpha = 0.001; allowed entities alone share a form."""
    allowed = maker.make(Restriction(allow_ids=ids))
    model = likely_titles(index, seed=3, boost=7.0)
    oracle = EntityOracle.of(index, model, PROMPT, allowed)
    mass = oracle.mass()
    expected = {name: math.exp(logprob) / mass for name, logprob in oracle.logprobs().items()}
    counts: dict[str, float] = defaultdict(float)
    accepted = 0
    for seed in range(4):
        request = RetrieveRequest("q", k=12, method="disc", num_samples=256, num_draws=32, seed=seed)
        (result,) = answer(index, model, [request], [allowed])
        accepted += result.num_accepted
        for candidate in result.candidates:
            counts[candidate.entity_id] += 256 * (candidate.probability or 0.0)
        assert result.mass is not None
        assert result.mass_stderr is not None
        assert abs(result.mass - mass) < 4.5 * result.mass_stderr
    assert accepted >= 0.9 * 4 * 256
    assert set(counts) <= set(ids)
    names = sorted(expected)
    assert chisquare([counts[n] for n in names], [expected[n] * 1024 for n in names]).pvalue > 0.001


def test_a_filter_allows_the_rows_of_its_entities(index: Index, maker: FilterMaker) -> None:
    for ids in [(), ("Q9",), ("Q10", "Q11"), ("absent",), IDS]:
        allowed = maker.make(Restriction(allow_ids=ids))
        assert entity_ids(index, allowed) == set(ids) & set(IDS)
        wanted = [
            any(index.entity(n).entity_id in ids for n in index.entities_of(rank))
            for rank in range(index.num_rows)
        ]
        grows = torch.diff(allowed.rows.prefix) > 0
        assert grows.tolist() == wanted
        assert allowed.rows.num_allowed == sum(wanted)
        assert allowed.num_allowed == len(set(ids) & set(IDS))


def test_one_to_one_catalogues_need_no_postings(tmp_path: Path) -> None:
    catalogue = "title\tkind\nAmazon\triver\nBerlin\tcity\nNile\triver\nParis\tcity\n"
    with Index.open(make_index(tmp_path, TOKENIZER, catalogue)) as index:
        assert all("postings" not in entry.name for entry in index.manifest.files)
        allowed = FilterMaker(index, "cpu").make(Restriction(parse("kind = 'river'")))
        names = [index.surface(rank) for rank in np.flatnonzero(np.diff(allowed.rows.prefix.numpy()))]
    assert sorted(names) == ["Amazon", "Nile"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("year >= 1990", {"b", "d"}),
        ("not year >= 1990", {"a"}),
        ("year is null", {"c"}),
        ("score < 1 and live", {"a"}),
        ("live or year = 2001.0", {"a", "b", "d"}),
        ("kind = 'film' and year > 1989.5", {"b"}),
        ("kind != 'film'", {"c", "d"}),
    ],
)
def test_metadata_has_the_types_the_index_gives_it(tmp_path: Path, text: str, expected: set[str]) -> None:
    catalogue = (
        "entity_id\ttitle\tkind\tyear\tscore\tlive\n"
        "a\tHamlet\tfilm\t1948\t0.5\ttrue\n"
        "b\tMacbeth\tfilm\t2015\t2.25\ttrue\n"
        "c\tOthello\tbook\t\t0.25\tfalse\n"
        "d\tParis\tbook\t2001\t\t\n"
    )
    with Index.open(make_index(tmp_path, TOKENIZER, catalogue)) as index:
        allowed = FilterMaker(index, "cpu").make(Restriction(parse(text)))
        assert entity_ids(index, allowed) == expected
