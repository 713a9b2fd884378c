"""Options for the evidence of an index, shared by the commands that make versions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from genret.index_builder.build_options import (
    SHIPPED,
    EvidenceChange,
    EvidenceOptions,
    VectorBuildOptions,
    VectorChange,
)
from genret.index_builder.command_line import env_option, option_group
from genret.index_builder.past_queries import QueryFile
from genret.retrieval.errors import InputError
from genret.retrieval.vectors.embedder import VectorMethod, check_device_name
from genret.retrieval.vectors.faiss_index import KIND_NAMES
from genret.retrieval.vectors.vector_maker import DESCRIPTION, VectorOptions

ALL, NONE = "all", "none"

_F = TypeVar("_F", bound=Callable[..., Any])
_METHODS = f"encoder:DIR_OR_ID|sentence-transformers:DIR_OR_ID|{NONE}"
_QUERY_FILE = (
    "a file with the columns `query` and `entity_id` or `title`, and possibly `count` and `split`; "
    "FILE#SPLIT: the lines of one split"
)


@dataclass(frozen=True, slots=True)
class EvidenceWishes:
    """Evidence by words and letters, and vectors, that a build shall make; None for none."""

    evidence: EvidenceOptions | None
    vectors: VectorBuildOptions | None


@dataclass(frozen=True, slots=True)
class EvidenceChanges:
    """Changes that an update shall make to names, texts and past queries, and to vectors."""

    evidence: EvidenceChange
    vectors: VectorChange


def build_evidence_flags(prefix: str) -> Callable[[_F], Callable[..., Any]]:
    """Return a decorator that adds the options of a build, which gets `EvidenceWishes` as `evidence`.

    `prefix` is that of the environment variables, such as "GENRET_BUILD_".
    """
    evidence = {
        "default": ALL,
        "help": "Index the words and letters of names, of texts and of past queries, by which candidates are "
        f"found and ranked, and fit a ranking to the catalogue; {NONE}: nothing of it.",
    }
    queries = {
        "show_default": "none",
        "help": f"Past queries with the entity that was wanted: {_QUERY_FILE}. May be given several times.",
    }
    method = {
        "default": NONE,
        "help": "Make vectors of titles and aliases, which propose candidates too; needs the extra "
        "`vectors`. encoder: the mean of the states of a Hugging Face encoder.",
    }
    ranking = env_option(
        prefix,
        "--ranking",
        type=click.Path(path_type=Path, dir_okay=False),
        show_default="one is fitted to queries made from the catalogue",
        help="Rankings fitted to such a catalogue before, as `genret tune --out` writes them.",
    )
    weigh_model = env_option(
        prefix,
        "--weigh-model",
        metavar="DIR_OR_ID",
        show_default="none: a model counts little until `genret tune` weighs it",
        help="Weigh a model against the evidence, by queries made from the catalogue; a checkpoint "
        f"directory, a hub id or `{SHIPPED}`. Takes minutes, nearly all of them the model's.",
    )
    shared = _shared_options(prefix, evidence, queries, method)
    return option_group("evidence", _wishes, *shared, ranking, weigh_model)


def update_evidence_flags(prefix: str) -> Callable[[_F], Callable[..., Any]]:
    """Return a decorator that adds the options of an update, which gets `EvidenceChanges` as `evidence`."""
    evidence = {
        "default": None,
        "show_default": "evidence that is there is kept in step",
        "help": f"Make evidence by words and letters anew, also for an index without any ({ALL}), or drop "
        f"it ({NONE}).",
    }
    queries = {
        "show_default": "those that are there move with their entities",
        "help": f"Past queries that join those that are there: {_QUERY_FILE}; {NONE}: drop those that are "
        "there. May be given several times.",
    }
    method = {
        "default": None,
        "show_default": "vectors that are there are kept in step",
        "help": f"Make new vectors of all entities, or drop those that are there ({NONE}).",
    }
    encoder = env_option(
        prefix,
        "--encoder",
        metavar="DIR_OR_ID",
        default=None,
        show_default="where it was",
        help="Where the model of the vectors lies that are kept in step.",
    )
    shared = _shared_options(prefix, evidence, queries, method)
    return option_group("evidence", _changes, *shared, encoder)


def _shared_options(
    prefix: str, evidence: dict[str, Any], queries: dict[str, Any], method: dict[str, Any]
) -> list[Callable[..., Any]]:
    """Return the options that both commands have, in the order of the help."""
    return [
        env_option(prefix, "--evidence", "kinds", type=click.Choice([ALL, NONE]), **evidence),
        env_option(
            prefix,
            "--evidence-columns",
            metavar="COLUMN,…",
            default=None,
            show_default=f"{DESCRIPTION}, if there is such a column",
            help="Metadata columns whose texts are evidence, in words, letters and vectors; an empty "
            "value: none.",
        ),
        env_option(prefix, "--queries", metavar="FILE[#SPLIT]", multiple=True, **queries),
        env_option(prefix, "--vectors", "method", metavar=_METHODS, **method),
        env_option(
            prefix,
            "--vector-index",
            metavar=f"{'|'.join(KIND_NAMES)}|FACTORY",
            default=None,
            show_default="auto",
            help="How faiss keeps the vectors; auto: flat for fewer than 100,000, compressed above; "
            "FACTORY: a string for its index factory.",
        ),
        env_option(
            prefix,
            "--vector-sample",
            type=click.IntRange(min=1),
            default=None,
            show_default="what the kind needs",
            help="Most vectors to train on.",
        ),
        env_option(
            prefix,
            "--vector-device",
            default=None,
            show_default="cpu",
            help="Where an encoder runs, such as cuda or auto.",
        ),
    ]


def _wishes(
    kinds: str,
    evidence_columns: str | None,
    queries: Sequence[str],
    method: str,
    vector_index: str | None,
    vector_sample: int | None,
    vector_device: str | None,
    ranking: Path | None,
    weigh_model: str | None,
) -> EvidenceWishes:
    given = {
        "--vector-index": vector_index,
        "--vector-sample": vector_sample,
        "--vector-device": vector_device,
    }
    columns = _columns(evidence_columns)
    if kinds == NONE:
        needing = {"--queries": queries or None, "--ranking": ranking, "--weigh-model": weigh_model}
        _refuse(needing, f"goes without --evidence {NONE}")
        if method == NONE:
            _refuse({"--evidence-columns": evidence_columns}, f"goes without --evidence {NONE}")
    files = tuple(map(QueryFile.parse, queries))
    return EvidenceWishes(
        None if kinds == NONE else EvidenceOptions(columns, files, ranking, weigh_model),
        _vector_wish(method, columns, given),
    )


def _changes(
    kinds: str | None,
    evidence_columns: str | None,
    queries: Sequence[str],
    method: str | None,
    vector_index: str | None,
    vector_sample: int | None,
    vector_device: str | None,
    encoder: str | None,
) -> EvidenceChanges:
    columns = _columns(evidence_columns)
    if kinds != ALL and method in (None, NONE):
        _refuse({"--evidence-columns": evidence_columns}, f"goes with --evidence {ALL} or --vectors METHOD")
    evidence = EvidenceChange(
        wish=EvidenceOptions(columns) if kinds == ALL else None,
        drop=kinds == NONE,
        queries=tuple(QueryFile.parse(text) for text in queries if text != NONE),
        drop_queries=NONE in queries,
    )
    given = {"--vector-index": vector_index, "--vector-sample": vector_sample}
    if method is None:
        _refuse(given, "goes with --vectors METHOD, which makes new vectors")
        _check_device(vector_device)
        return EvidenceChanges(evidence, VectorChange(device=vector_device or "cpu", encoder=encoder))
    wish = _vector_wish(method, columns, {**given, "--vector-device": vector_device})
    return EvidenceChanges(evidence, VectorChange(wish=wish, drop=wish is None, encoder=encoder))


def _vector_wish(
    method: str, columns: tuple[str, ...] | None, given: dict[str, Any]
) -> VectorBuildOptions | None:
    if method == NONE:
        _refuse(given, "goes with --vectors METHOD")
        return None
    kind, device = given["--vector-index"], given["--vector-device"]
    if kind is not None and not kind.strip():
        raise InputError(
            "vector_index", f"expected one of {', '.join(KIND_NAMES)} or a factory string, got ''"
        )
    chosen = VectorMethod.parse(method)
    _check_device(device)
    options = VectorOptions(
        kind=kind or "auto", columns=columns, sample=given["--vector-sample"], device=device or "cpu"
    )
    return VectorBuildOptions(chosen, options)


def _refuse(given: dict[str, Any], why: str) -> None:
    for name, value in given.items():
        if value is not None:
            raise click.UsageError(f"{name} {why}")


def _check_device(name: str | None) -> None:
    if name is not None:
        check_device_name(name)


def _columns(text: str | None) -> tuple[str, ...] | None:
    """Return the named columns; none for an empty text."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")] if text.strip() else []
    if not all(names) or len(set(names)) != len(names):
        raise click.UsageError(f"--evidence-columns: expected different columns, as in a,b, got {text!r}")
    return tuple(names)
