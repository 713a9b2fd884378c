"""The front half of a build: sources to sorted shards with resolved identities, resumable.

Builds and updates read their input with this module. What becomes of the shards is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from index_builder.config import BuildOptions
from index_builder.evidence_wish import asked_columns, check_columns
from index_builder.faults import fault_point
from index_builder.identities import resolve_identities
from index_builder.journal import Journal
from index_builder.memory import MemoryBudget
from index_builder.progress import BuildProgress
from index_builder.shard import ShardRun
from index_builder.shard_maker import ShardMaker
from index_builder.tokenize import OverLong, RowEncoder
from index_builder.workplace import open_journal, remove_work, work_key
from retrieval.errors import SourceError
from retrieval.index.manifest import FileEntry, MetadataColumn
from retrieval.normalize import NormalizationReport
from retrieval.rejects import Rejects
from retrieval.sources import AliasFile, TitleSource, digest_files, key_hash, open_source
from retrieval.sources.column_types import ColumnType, Kinds, resolve
from retrieval.sources.opening import is_read_once
from retrieval.text import TextTokenizer

Sources = str | Path | Sequence[str | Path]


@dataclass(frozen=True, slots=True)
class FrontHalf:
    """Everything that was read, as sorted runs.

    Attributes:
        shards: In the order of the source; their `keep` says which records are entities.
        columns: The metadata columns, with their types. The shards return them in this form.
        weight_column: Name of the one that holds weights, or None.
        kinds: What the cells of each metadata column look like, in the order of `columns`.
        end_token_id: Closes every row.
        rejects: Bad rows; not yet checked against the limit.
        longest: The longest title or alias refused for its length in this run, if any was.
        normalization: What the text policy did.
        sources: The input files.
        records: Records read, bad ones included.
        duplicates: Records dropped because they repeat another.
        resumed_shards: Shards that an earlier run had made.
        resumed_records: Records in them, bad ones included.
    """

    shards: tuple[ShardRun, ...]
    columns: tuple[MetadataColumn, ...]
    weight_column: str | None
    kinds: tuple[Kinds, ...]
    end_token_id: int
    rejects: Rejects
    longest: OverLong | None
    normalization: NormalizationReport
    sources: tuple[FileEntry, ...]
    records: int
    duplicates: int
    resumed_shards: int
    resumed_records: int

    @property
    def num_entities(self) -> int:
        """Records that are entities."""
        return sum(int(np.count_nonzero(shard.keep)) for shard in self.shards)


@contextmanager
def read_shards(
    sources: Sources, tokenizer: TextTokenizer, options: BuildOptions, root: Path, progress: BuildProgress
) -> Iterator[FrontHalf]:
    """Read, tokenise and sort everything, or go on where an earlier run of the same was cut short.

    On the way out of the block the bad rows are written to `options.rejects`, whatever has happened.

    Args:
        sources: The files; "-" is standard input.
        tokenizer: Of the model that will write the titles.
        options: How.
        root: Work directory; holds the shards of one build.
        progress: Told about every step.

    Yields:
        What was read; the shards are open inside the block.

    Raises:
        SourceError: a source cannot be used.
        InputError: the tokenizer has no end token, or an option is wrong.
        OSError: the work directory cannot be written.
    """
    paths = [sources] if isinstance(sources, str | Path) else list(sources)
    with ExitStack() as stack:
        encoder = RowEncoder(tokenizer, options.rendering, options.max_title_tokens)
        aliases = None
        if options.aliases is not None:
            aliases = AliasFile(options.aliases, options.max_bad_rows, options.unescape_html)
        source = stack.enter_context(
            open_source(paths, options.mapping, options.format, aliases, options.unescape_html)
        )
        columns_asked = asked_columns(options.evidence, options.vectors)
        names = zip(source.columns.names, source.columns.declared, strict=True)
        check_columns(columns_asked, {name: str(kind or "string") for name, kind in names})
        rejects = Rejects(source.name, options.max_bad_rows, files=source.names)
        if options.rejects is not None:
            stack.callback(rejects.write, options.rejects)
        journal = open_journal(root, work_key(_shaping(paths, tokenizer, options)), options.resume)
        stack.enter_context(_removed_if_bad(root))
        resumed = list(journal.entries)
        if resumed:
            progress.note(describe_resumption(len(resumed), resumed[-1].position.records_read))
        maker = ShardMaker(source, encoder, tokenizer.vocab_size, options, journal, rejects)
        maker.run(progress)
        columns = _columns(source, maker.kinds)
        check_columns(columns_asked, {column.name: column.type for column in columns})
        shards = tuple(stack.enter_context(shard) for shard in _open_shards(journal, columns))
        progress.phase("resolving entities")
        budget = MemoryBudget(options.memory_limit)
        duplicates = resolve_identities(shards, source.names, rejects, budget.free_bytes // 2)
        if aliases is not None:
            source.reject_unknown_aliases(_known_keys(shards, aliases), rejects)
        fault_point("identities-resolved")
        yield FrontHalf(
            shards=shards,
            columns=columns,
            weight_column=None if source.columns.weight is None else columns[source.columns.weight].name,
            kinds=tuple(maker.kinds),
            end_token_id=encoder.end_token_id,
            rejects=rejects,
            longest=encoder.longest,
            normalization=maker.normalization,
            sources=source.entries(),
            records=source.records_read,
            duplicates=duplicates,
            resumed_shards=len(resumed),
            resumed_records=resumed[-1].position.records_read if resumed else 0,
        )


def describe_resumption(shards: int, records: int) -> str:
    """Say what an earlier run has left."""
    noun = "shard" if shards == 1 else "shards"
    return f"resuming: {records:,} records in {shards} {noun} are already tokenised"


def _shaping(
    paths: Sequence[str | Path], tokenizer: TextTokenizer, options: BuildOptions
) -> dict[str, Any] | None:
    """Return everything that decides what the shards hold; None when the input can be read only once."""
    read = [*paths, *([] if options.aliases is None else [options.aliases])]
    if any(is_read_once(path) for path in read):
        return None
    return {
        "sources": [asdict(entry) for entry in digest_files(read)],
        "tokenizer": tokenizer.fingerprint,
        "end_token": tokenizer.end_token_id(options.rendering),
        "rendering": options.rendering.to_json(),
        "options": options.shaping(),
    }


def _columns(source: TitleSource, kinds: Sequence[Kinds]) -> tuple[MetadataColumn, ...]:
    types = [resolve(seen, wanted) for seen, wanted in zip(kinds, source.columns.declared, strict=True)]
    weight = source.columns.weight
    if weight is not None and types[weight] is ColumnType.STRING:
        # Every cell is a number: none has a value, text spells them, or long integers stand beside fractions.
        types[weight] = ColumnType.FLOAT
    return tuple(
        MetadataColumn(name, kind.value) for name, kind in zip(source.columns.names, types, strict=True)
    )


def _open_shards(journal: Journal, columns: tuple[MetadataColumn, ...]) -> Iterator[ShardRun]:
    for number, entry in enumerate(journal.entries):
        shard = ShardRun(journal.shard_folder(number), entry.shape)
        shard.use_columns(columns)
        yield shard


def _known_keys(shards: Sequence[ShardRun], aliases: AliasFile) -> npt.NDArray[np.uint64]:
    """Return the hashes of everything that an alias may name, ascending; 8 bytes per record."""
    parts = [np.empty(0, dtype=np.uint64)]
    for shard in shards:
        if aliases.by_id or not shard.shape.has_ids:
            parts.append(shard.key_half("key", 0))
        else:
            parts += [np.array([key_hash(t) for t in titles], dtype=np.uint64) for titles in shard.titles()]
    hashes = np.concatenate(parts)
    hashes.sort()
    return hashes


@contextmanager
def _removed_if_bad(root: Path) -> Iterator[None]:
    """Remove the work when the sources turn out to be bad: going on with it would end in the same way."""
    try:
        yield
    except SourceError:
        remove_work(root)
        raise
