"""Find, check and load a checkpoint: safetensors only, complete, in a type the device computes well.

`dtype="auto"` means: below 50 million parameters float32 everywhere, since small models gain little from
less and exact, batch-independent scores matter more. Above, on CUDA the checkpoint's own type, with bfloat16
for float16 checkpoints where the device has it; on a CPU bfloat16 if the processor multiplies it in hardware
(2.9 times the speed of float32 at 100 million parameters) and float32 otherwise. Never float16 on a CPU,
where it is three times slower than float32.

PEFT adapters (LoRA and whatever else changes weights alone) are merged into the weights.
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

from decoding.errors import ModelLoadError
from decoding.model.architectures import check_supported
from decoding.model.checkpoint_files import ADAPTER_FILE, refuse_foreign_file_name, refuse_foreign_weights

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
    """Load a causal or encoder-decoder model; arguments as in `HFLanguageModel.load`.

    Raises:
        ModelLoadError: nothing usable there, weights missing, or dtype and device do not go together.
        UnsupportedModelError: the architecture is refused by name.
    """
    if num_threads is not None:
        if num_threads < 1:
            raise ValueError(f"num_threads must be >= 1, got {num_threads}")
        torch.set_num_threads(num_threads)
    target = check_dtype(dtype, device)
    config = load_config(path_or_hub_id, trust_remote_code)
    check_supported(config)
    return load_weights(path_or_hub_id, config, target, dtype, trust_remote_code, adapter=adapter)


def check_dtype(dtype: str, device: str | torch.device) -> torch.device:
    """The device meant, once it is known that it computes the type.

    Raises:
        ModelLoadError: no such type or device, or they do not go together.
    """
    if dtype != "auto" and dtype not in DTYPES:
        raise ModelLoadError(f"dtype must be 'auto' or one of {', '.join(DTYPES)}, got {dtype!r}")
    target = resolve_device(device)
    if dtype != "auto":
        refuse_float16_on_cpu(DTYPES[dtype], target)
    return target


def load_config(path_or_hub_id: str | Path, trust_remote_code: bool) -> PreTrainedConfig:
    """Read the configuration of a checkpoint.

    Raises:
        ModelLoadError: nothing usable there.
    """
    name = str(path_or_hub_id)
    named_as_path = isinstance(path_or_hub_id, Path) or name.startswith("./") or name.endswith("/")
    _refuse_unsuitable_directory(Path(name), named_as_path)
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
    except _LOADING_FAILURES as error:
        raise ModelLoadError(f"no model configuration at {name!r}: {_first_line(error)}") from error
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
        config: What `load_config` returned for it.
        target: Where the weights go.
        dtype: "auto" or one of `DTYPES`.
        trust_remote_code: Run model code that a hub checkpoint brings along.
        auto_class: The class of transformers that loads them; None: the one that makes a model write text.
        unused: How the names of weights begin that the checkpoint may lack.
        adapter: Folder of a PEFT adapter that is merged into the weights; None: none.

    Raises:
        ModelLoadError: weights missing or broken, or the device cannot take them; the adapter does not fit.
    """
    name = str(path_or_hub_id)
    refuse_foreign_file_name(getattr(config, "transformers_weights", None))
    if auto_class is None:
        auto_class = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    quantised = _quantisation(name, config)
    computed: Any = DTYPES.get(dtype, "auto")
    placed: dict[str, Any] = {}
    if quantised:
        placed["device_map"] = {"": target}  # weights in blocks are made for a device, and stay there
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
            f"cannot load {config.model_type!r} weights{how} from {name!r}: {_first_line(error)}"
        ) from error
    model, report = loaded
    if getattr(model, "_hf_peft_config_loaded", False):  # of a hub id; a folder is told apart before
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
        raise ModelLoadError(f"cannot move {name!r} to {target}: {_first_line(error)}") from error


@contextmanager
def _without_progress_bar() -> Iterator[None]:
    """Keep the library from drawing on the standard error of a server, where logs belong."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def resolve_device(device: str | torch.device) -> torch.device:
    """The device meant by a name; "auto" is CUDA where there is one, else the CPU.

    Raises:
        ModelLoadError: no such device here.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise ModelLoadError(f"unknown device {device!r}: {_first_line(error)}") from error
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise ModelLoadError(f"device {device!r} was asked for, but no CUDA device is available")
    return resolved


def refuse_float16_on_cpu(dtype: torch.dtype, device: torch.device) -> None:
    """Refuse the one combination that is slow and inexact at once.

    Raises:
        ModelLoadError: float16 on a CPU.
    """
    if device.type == "cpu" and dtype == torch.float16:
        raise ModelLoadError(
            "float16 is not computed on a CPU (three times slower than float32, and less exact): "
            "use dtype 'auto', 'float32' or 'bfloat16'"
        )


def automatic_dtype(parameters: int, own: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the type that `dtype="auto"` means for a model of so many parameters, stored in its own type."""
    if parameters < SMALL_MODEL_PARAMETERS:
        return torch.float32
    if device.type == "cuda":
        if own == torch.float16 and torch.cuda.is_bf16_supported(including_emulation=False):
            return torch.bfloat16
        return own
    return _cpu_dtype()


def _cpu_dtype() -> torch.dtype:
    return torch.bfloat16 if _cpu_multiplies_bfloat16() else torch.float32


def _cpu_multiplies_bfloat16() -> bool:
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _quantisation(name: str, config: PreTrainedConfig) -> str | None:
    """Return the method by which a checkpoint's weights are quantised, None for plain weights.

    Raises:
        ModelLoadError: transformers does not know the method, and would read the weights as plain ones.
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
    """Say plainly what a local directory lacks, before the hub's machinery guesses."""
    if path.is_file():
        raise ModelLoadError(f"{path} is a file; give the directory that holds config.json and the weights")
    if not path.is_dir():
        # A hub id is "name" or "owner/name", so anything else can only be meant as a directory; so is a name
        # in a directory that is here.
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
    """Weights that are not found get filled with random numbers by transformers; that is no model."""
    for what in ("missing_keys", "mismatched_keys"):
        keys = sorted(str(key) for key in report.get(what, ()) if not str(key).startswith(unused))
        if keys:
            shown = ", ".join(keys[:3]) + (", ..." if len(keys) > 3 else "")
            raise ModelLoadError(f"{name!r} is incomplete: {len(keys)} {what.replace('_', ' ')} ({shown})")


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


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
