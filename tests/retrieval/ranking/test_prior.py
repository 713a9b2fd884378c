"""Priors: against plain forwards, cut short and gone on with, in their file, and in a fit."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from genret.decoding.model.hf_model import HFLanguageModel
from genret.index_builder.build_options import EvidenceOptions
from genret.retrieval.errors import IndexFormatError, ModelError
from genret.retrieval.evidence.evidence import Evidence, open_evidence
from genret.retrieval.index.layout import PRIOR_FILE
from genret.retrieval.index.priors import Prior, priors_to_bytes, read_priors
from genret.retrieval.index.reader import Index
from genret.retrieval.methods.decoded_methods import Decoded
from genret.retrieval.methods.scored_methods import EntityScorer, Proposed, entities_to_score
from genret.retrieval.progress import StepProgress
from genret.retrieval.ranking import prior as prior_module
from genret.retrieval.ranking.made_queries import Labelled
from genret.retrieval.ranking.prior import (
    NULL_QUERIES,
    begun_prior,
    complete_prior,
    null_prompts,
    prompts_digest,
)
from genret.retrieval.ranking.ranker import Proposals, Ranker
from genret.retrieval.ranking.rankings import MODEL_LOGPROB, MODEL_PRIOR, NO_MODEL, Rankings
from genret.retrieval.ranking.tuned_ranking import QuerySet, Tuned, decoder_of, tune
from genret.retrieval.retriever import Retriever
from genret.retrieval.text import TextTokenizer
from genret.retrieval.types import RetrievalResult, RetrieveRequest
from tests.checkpoints import (
    END,
    checkpoint_config,
    make_checkpoint,
    make_index,
    plain_logprob,
    plain_model,
    train_tokenizer,
)
from tests.entity_oracle import EntityOracle
from tests.evidence_fixtures import made_up_texts
from tests.fakes import TableModel, recorded, tokens_after
from tests.index_fixtures import Notes
from tests.ranking_fixtures import write_rankings

CONFIG = checkpoint_config()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def index(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with Index.open(make_index(tmp_path_factory.mktemp("index"), checkpoint)) as opened:
        yield opened


def empty(index: Index, title_weight: float = 10.0, queries: tuple[str, ...] = NULL_QUERIES) -> Prior:
    """Return a prior to be filled, whose numbers are not rounded."""
    return Prior("it", queries, "digest", title_weight, np.full(index.num_entities, np.nan))  # type: ignore[arg-type]


@pytest.mark.parametrize("forms_at_once", [1, 3, 512])
@pytest.mark.parametrize("title_weight", [10.0, 0.5])
def test_it_is_the_mean_of_plain_forwards(
    checkpoint: Path, index: Index, forms_at_once: int, title_weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Aliases, shared titles and shared aliases are among the entities."""
    monkeypatch.setattr(prior_module, "_FORMS_AT_ONCE", forms_at_once)
    tokenizer = TextTokenizer.load(checkpoint)
    prompts = null_prompts(CONFIG, tokenizer)
    prior = empty(index, title_weight)
    complete_prior(prior, index, HFLanguageModel.load(checkpoint, "cpu", "float64"), prompts, StepProgress())
    plain = plain_model(checkpoint).double()
    oracles = [
        EntityOracle(
            index,
            {rank: plain_logprob(plain, prompt, index.row_token_ids(rank)) for rank in range(index.num_rows)},
            title_weight=title_weight,
        )
        for prompt in prompts
    ]
    expected = [
        math.log(sum(math.exp(oracle.logprob(entity)) for oracle in oracles) / len(oracles))
        for entity in range(index.num_entities)
    ]
    assert prior.logprobs.tolist() == pytest.approx(expected, abs=1e-9)
    assert len(set(expected)) > 8


class Interrupted(StepProgress):
    """Ctrl-C once so much is done."""

    def advance(self, done: int, note: str, *, tells_left: bool = False) -> None:
        if done > 6:
            raise KeyboardInterrupt


def test_what_is_done_is_not_redone(checkpoint: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prior_module, "_FORMS_AT_ONCE", 3)
    prompts = null_prompts(CONFIG, TextTokenizer.load(checkpoint))
    model = HFLanguageModel.load(checkpoint, "cpu", "float64")
    whole, cut, told = empty(index), empty(index), Notes()
    complete_prior(whole, index, model, prompts, told)
    counts = index.manifest.counts
    assert told.notes[0] == (
        f"the prior: 12 entities, {counts.postings} titles and aliases of about {counts.tokens} tokens, "
        "behind each of 2 queries without content"
    )
    assert told.notes[1].startswith("the prior: about ")
    with pytest.raises(KeyboardInterrupt):
        complete_prior(cut, index, model, prompts, Interrupted())
    assert 0 < cut.num_missing < index.num_entities
    known = ~np.isnan(cut.logprobs)
    scored = recorded(monkeypatch, EntityScorer, "score")
    complete_prior(cut, index, model, prompts, StepProgress())
    assert [entity for call in scored for entity in call[3][0]] == np.flatnonzero(~known).tolist()
    assert cut.logprobs.tolist() == pytest.approx(whole.logprobs.tolist(), abs=1e-9)
    scored.clear()
    complete_prior(cut, index, model, prompts, StepProgress())
    assert scored == []


def test_an_entity_that_cannot_be_written_has_no_probability(index: Index) -> None:
    """Every token of one title alone is impossible: -inf counts as 40, the largest surprise."""
    (entity,) = [n for n in range(index.num_entities) if index.entity(n).title == "Nile"]
    (rank,) = [rank for rank in range(index.num_rows) if index.entities_of(rank) == [entity]]
    row = index.row_token_ids(rank)

    def function(_: tuple[int, ...], written: tuple[int, ...]) -> torch.Tensor:
        logits = torch.zeros(index.vocab_size)
        if written == row[:-1]:
            logits[row[-1]] = -math.inf
        return logits

    prior = empty(index)
    complete_prior(prior, index, TableModel(index.vocab_size, function), [[5], [6]], StepProgress())
    assert np.flatnonzero(np.isinf(prior.logprobs)).tolist() == [entity]
    evidence = Evidence(index)
    evidence.use_prior(prior)
    (asked,) = evidence.ask(["who"])
    assert evidence.features(asked, np.array([entity]))[0, MODEL_PRIOR] == 40


def test_broken_logits_are_an_error_of_the_model(index: Index) -> None:
    model = TableModel(index.vocab_size, lambda _, __: torch.full((index.vocab_size,), math.nan))
    with pytest.raises(ModelError, match="NaN"):
        complete_prior(empty(index), index, model, [[5], [6]], StepProgress())


def test_it_is_looked_up_and_counts_as_the_mean_where_it_is_missing(index: Index) -> None:
    rng = np.random.default_rng(1)
    logprobs = (-rng.exponential(12, index.num_entities)).astype(np.float32)
    logprobs[[2, 5]] = np.nan
    evidence = Evidence(index)
    (asked,) = evidence.ask(["who"])
    numbers = np.array([5, 0, 2, 11, 7])
    assert not evidence.features(asked, numbers)[:, MODEL_PRIOR].any()
    evidence.use_prior(Prior("it", NULL_QUERIES, "", 10.0, logprobs))
    known = [min(-float(value), 40.0) for value in logprobs if not math.isnan(value)]
    expected = [
        sum(known) / len(known) if math.isnan(logprobs[n]) else min(-float(logprobs[n]), 40) for n in numbers
    ]
    features = evidence.features(asked, numbers)
    assert features[:, MODEL_PRIOR].tolist() == pytest.approx(expected, rel=1e-6)
    assert not features[:, MODEL_LOGPROB].any()  # the model's own number is not touched
    evidence.use_prior(Prior("it", NULL_QUERIES, "", 10.0, np.full(12, np.nan, np.float32)))
    assert not evidence.features(asked, numbers)[:, MODEL_PRIOR].any()


@pytest.mark.parametrize("has_prior", [False, True])
def test_what_no_beam_found_is_taken_for_its_prior_at_most(index: Index, has_prior: bool) -> None:
    """That a title is rare is no merit where the model was not seen to write it."""
    priors = np.array([-1, -5, -30, -8, -39, -2, *[-10] * 6], np.float32)
    evidence = Evidence(index)
    if has_prior:
        evidence.use_prior(Prior("it", NULL_QUERIES, "", 10.0, priors))
    (asked,) = evidence.ask(["who"])
    found = {0: -4.0, 1: -6.0}
    decoded = Decoded(RetrievalResult("who", "beam", ()), tuple(found), -6.0, found)
    numbers = np.arange(12)
    proposals = Proposals(asked, numbers, evidence.features(asked, numbers), 12)
    proposed = Proposed(tuple(numbers.tolist()), evidence, asked, proposals)
    ranking, _ = Rankings().of("unweighed")
    weights = np.zeros(len(ranking.weights))
    weights[[MODEL_LOGPROB, MODEL_PRIOR]] = 1.0, 0.9
    request = RetrieveRequest("who", k=1, shortlist_size=4)
    chosen = entities_to_score(request, proposed, decoded, replace(ranking, weights=weights))
    scores = {
        entity: found.get(entity, min(-6.0, float(prior)) if has_prior else -6.0)
        - (0.9 * float(prior) if has_prior else 0)
        for entity, prior in enumerate(priors)
    }
    assert list(chosen) == sorted(scores, key=lambda entity: (-scores[entity], entity))[:4]


def stored(index: Index, data: bytes, monkeypatch: pytest.MonkeyPatch) -> dict[str, Prior]:
    """Read priors as if the index had them."""
    monkeypatch.setattr(type(index.manifest), "file", lambda *_: object())
    monkeypatch.setattr(Index, "evidence_file", lambda *_: pa.py_buffer(data))
    return read_priors(index)


def test_files_hold_the_priors_of_several_models(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    first = np.array([-0.5, -math.inf, math.nan, *[-3.25] * 9], np.float32)
    priors = [
        Prior("xxh3:b", ("a", 'b "'), "d1", 0.5, first),
        Prior("org/name@c", NULL_QUERIES, "d2", 10.0, first[::-1].copy()),
    ]
    data = priors_to_bytes(priors)
    assert data == priors_to_bytes(priors[::-1])
    found = stored(index, data, monkeypatch)
    assert list(found) == ["org/name@c", "xxh3:b"]
    for prior in priors:
        read = found[prior.model]
        assert (read.queries, read.prompts, read.title_weight) == (
            prior.queries,
            prior.prompts,
            prior.title_weight,
        )
        assert read.logprobs.dtype == np.float32
        assert np.array_equal(read.logprobs, prior.logprobs, equal_nan=True)
        assert read.num_missing == 1


def _field(metadata: dict[str, str] | None = None) -> pa.Field:
    return pa.field("m", pa.float32(), nullable=False, metadata=metadata)


@pytest.mark.parametrize(
    ("field", "values", "said"),
    [
        (_field(), [-1.0] * 12, "column 'm': not a prior"),
        (_field({"prior": "{}"}), [-1.0] * 12, "column 'm': not a prior: KeyError"),
        (pa.field("m", pa.float64(), nullable=False), [-1.0] * 12, "expected the columns m: float"),
        (_field(), [-1.0] * 11, "expected 12 rows, got 11"),
        (
            _field({"prior": '{"queries": ["a"], "prompts": "b", "title_weight": 1}'}),
            [-1.0, 2.0] + [-1.0] * 10,
            "column 'm': entity 1: expected a log-probability, at most 0, got 2.0",
        ),
    ],
)
def test_files_of_something_else_are_named(
    index: Index, field: pa.Field, values: list[float], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.schema([field])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch([pa.array(values, field.type)], schema=schema))
    with pytest.raises(IndexFormatError, match=f"^{PRIOR_FILE}: .*{said}"):
        stored(index, sink.getvalue().to_pybytes(), monkeypatch)


def test_only_a_prior_of_equal_prompts_is_gone_on_with(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [[5, 6], [7]]
    logprobs = np.array([math.nan, *[-3.25] * 11], np.float32)
    data = priors_to_bytes([Prior("m", NULL_QUERIES, prompts_digest(prompts), 10.0, logprobs)])
    stored(index, data, monkeypatch)
    told = Notes()
    begun = begun_prior(index, "m", prompts, 10.0, told)
    assert np.array_equal(begun.logprobs, logprobs, equal_nan=True)
    begun.logprobs[0] = -1  # writable: what is in the file stays as it is
    for other in (
        begun_prior(index, "another", prompts, 10.0, told),
        begun_prior(index, "m", [[5, 6], [8]], 10.0, told),
        begun_prior(index, "m", prompts, 9.0, told),
    ):
        assert other.num_missing == index.num_entities
        assert other.prompts == prompts_digest([[5, 6], [8]] if other.prompts != begun.prompts else prompts)
    assert told.notes == []


def test_a_damaged_prior_is_begun_anew_in_one_line(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(IndexFormatError):
        stored(index, b"no prior", monkeypatch)
    told = Notes()
    assert begun_prior(index, "m", [[5]], 10.0, told).num_missing == index.num_entities
    (line,) = told.notes
    assert line.startswith(f"the prior is computed anew, because it cannot be used: {PRIOR_FILE}: ")


NUM_ENTITIES = 60


class World:
    """A catalogue, and a model for which titles that are short or common are too likely whatever is asked."""

    def __init__(self, folder: Path) -> None:
        names = list(dict.fromkeys(made_up_texts(200, seed=1, most_words=4)))[:NUM_ENTITIES]
        catalogue = "\n".join(["entity_id\ttitle", *(f"E{n}\t{name}" for n, name in enumerate(names))])
        self.tokenizer = TextTokenizer(train_tokenizer([catalogue]), END, "tiny")
        self.index = Index.open(
            make_index(
                folder,
                self.tokenizer,
                catalogue,
                rendering=CONFIG.rendering,
                evidence=EvidenceOptions(ranking=write_rankings(folder)),
            )
        )
        self.template = CONFIG.prompt(None)
        numbers = random.Random(2).sample(range(self.index.num_entities), 50)
        self.queries = tuple(Labelled(f"{chr(97 + n % 26)}q{n}", (n,)) for n in numbers)
        asked = {
            tuple(self.template.encode(self.tokenizer, query.text)): self.index.row_token_ids(
                query.entities[0]
            )
            for query in self.queries
        }
        following = tokens_after(self.index.row_token_ids(rank) for rank in range(self.index.num_rows))
        noise = TableModel.random(self.index.vocab_size, 3, scale=2.0)

        def function(prompt: tuple[int, ...], written: tuple[int, ...]) -> torch.Tensor:
            logits = noise.logits((), written).clone()  # the same behind every prompt
            logits[sorted(following[written])] += 5
            logits[self.index.end_token_id] += 3
            right = asked.get(prompt, ())
            if right[: len(written)] == written and len(written) < len(right):
                logits[right[len(written)]] += 1.0
            return logits

        self.model = TableModel(self.index.vocab_size, function)

    def tuned(self, has_prior: bool) -> Tuned:
        before, alone = (Rankings().of(name)[0] for name in ("unweighed", NO_MODEL))
        ranker = Ranker(open_evidence(self.index), before, alone)
        retriever = Retriever(self.index, self.model, self.tokenizer, CONFIG, ranker=ranker, is_named=False)
        if has_prior:
            prompts = null_prompts(CONFIG, self.tokenizer)
            prior = begun_prior(self.index, "it", prompts, 10.0, StepProgress())
            complete_prior(prior, self.index, self.model, prompts, StepProgress())
            ranker.evidence.use_prior(prior)
        sets = [QuerySet("labels", self.queries, Path("labels"), "0" * 32)]
        return tune(sets, ranker.evidence, decoder_of(retriever), before, StepProgress(), folds=5, seed=1)


def test_the_fitted_weight_takes_back_what_short_and_common_titles_are_given(tmp_path: Path) -> None:
    world = World(tmp_path)
    without, with_prior = (world.tuned(has_prior) for has_prior in (False, True))
    assert without.ranking.weights[MODEL_PRIOR] == 0
    weight = with_prior.ranking.weights
    assert weight[MODEL_PRIOR] > 0
    # Behind these queries log P(e | q) is the prior plus what the query adds: all of the prior is taken back.
    assert weight[MODEL_PRIOR] == pytest.approx(weight[MODEL_LOGPROB], rel=0.35)
    hits = [tuned.reports[-1].figures["hits@1"].after.value for tuned in (without, with_prior)]
    assert hits[0] < 0.5
    assert hits[1] > 0.9
    world.index.close()
