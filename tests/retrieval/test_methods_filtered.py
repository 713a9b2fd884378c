"""Filtered retrieval against enumeration: aliases, shared titles, certificates, masses, mixed batches."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from decoding.trie.title_trie import TitleTrie
from retrieval.filters.entity_filter import EntityFilter, FilterMaker
from retrieval.filters.predicate import parse
from retrieval.filters.restriction import Restriction
from retrieval.index.reader import Index
from retrieval.text import TextTokenizer
from retrieval.types import RetrievalResult, RetrieveRequest
from tests.checkpoints import END, make_index, train_tokenizer
from tests.decoded_runs import Outcome, run_beam, run_disc
from tests.entity_oracle import EntityOracle
from tests.fakes import TableModel, likely_titles

PROMPT = (9, 10, 11)
TOKENIZER = TextTokenizer(train_tokenizer(), END, "tiny")
IDS = tuple(f"Q{n}" for n in range(1, 13))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return Index.open(make_index(tmp_path_factory.mktemp("filtered"), TOKENIZER))


@pytest.fixture(scope="module")
def maker(index: Index) -> FilterMaker:
    return FilterMaker(index, "cpu")


def entity_ids(index: Index, allowed: EntityFilter) -> set[str]:
    return {index.entity(int(number)).entity_id for number in np.flatnonzero(allowed.allowed)}


def answer(
    index: Index,
    model: TableModel,
    requests: Sequence[RetrieveRequest],
    filters: Sequence[EntityFilter | None],
    prompts: Sequence[Sequence[int]] | None = None,
) -> list[RetrievalResult]:
    trie = TitleTrie(index.trie_arrays(), model.vocab_size, model.device)
    nothing = [None] * len(requests)
    run = run_disc if requests[0].decoding == "disc" else run_beam
    session = model.prefill(prompts or [PROMPT] * len(requests))
    outcomes: list[Outcome] = run(session, trie, index, requests, nothing, nothing, filters)
    return [outcome for outcome in outcomes if isinstance(outcome, RetrievalResult)]


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
        base = likely_titles(index)
        nile = TOKENIZER.encode_titles(["Nile"], index.rendering)[0]
        assert nile is not None

        def function(prompt: tuple[int, ...], written: tuple[int, ...]) -> Tensor:
            logits = base.logits(prompt, written).clone()
            if not written:
                logits[nile[0]] += 12.0
            return logits

        model = TableModel(index.vocab_size, function)
        allowed = FilterMaker(index, "cpu").make(Restriction(parse("keep = 'yes'")))
        requests = [RetrieveRequest("q", k=5), RetrieveRequest("q", k=5)]
        filtered, unfiltered = answer(index, model, requests, [allowed, None])
    found = [c.entity_id for c in filtered.candidates]
    assert found[0] == "N"
    assert len(found) == 5
    assert set(found) <= entity_ids_of_odd() | {"N"}
    assert len(unfiltered.candidates) == 5


def entity_ids_of_odd() -> set[str]:
    return {f"P{n}" for n in range(1, 19, 2)}


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


@pytest.mark.parametrize("method", ["beam", "disc"])
def test_mixed_filters_in_one_batch_answer_each_as_if_alone(
    index: Index, maker: FilterMaker, method: str
) -> None:
    model = likely_titles(index, seed=5)
    texts = ["kind = 'city'", None, "kind in ('river', 'company')", "title like 'M%'", "kind = 'city'", None]
    made = {text: maker.make(Restriction(parse(text))) for text in texts if text is not None}
    filters = [None if text is None else made[text] for text in texts]
    prompts = [(n, n + 1) for n in range(len(texts))]
    requests = [RetrieveRequest("q", k=4, method=method, seed=n, num_samples=8) for n in range(len(texts))]
    together = answer(index, model, requests, filters, prompts)
    assert len(together) == len(texts)
    for request, allowed, prompt, result in zip(requests, filters, prompts, together, strict=True):
        (alone,) = answer(index, model, [request], [allowed], [prompt])
        assert [(c.entity_id, c.surface) for c in alone.candidates] == [
            (c.entity_id, c.surface) for c in result.candidates
        ]
        for one, other in zip(alone.candidates, result.candidates, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
            assert one.probability == other.probability
        assert alone.mass == pytest.approx(result.mass)
        assert alone.certified == result.certified
        if allowed is not None:
            assert {c.entity_id for c in result.candidates} <= entity_ids(index, allowed)


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
