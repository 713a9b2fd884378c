"""A tiny random Llama as a GGUF file, and the model whose weights are in it."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from tests.checkpoints import END, train_tokenizer
from tests.tiny_transformers import build

_TEXTS = ("the longest river of Africa is the Nile", "Query: a river\nEntity: Rhine", "Mount Everest and K2")
_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tiny_tokenizer() -> Tokenizer:
    return train_tokenizer(_TEXTS, 300)


def write_gguf(
    file: Path, seed: int = 0, architecture: str = "llama", leave_out: str = "none", tied: bool = False
) -> LlamaForCausalLM:
    """Write the file; weights are in float32 and have no more digits than bfloat16 holds."""
    tokenizer = tiny_tokenizer()
    model = build("llama", tokenizer.get_vocab_size(), seed)
    assert isinstance(model, LlamaForCausalLM)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    config = model.config
    assert isinstance(config, LlamaConfig)
    file.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads or config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer, tokenizer)
    for name, weight in model.state_dict().items():
        stored = _stored_name(name)
        if leave_out not in stored and not (tied and stored == "output.weight"):
            writer.add_tensor(stored, _stored(name, weight, config).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    document = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(document["vocab"], key=document["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    kinds = [gguf.TokenType.CONTROL if token == END else gguf.TokenType.NORMAL for token in tokens]
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(merge) for merge in document["merges"]])
    for add in (writer.add_bos_token_id, writer.add_eos_token_id, writer.add_unk_token_id):
        add(tokens.index(END))


def _stored_name(name: str) -> str:
    known = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in known:
        return known[name]
    _, _, layer, part = name.split(".", 3)
    return f"blk.{layer}.{_NAMES[part.removesuffix('.weight')]}.weight"


def _stored(name: str, weight: Tensor, config: LlamaConfig) -> Tensor:
    """Return a weight in the order of rows in which llama.cpp keeps the two that are rotated."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for part, num_heads in heads.items():
        if part in name and num_heads:
            halves = weight.view(num_heads, 2, weight.shape[0] // num_heads // 2, weight.shape[1])
            return halves.swapaxes(1, 2).reshape(weight.shape)
    return weight.contiguous()


def logits(model: torch.nn.Module, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 250, (3, 12), generator=generator)
    with torch.no_grad():
        found: Tensor = model(input_ids=ids, use_cache=False).logits
    return found.float()
