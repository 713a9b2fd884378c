"""P(e | q) = Σ_f P(f | q) · P(e | f) against brute force: every method, order, certificates, law.

Catalogues are random: one to one, with forms that several entities share, and with several forms of one
entity in one row, as the tokenizer drops case. Logits are float64.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from genret import RetrievalResult, Retriever, RetrieveRequest
from genret.decoding.constraints import Hypothesis
from genret.decoding.disc import disc
from genret.decoding.disc.draws import DiscResult
from genret.decoding.params import DiscParams
from genret.decoding.trie.title_trie import TitleTrie
from genret.retrieval.arguments import Restriction
from genret.retrieval.filters.entity_filter import EntityFilter, FilterStore, constraint_of, mask_of
from genret.retrieval.index.owners import FormOwners
from genret.retrieval.index.reader import Index
from genret.retrieval.methods.decoded_methods import (
    EntityScore,
    Tally,
    best_first,
    credit,
    is_proven,
    possible,
)
from genret.retrieval.prompts import CheckpointConfig, PromptTemplate
from tests.entity_oracle import EntityOracle, with_weights
from tests.fakes import TableModel, chi_square, likely_titles
from tests.index_fixtures import build, character_tokenizer
from tests.table_retrievers import answers, decode

TOKENIZER = character_tokenizer("abc", lower=True)
CONFIG = CheckpointConfig({name: PromptTemplate(name) for name in ("plain", "mention")}, rendering=None)
TITLE_WEIGHTS = (0.1, 1.0, 10.0, 1e6)
FEW = 7
EVERYTHING = 100_000  # tokens: more than any catalogue here has
SCORINGS = [("sum", 0.0), ("sum", 0.0), ("max", 0.0), ("max", 1.0), ("max", 0.5), ("max", -1.0)]


def lines_of(seed: int) -> list[str]:
    """A catalogue: seed 0 is one-to-one, in 5 and 6 nearly everything is shared, in `FEW` every form."""
    if seed == FEW:
        return ["entity_id\ttitle\taliases", "w\ta\tb", "x\tA\tc|b", "y\tc\ta|B", "z\tb\tcc"]
    rng = random.Random(seed)
    if not seed:
        return ["title", *sorted({"".join(rng.choices("abc", k=rng.randint(1, 4))) for _ in range(14)})]

    def form() -> str:
        return "".join(rng.choices("abcABC", k=rng.choice((1, 1, 2, 2, 3) if seed < 5 else (1, 1, 2))))

    lines = ["entity_id\ttitle\taliases"]
    for number in range(rng.randint(6, 16)):
        aliases = "|".join(form() for _ in range(rng.choice((0, 1, 2, 5))))
        lines.append(f"E{rng.randrange(1000)}-{number}\t{form()}\t{aliases}")
    return lines


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Index]]:
    opened = [
        Index.open(build(tmp_path_factory.mktemp(f"index{seed}"), lines_of(seed), TOKENIZER).index)
        for seed in range(FEW + 1)
    ]
    assert [index.is_one_to_one for index in opened] == [True] + FEW * [False]
    yield opened
    for index in opened:
        index.close()


@cache
def model_of(index: Index, kind: str, seed: int = 0) -> TableModel:
    """A model in float64: "uniform" makes many exact ties, "holes" gives many tokens no probability."""
    noise = TableModel.random(index.vocab_size, seed)

    def holes(prompt: tuple[int, ...], written: tuple[int, ...]) -> torch.Tensor:
        logits = noise.logits(prompt, written)
        return torch.where(logits < logits.median(), -math.inf, logits)

    functions = {
        "random": noise.logits,
        "likely": likely_titles(index, seed, boost=4.0).logits,
        "uniform": lambda *_: torch.zeros(index.vocab_size),
        "holes": holes,
    }
    return TableModel(index.vocab_size, functions[kind], torch.float64)


KINDS = ("random", "likely", "uniform", "holes")


def random_weights(rng: random.Random, index: Index) -> list[float] | None:
    """Weights with many zeros and many equal ones; None: the index has none."""
    if rng.random() < 0.25:
        return None
    choices = rng.choice([(0.0, 1.0, 2.0), (1.0, 3.0), (0.0, 0.0, 5.0), (1e-12, 0.5, 1e12, 7.0)])
    return rng.choices(choices, k=index.num_entities)


def random_ids(rng: random.Random, index: Index) -> tuple[str, ...] | None:
    """Ids that a filter allows; None: no filter."""
    if rng.random() < 0.3:
        return None
    share = rng.choice((0.2, 0.5, 0.8))
    return tuple(index.entity(e).entity_id for e in range(index.num_entities) if rng.random() < share)


@dataclass(frozen=True)
class Case:
    """A model behind an index with random weights, a prompt, and a random filter."""

    index: Index
    model: TableModel
    prompt: tuple[int, ...]
    ids: tuple[str, ...] | None
    title_weight: float

    @classmethod
    def random(cls, rng: random.Random, indexes: Sequence[Index], kind: str, query: str) -> Case:
        index = rng.choice(indexes)
        with_weights(index, random_weights(rng, index))
        prompt = tuple(TOKENIZER.encode_text(query))
        title_weight = rng.choice(TITLE_WEIGHTS)
        return cls(index, model_of(index, kind), prompt, random_ids(rng, index), title_weight)

    @cached_property
    def filter(self) -> EntityFilter | None:
        if self.ids is None:
            return None
        return FilterStore(self.index, "cpu").make(Restriction(allow_ids=self.ids))

    @cached_property
    def oracle(self) -> EntityOracle:
        return EntityOracle.of(
            self.index, self.model, self.prompt, self.filter, title_weight=self.title_weight
        )

    @property
    def trie(self) -> TitleTrie:
        return TitleTrie(self.index.trie_arrays(), self.model.vocab_size, self.model.device)


@cache
def retriever_of(index: Index, model: TableModel) -> Retriever:
    return Retriever(index, model, TOKENIZER, CONFIG, is_named=False)


def assert_in_order(result: RetrievalResult, oracle: EntityOracle) -> None:
    """Ties of the scores themselves stand by weight, title and id."""
    numbers = oracle.numbers(result.candidates)
    keys = [(-c.score, *oracle.tie_key(n)) for n, c in zip(numbers, result.candidates, strict=True)]
    assert keys == sorted(keys)


@settings(max_examples=250, deadline=None)
@given(seed=st.integers(0, 10**6), kind=st.sampled_from(KINDS), query=st.text("abc", min_size=1, max_size=3))
def test_every_method_gives_the_probabilities_of_enumeration(
    indexes: list[Index], seed: int, kind: str, query: str
) -> None:
    case = Case.random(random.Random(seed), indexes, kind, query)
    oracle = case.oracle
    every: dict[str, Any] = {"k": 1000, "allow_ids": case.ids, "title_weight": case.title_weight}
    requests = [
        RetrieveRequest(query, method="beam", beam_size=1000, **every),
        RetrieveRequest(query, method="beam", beam_size=2, exact=True, exact_budget=EVERYTHING, **every),
        RetrieveRequest(query, method="shortlist", **every),
        RetrieveRequest(query, method="auto", **every),
        RetrieveRequest(query, method="auto", decoder="disc", seed=1, **every),
    ]
    results = answers(retriever_of(case.index, case.model), *requests)
    for request, result in zip(requests, results, strict=True):
        assert result.certified
        numbers = oracle.numbers(result.candidates)
        oracle.assert_is_ranking(numbers, 1000)
        assert_in_order(result, oracle)
        logprobs = [c.logprob for c in result.candidates]
        expected = [oracle.logprob(n) for n in numbers]
        if request.exact:  # it ends when the order is proven, which takes only some forms of those in front
            assert all(mine <= its + 1e-9 for mine, its in zip(logprobs, expected, strict=True))
            continue
        assert logprobs == pytest.approx(expected, abs=1e-9)
        assert logprobs == [c.score for c in result.candidates]
        total = math.fsum(map(math.exp, logprobs))
        assert total == pytest.approx(oracle.mass(), abs=1e-9)
        assert total <= 1 + 1e-12
        if result.method != "beam":
            assert result.mass_lower == pytest.approx(oracle.mass(), abs=1e-9)
            shares = [c.probability * oracle.mass() for c in result.candidates if c.probability is not None]
            assert shares == pytest.approx([math.exp(value) for value in logprobs], abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(KINDS),
    query=st.text("abc", min_size=1, max_size=3),
    temperature=st.sampled_from([1.0, 0.5]),
)
def test_disc_names_one_owner_per_sample_and_adds_up_the_shares_of_the_forms_it_drew(
    indexes: list[Index], seed: int, kind: str, query: str, temperature: float
) -> None:
    case = Case.random(random.Random(seed), indexes, kind, query)
    options: dict[str, Any] = {"num_samples": 40, "num_draws": 3, "temperature": temperature, "seed": seed}
    request = RetrieveRequest(
        query, k=1000, method="disc", allow_ids=case.ids, title_weight=case.title_weight, **options
    )
    retriever = retriever_of(case.index, case.model)
    result, best = answers(retriever, request, replace(request, k=2))
    assert best.candidates == result.candidates[:2]
    keys = [(c.probability or 0.0, c.logprob) for c in result.candidates]
    assert keys == sorted(keys, reverse=True)
    oracle = EntityOracle.of(
        case.index, case.model, case.prompt, case.filter, temperature, title_weight=case.title_weight
    )
    assert result.mass_lower - 1e-9 <= oracle.mass() <= result.mass_upper + 1e-9
    if not oracle.entities:
        assert not result.candidates
        return
    session = case.model.prefill([case.prompt])
    params = DiscParams(reject_early=False, **options)
    (raw,) = disc(session, constraint_of(case.trie, [case.filter]), [params])
    assert isinstance(raw, DiscResult)
    assert result.num_accepted == sum(sample.accepted for sample in raw.samples)
    assert (result.mass, result.mass_stderr) == (raw.mass, raw.mass_stderr)
    assert (result.num_draws, result.seed) == (raw.num_draws, seed)
    drawn = Counter(sample.hypothesis.row for sample in raw.samples)
    counts: Counter[int] = Counter()
    for number, candidate in zip(oracle.numbers(result.candidates), result.candidates, strict=True):
        assert candidate.logprob == pytest.approx(oracle.logprob(number, drawn), abs=1e-9)
        counts[number] = round(len(raw.samples) * candidate.probability)
        assert counts[number] == pytest.approx(len(raw.samples) * candidate.probability)
    assert counts.total() == len(raw.samples)
    possible_owners = {
        rank: {e for e in oracle.entities if oracle.log_shares[e].get(rank, -math.inf) > -math.inf}
        for rank in drawn
    }
    for number, count in counts.items():
        mine = [rank for rank in drawn if number in possible_owners[rank]]
        alone = sum(drawn[rank] for rank in mine if len(possible_owners[rank]) == 1)
        assert max(alone, 1) <= count <= sum(drawn[rank] for rank in mine)


def random_scores(rng: random.Random, num_rows: int) -> list[float]:
    """Scores of rows; two kinds in three have few values, so that ties are common."""
    kind = rng.randrange(3)
    if not kind:
        return [rng.uniform(-9.0, -0.1) for _ in range(num_rows)]
    values = (-1.0, -2.0, -math.inf) if kind == 1 else tuple(math.log(2.0**-n) for n in range(1, 6))
    return rng.choices(values, k=num_rows)


def test_no_certificate_is_wrong_in_ten_thousand_cases(indexes: list[Index]) -> None:
    """Whatever rows were found, and whatever bound holds for the others, what is proven is true."""
    rng = random.Random(11)
    num_cases = num_proven = num_partly_found = 0
    while num_cases < 10_000:
        case = Case.random(rng, indexes, "uniform", "a")
        index, oracle = case.index, case.oracle
        owners_of = FormOwners(index, mask_of(case.filter), case.title_weight)
        shared = {rank: owners_of(rank) for rank in sorted(oracle.ranks)}
        lengths = {rank: len(index.row_token_ids(rank)) for rank in shared}
        for _ in range(50 if shared else 0):
            aggregate, penalty = rng.choice(SCORINGS)
            score, k = EntityScore(aggregate == "max", penalty), rng.randint(1, 8)
            forms = [
                Hypothesis((0,) * lengths[rank], rank, value * lengths[rank] ** penalty)
                for rank, value in zip(shared, random_scores(rng, len(shared)), strict=True)
            ]
            scores = {form.row: form.score(penalty) for form in forms}
            unseen, chance = rng.choice([*scores.values(), 0.0, -1.5]), rng.choice((0.0, 0.5, 0.9))
            found = [form for form in forms if scores[form.row] > unseen or rng.random() < chance]
            if rng.random() < 0.5:  # the smallest bound that holds
                unseen = max((scores[form.row] for form in forms if form not in found), default=-math.inf)
            tallies: dict[int, Tally] = {}
            for form in found:
                credit(tallies, form, shared[form.row])
            num_cases += 1
            if is_proven(index, tallies, k, score, unseen, len(oracle.entities)):
                num_proven += 1
                num_partly_found += len(found) < len(forms)
                told = best_first(index, possible({e: score.of(tally) for e, tally in tallies.items()}), k)
                truth = replace(oracle, rows={form.row: form.logprob for form in forms})
                truth.assert_is_ranking(told, k, aggregate, penalty)
    assert num_proven > 1_500
    assert num_partly_found > 1_000


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("which", "weights", "num_allowed"),
    [(5, (0.0, 1.0, 1.0, 4.0), None), (5, (0.0, 1.0, 1.0, 4.0), 7), (FEW, (1.0, 2.0, 4.0), 4)],
)
def test_disc_samples_entities_by_their_probability(
    indexes: list[Index], which: int, weights: Sequence[float], num_allowed: int | None
) -> None:
    """Chi-square of 4,000 seeds of one sample each against P(e | q) / P_L(S), alpha = 0.0001.

    Draws that were accepted are exact. The same for the pairs of form and owner.
    """
    index = indexes[which]
    with_weights(index, random.Random(8).choices(weights, k=index.num_entities))
    allowed = None if num_allowed is None else tuple(index.entity(e).entity_id for e in range(num_allowed))
    case = Case(index, model_of(index, "likely", 2), (0,), allowed, 3.0)
    entities: Counter[Any] = Counter()
    pairs: Counter[Any] = Counter()
    for first in range(0, 4_000, 250):
        requests = [
            RetrieveRequest(
                "q", method="disc", num_samples=1, num_draws=12, seed=seed, title_weight=case.title_weight
            )
            for seed in range(first, first + 250)
        ]
        prompts, filters = [case.prompt] * len(requests), [case.filter] * len(requests)
        for result in decode(index, case.model, *requests, prompts=prompts, filters=filters):
            assert isinstance(result, RetrievalResult)
            (candidate,) = result.candidates
            if result.num_accepted:
                entities[candidate.entity_id] += 1
                pairs[candidate.entity_id, candidate.surface] += 1
    oracle, mass = case.oracle, case.oracle.mass()
    law = {oracle.id_of(e): math.exp(oracle.logprob(e)) / mass for e in oracle.scores()}
    pair_law = {
        (oracle.id_of(e), index.surface(rank, e)): math.exp(value) / mass
        for e in oracle.entities
        for rank, value in oracle.forms(e).items()
        if value > -math.inf
    }
    assert entities.total() > 3_500
    assert entities.keys() <= law.keys()
    assert pairs.keys() <= pair_law.keys()
    assert len(pair_law) > len({surface.lower() for _, surface in pair_law})  # forms are shared
    assert chi_square(entities, law) > 1e-4
    assert chi_square(pairs, pair_law) > 1e-4
