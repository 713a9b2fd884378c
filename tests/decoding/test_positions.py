"""A query that has ended may stand in a batch past its model's last position; a living one may not."""

from __future__ import annotations

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from genret.decoding.beam_search import beam_search
from genret.decoding.disc import disc
from genret.decoding.errors import PromptTooLongError
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.params import BeamParams, DiscParams
from genret.decoding.trie.title_trie import TitleTrie

LIMIT, VOCAB, END = 24, 40, 0


def tiny(name: str) -> HFLanguageModel:
    torch.manual_seed(3)
    if name == "gpt2":
        config = GPT2Config(vocab_size=VOCAB, n_positions=LIMIT, n_embd=16, n_layer=2, n_head=2)
        return HFLanguageModel(GPT2LMHeadModel(config))
    return HFLanguageModel(
        LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCAB,
                hidden_size=16,
                intermediate_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=1,
                max_position_embeddings=LIMIT,
            )
        )
    )


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_only_living_branches_need_positions(name):
    session = tiny(name).prefill([[1, 2], [3] * LIMIT])
    one = torch.tensor([[5], [5]])
    logits = session.step(torch.tensor([[0], [-1]]), one)
    alone = tiny(name).prefill([[1, 2]]).step(torch.tensor([[0]]), one[:1])
    assert torch.allclose(logits[0], alone[0], atol=1e-5)
    assert torch.isfinite(logits).all()
    with pytest.raises(PromptTooLongError, match=f"position {LIMIT + 2} of {LIMIT}"):
        session.step(torch.tensor([[0], [0]]), one)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_long_prompt_does_not_end_the_search_of_a_short_one(name):
    rows = [(7, END), (*([8] * 12), END)]
    trie = TitleTrie.from_rows(rows, VOCAB)
    prompts = [[1, 2], [3] * (LIMIT - 3)]
    room = [LIMIT - len(prompt) for prompt in prompts]
    model = tiny(name)
    short, long = beam_search(model.prefill(prompts), trie, [BeamParams(5)] * 2, room=room)
    assert {h.token_ids for h in short.hypotheses} == set(rows)
    assert short.certified
    assert {h.token_ids for h in long.hypotheses} == {(7, END)}
    assert not long.certified
    samples = disc(model.prefill(prompts), trie, [DiscParams(num_samples=20, seed=1)] * 2, room=room)
    assert {s.hypothesis.token_ids for s in samples[1].samples} == {(7, END)}
    assert len(samples[0].samples) == 20
