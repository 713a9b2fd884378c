"""What an update reads: the request, the files to add as sorted shards, the ids to remove."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from index_builder.build import check_rejects
from index_builder.config import BuildOptions
from index_builder.evidence_wish import EvidenceChange, VectorChange
from index_builder.progress import BuildProgress
from index_builder.reading import FrontHalf, read_shards
from index_builder.removals import Removals, read_removals
from index_builder.shard import ShardRun
from retrieval.errors import IndexMismatchError, InputError, SourceError
from retrieval.index.layout import WEIGHT_TYPES
from retrieval.index.manifest import Manifest
from retrieval.index.reader import Index
from retrieval.rejects import Rejects
from retrieval.sources import ColumnType, open_source
from retrieval.sources.columns import find_column
from retrieval.sources.opening import is_read_once
from retrieval.text import TextTokenizer

MAX_TITLE_TOKENS = "max_title_tokens"
OUTCOME = "nothing was updated"


@dataclass(frozen=True, slots=True)
class UpdateRequest:
    """What shall be different.

    Attributes:
        add: Files of entities; one that is there under its id is replaced.
        remove: Files of ids, one per line.
        remove_ids: Further ids.
        ignore_missing: Whether ids to remove that are not there are no bad rows.
        dry_run: Only say what would be different.
        vectors: What becomes of the vectors.
        weight_column: Metadata column of the index that holds the weights from now on; None: no other one.
        evidence: What becomes of names, texts and past queries.

    Raises:
        InputError: nothing shall, or an id is no text.
    """

    add: tuple[str | Path, ...] = ()
    remove: tuple[str | Path, ...] = ()
    remove_ids: tuple[str, ...] = ()
    ignore_missing: bool = False
    dry_run: bool = False
    vectors: VectorChange = field(default_factory=VectorChange)
    weight_column: str | None = None
    evidence: EvidenceChange = field(default_factory=EvidenceChange)

    def __post_init__(self) -> None:
        changes = (self.add, self.remove, self.remove_ids, self.weight_column)
        if not (any(changes) or self.vectors.any or self.evidence.any):
            raise InputError(
                "update",
                "nothing to do: expected files to add, ids to remove, evidence, vectors or a column of "
                "weights",
            )
        for entity_id in self.remove_ids:
            try:
                entity_id.encode()
            except UnicodeEncodeError:
                raise InputError("remove_id", f"expected UTF-8, got {entity_id!r}") from None


@dataclass(frozen=True, slots=True)
class UpdateReading:
    """Everything a request names, read.

    Attributes:
        request: The request.
        options: How the files were read.
        front: What is added; None when nothing is.
        removals: What is removed.
        rejects: Bad rows of both.
    """

    request: UpdateRequest
    options: BuildOptions
    front: FrontHalf | None
    removals: Removals
    rejects: Rejects

    @property
    def shards(self) -> tuple[ShardRun, ...]:
        """What is added, as runs."""
        return () if self.front is None else self.front.shards


@contextmanager
def read_update(
    request: UpdateRequest,
    tokenizer: TextTokenizer | None,
    options: BuildOptions,
    index: Index,
    root: Path,
    progress: BuildProgress,
) -> Iterator[UpdateReading]:
    """Read everything; the bad rows are written on the way out, whatever has happened.

    Args:
        request: What shall be different.
        tokenizer: That of the index; None will do if nothing is added.
        options: How to read, as the user has it.
        index: The live version.
        root: Work directory for the shards.
        progress: Told about every step.

    Raises:
        IndexMismatchError: the index has another tokenizer.
        SourceError: a source cannot be used, or there are more bad rows than allowed.
        InputError: an option is wrong.
    """
    if not request.add:
        rejects = Rejects("update", options.max_bad_rows)
        try:
            removals = read_removals(request.remove, request.remove_ids, rejects)
            yield UpdateReading(request, options, None, removals, rejects)
        finally:
            if options.rejects is not None:
                rejects.write(options.rejects)
        return
    checked = _check(tokenizer, index)
    options = reading_options(request, options, index)
    with read_shards(list(request.add), checked, options, root, progress) as front:
        removals = read_removals(request.remove, request.remove_ids, front.rejects)
        check_rejects(front, OUTCOME)
        for shard in front.shards:
            shard.use_columns(index.manifest.metadata)
        yield UpdateReading(request, options, front, removals, front.rejects)


def reading_options(request: UpdateRequest, options: BuildOptions, index: Index) -> BuildOptions:
    """Return the options with which files to add are read: rendering, bounds and types are the index's.

    The column of weights is that of the new version, if the files have it.

    Raises:
        SourceError: a file has a column that the index lacks.
        InputError: a type is declared that is not the index's, or a file can be read only once.
    """
    once = [str(path) for path in request.add if is_read_once(path)]
    if once:
        raise InputError("add", f"expected files, got {once[0]!r}, which can be read only once")
    mapping = replace(options.mapping, weight=weight_column(request, index), weight_may_miss=True)
    with open_source(request.add, mapping, options.format, unescape_html=options.unescape_html) as source:
        names, name = source.columns.names, source.name
    known = index.metadata_types
    unknown = [column for column in names if column not in known]
    if unknown:
        raise SourceError(
            f"{name}: the index has no metadata column {', '.join(map(repr, unknown))}; "
            f"its columns are {', '.join(map(repr, known)) or 'none'}"
        )
    for column, declared in options.mapping.types.items():
        if known.get(column, declared) != declared:
            raise InputError("types", f"{column}: the column is {known[column]} in the index, got {declared}")
    types = {column: ColumnType(known[column]) for column in names}
    return replace(
        options,
        mapping=replace(mapping, types=types),
        rendering=index.rendering,
        max_title_tokens=max_title_tokens(index.manifest),
    )


def weight_column(request: UpdateRequest, index: Index) -> str | None:
    """Return the name of the column that holds the weights of the new version, or None.

    Raises:
        InputError: the column that is asked for is not there, or holds no numbers.
    """
    wanted, types = request.weight_column, index.metadata_types
    if wanted is None:
        return index.manifest.weight_column
    place = find_column(index.metadata_columns, wanted, str(index.path))
    name = wanted if place is None else index.metadata_columns[place]
    if types.get(name) in WEIGHT_TYPES:
        return name
    why = "there is no such column" if place is None else f"the column is {types[name]}"
    numbers = [repr(column) for column, kind in types.items() if kind in WEIGHT_TYPES]
    raise InputError(
        "weight_column",
        f"{wanted!r}: {why}; the metadata columns of numbers are {', '.join(numbers) or 'none'}",
    )


def max_title_tokens(manifest: Manifest) -> int:
    """Return the bound on titles that the version was built with."""
    for entry in reversed(manifest.history):
        bound = entry.options.get(MAX_TITLE_TOKENS)
        if type(bound) is int and bound >= 2:
            return bound
    return manifest.counts.depth


def _check(tokenizer: TextTokenizer | None, index: Index) -> TextTokenizer:
    ours = index.manifest.tokenizer
    if tokenizer is None:
        raise InputError("tokenizer", "expected that of the index, because titles are added; got none")
    if tokenizer.fingerprint != ours.fingerprint:
        raise IndexMismatchError(
            f"the index {index.path} was built with the tokenizer {ours.name!r} ({ours.fingerprint}), but "
            f"the one given is {tokenizer.source} ({tokenizer.fingerprint}); an update needs the same one"
        )
    return tokenizer
