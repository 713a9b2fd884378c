"""Checks that a checkpoint directory names only safetensors files of its own as weights.

transformers asks for safetensors, and yet reads whatever file a list of shards names: pickles (though with
its restricted reader), and files elsewhere.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from genret.decoding.errors import ModelLoadError

_WEIGHTS = ".safetensors"
_SHARD_LIST = ".safetensors.index.json"
ADAPTER_FILE = "adapter_config.json"


def refuse_foreign_weights(directory: Path) -> None:
    """Raise ModelLoadError if the weights of a directory lie elsewhere, or are not safetensors."""
    if (directory / ADAPTER_FILE).exists():
        raise ModelLoadError(
            f"{directory} holds an adapter ({ADAPTER_FILE}), whose model lies elsewhere; "
            "load that model and name this directory as its adapter"
        )
    for shard_list in sorted(directory.glob(f"*{_SHARD_LIST}")):
        for name in _shards(shard_list):
            if Path(name).name != name or not name.endswith(_WEIGHTS):
                raise ModelLoadError(f"{shard_list} names {name!r}, which is no {_WEIGHTS} file beside it")


def refuse_foreign_file_name(name: object) -> None:
    """Raise ModelLoadError if the weights that a configuration names (None: none) are not safetensors."""
    if name is not None and not (isinstance(name, str) and name.endswith((_WEIGHTS, _SHARD_LIST))):
        raise ModelLoadError(f"the configuration names {name!r} as the weights, which are no safetensors")


def _shards(shard_list: Path) -> list[str]:
    try:
        content: Any = json.loads(shard_list.read_text("utf-8"))
        names = sorted({*content["weight_map"].values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelLoadError(f"{shard_list} is no list of shards") from error
    if not all(isinstance(name, str) for name in names):
        raise ModelLoadError(f"{shard_list} is no list of shards")
    return names
