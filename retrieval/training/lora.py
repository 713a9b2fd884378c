"""Trains LoRA matrices beside the frozen weights of a model, and writes them as an adapter."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import Any

import torch

from genret.decoding.errors import DecodingError
from genret.decoding.model.architectures import decoder_layers
from genret.decoding.model.model_loading import adapted
from genret.retrieval.errors import InputError, ModelError

_SCALE = 2  # of the product of the two matrices: peft's `lora_alpha` over the rank


def with_lora(model: Any, rank: int, num_layers: int | None) -> Any:
    """Put trainable matrices beside all linear layers of a model but its output head, and freeze the rest.

    The layers of the model (a `transformers.PreTrainedModel`) are replaced in place. Returns the
    `peft.PeftModel` around it, to train and to save. `rank` is the inner dimension of the matrices, which are
    float32 whatever the model's type; a model in bfloat16 is trained under autocast. `num_layers`, counted
    from the output, get them; None: all; more than there are: InputError.
    """
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=rank,
        lora_alpha=_SCALE * rank,
        target_modules="all-linear",
        exclude_modules=None if num_layers is None else _all_but_upper(model, num_layers),
    )
    in_float32 = model.dtype == torch.float32
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of transformers, about a property that peft reads
        trained = get_peft_model(model, config)
    return _cast_less(trained, in_float32)


def with_adapter(model: Any, adapter: Path, rank: int, num_layers: int | None) -> Any:
    """Put the matrices of an adapter beside the layers of its base, to train them on, and freeze the rest.

    `model` is the base, as for `with_lora`. An adapter that is not LoRA's, has another rank, or with
    `num_layers` has not matrices in exactly so many layers, counted from the output, is an InputError; one
    that cannot be read or does not fit the model is a ModelError.
    """
    in_float32 = model.dtype == torch.float32
    layers, _ = decoder_layers(model)
    try:
        trained = adapted(model, adapter)
    except DecodingError as error:
        raise ModelError(str(error)) from error
    (config,) = trained.peft_config.values()
    if config.peft_type.value != "LORA":
        raise InputError("lora", f"goes on with LoRA adapters, and {adapter} is {config.peft_type.value}")
    if config.r != rank:
        raise InputError("lora", f"must be {config.r}, the rank of the adapter {adapter}, got {rank}")
    has = [any(map(_is_adapted, layer.modules())) for layer in layers]
    if num_layers is not None and has != [number >= len(has) - num_layers for number in range(len(has))]:
        raise InputError(
            "lora_layers",
            f"must be those of the adapter {adapter}, which has matrices beside {sum(has)} of {len(has)} "
            f"layers, got {num_layers}",
        )
    return _cast_less(trained, in_float32)


def _cast_less(trained: Any, in_float32: bool) -> Any:
    """Cast the small matrices under autocast, and not their inputs."""
    for module in filter(_is_adapted, trained.modules()):
        module.cast_input_dtype_enabled = in_float32
    return trained


def _is_adapted(module: Any) -> bool:
    from peft.tuners.tuners_utils import BaseTunerLayer

    return isinstance(module, BaseTunerLayer)


def save_adapter(trained: Any, base: str, dtype: torch.dtype, out: Path) -> None:
    """Write the matrices of `with_lora` or `with_adapter`, which are cast to `dtype`, as an adapter folder.

    `base` is the name of the model they belong to; a path is written as an absolute one.
    """
    for parameter in trained.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)
    (config,) = trained.peft_config.values()
    config.base_model_name_or_path = os.path.abspath(base) if Path(base).exists() else base
    trained.save_pretrained(out, save_embedding_layers=False)


def _all_but_upper(model: Any, num_layers: int) -> str:
    """Return the expression of the names of all modules but those in the upper layers."""
    layers, _ = decoder_layers(model)
    if num_layers > len(layers):
        raise InputError(
            "lora_layers", f"must be at most {len(layers)}, the layers of the model, got {num_layers}"
        )
    upper = {id(layer) for layer in layers[-num_layers:]}
    names = "|".join(re.escape(name) for name, module in model.named_modules() if id(module) in upper)
    return rf"(?!({names})\.).*"
