"""What tells checkpoints apart: linking runs and evaluations go on only with the one they began with."""

from __future__ import annotations

import json
from pathlib import Path

from retrieval.defaults import default_model_dir
from retrieval.errors import ModelError
from retrieval.index.digests import digest_bytes, digest_file

_SUFFIXES = (".json", ".safetensors", ".bin", ".model", ".txt", ".py", ".jinja", ".tiktoken")


def model_fingerprint(model: str | None) -> str:
    """Return the fingerprint of a checkpoint folder or hub id; None: of the shipped model.

    Raises:
        ModelError: a file of the checkpoint cannot be read.
    """
    folder = default_model_dir() if model is None else Path(model)
    if not folder.is_dir():
        from retrieval.text import TextTokenizer

        folder = Path(TextTokenizer.load(str(model)).source)  # where it was fetched to
    return folder_fingerprint(folder) if folder.is_dir() else f"{model}@{folder.name}"


def folder_fingerprint(folder: Path) -> str:
    """Return a digest of a checkpoint's files; of one from the hub, its id and the commit.

    Raises:
        ModelError: a file cannot be read.
    """
    if folder.parent.name == "snapshots":  # the hub's cache: models--OWNER--NAME/snapshots/COMMIT
        hub_id = folder.parent.parent.name.removeprefix("models--").replace("--", "/")
        return f"{hub_id}@{folder.name}"
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix in _SUFFIXES)
        listed = [[file.name, digest_file(file)] for file in files if file.is_file()]
    except OSError as error:
        raise ModelError(f"{folder}: the checkpoint cannot be read: {error.strerror}") from error
    return "xxh3:" + digest_bytes(json.dumps(listed, ensure_ascii=True).encode("ascii"))
