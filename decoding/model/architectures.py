"""Describes architectures: whether the token tree is exact for one, its position limit, how its layers
attend.

*Verified* architectures are compared with plain forward passes by the tests of this repository. *Refused*
ones keep state that a tree of branches cannot share. Any other has to pass a numeric self-check when it is
loaded (`decoding.model.self_check`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from genret.decoding.errors import UnsupportedModelError

VERIFIED = frozenset(
    {
        "bart",
        "cohere2",
        "exaone4",
        "gemma",
        "gemma2",
        "gemma3_text",
        "gpt2",
        "gpt_neox",
        "gpt_oss",
        "llama",
        "mbart",
        "ministral",
        "mistral",
        "mt5",
        "olmo3",
        "phi3",
        "qwen2",
        "qwen3",
        "smollm3",
        "starcoder2",
        "t5",
        "umt5",
        "vaultgemma",
    }
)

# Refused here (by name, for their windows or by the self-check) but listed in vLLM's registry of models.
_RUN_BY_VLLM = frozenset(
    {
        "bamba",
        "bloom",
        "cwm",
        "deepseek_v2",
        "deepseek_v3",
        "falcon",
        "falcon_h1",
        "falcon_mamba",
        "gptj",
        "granitemoehybrid",
        "jamba",
        "lfm2",
        "llama4_text",
        "mamba",
        "mamba2",
        "minimax",
        "mixtral",
        "mpt",
        "nemotron",
        "nemotron_h",
        "qwen3_moe",
        "qwen3_next",
        "stablelm",
        "zamba2",
    }
)

_ALIBI = "ALiBi attention biases are built from slot numbers"
_RECURRENT = "its recurrent state has no token axis, so branches cannot share a prompt"
_SPARSE = "its attention pattern depends on slot numbers"

REFUSED: dict[str, str] = {
    "bamba": _RECURRENT,
    "bigbird_pegasus": _SPARSE,
    "bloom": _ALIBI,
    "falcon_h1": _RECURRENT,
    "falcon_mamba": _RECURRENT,
    "granitemoehybrid": _RECURRENT,
    "jamba": _RECURRENT,
    "led": _SPARSE,
    "lfm2": _RECURRENT,
    "longt5": _SPARSE,
    "mamba": _RECURRENT,
    "mamba2": _RECURRENT,
    "minimax": _RECURRENT,
    "mpt": _ALIBI,
    "nemotron_h": _RECURRENT,
    "qwen3_next": _RECURRENT,
    "recurrent_gemma": _RECURRENT,
    "reformer": _SPARSE,
    "rwkv": _RECURRENT,
    "xlnet": _SPARSE,
    "xlstm": _RECURRENT,
    "zamba": _RECURRENT,
    "zamba2": _RECURRENT,
}


def text_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return the part of a configuration that describes the (decoder of the) text model."""
    return config.get_text_config(decoder=True)


def check_supported(config: PreTrainedConfig) -> bool:
    """Refuse by name what cannot be exact.

    Returns:
        True for a verified architecture, False if a self-check has to decide.

    Raises:
        UnsupportedModelError: the architecture keeps state that branches cannot share, or is not verified and
            limits attention in a way that a short self-check would not notice.
    """
    name = config.model_type
    text = text_config(config)
    if name in REFUSED:
        raise UnsupportedModelError(
            f"model type {name!r} is not supported: {REFUSED[name]}{other_engine(name)}"
        )
    if getattr(text, "alibi", False):
        raise UnsupportedModelError(
            f"model type {name!r} with alibi=True is not supported: {_ALIBI}{other_engine(name)}"
        )
    if getattr(text, "use_bidirectional_attention", False):
        raise UnsupportedModelError(
            f"model type {name!r} with use_bidirectional_attention is not supported: prompts would see titles"
        )
    if name in VERIFIED:
        return True
    limited = sorted(set(getattr(text, "layer_types", None) or []) - {"full_attention"})
    limited += [key for key in ("sliding_window", "attention_chunk_size") if getattr(text, key, None)]
    if limited:
        raise UnsupportedModelError(
            f"model type {name!r} is not supported: it is not among the verified architectures and limits "
            f"attention by {', '.join(limited)}, which a self-check on short prompts cannot cover"
            f"{other_engine(name)}"
        )
    return False


def other_engine(model_type: str) -> str:
    """Return the end of a refusal that names another engine for the architecture; empty if none is known."""
    if model_type not in _RUN_BY_VLLM:
        return ""
    return "; vLLM runs this architecture, see docs/engines.md"


def position_limit(model: PreTrainedModel) -> int | None:
    """Return the number of positions of the decoder, None without bound.

    Rotary embeddings whose frequencies change with the sequence length are bounded by the length at which
    they begin to change: beyond it, cached keys would have to be rotated again, and a query's scores would
    depend on the longest query of its batch.
    """
    if shared_relative_bias(model) is not None:
        return None
    config = text_config(model.config)
    limits = [getattr(config, "max_position_embeddings", None)]
    for rope in _rope_parameters(config):
        if rope.get("rope_type") in ("longrope", "dynamic"):
            limits.append(rope.get("original_max_position_embeddings"))
    known = [int(limit) for limit in limits if limit is not None]
    return min(known) if known else None


def encoder_position_limit(model: PreTrainedModel) -> int | None:
    """Return the number of positions of an encoder-decoder's encoder, None without bound."""
    if shared_relative_bias(model) is not None:
        return None
    limit = getattr(model.config, "max_position_embeddings", None)
    return None if limit is None else int(limit)


def decoder_prompt(model: PreTrainedModel) -> tuple[int, ...]:
    """Return the tokens before every title of an encoder-decoder, as `generate` would place them.

    That is `decoder_start_token_id` (else `bos_token_id`), then `forced_bos_token_id` if the generation
    configuration sets one: `generate` writes it with probability one, so it adds nothing to a title's
    log-probability.

    Raises:
        UnsupportedModelError: the checkpoint names no start token.
    """
    generation = model.generation_config
    candidates = (
        getattr(generation, "decoder_start_token_id", None),
        getattr(model.config, "decoder_start_token_id", None),
        getattr(generation, "bos_token_id", None),
    )
    start = next((token for token in candidates if isinstance(token, int)), None)
    if start is None:
        raise UnsupportedModelError(
            f"model type {model.config.model_type!r} names no decoder_start_token_id and no bos_token_id; "
            "pass decoder_prompt to say which tokens stand before a title"
        )
    forced = getattr(generation, "forced_bos_token_id", None)
    return (start,) if forced is None else (start, int(forced))


def vocab_size(model: PreTrainedModel) -> int:
    """Return the number of logits, V: rows of the output matrix, possibly more than the tokenizer has."""
    head: nn.Module | None = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if head is None:
        raise UnsupportedModelError(f"model type {model.config.model_type!r} has no language modelling head")
    weight = head.weight
    assert isinstance(weight, Tensor)
    return weight.shape[0]


def input_vocab_size(model: PreTrainedModel) -> int:
    """Return the number of token ids the model can read."""
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, Tensor)
    return weight.shape[0]


def slot_numbered_positions(model: PreTrainedModel) -> nn.Module | None:
    """Return the position embedding of a decoder that numbers positions by cache slot (BART), or None."""
    if not model.config.is_encoder_decoder:
        return None
    return getattr(_decoder(model), "embed_positions", None)


def shared_relative_bias(model: PreTrainedModel) -> nn.Module | None:
    """Return the decoder's first self-attention with a relative bias table (T5 and its kin), or None.

    T5 keeps one table in its first layer for all layers, UMT5 one in every layer.
    """
    for module in _decoder(model).modules():
        if getattr(module, "has_relative_attention_bias", False) and hasattr(module, "compute_bias"):
            return module
    return None


def _decoder(model: PreTrainedModel) -> nn.Module:
    if not model.config.is_encoder_decoder:
        return model
    decoder: nn.Module = model.get_decoder()  # type: ignore[no-untyped-call]
    return decoder


def _rope_parameters(config: PreTrainedConfig) -> list[dict[str, Any]]:
    """Rotary parameters of all layer types."""
    parameters = getattr(config, "rope_parameters", None) or {}
    if "rope_type" in parameters:
        return [parameters]
    return [nested for nested in parameters.values() if isinstance(nested, dict)]


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Kind of attention of a decoder layer."""

    name: str  # Description, e.g. "sliding attention, window 512"
    window: int | None = None  # Positions a token attends to, itself included; None without bound


def decoder_layers(model: PreTrainedModel) -> tuple[list[nn.Module], nn.Module]:
    """Return the layers of the decoder in order, and the module that holds them.

    The layers are the first list of modules in the decoder; experts and the like come inside of layers.
    """
    decoder: nn.Module = model.get_decoder()  # type: ignore[no-untyped-call]
    for name, module in decoder.named_modules():
        if isinstance(module, nn.ModuleList) and len(module):
            return list(module), decoder.get_submodule(name.rpartition(".")[0])
    return [], decoder


def layer_kinds(model: PreTrainedModel) -> tuple[LayerKind, ...]:
    """Return the kind of every decoder layer."""
    config = text_config(model.config)
    layers, _ = decoder_layers(model)
    relative = shared_relative_bias(model) is not None
    crossing = bool(model.config.is_encoder_decoder)
    kinds = []
    for number in range(len(layers)):
        kind = _self_attention(config, number, len(layers))
        extra = (", relative bias" if relative else "") + (", cross-attention" if crossing else "")
        kinds.append(LayerKind(kind.name + extra, kind.window))
    return tuple(kinds)


def _self_attention(config: PreTrainedConfig, number: int, num_layers: int) -> LayerKind:
    types = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    window = getattr(config, "sliding_window", None)
    chunk = getattr(config, "attention_chunk_size", None)
    if isinstance(types, list | tuple) and len(types) == num_layers:
        name = str(types[number])
    else:
        name = "full_attention" if not window else "sliding_attention"
    if name == "sliding_attention" and window:
        return LayerKind(f"sliding attention, window {window}", int(window))
    if name == "chunked_attention" and chunk:
        return LayerKind(f"chunked attention, chunks of {chunk}", int(chunk))
    if name == "local" and getattr(config, "window_size", None):  # GPT-Neo's words
        return LayerKind(f"local attention, window {config.window_size}", int(config.window_size))
    return LayerKind(name.replace("_", " ") if name not in ("global", "attention") else "full attention")


def describe_positions(model: PreTrainedModel) -> str:
    """Describe how the decoder encodes positions."""
    config = text_config(model.config)
    if shared_relative_bias(model) is not None:
        return "relative bias"
    if getattr(config, "alibi", False):
        return "ALiBi"
    rope = getattr(config, "rope_parameters", None)
    if rope:
        nested = [part for part in rope.values() if isinstance(part, dict)] or [rope]
        types = sorted({str(part.get("rope_type", "default")) for part in nested})
        return "rotary" if types == ["default"] else f"rotary ({', '.join(types)})"
    decoder: nn.Module = model.get_decoder()  # type: ignore[no-untyped-call]
    for name, module in decoder.named_modules():
        if name.rpartition(".")[2] in ("embed_positions", "wpe"):
            return "sinusoidal" if "Sinusoidal" in type(module).__name__ else "learned"
        if "Rotary" in type(module).__name__:
            return "rotary"
    return "unknown"


def writable_tokens(model: PreTrainedModel) -> Tensor:
    """Return the ids, (n,), that the model reads and writes, without padding, which to some is no text."""
    ids = torch.arange(min(input_vocab_size(model), vocab_size(model)))
    padding = getattr(text_config(model.config), "pad_token_id", None)
    return ids if padding is None else ids[ids != padding]
