"""The decoder layers of a model, and which kind of attention each of them has."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from decoding.architectures import shared_relative_bias, text_config


@dataclass(frozen=True, slots=True)
class LayerKind:
    """How a decoder layer attends.

    Attributes:
        name: For a reader, e.g. "sliding attention, window 512".
        window: Positions a token sees, itself included; None without bound.
    """

    name: str
    window: int | None = None


def decoder_layers(model: PreTrainedModel) -> tuple[list[nn.Module], nn.Module]:
    """The layers of the decoder in order, and the module that holds them.

    The layers are the first list of modules in the decoder; experts and the like come inside of layers.
    """
    decoder: nn.Module = model.get_decoder()  # type: ignore[no-untyped-call]
    for name, module in decoder.named_modules():
        if isinstance(module, nn.ModuleList) and len(module):
            return list(module), decoder.get_submodule(name.rpartition(".")[0])
    return [], decoder


def layer_kinds(model: PreTrainedModel) -> tuple[LayerKind, ...]:
    """The kind of every decoder layer."""
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
    """How the decoder knows where a token stands, for a reader."""
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
