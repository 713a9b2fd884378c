"""Tiny random models of every verified architecture, and plain forward passes to compare with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel

VOCAB = 61
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
COMMON = {
    **SPECIAL,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
}
BART = {
    **SPECIAL,
    "dropout": 0.0,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 40,
    "decoder_start_token_id": 2,
}
T5 = {
    **SPECIAL,
    "dropout": 0.0,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "decoder_start_token_id": 0,
}

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 24,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": 48,
}
GROUPED = {"num_key_value_heads": 2}
WINDOWED = {**GROUPED, "sliding_window": 6}  # shorter than prompts, like all windows here
MIXED = {**WINDOWED, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
NARROW = {"head_dim": 8}
GEMMA = {**NARROW, "query_pre_attn_scalar": 8}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}

# name -> configuration class and what differs from the common tiny model.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-mha": ("LlamaConfig", {}),
    "llama-gqa": ("LlamaConfig", GROUPED),
    "llama-mqa-llama3-rope": ("LlamaConfig", {"num_key_value_heads": 1, "rope_parameters": LLAMA3_ROPE}),
    "qwen2": ("Qwen2Config", GROUPED),
    "qwen2-mixed-windows": ("Qwen2Config", {**WINDOWED, "use_sliding_window": True, "max_window_layers": 1}),
    "qwen3": ("Qwen3Config", {**GROUPED, **NARROW}),
    "mistral-window": ("MistralConfig", {**GROUPED, "sliding_window": 5}),
    "phi3": ("Phi3Config", {}),
    "phi3-window": ("Phi3Config", {**GROUPED, "sliding_window": 7}),
    "phi3-longrope": ("Phi3Config", {"original_max_position_embeddings": 48, "rope_parameters": LONGROPE}),
    "gemma": ("GemmaConfig", {"num_key_value_heads": 1, **NARROW}),
    "gemma2": ("Gemma2Config", {**WINDOWED, **GEMMA}),
    "gemma3": ("Gemma3TextConfig", {**MIXED, **GEMMA}),
    "gpt2": ("GPT2Config", {"n_inner": 48, "scale_attn_by_inverse_layer_idx": True}),
    "gpt_neox": ("GPTNeoXConfig", {}),
    "starcoder2-window": ("Starcoder2Config", WINDOWED),
    "ministral": ("MinistralConfig", {**GROUPED, **NARROW, "sliding_window": 5}),
    # Their full layers are without rotary positions.
    "cohere2": ("Cohere2Config", {**MIXED, "logit_scale": 0.5}),
    "exaone4": ("Exaone4Config", {**MIXED, "sliding_window_pattern": 2}),
    # One layer is without rotary positions.
    "smollm3-window": ("SmolLM3Config", {**MIXED, "use_sliding_window": True, "no_rope_layer_interval": 2}),
    "olmo3": ("Olmo3Config", MIXED),
    "vaultgemma": ("VaultGemmaConfig", {**WINDOWED, **GEMMA}),
    # Attention sinks of every head, and two experts of four for every token.
    "gpt_oss": (
        "GptOssConfig",
        {**MIXED, **NARROW, **EXPERTS, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    ),
    "bart": ("BartConfig", BART),
    "mbart": ("MBartConfig", BART),
    "t5": ("T5Config", T5),
    "t5-gated": ("T5Config", {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "mt5": ("MT5Config", T5),
    "umt5": ("UMT5Config", T5),
}


def long_and_shallow(name: str, num_positions: int) -> dict[str, Any]:
    """What makes an architecture read `num_positions` tokens with two decoder layers: for `build`."""
    _, options = ARCHITECTURES[name]
    if "d_kv" in options:
        return {"num_layers": 1, "num_decoder_layers": 2}
    if "d_model" in options:
        return {"encoder_layers": 1, "decoder_layers": 2, "max_position_embeddings": num_positions}
    changes: dict[str, Any] = {"num_hidden_layers": 2, "max_position_embeddings": num_positions}
    # What is said of every layer.
    changes |= {key: value[:2] for key, value in options.items() if isinstance(value, list)}
    if "original_max_position_embeddings" in options:
        # The tree's positions end where the rotary frequencies begin to change.
        original = {"original_max_position_embeddings": num_positions // 2}
        changes |= original | {"rope_parameters": {**options["rope_parameters"], **original}}
    return changes


def build(
    name: str,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> PreTrainedModel:
    """A tiny random model whose attention decides: weights several times their usual size.

    Args:
        name: In `ARCHITECTURES`.
        dtype: Of the weights.
        seed: Of the weights.
        changes: Configuration that differs from the named one.
    """
    config_name, options = ARCHITECTURES[name]
    encoder_decoder = "d_model" in options
    config = getattr(transformers, config_name)(
        **{"vocab_size": VOCAB, **({} if encoder_decoder else COMMON), **options, **changes}
    )
    auto = AutoModelForSeq2SeqLM if encoder_decoder else AutoModelForCausalLM
    torch.manual_seed(seed)
    # T5 does not scale its products: wider weights would make float32 itself inexact. BART normalises after
    # every sum: wider weights would drown what the ancestors of a token add to it.
    scale = 1.0 if "d_kv" in options or config_name == "BartConfig" else 2.0
    model = auto.from_config(config, attn_implementation="eager").to(dtype).eval()
    if dtype == torch.float64 and "num_local_experts" in options:
        model.set_experts_implementation("eager")  # the grouped product has no float64 on a CPU
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                wide = "embed" in parameter_name or "shared" in parameter_name or "wte" in parameter_name
                parameter.normal_(0.0, 0.5 if wide else scale / parameter.shape[-1] ** 0.5)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@torch.no_grad()
def plain_logits(model: PreTrainedModel, prompt: Sequence[int], rows: Sequence[Sequence[int]]) -> Tensor:
    """Logits after every prefix of rows of one length, uncached and unpadded. Shape: (N, length + 1, V)."""
    device = model.device
    if model.config.is_encoder_decoder:
        start = model.config.decoder_start_token_id
        output = model(
            input_ids=torch.tensor([list(prompt)] * len(rows), device=device),
            decoder_input_ids=torch.tensor([(start, *row) for row in rows], device=device),
            use_cache=False,
        )
    else:
        whole = torch.tensor([(*prompt, *row) for row in rows], device=device)
        output = model(input_ids=whole, use_cache=False)
    logits: Tensor = output.logits[:, -(len(rows[0]) + 1) :]
    return logits
