"""PEFT adapters, merged into the weights of a model: LoRA and whatever else changes weights alone."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from decoding.checkpoint_files import ADAPTER_FILE
from decoding.errors import ModelLoadError

WEIGHTS_FILE = "adapter_model.safetensors"


def merge_adapter(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Return the model with an adapter merged into its weights, which keep their type and device.

    Args:
        model: The adapter's base; it is changed.
        folder: Folder with `adapter_config.json` and `adapter_model.safetensors`.

    Raises:
        ModelLoadError: the adapter cannot be read, is of a kind that changes more than weights, or does not
            fit the model.
    """
    with _refusing(model, folder):
        wrapped = _loaded(model, folder, is_trained=False)
        _untie(model)
        merged: Any = wrapped.merge_and_unload()
    return merged.requires_grad_(False)  # type: ignore[no-any-return]


def adapted(model: PreTrainedModel, folder: Path) -> Any:
    """Return the `peft.PeftModel` of a model and an adapter, whose matrices, in float32, are to be trained.

    Args:
        model: The adapter's base; its layers are replaced in place.
        folder: As for `merge_adapter`.

    Raises:
        ModelLoadError: as `merge_adapter` does.
    """
    with _refusing(model, folder):
        return _loaded(model, folder, is_trained=True)


def _loaded(model: PreTrainedModel, folder: Path, is_trained: bool) -> Any:
    from peft import PeftConfig, PeftModel  # an extra, and seconds to import

    config = PeftConfig.from_pretrained(str(folder))
    if config.is_prompt_learning or config.is_adaption_prompt:
        raise ValueError(f"{config.peft_type.value} cannot be merged into weights")
    config.inference_mode = not is_trained
    wrapped = PeftModel(model, config)
    report = wrapped.load_adapter(
        str(folder),
        "default",
        is_trainable=is_trained,
        torch_device=str(model.device),
        key_mapping=getattr(model, "_checkpoint_conversion_mapping", None),
    )
    _refuse_partial(report)
    return wrapped


@contextmanager
def _refusing(model: PreTrainedModel, folder: Path) -> Iterator[None]:
    """Say in one line why an adapter cannot be read, or does not fit the model."""
    if not (folder / WEIGHTS_FILE).is_file():  # peft would go on to pickled weights
        raise ModelLoadError(f"{folder} is an adapter without {WEIGHTS_FILE}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what is seen to here, and what transformers deprecates
            yield
    except Exception as error:  # peft raises whatever an adapter of other shapes or kinds leads to
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        # torch lists the weights that do not fit below a heading.
        reason = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
        raise ModelLoadError(
            f"{folder}: this adapter cannot be merged into {model.config.model_type!r} weights"
            f"{_meant_for(folder)}: {reason}"
        ) from error


def _refuse_partial(report: Any) -> None:
    """Refuse weights without a place, and places without weights, which would stay as they are.

    Raises:
        ValueError: there are some.
    """
    for keys, what in (
        (report.unexpected_keys, "do not belong to the model"),
        (report.missing_keys, "are missing"),
    ):
        if keys:
            shown = ", ".join(sorted(keys)[:3]) + (", ..." if len(keys) > 3 else "")
            raise ValueError(f"{len(keys)} of its weights {what} ({shown})")


def _untie(model: PreTrainedModel) -> None:
    """Give the output head weights of its own where an adapter changes it, or the embedding, alone."""
    whole: Any = model
    ends: list[Any] = [whole.get_input_embeddings(), whole.get_output_embeddings()]
    if not any(hasattr(end, "get_base_layer") for end in ends):
        return
    embedding, head = (end.get_base_layer() if hasattr(end, "get_base_layer") else end for end in ends)
    if head is not None and head.weight.data_ptr() == embedding.weight.data_ptr():
        head.weight = torch.nn.Parameter(head.weight.detach().clone(), requires_grad=False)
        model.config.tie_word_embeddings = False


def _meant_for(folder: Path) -> str:
    named = json.loads((folder / ADAPTER_FILE).read_text("utf-8")).get("base_model_name_or_path")
    return f" (it was made for {named!r})" if named else ""
