"""Finds the parts of a model named by one string: a folder, a hub id, a GGUF file, an adapter, a wheel.

A fingerprint tells checkpoints apart: linking runs and evaluations go on only with the one they began with.
No torch and no transformers before a GGUF file is converted: the index builder finds tokenizers with this
module.

A GGUF file is read by transformers once and kept in a cache as a folder of safetensors, which is named after
the file's digest and the version of this conversion, appears whole or not at all, and is made by one process
while others wait for it. Weights are kept in bfloat16, half the size of float32: for SmolLM2-135M in Q4_1
this moves the log-probability of a token by 0.01 on average, where computing in bfloat16, as is usual for
models of this size, moves it by 0.05.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from filelock import FileLock
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from genret.decoding.errors import first_line
from genret.decoding.model.checkpoint_files import ADAPTER_FILE
from genret.retrieval.arguments import check_path
from genret.retrieval.durable import publish, sync, temporary_name
from genret.retrieval.errors import ModelError, require_package
from genret.retrieval.index.small_files import digest_bytes, digest_file
from genret.retrieval.progress import ProgressDisplay, StepProgress

DEFAULT_MODEL_VARIABLE = "GENRET_DEFAULT_MODEL"  # names the default model
SUFFIX = ".gguf"
RECORD_FILE = "gguf.json"  # names the source of a folder of the cache
SETTINGS_FILE = "genret.json"  # prompts and titles of a checkpoint; `retrieval.prompts` reads it
_VERSION = 1  # to be raised whenever a folder made before would differ
_MAGIC = b"GGUF"
_PART = re.compile(r"-\d{5}-of-(\d{5})$")
_PACKAGES = ("gguf", "accelerate")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
_SMALL_FILES = (SETTINGS_FILE, "config.json", "chat_template.jinja")
WHEEL = "wheel:"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The weights (folder or hub id) and the adapter (folder of LoRA matrices; None: none) of a model."""

    weights: str | Path
    adapter: Path | None = None

    def check_packages(self) -> None:
        """Raise MissingExtraError unless the package that merges an adapter is installed."""
        if self.adapter is not None:
            require_package("peft", "lora")


def find_checkpoint(place: str | Path) -> Checkpoint:
    """Return the parts of the model that a place names; a hub id, or anything that is not here, as it is.

    Args:
        place: Checkpoint folder, adapter folder, GGUF file, folder with one GGUF file, hub id, or
            `wheel:PACKAGE[==VERSION]` for the GGUF file of an installed Python package.

    Raises:
        ModelError: a GGUF file cannot be converted, several are there, or an adapter's base is not known.
        MissingExtraError: a GGUF file needs a package that is not installed.
    """
    check_path("model", place, "a checkpoint directory, a file or a hub id")
    if str(place).startswith(WHEEL):
        return Checkpoint(converted(file_of_wheel(str(place))))
    path = Path(place)
    if path.suffix.lower() == SUFFIX and not path.is_dir():
        return Checkpoint(converted(path))
    if not path.is_dir():
        return Checkpoint(place)
    if (path / ADAPTER_FILE).is_file():
        return Checkpoint(_weights_of_base(path), path)
    files = sorted(path.glob(f"*{SUFFIX}"))
    if not files or any(path.glob("*.safetensors")):
        return Checkpoint(place)
    return Checkpoint(converted(_the_one(files, str(path))))


def settings_folder(folder: Path) -> Path:
    """Return the folder whose `genret.json` and `config.json` describe a checkpoint folder.

    For an adapter whose `genret.json` is missing or names the base alone it is that of the base, which
    ModelError names if it is not known or not here.
    """
    if not (folder / ADAPTER_FILE).is_file():
        return folder
    file = folder / SETTINGS_FILE
    if file.is_file() and json_object(file).keys() - {"format_version", "base"}:
        return folder
    return weights_folder(folder)


def weights_folder(folder: Path) -> Path:
    """Return the folder that describes a model's weights: for an adapter that of its base."""
    is_adapter = (folder / ADAPTER_FILE).is_file()
    return local_folder(find_checkpoint(folder).weights) if is_adapter else folder


def local_folder(
    weights: str | Path, fetched: Sequence[str] = (*TOKENIZER_FILES, *_SMALL_FILES), **more: Any
) -> Path:
    """Return the folder of a checkpoint, whose small files are fetched if it is a hub id.

    `fetched` are patterns of their names, `more` are further arguments of `snapshot_download`. ModelError if
    they cannot be fetched.
    """
    if Path(weights).is_dir():
        return Path(weights)
    if Path(weights).is_file():
        raise ModelError(f"{weights} is a file; expected the directory of a checkpoint, or a {SUFFIX} file")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(snapshot_download(str(weights), allow_patterns=[*fetched], **more))
    except Exception as error:  # the hub client raises a dozen unrelated types
        named = f" (${DEFAULT_MODEL_VARIABLE})" * (str(weights) == os.environ.get(DEFAULT_MODEL_VARIABLE))
        if isinstance(error, HFValidationError):
            told = f"{str(weights)!r} is neither an existing path nor a valid hub id (OWNER/NAME)"
            raise ModelError(f"{told}{named}; paths begin in {Path.cwd()}") from error
        raise ModelError(
            f"no directory {str(weights)!r}{named} in {Path.cwd()}, and it could not be fetched from the hub:"
            f" {first_line(error.__cause__ or error)}; name a local model by its path, others as OWNER/NAME"
        ) from error


def base_of(adapter: Path) -> str | Path:
    """Return the base that an adapter names, or ModelError; a path in the adapter's folder is made whole."""
    settings = adapter / SETTINGS_FILE
    base = json_object(settings).get("base") if settings.is_file() else None
    if base is None:
        base = json_object(adapter / ADAPTER_FILE).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ModelError(
            f"{adapter}: this adapter does not name the model it belongs to; {_named_by(adapter)}"
        )
    beside = adapter / base
    return beside if beside.exists() else base


def _named_by(adapter: Path) -> str:
    return f'"base" in {adapter / SETTINGS_FILE} names another'


def _weights_of_base(adapter: Path) -> str | Path:
    """Return the weights of an adapter's base."""
    base, where = base_of(adapter), _named_by(adapter)
    try:
        found = find_checkpoint(base)
    except ModelError as error:
        raise ModelError(f"{adapter}: the base of this adapter: {error}; {where}") from error
    if found.adapter is not None:
        raise ModelError(f"{adapter}: its base {base!r} is an adapter, too; {where}")
    if not Path(found.weights).is_dir() and Path(base).is_absolute():
        raise ModelError(f"{adapter}: its base {base} is not here; {where}")
    return found.weights


def file_of_wheel(place: str) -> Path:
    """Return the GGUF file of an installed package, `wheel:PACKAGE[==VERSION]`; ModelError if it has none."""
    requirement = place.removeprefix(WHEEL)
    name, _, version = requirement.partition("==")
    install = f"install it with: pip install --no-deps {requirement}"
    try:
        package: Distribution = distribution(name)
    except (PackageNotFoundError, ValueError) as error:
        raise ModelError(
            f"{place}: the Python package {name!r}, which holds this model, is not installed; {install}"
        ) from error
    if version and package.version != version:
        raise ModelError(f"{place}: version {package.version} of {name} is installed; {install}")
    files = [Path(str(file.locate())) for file in package.files or () if file.suffix.lower() == SUFFIX]
    return _the_one(sorted(files), place)


def _the_one(files: list[Path], place: str) -> Path:
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "none"
        raise ModelError(f"{place}: expected one {SUFFIX} file, got {names}; name the file itself")
    return files[0]


def json_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file; ModelError if it cannot be read, or is none."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError(f"expected a JSON object, got {type(value).__name__}")
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file}: malformed: {error}") from error
    return value


_SUFFIXES = (".json", ".safetensors", ".bin", ".model", ".txt", ".py", ".jinja", ".tiktoken")
_NAME_THE_BASE = (ADAPTER_FILE, SETTINGS_FILE)
_BASE_FIELDS = ("base", "base_model_name_or_path")


def model_fingerprint(model: str | Path) -> str:
    """Return the fingerprint of a checkpoint (see `find_checkpoint`); ModelError if a file cannot be read."""
    found = find_checkpoint(model)
    folder = local_folder(found.weights) if found.adapter is None else found.adapter
    return folder_fingerprint(folder)


def folder_fingerprint(folder: Path) -> str:
    """Return a digest of a checkpoint's files; ModelError if one cannot be read.

    For the hub it is the id and the commit, for a GGUF file the digest of the file and the version of its
    conversion. That of an adapter covers its base, whatever path the base has.
    """
    if folder.parent.name == "snapshots":  # the hub's cache: models--OWNER--NAME/snapshots/COMMIT
        hub_id = folder.parent.parent.name.removeprefix("models--").replace("--", "/")
        return f"{hub_id}@{folder.name}"
    if (folder / RECORD_FILE).is_file():
        return f"gguf:{json_object(folder / RECORD_FILE).get('digest')}"
    base = find_checkpoint(folder)
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix in _SUFFIXES)
        listed = [
            [file.name, _part_digest(file, base.adapter is not None)] for file in files if file.is_file()
        ]
    except OSError as error:
        raise ModelError(f"{folder}: the checkpoint cannot be read: {error.strerror}") from error
    if base.adapter is not None:
        listed.append(["base", folder_fingerprint(local_folder(base.weights))])
    return "xxh3:" + digest_bytes(json.dumps(listed, ensure_ascii=True).encode("ascii"))


def _part_digest(file: Path, is_of_adapter: bool) -> str:
    """Return the digest of a file, of an adapter's without the place of the base."""
    if is_of_adapter and file.name in _NAME_THE_BASE:
        document = {name: value for name, value in json_object(file).items() if name not in _BASE_FIELDS}
        return digest_bytes(json.dumps(document, sort_keys=True).encode("ascii"))
    return digest_file(file)


def converted(file: Path) -> Path:
    """Return the checkpoint folder of a GGUF file, made unless the cache has it.

    A `genret.json` beside the file belongs to the checkpoint.

    Raises:
        ModelError: the file cannot be read by transformers, or the cache cannot be written.
        MissingExtraError: the file was not converted yet, and a package is missing.
    """
    try:
        state = file.stat()
        digest = _digest_once(file.resolve(), state.st_size, state.st_mtime_ns)
        cache = Path(os.environ.get("GENRET_CACHE") or Path.home() / ".cache" / "genret")
        folder = cache / "gguf" / f"{file.stem[:100]}-{digest[:16]}-{_VERSION}"
        if not folder.is_dir():
            _check(file)
            with _making(folder) as staging:
                if staging is not None:
                    with _telling(file, folder):
                        _convert(file, staging)
                    _write_record(staging, f"{digest}-{_VERSION}")
        settings = file.with_name(SETTINGS_FILE)
        return _with_settings(folder, settings.read_bytes()) if settings.is_file() else folder
    except OSError as error:
        named = ": ".join(dict.fromkeys(map(str, (file, error.filename or file))))
        raise ModelError(
            f"{named}: {error.strerror or error} (GGUF files are converted into $GENRET_CACHE or "
            "~/.cache/genret)"
        ) from error


@cache
def _digest_once(file: Path, num_bytes: int, modified_ns: int) -> str:
    """Return the digest of a file, computed once per state of it: every part of a model asks for it."""
    return digest_file(file)


def _check(file: Path) -> None:
    """Refuse a file that is no whole GGUF file, or a missing package, before anything is imported for it."""
    with file.open("rb") as content:
        begins = content.read(len(_MAGIC))
    if begins != _MAGIC:
        raise ModelError(f"{file}: not a GGUF file: it begins with {begins!r}, expected {_MAGIC!r}")
    if part := _PART.search(file.stem):
        raise ModelError(
            f"{file}: one of {int(part[1])} parts of a GGUF file; join them with: llama-gguf-split --merge"
        )
    for package in _PACKAGES:
        require_package(package, "gguf")


@contextmanager
def _making(folder: Path) -> Iterator[Path | None]:
    """Yield a hidden folder that gets its name at the end; None where another process has just made it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if folder.is_dir():
            yield None
            return
        # Left by killed processes: no other one makes this folder now.
        for left in folder.parent.glob(f".{folder.name}.*.tmp"):
            shutil.rmtree(left)
        staging = temporary_name(folder)
        staging.mkdir()
        try:
            yield staging
            for made in staging.iterdir():
                shutil.copymode(staging / RECORD_FILE, made)  # weights are written for their owner alone
                sync(made)
            publish(staging, folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def _telling(file: Path, folder: Path) -> Iterator[None]:
    """Say on standard error that a file is being converted, as long as it takes."""
    text = f"converting {file.name} ({file.stat().st_size / 1e6:,.0f} MB), once, into {folder}"
    begun, told = time.monotonic(), TextColumn("{task.description}", markup=False)
    with ProgressDisplay(lambda: [SpinnerColumn(), told, TimeElapsedColumn()], is_transient=True) as display:
        StepProgress(display).phase(text)
        yield
    display.say(f"converted {file.name} in {time.monotonic() - begun:.0f} s")


def _convert(file: Path, out: Path) -> None:
    """Write the model and the tokenizer of a GGUF file into a folder, as safetensors and JSON."""
    import torch
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForSeq2SeqLM,
        AutoTokenizer,
        GgufConfig,
    )
    from transformers.utils import logging

    name = f"model{SUFFIX}"
    # Alone in a folder: transformers would also read other files beside it.
    with tempfile.TemporaryDirectory() as folder, _quiet(logging):
        Path(folder, name).symlink_to(file.resolve())
        try:
            config = AutoConfig.from_pretrained(folder, gguf_file=name)
            kind: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
            model, report = kind.from_pretrained(
                folder,
                gguf_file=name,
                config=config,
                dtype=torch.bfloat16,
                quantization_config=GgufConfig(dequantize=True),
                output_loading_info=True,
            )
            tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
        except Exception as error:  # a damaged file raises whatever its bytes lead to
            why = f"transformers cannot read this GGUF file, which may be cut short: {first_line(error)}"
            raise ModelError(f"{file}: {why}") from error
    # Weights that are not found get filled with random numbers.
    if missing := sorted({*report["missing_keys"], *map(str, report["mismatched_keys"])}):
        raise ModelError(
            f"{file}: transformers does not find all weights in this GGUF file: {len(missing)} are missing "
            f"({', '.join(missing[:3])}{', ...' * (len(missing) > 3)})"
        )
    with _quiet(logging):
        model.save_pretrained(out)
        tokenizer.save_pretrained(out)


@contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """Keep transformers from talking and from drawing bars on standard error, which may be a server's log."""
    reading: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    verbosity, bars, bar = logging.get_verbosity(), logging.is_progress_bar_enabled(), reading.tqdm
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    reading.tqdm = lambda tensors, **_: tensors
    try:
        yield
    finally:
        reading.tqdm = bar
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _write_record(folder: Path, digest: str) -> None:
    (folder / RECORD_FILE).write_text(json.dumps({"digest": digest}) + "\n", encoding="utf-8")


def _with_settings(folder: Path, settings: bytes) -> Path:
    """Return a folder of the same files with a `genret.json`."""
    described = folder.with_name(f"{folder.name}-{digest_bytes(settings)[:16]}")
    if not described.is_dir():
        with _making(described) as staging:
            if staging is not None:
                for file in folder.iterdir():
                    os.link(file, staging / file.name)
                (staging / SETTINGS_FILE).write_bytes(settings)
                record = json.loads((staging / RECORD_FILE).read_bytes())
                (staging / RECORD_FILE).unlink()
                _write_record(staging, f"{record['digest']}-{digest_bytes(settings)}")
    return described
