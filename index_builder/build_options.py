"""Holds what a build or an update is asked to do, checked as far as that can be done before anything is read.

`BuildOptions` are the parameters of a build, and say how an update reads. `EvidenceOptions` and
`VectorBuildOptions` are evidence to make; `EvidenceChange` and `VectorChange` are what an update does about
evidence that is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from index_builder.memory_budget import DEFAULT_MEMORY_LIMIT, MemoryBudget
from index_builder.past_queries import QueryFile
from retrieval.checkpoints import weights_folder
from retrieval.compatibility import mismatch
from retrieval.defaults import default_model
from retrieval.errors import InputError, MissingExtraError
from retrieval.index.manifest import FileEntry
from retrieval.prompts import CheckpointConfig
from retrieval.sources import SOURCE_FORMATS, ColumnMapping, SourceFormat, digest_files
from retrieval.text import Rendering, TextTokenizer
from retrieval.vectors.embedder import (
    ENCODER,
    SENTENCE_TRANSFORMERS,
    VectorMethod,
    check_device,
    check_device_name,
    is_path,
)
from retrieval.vectors.vector_maker import VectorOptions

# The column whose texts are evidence if none is named.
DESCRIPTION = "description"

# Names the default model where a checkpoint directory or a hub id is expected.
SHIPPED = "shipped"

# What each method needs, and the extra that brings it.
_PACKAGES = {
    ENCODER: (("faiss", "vectors"),),
    SENTENCE_TRANSFORMERS: (("faiss", "vectors"), ("sentence_transformers", "sentence-transformers")),
}
_CONFIG_FILE = "config.json"


@dataclass(frozen=True, slots=True)
class EvidenceOptions:
    """Evidence by words and letters to make: always of names, and of what is asked for here.

    Attributes:
        columns: Metadata columns whose values are texts of an entity; None: `description` where there is such
            a column of strings, or for an update the columns that the evidence had.
        queries: Files of past queries.
        ranking: A file of rankings that were fitted to such a catalogue before, as `genret tune --out` writes
            them; None: one is fitted to queries made from the catalogue.
        weigh_model: Checkpoint directory or hub id of a model that gets a ranking of its own, fitted to such
            queries; `SHIPPED`: the default one; None: none does.
    """

    columns: tuple[str, ...] | None = None
    queries: tuple[QueryFile, ...] = ()
    ranking: Path | None = None
    weigh_model: str | None = None

    @property
    def model_place(self) -> str | None:
        """The place of the model to weigh; None: there is none.

        Raises:
            ModelError: it is the default one, which is missing.
        """
        return str(default_model()) if self.weigh_model == SHIPPED else self.weigh_model

    def shaping(self) -> dict[str, Any]:
        """Return what decides which evidence is made, as JSON; what was left to the rule is left out."""
        told: dict[str, Any] = {} if self.columns is None else {"columns": list(self.columns)}
        told |= {"queries": [str(file) for file in self.queries]} if self.queries else {}
        told |= {} if self.ranking is None else {"ranking": str(self.ranking)}
        return told | ({} if self.weigh_model is None else {"weigh_model": self.weigh_model})


@dataclass(frozen=True, slots=True)
class EvidenceChange:
    """What an update does about names, texts and past queries. What is there is kept in step by itself.

    Attributes:
        wish: Evidence to make anew, whatever is there, with the past queries that are there; None for none.
        drop: Whether all of it is left out from now on, with past queries and ranking.
        queries: Files of past queries that join those there are.
        drop_queries: Whether the past queries that are there are left out.

    Raises:
        InputError: it is to be made and dropped at once, or queries are for evidence that is dropped.
    """

    wish: EvidenceOptions | None = None
    drop: bool = False
    queries: tuple[QueryFile, ...] = ()
    drop_queries: bool = False

    def __post_init__(self) -> None:
        if self.drop and (self.wish is not None or self.queries):
            raise InputError("evidence", "expected evidence to make or to keep, or none; got both")

    @property
    def any(self) -> bool:
        """Whether something is asked for."""
        return self.drop or self.wish is not None or bool(self.queries) or self.drop_queries

    @property
    def query_files(self) -> tuple[QueryFile, ...]:
        """All files of past queries."""
        return (*(() if self.wish is None else self.wish.queries), *self.queries)

    def shaping(self) -> dict[str, Any]:
        """Return what was asked for, as JSON; nothing if nothing was."""
        if self.drop:
            return {"evidence": "none"}
        told: dict[str, Any] = {} if self.wish is None else {"evidence": self.wish.shaping()}
        if self.query_files or self.drop_queries:
            told["queries"] = [*(["none"] if self.drop_queries else []), *map(str, self.query_files)]
        return told


@dataclass(frozen=True, slots=True)
class VectorBuildOptions:
    """Vectors to make.

    Attributes:
        method: What makes vectors of texts.
        options: How, and of which texts.
    """

    method: VectorMethod
    options: VectorOptions = field(default_factory=VectorOptions)

    def shaping(self) -> dict[str, Any]:
        """Return what decides which vectors are made, as JSON; what was left to the rule is left out."""
        options = self.options
        named: Mapping[str, Any] = {
            "index": None if options.kind == "auto" else options.kind,
            "columns": None if options.columns is None else list(options.columns),
            "sample": options.sample,
            "seed": options.seed or None,
        }
        return {
            "method": str(self.method),
            **{name: value for name, value in named.items() if value is not None},
        }


@dataclass(frozen=True, slots=True)
class VectorChange:
    """What an update does about vectors. If nothing is asked for, those that are there are kept in step.

    Attributes:
        wish: Vectors to make anew, whatever is there; None for none.
        drop: Whether those that are there are left out.
        device: Where an encoder runs that keeps them in step.
        encoder: Where the model of the vectors that are there lies now; None: where it lay.

    Raises:
        InputError: they are to be made and dropped at once.
    """

    wish: VectorBuildOptions | None = None
    drop: bool = False
    device: str = "cpu"
    encoder: str | None = None

    def __post_init__(self) -> None:
        if self.wish is not None and self.drop:
            raise InputError("vectors", "expected a method or none, got both")
        if self.encoder is not None and (self.drop or self.wish is not None):
            raise InputError("encoder", "says where the model of vectors lies that are kept; these are not")

    @property
    def any(self) -> bool:
        """Whether something is asked for."""
        return self.drop or self.wish is not None

    def shaping(self) -> dict[str, Any]:
        """Return what was asked for, as JSON; nothing if nothing was."""
        if self.drop:
            return {"vectors": "none"}
        return {} if self.wish is None else {"vectors": self.wish.shaping()}


def asked_columns(evidence: EvidenceOptions | None, vectors: VectorBuildOptions | None) -> tuple[str, ...]:
    """Return the columns that are asked for by name."""
    of_vectors = None if vectors is None else vectors.options.columns
    of_evidence = None if evidence is None else evidence.columns
    return (*(of_evidence or ()), *(of_vectors or ()))


def check_columns(columns: Sequence[str], types: Mapping[str, str]) -> None:
    """Refuse columns that have no texts.

    Args:
        columns: The columns asked for.
        types: The type of each metadata column; "string" for one whose type is not yet known.

    Raises:
        InputError: a column is not there, or holds no strings.
    """
    for column in columns:
        if types.get(column) == "string":
            continue
        strings = [name for name, kind in types.items() if kind == "string"]
        why = "there is no such column" if column not in types else f"the column is {types[column]}"
        raise InputError(
            "evidence_columns",
            f"{column!r}: {why}; the metadata columns of strings are "
            f"{', '.join(map(repr, strings)) or 'none'}",
        )


def text_columns(asked: Sequence[str] | None, types: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns asked for, or `description` where there is such a column of strings."""
    if asked is not None:
        return tuple(asked)
    return (DESCRIPTION,) if types.get(DESCRIPTION) == "string" else ()


def check_model(place: str, tokenizer: TextTokenizer, rendering: Rendering, prompt: str | None) -> None:
    """Refuse a model that cannot write the titles of an index.

    Args:
        place: Name of the model, as `find_checkpoint` takes it.
        tokenizer: The index's.
        rendering: The form of its titles behind a prompt.
        prompt: Name of the template the index is for; None: the model's default.

    Raises:
        InputError: it has another tokenizer, was taught other titles, or the directory holds no model.
        ModelError: its tokenizer cannot be loaded.
    """
    own = TextTokenizer.load(place)
    folder = Path(own.source)
    if folder.is_dir() and not (weights_folder(folder) / _CONFIG_FILE).is_file():
        raise InputError("weigh_model", f"{place}: the directory has no {_CONFIG_FILE}, so it holds no model")
    if own.fingerprint != tokenizer.fingerprint:
        raise InputError(
            "weigh_model",
            f"{place}: expected the tokenizer of the index, {tokenizer.name} ({tokenizer.fingerprint}), "
            f"got another one ({own.fingerprint})",
        )
    config = CheckpointConfig.load(folder).with_prompt(prompt)
    end = tokenizer.end_token_id(rendering)
    told = mismatch(rendering, end, tokenizer, config, config.prompt(None), place)
    if told is not None:
        raise InputError("weigh_model", f"{place}: expected a model taught the titles of the index: {told}")


def check_method(method: VectorMethod, device: str) -> None:
    """Refuse a method that cannot work here.

    Args:
        method: What makes vectors of texts.
        device: Where an encoder runs.

    Raises:
        MissingExtraError: a library is not installed.
        InputError: the model is a directory that is not there, or holds no model, or there is no such device.
    """
    check_device_name(device)
    for package, extra in _PACKAGES[method.name]:
        if find_spec(package) is None:
            raise MissingExtraError(package, extra)
    _check_source(method)
    check_device(device)


def _check_source(method: VectorMethod) -> None:
    """Refuse what can only be a directory, and is none with a model; hub ids are left to their library."""
    place = Path(method.source)
    if place.is_dir():
        if not (place / _CONFIG_FILE).is_file():
            raise InputError("vectors", f"{str(method)!r}: the directory has no {_CONFIG_FILE}")
        return
    if place.exists() or is_path(method.source):
        raise InputError("vectors", f"{str(method)!r}: there is no such directory")


# A shard is what an interrupted build loses at most.
_SHARD_RECORDS = 1 << 20


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Parameters of one build.

    Attributes:
        out: The index directory.
        format: How the sources are read; "auto" looks at their content.
        mapping: What their columns mean.
        aliases: A second file of aliases, or None.
        unescape_html: Whether HTML entities in titles and aliases are resolved.
        rendering: How titles stand after the prompt.
        prompt: Template that a model is weighed with; None: its default one.
        max_bad_rows: More bad rows than this fail the build.
        max_title_tokens: Titles of more tokens, end token included, are bad rows.
        rejects: Where bad rows are written; None writes none.
        keep_versions: How many superseded versions stay on disk beside the live one.
        memory_limit: Bytes of memory the process may take.
        resume: Whether the work of an earlier run that was cut short is taken up.
        evidence: What evidence by words and letters the version gets; None for none. What an update does is
            said by its request.
        vectors: What vectors the version gets; None for none. An update leaves those that are there.
        threads: Of what makes vectors; None: all cores that the process may use.
        shard_records: Most records of one shard. The index does not depend on it.

    Raises:
        InputError: a value is out of its range.
    """

    out: Path
    format: SourceFormat = "auto"
    mapping: ColumnMapping = field(default_factory=ColumnMapping)
    aliases: Path | None = None
    unescape_html: bool = False
    rendering: Rendering = field(default_factory=Rendering)
    prompt: str | None = None
    max_bad_rows: int = 0
    max_title_tokens: int = 256
    rejects: Path | None = None
    keep_versions: int = 2
    memory_limit: int = DEFAULT_MEMORY_LIMIT
    resume: bool = True
    evidence: EvidenceOptions | None = field(default_factory=EvidenceOptions)
    vectors: VectorBuildOptions | None = None
    threads: int | None = None
    shard_records: int = _SHARD_RECORDS

    def __post_init__(self) -> None:
        least = {"max_bad_rows": 0, "max_title_tokens": 2, "keep_versions": 0, "shard_records": 1}
        for name, bound in least.items():
            value = getattr(self, name)
            if value < bound:
                raise InputError(name, f"must be >= {bound}, got {value}")
        if self.format not in SOURCE_FORMATS:
            raise InputError("format", f"expected {', '.join(SOURCE_FORMATS)}, got {self.format!r}")
        MemoryBudget(self.memory_limit)  # refuses what is too little

    def shaping(self) -> dict[str, Any]:
        """Return the options that decide what is read from given sources, as JSON; defaults are left out."""
        mapping, default = self.mapping, ColumnMapping()
        named = {
            name: getattr(mapping, name)
            for name in ("title", "entity_id", "aliases", "alias_separator")
            if getattr(mapping, name) != getattr(default, name)
        }
        shaping: dict[str, Any] = {
            "format": self.format,
            "max_title_tokens": self.max_title_tokens,
            "unescape_html": self.unescape_html,
            "columns": named,
            "types": {name: str(column_type) for name, column_type in sorted(mapping.types.items())},
        }
        if mapping.metadata is not None:
            shaping["metadata"] = list(mapping.metadata)
        if mapping.weight is not None:
            shaping["weight_column"] = mapping.weight
        return shaping

    def shaping_evidence(self) -> dict[str, Any]:
        """Return the options that decide which evidence is made, as JSON; defaults are left out."""
        told = None if self.evidence is None else self.evidence.shaping()
        evidence: dict[str, Any] = {"evidence": "none" if told is None else told} if told != {} else {}
        return evidence | ({} if self.vectors is None else {"vectors": self.vectors.shaping()})

    def query_sources(self) -> tuple[FileEntry, ...]:
        """Return size and digest of the files of past queries.

        Raises:
            SourceError: one cannot be read.
        """
        return () if self.evidence is None else digest_files([file.path for file in self.evidence.queries])
