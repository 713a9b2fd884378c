"""The build, step by step: read, tokenise, sort, derive, write, publish."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from decoding.trie_arrays import TrieArrays, derive_trie
from index_builder.assembly import Assembly, assemble
from index_builder.catalogue import Catalogue, CatalogueBuilder
from index_builder.config import BuildOptions
from index_builder.duplicates import resolve_identities
from index_builder.progress import BuildProgress, Silent
from index_builder.publish import prune, publish, staging
from index_builder.tokenize import RowEncoder
from index_builder.writer import VersionWriter
from retrieval.errors import SourceError
from retrieval.index.layout import ALIASES, ENTITY_ID, MAX_ROWS, token_type
from retrieval.index.manifest import Counts, HistoryEntry, Manifest, MetadataColumn, TokenizerEntry
from retrieval.rejects import Rejects
from retrieval.sources import TitleSource, open_source
from retrieval.text import TextTokenizer

_BATCH_RECORDS = 8192
_SHAPING_LIBRARIES = ("generative-retrieval", "numpy", "pyarrow", "tokenizers")


@dataclass(frozen=True, slots=True)
class BuildSummary:
    """What a build made.

    Attributes:
        index: The index directory.
        version: Id of the version now live.
        manifest: Its manifest.
        rejected: Bad rows per reason.
        report: A few lines about the bad rows; "" when there are none.
        rejects_file: Where they were written, or None.
    """

    index: Path
    version: str
    manifest: Manifest
    rejected: Mapping[str, int]
    report: str
    rejects_file: Path | None

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object."""
        return {
            "index": str(self.index),
            "version": self.version,
            "counts": asdict(self.manifest.counts),
            "rejected": dict(self.rejected),
            "rejects_file": None if self.rejects_file is None else str(self.rejects_file),
            "bytes": self.manifest.num_bytes,
            "files": {file.name: file.bytes for file in self.manifest.files},
        }


def build_index(
    source: str | Path,
    tokenizer: TextTokenizer,
    options: BuildOptions,
    progress: BuildProgress | None = None,
) -> BuildSummary:
    """Build an index and make it the live version of `options.out`.

    Args:
        source: A titles file; "-" for standard input.
        tokenizer: Of the model that will write the titles.
        options: How.
        progress: Told about every step.

    Raises:
        SourceError: the source cannot be used, or has more bad rows than allowed.
        InputError: the tokenizer has no end token.
        IndexDirectoryError: the index directory cannot be written. The live version is untouched.
    """
    progress = progress or Silent()
    with open_source(source, source_format=options.format) as titles, staging(options.out) as folder:
        rejects = Rejects(titles.name, options.max_bad_rows)
        try:
            catalogue, end_token_id = _read(titles, tokenizer, options, rejects, progress)
            progress.phase("resolving entities")
            identities = resolve_identities(catalogue, rejects)
        finally:
            if options.rejects is not None:
                rejects.write(options.rejects)
        rejects.check()
        if not identities.keep.any():
            raise SourceError(f"{titles.name}: no good row is left\n{rejects.report()}")
        progress.phase("sorting")
        assembly = assemble(catalogue, identities, tokenizer.vocab_size)
        progress.phase("deriving the trie")
        trie = derive_trie(assembly.tokens, assembly.offsets)
        progress.phase("writing")
        writer = VersionWriter(folder)
        buckets = writer.write_rows(assembly, tokenizer.vocab_size)
        writer.write_trie(trie, tokenizer.vocab_size)
        schema = writer.write_entities(catalogue, identities, titles.columns.names, assembly)
        writer.write_postings(assembly)
        manifest = Manifest(
            tokenizer=TokenizerEntry(
                name=Path(tokenizer.source).name,
                fingerprint=tokenizer.fingerprint,
                vocab_size=tokenizer.vocab_size,
                end_token_id=end_token_id,
                max_token_id=int(assembly.tokens.max()),
            ),
            rendering=options.rendering,
            counts=_counts(assembly, trie),
            buckets=buckets,
            stored_ids=ENTITY_ID in schema.names,
            stored_aliases=ALIASES in schema.names,
            metadata=tuple(MetadataColumn(name, "string") for name in titles.columns.names),
            files=writer.files,
            history=(
                HistoryEntry(
                    operation="build",
                    parent="",
                    sources=titles.entries(),
                    options={"format": options.format, "max_title_tokens": options.max_title_tokens},
                    records=titles.records_read,
                    duplicates=identities.duplicates,
                    rejected=len(rejects.rows),
                    added=len(assembly.entity_order),
                    changed=0,
                    removed=0,
                ),
            ),
            built_with={name: _library_version(name) for name in _SHAPING_LIBRARIES},
        )
        progress.phase("publishing")
        live = publish(options.out, folder, manifest)
        prune(options.out, live, options.keep_versions)
    return BuildSummary(
        index=options.out,
        version=live,
        manifest=manifest,
        rejected=rejects.counts(),
        report=rejects.report() if rejects.rows else "",
        rejects_file=options.rejects if rejects.rows else None,
    )


def _read(
    titles: TitleSource,
    tokenizer: TextTokenizer,
    options: BuildOptions,
    rejects: Rejects,
    progress: BuildProgress,
) -> tuple[Catalogue, int]:
    columns = titles.columns
    encoder = RowEncoder(tokenizer, options.rendering, options.max_title_tokens)
    dtype = token_type(tokenizer.vocab_size).to_pandas_dtype()
    collected = CatalogueBuilder(titles.has_ids, len(columns.names), dtype)
    num_forms = 0
    progress.phase("reading and tokenising", titles.num_bytes)
    for batch in titles.batches(_BATCH_RECORDS, rejects):
        kept, rows, forms = encoder.encode(batch.records, rejects)
        collected.add(kept, rows, forms)
        num_forms += len(rows)
        if num_forms > MAX_ROWS:
            raise SourceError(f"{titles.name}: more than {MAX_ROWS} titles and aliases are not supported")
        progress.advance(titles.bytes_read, f"{titles.records_read:,} rows")
    return collected.finish(), encoder.end_token_id


def _counts(assembly: Assembly, trie: TrieArrays) -> Counts:
    return Counts(
        entities=len(assembly.entity_order),
        rows=assembly.num_rows,
        postings=len(assembly.posting_rank),
        tokens=len(assembly.tokens),
        nodes=trie.num_nodes,
        depth=trie.depth,
        max_children=trie.max_children,
    )


def _library_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"
