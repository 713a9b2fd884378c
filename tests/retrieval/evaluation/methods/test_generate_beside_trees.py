"""transformers' `generate` on a model that the service decodes with: the same as on an untouched one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, GenerationConfig

from genret.decoding.model.hf_model import HFLanguageModel
from genret.retrieval.evaluation.labelled_sets import LabelledQuery
from genret.retrieval.evaluation.methods.generated import Generator
from genret.retrieval.retriever import Retriever
from tests.checkpoints import CATALOGUE, make_checkpoint, make_index
from tests.evaluation_fixtures import make_method

LOADERS = {"llama": AutoModelForCausalLM, "bart": AutoModelForSeq2SeqLM}
ALPHA = 1e-4  # of each statistical test, seeded


@pytest.fixture(scope="module", params=list(LOADERS))
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp(request.param) / request.param, request.param)


@pytest.fixture
def retriever(checkpoint: Path, tmp_path: Path) -> Retriever:
    return Retriever.open(make_index(tmp_path, checkpoint), checkpoint)


def test_greedy_search_writes_what_an_untouched_model_writes(checkpoint: Path, retriever: Retriever) -> None:
    assert isinstance(retriever.model, HFLanguageModel)
    untouched = LOADERS[checkpoint.name].from_pretrained(checkpoint).eval()
    prompts = torch.tensor([[2, 7, 9, 11, 13], [2, 30, 31, 32, 4]])
    retriever.warm_up()
    for mask in (torch.ones_like(prompts), torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])):
        settings = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False}
        ours = retriever.model.pretrained.generate(prompts, **settings)  # type: ignore[operator]
        assert torch.equal(ours, untouched.generate(prompts, **settings))


def test_settings_of_the_checkpoint_have_no_say(retriever: Retriever) -> None:
    assert isinstance(retriever.model, HFLanguageModel)
    method = make_method("unconstrained:4", retriever, 10, 4)
    queries = [LabelledQuery("q", "the prince of denmark")]
    (before,) = method.answer(queries, 0, lambda _: None)
    pretrained = retriever.model.pretrained
    theirs = GenerationConfig(no_repeat_ngram_size=1, forced_bos_token_id=40, repetition_penalty=9.0)  # type: ignore[no-untyped-call]
    pretrained.generation_config = theirs
    (after,) = method.answer(queries, 0, lambda _: None)
    assert after.entities == before.entities
    assert pretrained.generation_config is theirs


@pytest.mark.statistical
def test_trie_and_disc_with_one_draw_follow_one_law(checkpoint: Path, tmp_path: Path) -> None:
    """A chi-square test of homogeneity over 1,500 samples of each; no two entities have a name in common."""
    alone = "".join(line for line in CATALOGUE.splitlines(True) if not line.startswith(("Q9", "Q11")))
    retriever = Retriever.open(make_index(tmp_path, checkpoint, alone), checkpoint)
    queries = [LabelledQuery(f"q{i}", "quicksilver") for i in range(1500)]
    counts = []
    for name in ("trie", "disc:1"):
        rankings = make_method(name, retriever, 10, 500).answer(queries, 5, lambda _: None)
        counts.append(Counter(ranking.entities[0].entity_id for ranking in rankings))
    seen = [e for e in counts[0] | counts[1] if counts[0][e] + counts[1][e] >= 10]
    statistic = sum((counts[0][e] - counts[1][e]) ** 2 / (counts[0][e] + counts[1][e]) for e in seen)
    freedom = len(seen) - 1
    assert freedom >= 2
    assert torch.special.gammaincc(torch.tensor(freedom / 2), torch.tensor(statistic / 2)) > ALPHA


def test_a_title_of_several_entities_names_them_in_one_order_and_disc_draws_one(
    checkpoint: Path, tmp_path: Path
) -> None:
    index = make_index(tmp_path, checkpoint, "entity_id\ttitle\nQ3\tAmazon\nQ1\tAmazon\nQ2\tAmazon\n")
    with Retriever.open(index, checkpoint) as retriever:
        queries = [LabelledQuery("q", "a river")]
        named = {
            name: [
                e.entity_id
                for e in make_method(name, retriever, 2, 4).answer(queries, 0, lambda _: None)[0].entities
            ]
            for name in ("trie", "disc:1", "disc:3", "beam")
        }
        assert named["trie"] == named["beam"] == ["Q1", "Q2"]
        for name in ("disc:1", "disc:3"):
            assert len(named[name]) == 1
            assert {*named[name]} <= {"Q1", "Q2", "Q3"}


@pytest.mark.statistical
def test_free_samples_follow_the_model(retriever: Retriever) -> None:
    """The first tokens of samples against the softmax of the logits: chi-square over 2,000 samples."""
    assert isinstance(retriever.model, HFLanguageModel)
    prompt = retriever.config.prompt(None).encode(retriever.tokenizer, "denmark")
    law = torch.softmax(retriever.model.prefill([prompt]).root_logits[0].double(), dim=0)
    generator = Generator(retriever, retriever.model, None, along_trie=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        written = [titles[0].token_ids[0] for _ in range(4) for titles in generator.write([prompt] * 500)]
    counts = Counter(written)
    expected = law * len(written)
    common = [t for t in range(len(law)) if expected[t] >= 5]
    statistic = sum((counts[t] - float(expected[t])) ** 2 / float(expected[t]) for t in common)
    assert torch.special.gammaincc(torch.tensor((len(common) - 1) / 2), torch.tensor(statistic / 2)) > ALPHA


def test_a_long_prompt_takes_no_room_from_others(tmp_path: Path) -> None:
    """A decoder-only model of 64 positions: behind the longest prompt there is no room for long titles."""
    checkpoint = make_checkpoint(tmp_path / "llama", "llama", max_positions=64)
    long = "A title with far more tokens than a long prompt leaves room for"
    index = make_index(tmp_path, checkpoint, f"title\n{long}\n")
    with Retriever.open(index, checkpoint) as retriever:
        assert isinstance(retriever.model, HFLanguageModel)
        assert 32 < retriever.index.max_row_tokens < 60
        generator = Generator(retriever, retriever.model, None, along_trie=True)
        ((near,), (far,)) = generator.write([[2, 4], [5] * 40])
        assert near.row == 0
        assert not generator.was_cut(near)
        assert far.row == -1
        assert generator.was_cut(far)
        queries = [LabelledQuery("near", "a"), LabelledQuery("far", "word " * 30)]
        method = make_method("trie", retriever, 10, 2)
        found = [r.entities for r in method.answer(queries, 0, lambda _: None)]
        assert [len(entities) for entities in found] == [1, 0]  # no room is no answer, and no invalid one
