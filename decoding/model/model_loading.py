"""Finds, checks and loads a checkpoint: safetensors only, complete, in a type the device computes well.

`dtype="auto"` means float32 below 50 million parameters, where exact, batch-independent scores matter more
than speed. Above, on CUDA it is the checkpoint's own type, with bfloat16 for float16 checkpoints if the
device has it; on a CPU it is bfloat16 if the processor multiplies it in hardware (2.9 times the speed of
float32 at 100 million parameters), else float32. float16 is refused on a CPU, where it is three times slower
than float32. PEFT adapters that change weights alone (LoRA and others) are merged into the weights.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING
from transformers.utils import logging as transformers_logging

from genret.decoding.errors import ModelLoadError, first_line
from genret.decoding.model.architectures import check_supported
from genret.decoding.model.checkpoint_files import (
    ADAPTER_FILE,
    refuse_foreign_file_name,
    refuse_foreign_weights,
)

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
SMALL_MODEL_PARAMETERS = 50_000_000

# What transformers, huggingface_hub and safetensors raise for missing, broken or foreign checkpoints.
_LOADING_FAILURES = (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError, SafetensorError)


def load_pretrained(
    path_or_hub_id: str | Path,
    device: str | torch.device,
    dtype: str,
    trust_remote_code: bool,
    num_threads: int | None,
    adapter: Path | None = None,
) -> PreTrainedModel:
    """Load a causal or encoder-decoder model; arguments and errors as in `HFLanguageModel.load`."""
    if num_threads is not None:
        if num_threads < 1:
            raise ValueError(f"num_threads must be >= 1, got {num_threads}")
        torch.set_num_threads(num_threads)
    target = check_dtype(dtype, device)
    config = load_config(path_or_hub_id, trust_remote_code)
    check_supported(config)
    return load_weights(path_or_hub_id, config, target, dtype, trust_remote_code, adapter=adapter)


def check_dtype(dtype: str, device: str | torch.device) -> torch.device:
    """Return the device; ModelLoadError for no such type or device, or if they do not go together."""
    if dtype != "auto" and dtype not in DTYPES:
        raise ModelLoadError(f"dtype must be 'auto' or one of {', '.join(DTYPES)}, got {dtype!r}")
    target = resolve_device(device)
    if dtype != "auto":
        refuse_float16_on_cpu(DTYPES[dtype], target)
    return target


def load_config(path_or_hub_id: str | Path, trust_remote_code: bool) -> PreTrainedConfig:
    """Read the configuration of a checkpoint; ModelLoadError if there is no usable one."""
    name = str(path_or_hub_id)
    named_as_path = isinstance(path_or_hub_id, Path) or name.startswith("./") or name.endswith("/")
    _refuse_unsuitable_directory(Path(name), named_as_path)
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
    except _LOADING_FAILURES as error:
        raise ModelLoadError(f"no model configuration at {name!r}: {first_line(error)}") from error
    return config


def load_weights(
    path_or_hub_id: str | Path,
    config: PreTrainedConfig,
    target: torch.device,
    dtype: str,
    trust_remote_code: bool,
    auto_class: Any = None,
    unused: tuple[str, ...] = (),
    adapter: Path | None = None,
) -> PreTrainedModel:
    """Load the weights that belong to a configuration, whatever its architecture.

    Args:
        path_or_hub_id: Checkpoint directory or hub id.
        config: Its configuration, from `load_config`.
        target: Device of the weights.
        dtype: "auto" or one of `DTYPES`.
        trust_remote_code: Whether to run code that comes with the weights.
        auto_class: The transformers class that loads them; None: the one for text generation.
        unused: Prefixes of weight names that the checkpoint may lack.
        adapter: Folder of a PEFT adapter to merge into the weights, or None.

    Raises:
        ModelLoadError: weights missing or broken, the device cannot take them, or the adapter does not fit.
    """
    name = str(path_or_hub_id)
    refuse_foreign_file_name(getattr(config, "transformers_weights", None))
    if auto_class is None:
        auto_class = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    quantised = _quantisation(name, config)
    computed: Any = DTYPES.get(dtype, "auto")
    placed: dict[str, Any] = {}
    if quantised:
        placed["device_map"] = {"": target}  # quantised weights are made for a device, and stay there
        if computed == "auto" and target.type == "cpu":
            computed = _cpu_dtype()
    try:
        with _without_progress_bar():
            loaded: Any = auto_class.from_pretrained(
                name,
                config=config,
                dtype=computed,
                use_safetensors=True,
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
                **placed,
            )
    except _LOADING_FAILURES as error:
        how = f", quantised by {quantised!r}," if quantised else ""
        raise ModelLoadError(
            f"cannot load {config.model_type!r} weights{how} from {name!r}: {first_line(error)}"
        ) from error
    model, report = loaded
    if getattr(model, "_hf_peft_config_loaded", False):  # a hub id; folders were checked before
        raise ModelLoadError(f"{name!r} is an adapter: fetch it and name its folder")
    _refuse_incomplete(name, report, unused)
    in_blocks = getattr(model, "hf_quantizer", None) is not None  # some are unpacked while they are read
    if dtype == "auto" and not in_blocks:
        model = model.to(automatic_dtype(model.num_parameters(), model.dtype, target))
    if adapter is not None:
        if in_blocks:
            raise ModelLoadError(
                f"{adapter}: this adapter cannot be merged into weights quantised by {quantised!r}; "
                "name a base that is not quantised"
            )
        model = merge_adapter(model, adapter)
    if in_blocks:
        return model  # type: ignore[no-any-return]
    try:
        return model.to(target)  # type: ignore[no-any-return]
    except RuntimeError as error:
        raise ModelLoadError(f"cannot move {name!r} to {target}: {first_line(error)}") from error


@contextmanager
def _without_progress_bar() -> Iterator[None]:
    """Keep transformers from drawing on a server's standard error, where logs belong."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def resolve_device(device: str | torch.device) -> torch.device:
    """Return the named device, for "auto" CUDA if available, else the CPU; ModelLoadError without it."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise ModelLoadError(f"unknown device {device!r}; expected cpu, cuda, cuda:1 or the like") from error
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise ModelLoadError(f"device {device!r} was asked for, but no CUDA device is available")
    return resolved


def refuse_float16_on_cpu(dtype: torch.dtype, device: torch.device) -> None:
    """Raise ModelLoadError for float16 on a CPU, which is slow and inexact at once."""
    if device.type == "cpu" and dtype == torch.float16:
        raise ModelLoadError(
            "float16 is not computed on a CPU (three times slower than float32, and less exact): "
            "use dtype 'auto', 'float32' or 'bfloat16'"
        )


def automatic_dtype(parameters: int, own: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the type that `dtype="auto"` means for a model of this size, stored in type `own`."""
    if parameters < SMALL_MODEL_PARAMETERS:
        return torch.float32
    if device.type == "cuda":
        if own == torch.float16 and torch.cuda.is_bf16_supported(including_emulation=False):
            return torch.bfloat16
        return own
    return _cpu_dtype()


def _cpu_dtype() -> torch.dtype:
    multiplies = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if multiplies else torch.float32


def _quantisation(name: str, config: PreTrainedConfig) -> str | None:
    """Return the quantisation method of a checkpoint's weights, None for plain weights.

    ModelLoadError for a method that transformers does not know: it would read the weights as plain ones.
    """
    described = getattr(config, "quantization_config", None)
    if not described:
        return None
    method = str(described.get("quant_method") if isinstance(described, dict) else described.quant_method)
    known = {
        name.split("_")[0] if name.startswith("bitsandbytes") else name for name in AUTO_QUANTIZER_MAPPING
    }
    if method not in known:
        raise ModelLoadError(
            f"{name!r} is quantised by {method!r}, which transformers does not read; "
            f"it reads {', '.join(sorted(known))}"
        )
    return method


def _refuse_unsuitable_directory(path: Path, named_as_path: bool) -> None:
    """Raise a plain error for an unusable local directory, before transformers tries the hub."""
    if path.is_file():
        raise ModelLoadError(f"{path} is a file; give the directory that holds config.json and the weights")
    if not path.is_dir():
        # A hub id is "name" or "owner/name"; anything else must mean a directory, and so must a name in a
        # directory that exists here.
        is_in_one = len(path.parts) > 2 or (len(path.parts) == 2 and path.parent.is_dir())
        if named_as_path or path.is_absolute() or is_in_one or path.parts[:1] in (("..",), ("~",)):
            raise ModelLoadError(f"no such model directory: {path}")
        return
    if not (path / "config.json").is_file():
        raise ModelLoadError(f"{path} holds no config.json, so it is no model directory")
    refuse_foreign_weights(path)
    if any(path.glob("*.safetensors")):
        return
    pickled = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in path.glob(pattern))
    if pickled:
        raise ModelLoadError(
            f"{path} holds only pickled weights ({', '.join(pickled)}), which can run code when they are "
            "read; save the model again as safetensors"
        )
    raise ModelLoadError(f"{path} holds no *.safetensors weights")


def _refuse_incomplete(name: str, report: dict[str, Any], unused: tuple[str, ...]) -> None:
    """Refuse missing weights, which transformers would fill with random numbers."""
    for what in ("missing_keys", "mismatched_keys"):
        keys = sorted(str(key) for key in report.get(what, ()) if not str(key).startswith(unused))
        if keys:
            shown = ", ".join(keys[:3]) + (", ..." if len(keys) > 3 else "")
            raise ModelLoadError(f"{name!r} is incomplete: {len(keys)} {what.replace('_', ' ')} ({shown})")


WEIGHTS_FILE = "adapter_model.safetensors"


def merge_adapter(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Return the model with an adapter merged into its weights, which keep their type and device.

    `model`: the adapter's base; it is changed. `folder`: folder with `adapter_config.json` and
    `adapter_model.safetensors`.

    Raises:
        ModelLoadError: the adapter cannot be read, changes more than weights, or does not fit the model.
    """
    with _refusing(model, folder):
        wrapped = _loaded(model, folder, is_trained=False)
        _untie(model)
        merged: Any = wrapped.merge_and_unload()
    return merged.requires_grad_(False)  # type: ignore[no-any-return]


def adapted(model: PreTrainedModel, folder: Path) -> Any:
    """Return a `peft.PeftModel` for training: a model with an adapter whose matrices are float32.

    Args:
        model: The adapter's base; its layers are replaced in place.
        folder: As for `merge_adapter`, with the same errors.
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
    """Turn any failure to read or fit an adapter into a one-line ModelLoadError."""
    if not (folder / WEIGHTS_FILE).is_file():  # peft would go on to pickled weights
        raise ModelLoadError(f"{folder} is an adapter without {WEIGHTS_FILE}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # handled here, or deprecations inside transformers
            yield
    except Exception as error:  # peft raises many types for adapters of other shapes or kinds
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        # torch lists the weights that do not fit below a heading.
        reason = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
        raise ModelLoadError(
            f"{folder}: this adapter cannot be merged into {model.config.model_type!r} weights"
            f"{_meant_for(folder)}: {reason}"
        ) from error


def _refuse_partial(report: Any) -> None:
    """Raise ValueError for unknown weights and for missing ones, which would stay as they are."""
    for keys, what in (
        (report.unexpected_keys, "do not belong to the model"),
        (report.missing_keys, "are missing"),
    ):
        if keys:
            shown = ", ".join(sorted(keys)[:3]) + (", ..." if len(keys) > 3 else "")
            raise ValueError(f"{len(keys)} of its weights {what} ({shown})")


def _untie(model: PreTrainedModel) -> None:
    """Give the output head its own weights if an adapter changes only one of head and embedding."""
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
