"""The options that say which vectors an index gets: shared by the commands that make versions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import click

from index_builder.vector_wish import DESCRIPTION, VectorChange, VectorWish
from retrieval.errors import InputError
from retrieval.vectors.embedder import VectorMethod, check_device_name
from retrieval.vectors.faiss_index import KIND_NAMES
from retrieval.vectors.making import VectorOptions

NONE = "none"

_F = TypeVar("_F", bound=Callable[..., Any])
_METHODS = f"encoder:DIR_OR_ID|sentence-transformers:DIR_OR_ID|{NONE}"


def build_vector_flags(prefix: str) -> Callable[[_F], Callable[..., Any]]:
    """Return a decorator that adds the options of a build, which gets a `VectorWish` or None as `vectors`.

    Args:
        prefix: Of the environment variables, such as "GENRET_BUILD_".
    """
    method = (
        ("--vectors", "method"),
        {
            "metavar": _METHODS,
            "default": NONE,
            "help": "Make vectors of titles and aliases, which propose entities for shortlists; needs the "
            "extra `vectors`. encoder: the mean of the states of a Hugging Face encoder.",
        },
    )
    return _decorator(prefix, [method, *_options()], _wish)


def update_vector_flags(prefix: str) -> Callable[[_F], Callable[..., Any]]:
    """Return a decorator that adds the options of an update, which gets a `VectorChange` as `vectors`.

    Args:
        prefix: As in `build_vector_flags`.
    """
    method = (
        ("--vectors", "method"),
        {
            "metavar": _METHODS,
            "default": None,
            "show_default": "vectors that are there are kept in step",
            "help": f"Make new vectors of all entities, or drop those that are there ({NONE}).",
        },
    )
    encoder = (
        ("--encoder",),
        {
            "metavar": "DIR_OR_ID",
            "default": None,
            "show_default": "where it was",
            "help": "Where the model of the vectors lies that are kept in step.",
        },
    )
    return _decorator(prefix, [method, *_options(), encoder], _change)


def _decorator(
    prefix: str, options: list[tuple[tuple[str, ...], dict[str, Any]]], taken_by: Callable[..., Any]
) -> Callable[[_F], Callable[..., Any]]:
    def decorate(command: _F) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_flags(**values: Any) -> Any:
            taken = {name: values.pop(name) for name in inspect.signature(taken_by).parameters}
            try:
                vectors = taken_by(**taken)
            except InputError as error:
                raise click.UsageError(str(error)) from error
            return command(vectors=vectors, **values)

        decorated: Callable[..., Any] = with_flags
        for names, settings in reversed(options):
            variable = prefix + names[0].removeprefix("--").upper().replace("-", "_")
            decorated = click.option(*names, envvar=variable, show_envvar=True, **settings)(decorated)
        return decorated

    return decorate


def _wish(
    method: str,
    vector_index: str | None,
    vector_columns: str | None,
    vector_sample: int | None,
    vector_device: str | None,
) -> VectorWish | None:
    given = {
        "--vector-index": vector_index,
        "--vector-columns": vector_columns,
        "--vector-sample": vector_sample,
        "--vector-device": vector_device,
    }
    if method == NONE:
        _refuse(given, "goes with --vectors METHOD")
        return None
    if vector_index is not None and not vector_index.strip():
        raise InputError(
            "vector_index", f"expected one of {', '.join(KIND_NAMES)} or a factory string, got ''"
        )
    chosen = VectorMethod.parse(method)
    _check_device(vector_device)
    return VectorWish(
        chosen,
        VectorOptions(
            kind=vector_index or "auto",
            columns=_columns(vector_columns),
            sample=vector_sample,
            device=vector_device or "cpu",
        ),
    )


def _change(
    method: str | None,
    vector_index: str | None,
    vector_columns: str | None,
    vector_sample: int | None,
    vector_device: str | None,
    encoder: str | None,
) -> VectorChange:
    if method is None:
        given = {
            "--vector-index": vector_index,
            "--vector-columns": vector_columns,
            "--vector-sample": vector_sample,
        }
        _refuse(given, "goes with --vectors METHOD, which makes new vectors")
        _check_device(vector_device)
        return VectorChange(device=vector_device or "cpu", encoder=encoder)
    wish = _wish(method, vector_index, vector_columns, vector_sample, vector_device)
    return VectorChange(wish=wish, drop=wish is None, encoder=encoder)


def _refuse(given: dict[str, Any], why: str) -> None:
    for name, value in given.items():
        if value is not None:
            raise click.UsageError(f"{name} {why}")


def _check_device(name: str | None) -> None:
    if name is not None:
        check_device_name(name)


def _columns(text: str | None) -> tuple[str, ...] | None:
    """Return the columns named; an empty text names none at all."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")] if text.strip() else []
    if not all(names) or len(set(names)) != len(names):
        raise click.UsageError(f"--vector-columns: expected different columns, as in a,b, got {text!r}")
    return tuple(names)


def _options() -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    """Return names and settings of the options that every command has, in the order of the help."""
    kinds = "|".join(KIND_NAMES)
    return [
        (
            ("--vector-index",),
            {
                "metavar": f"{kinds}|FACTORY",
                "default": None,
                "show_default": "auto",
                "help": "How faiss keeps the vectors; auto: flat for fewer than 100,000, compressed above; "
                "FACTORY: a string for its index factory.",
            },
        ),
        (
            ("--vector-columns",),
            {
                "metavar": "COLUMN,…",
                "default": None,
                "show_default": f"{DESCRIPTION}, if there is such a column",
                "help": "Metadata columns whose texts get vectors too; an empty value: none.",
            },
        ),
        (
            ("--vector-sample",),
            {
                "type": click.IntRange(min=1),
                "default": None,
                "show_default": "what the kind needs",
                "help": "Most vectors to train on.",
            },
        ),
        (
            ("--vector-device",),
            {"default": None, "show_default": "cpu", "help": "Where an encoder runs, such as cuda or auto."},
        ),
    ]
