"""GGUF files as checkpoint folders: each is read by transformers once and kept in a cache as safetensors.

The folder is named after the file's digest and the version of this conversion, appears whole or not at all,
and is made by one process while others wait for it. Weights are kept in bfloat16, half the size of float32:
for SmolLM2-135M in Q4_1 this moves the log-probability of a token by 0.01 on average, where computing in
bfloat16, as is usual for models of this size, moves it by 0.05.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from filelock import FileLock
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from genret.retrieval.durable import publish, sync, temporary_name
from genret.retrieval.errors import MissingExtraError, ModelError
from genret.retrieval.index.small_files import digest_bytes, digest_file

SUFFIX = ".gguf"
RECORD_FILE = "gguf.json"  # names the source of a folder of the cache
SETTINGS_FILE = "genret.json"  # prompts and titles of a checkpoint; `retrieval.prompts` reads it
_VERSION = 1  # to be raised whenever a folder made before would differ
_MAGIC = b"GGUF"
_PART = re.compile(r"-\d{5}-of-(\d{5})$")
_PACKAGES = ("gguf", "accelerate")


def converted(file: Path) -> Path:
    """Return the checkpoint folder of a GGUF file, made unless the cache has it.

    A `genret.json` beside the file belongs to the checkpoint.

    Raises:
        ModelError: the file cannot be read by transformers, or the cache cannot be written.
        MissingExtraError: the file was not converted yet, and a package is missing.
    """
    try:
        state = file.stat()
        digest = _digest(file.resolve(), state.st_size, state.st_mtime_ns)
        folder = _cache_folder() / "gguf" / f"{file.stem[:100]}-{digest[:16]}-{_VERSION}"
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
        where = error.filename or file
        raise ModelError(
            f"{file}: {where}: {error.strerror or error} (GGUF files are converted into $GENRET_CACHE or "
            "~/.cache/genret)"
        ) from error


@cache
def _digest(file: Path, num_bytes: int, modified_ns: int) -> str:
    """Return the digest of a file, computed once per state of it: every part of a model asks for it."""
    return digest_file(file)


def _cache_folder() -> Path:
    named = os.environ.get("GENRET_CACHE")
    return Path(named) if named else Path("~/.cache/genret").expanduser()


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
        if find_spec(package) is None:
            raise MissingExtraError(package, "gguf")


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
    console = Console(stderr=True)
    text = f"converting {file.name} ({file.stat().st_size / 1e6:,.0f} MB), once, into {folder}"
    begun = time.monotonic()
    if console.is_terminal:
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as line:
            line.add_task(text, total=None)
            yield
    else:
        console.print(f"{text} …", markup=False, highlight=False, soft_wrap=True)
        yield
    done = f"converted {file.name} in {time.monotonic() - begun:.0f} s"
    console.print(done, markup=False, highlight=False, soft_wrap=True)


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
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise ModelError(
                f"{file}: transformers cannot read this GGUF file, which may be cut short: {reason}"
            ) from error
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
    reading.tqdm = _without_bar
    try:
        yield
    finally:
        reading.tqdm = bar
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _without_bar(tensors: Any, **_: Any) -> Any:
    return tensors


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
