"""Options of builds and updates, checked as far as possible before anything is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from genret.index_builder.past_queries import QueryFile
from genret.retrieval.arguments import check_least
from genret.retrieval.checkpoints import local_folder, weights_folder
from genret.retrieval.compatibility import mismatch
from genret.retrieval.defaults import default_model
from genret.retrieval.errors import InputError, ModelError, require_package
from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.sources.columns import ColumnMapping, no_such_column
from genret.retrieval.sources.row_readers import SourceFormat
from genret.retrieval.tables import plain
from genret.retrieval.text import Rendering, TextTokenizer
from genret.retrieval.vectors.embedder import ENCODER, SENTENCE_TRANSFORMERS, VectorMethod, check_device
from genret.retrieval.vectors.faiss_index import check_kind
from genret.retrieval.vectors.vector_maker import VectorOptions

# Stands for the default model where a checkpoint directory or a hub id is expected.
SHIPPED = "shipped"

# Packages that each method needs, with the extra that brings them.
_PACKAGES = {
    ENCODER: (("faiss", "vectors"),),
    SENTENCE_TRANSFORMERS: (("faiss", "vectors"), ("sentence_transformers", "sentence-transformers")),
}
_CONFIG_FILE = "config.json"


def without_none(**named: Any) -> dict[str, Any]:
    """Return the values that are not None."""
    return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class EvidenceOptions:
    """Evidence by words and letters to make; names are always part of it."""

    # Metadata columns whose values are texts of an entity; None: the string column `description` if there is
    # one, or for an update the columns that the evidence had
    columns: tuple[str, ...] | None = None
    queries: tuple[QueryFile, ...] = ()  # files of past queries
    # File of rankings fitted to such a catalogue (`genret tune --out`); None: one is fitted to queries made
    # from the catalogue
    ranking: Path | None = None
    # Checkpoint directory or hub id of a model that gets a ranking of its own, fitted to such queries;
    # `SHIPPED`: the default model; None: none
    weigh_model: str | None = None

    @property
    def model_place(self) -> str | Path | None:
        """The model to weigh, if any. Raises `ModelError` if the default model is asked for and missing."""
        return default_model() if self.weigh_model == SHIPPED else self.weigh_model

    def shaping(self) -> dict[str, Any]:
        """Return the choices that decide about the evidence, as JSON; defaults are left out."""
        queries = [str(file) for file in self.queries] or None
        ranking = plain(self.ranking)
        return without_none(
            columns=plain(self.columns), queries=queries, ranking=ranking, weigh_model=self.weigh_model
        )


@dataclass(frozen=True, slots=True)
class EvidenceChange:
    """Changes that an update makes to names, texts and past queries, which else follow the entities.

    Raises:
        InputError: evidence is to be made and dropped, or queries are added to dropped evidence.
    """

    # Evidence to make anew, together with the past queries of the index; None: none
    wish: EvidenceOptions | None = None
    drop: bool = False  # whether to drop all of it, with past queries and ranking
    queries: tuple[QueryFile, ...] = ()  # files of past queries to add
    drop_queries: bool = False  # whether to drop the past queries of the index

    def __post_init__(self) -> None:
        if self.drop and (self.wish is not None or self.queries):
            raise InputError("evidence", "expected evidence to make or to keep, or none; got both")

    @property
    def any(self) -> bool:
        """Whether a change is asked for."""
        return self.drop or self.wish is not None or bool(self.queries) or self.drop_queries

    @property
    def query_files(self) -> tuple[QueryFile, ...]:
        """All new files of past queries."""
        return (*(() if self.wish is None else self.wish.queries), *self.queries)

    def shaping(self) -> dict[str, Any]:
        """Return the changes asked for as JSON; {} for none."""
        if self.drop:
            return {"evidence": "none"}
        told: dict[str, Any] = {} if self.wish is None else {"evidence": self.wish.shaping()}
        if self.query_files or self.drop_queries:
            told["queries"] = [*(["none"] if self.drop_queries else []), *map(str, self.query_files)]
        return told


@dataclass(frozen=True, slots=True)
class VectorBuildOptions:
    """Vectors to make: the method and its options."""

    method: VectorMethod
    options: VectorOptions = field(default_factory=VectorOptions)

    def shaping(self) -> dict[str, Any]:
        """Return the choices that decide about the vectors, as JSON; defaults are left out."""
        options = self.options
        return without_none(
            method=str(self.method),
            index=None if options.kind == "auto" else options.kind,
            columns=plain(options.columns),
            sample=options.sample,
            seed=options.seed or None,
        )


@dataclass(frozen=True, slots=True)
class VectorChange:
    """Changes that an update makes to vectors, which else follow the entities.

    Raises:
        InputError: vectors are to be made and dropped, or `encoder` goes with either.
    """

    wish: VectorBuildOptions | None = None  # vectors to make anew; None: none
    drop: bool = False  # whether to drop the vectors
    device: str = "cpu"  # device of the encoder that keeps the vectors in step
    encoder: str | None = None  # new place of the model that made the vectors; None: unchanged

    def __post_init__(self) -> None:
        if self.wish is not None and self.drop:
            raise InputError("vectors", "expected a method or none, got both")
        if self.encoder is not None and (self.drop or self.wish is not None):
            raise InputError("encoder", "says where the model of vectors lies that are kept; these are not")

    @property
    def any(self) -> bool:
        """Whether a change is asked for."""
        return self.drop or self.wish is not None

    def shaping(self) -> dict[str, Any]:
        """Return the changes asked for as JSON; {} for none."""
        if self.drop:
            return {"vectors": "none"}
        return {} if self.wish is None else {"vectors": self.wish.shaping()}


def asked_columns(evidence: EvidenceOptions | None, vectors: VectorBuildOptions | None) -> tuple[str, ...]:
    """Return the columns asked for by name."""
    of_vectors = None if vectors is None else vectors.options.columns
    of_evidence = None if evidence is None else evidence.columns
    return (*(of_evidence or ()), *(of_vectors or ()))


def check_columns(columns: Sequence[str], types: Mapping[str, str]) -> None:
    """Refuse columns that are missing or hold no strings.

    `types` are the types of the metadata columns; "string" for one whose type is not yet known.

    Raises:
        InputError: there is such a column.
    """
    for column in columns:
        if types.get(column) != "string":
            raise InputError("evidence_columns", no_such_column(column, types, "strings", ("string",)))


def check_model(
    place: str | Path, tokenizer: TextTokenizer, rendering: Rendering, prompt: str | None
) -> None:
    """Refuse a model that cannot write the titles of an index, which has this tokenizer and rendering.

    `place` names the model as `find_checkpoint` takes it; `prompt` names its template, None: the default.

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
    told = mismatch(rendering, end, tokenizer, config, config.prompt(None), str(place))
    if told is not None:
        raise InputError("weigh_model", f"{place}: expected a model taught the titles of the index: {told}")


def check_method(method: VectorMethod, device: str, kind: str = "auto") -> None:
    """Refuse a method of making vectors, or a kind of index for them, that cannot work here.

    Raises:
        MissingExtraError: a library is not installed.
        InputError: the model is neither here nor on the hub, its directory holds none, there is no such
            device, or faiss knows no such kind of index.
    """
    for package, extra in _PACKAGES[method.name]:
        require_package(package, extra)
    check_kind(kind)
    place = Path(method.source)
    if place.is_dir() and not (place / _CONFIG_FILE).is_file():
        raise InputError("vectors", f"{str(method)!r}: the directory has no {_CONFIG_FILE}")
    # The other library knows hub ids without an owner.
    if method.name == ENCODER or "/" in method.source or place.exists():
        try:
            local_folder(method.source, (_CONFIG_FILE,))
        except ModelError as error:
            raise InputError("vectors", f"{str(method)!r}: {error}") from error
    check_device(device)


MIB = 1 << 20
DEFAULT_MEMORY_LIMIT = 2 << 30
MIN_MEMORY_LIMIT = 512 * MIB

# Interpreter, NumPy, Arrow and a tokenizer, before the first title is read.
_BASE = 300 * MIB


# Size of a shard: an interrupted build loses one at most.
_SHARD_RECORDS = 1 << 20


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Parameters of a build; an update takes its reading options from here.

    Raises:
        InputError: a number is out of range, or there is too little memory.
    """

    out: Path  # index directory
    format: SourceFormat = "auto"  # format of the sources; "auto" looks at their content
    mapping: ColumnMapping = field(default_factory=ColumnMapping)  # meaning of their columns
    aliases: Path | None = None  # a second file of aliases, or None
    unescape_html: bool = False  # whether HTML entities in titles and aliases are resolved
    rendering: Rendering = field(default_factory=Rendering)  # form of titles behind the prompt
    prompt: str | None = None  # template that a model is weighed with; None: its default one
    max_bad_rows: int = 0  # number of bad rows above which the build fails
    # Limit on the tokens of a title, end token included; longer ones are bad rows
    max_title_tokens: int = 256
    rejects: Path | None = None  # file for the bad rows; None writes none
    keep_versions: int = 2  # number of superseded versions to keep on disk
    memory_limit: int = DEFAULT_MEMORY_LIMIT  # resident memory that the process may take, in bytes
    resume: bool = True  # whether to continue an interrupted build
    # Evidence by words and letters; None: none. An update takes it from its request
    evidence: EvidenceOptions | None = field(default_factory=EvidenceOptions)
    vectors: VectorBuildOptions | None = None  # vectors; None: none. An update takes them from its request
    threads: int | None = None  # threads for making vectors; None: all cores that the process may use
    shard_records: int = _SHARD_RECORDS  # limit on the records of a shard. The index does not depend on it

    def __post_init__(self) -> None:
        check_least(self, max_bad_rows=0, max_title_tokens=2, keep_versions=0, threads=1, shard_records=1)
        if self.memory_limit < MIN_MEMORY_LIMIT:
            raise InputError(
                "memory_limit",
                f"must be at least {MIN_MEMORY_LIMIT // MIB} MiB, got {self.memory_limit // MIB} MiB",
            )

    @property
    def free_bytes(self) -> int:
        """Memory left for data."""
        return self.memory_limit - _BASE

    def shaping(self) -> dict[str, Any]:
        """Return the options that decide how sources are read, as JSON; defaults are left out."""
        mapping, default = self.mapping, ColumnMapping()
        named = {
            name: getattr(mapping, name)
            for name in ("title", "entity_id", "aliases", "alias_separator", "delimiter")
            if getattr(mapping, name) != getattr(default, name)
        }
        return without_none(
            format=self.format,
            max_title_tokens=self.max_title_tokens,
            unescape_html=self.unescape_html,
            columns=named,
            types={name: str(column_type) for name, column_type in sorted(mapping.types.items())},
            metadata=plain(mapping.metadata),
            weight_column=mapping.weight,
        )

    def shaping_evidence(self) -> dict[str, Any]:
        """Return the options that decide about the evidence, as JSON; defaults are left out."""
        told = None if self.evidence is None else self.evidence.shaping()
        evidence: dict[str, Any] = {"evidence": "none" if told is None else told} if told != {} else {}
        return evidence | ({} if self.vectors is None else {"vectors": self.vectors.shaping()})
