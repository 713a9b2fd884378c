"""What tells checkpoints apart: linking runs and evaluations go on only with the one they began with."""

from __future__ import annotations

import json
from pathlib import Path

from decoding.checkpoint_files import ADAPTER_FILE
from retrieval.checkpoints import SETTINGS_FILE, find_checkpoint, json_object, local_folder
from retrieval.errors import ModelError
from retrieval.gguf_files import RECORD_FILE
from retrieval.index.digests import digest_bytes, digest_file

_SUFFIXES = (".json", ".safetensors", ".bin", ".model", ".txt", ".py", ".jinja", ".tiktoken")
_NAME_THE_BASE = (ADAPTER_FILE, SETTINGS_FILE)
_BASE_FIELDS = ("base", "base_model_name_or_path")


def model_fingerprint(model: str | Path) -> str:
    """Return the fingerprint of a checkpoint (see `find_checkpoint`).

    Raises:
        ModelError: a file of the checkpoint cannot be read.
        MissingExtraError: a GGUF file needs a package that is not installed.
    """
    found = find_checkpoint(model)
    folder = local_folder(found.weights) if found.adapter is None else found.adapter
    return folder_fingerprint(folder)


def folder_fingerprint(folder: Path) -> str:
    """Return a digest of a checkpoint's files.

    Of one from the hub it is the id and the commit, of a GGUF file the digest of the file and the version of
    its conversion. That of an adapter covers its base, whatever path the base has.

    Raises:
        ModelError: a file cannot be read.
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
    """Return the digest of a file, in an adapter without the place of the base."""
    if is_of_adapter and file.name in _NAME_THE_BASE:
        document = {name: value for name, value in json_object(file).items() if name not in _BASE_FIELDS}
        return digest_bytes(json.dumps(document, sort_keys=True).encode("ascii"))
    return digest_file(file)
