"""Where the shipped default model is: inside an installed wheel, or beside the packages in a checkout."""

from __future__ import annotations

from pathlib import Path

from retrieval.errors import ModelError


def default_model_dir() -> Path:
    """Return the directory of the shipped checkpoint.

    Raises:
        ModelError: it is in neither place; the text names both.
    """
    return _checkpoint("model")


def default_encoder_dir() -> Path:
    """Return the directory of the shipped encoder, which makes vectors of the sample.

    Raises:
        ModelError: it is in neither place; the text names both.
    """
    return _checkpoint("encoder")


def _checkpoint(kind: str) -> Path:
    package = Path(__file__).resolve().parent
    places = (package / f"default_{kind}", package.parent / "data" / f"default-{kind}")
    for place in places:
        if (place / "tokenizer.json").is_file():
            return place
    raise ModelError(
        f"the shipped default {kind} was not found; looked in "
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
