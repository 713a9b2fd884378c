"""Reading a corpus once, to digest its files and to cut it into shards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from retrieval.errors import SourceError
from retrieval.linking.documents.content import Content
from retrieval.linking.documents.corpus import CorpusOptions, CorpusPlan
from retrieval.linking.documents.cutter import ShardCutter
from retrieval.linking.documents.files import InputFile, file_format, list_files
from retrieval.linking.documents.line_files import plan_lines
from retrieval.linking.documents.parquet_files import ParquetRows, plan_parquet
from retrieval.linking.documents.text_files import plan_text
from retrieval.sources.digests import FileState, digest_file

_BLOCK_BYTES = 1 << 18


def plan_files(options: CorpusOptions, report: Callable[[int], None] | None = None) -> CorpusPlan:
    """Plan a corpus; see `plan_corpus`. Parquet files are read for the digest, then for the columns."""
    cutter = ShardCutter(options)
    digests: dict[str, str] = {}
    num_bytes = 0
    for file in list_files(options):
        state = FileState.of(file.path)
        if state is None:
            raise SourceError(f"{file.path}: a pipe or device cannot be read again; expected a regular file")
        done = num_bytes

        def reported(read: int, done: int = done) -> None:
            if report is not None:
                report(done + read)

        digests[file.source] = _plan_file(file, state.bytes, options, cutter, reported)
        state.check(file.path)
        num_bytes += state.bytes
        reported(state.bytes)
    shards = cutter.finish(digests)
    if not shards:
        files = "1 file" if len(digests) == 1 else f"{len(digests)} files"
        raise SourceError(f"{', '.join(options.inputs)}: no document in {files}")
    return CorpusPlan(shards, cutter.num_documents, num_bytes, digests)


def _plan_file(
    file: InputFile,
    num_bytes: int,
    options: CorpusOptions,
    cutter: ShardCutter,
    report: Callable[[int], None],
) -> str:
    """Cut one file and return its digest."""
    input_format = file_format(file.path, options)
    if input_format == "parquet":
        digest = digest_file(file.path).xxh3_128
        with closing(ParquetRows(file.path, options)) as rows:
            cutter.begin_file(file, num_bytes, rows.footer_digest)
            plan_parquet(rows, num_bytes, file.source, options, cutter, report)
        return digest
    is_text = input_format == "text"
    with closing(Content(file.path, digests=True, any_content=is_text)) as content:
        cutter.begin_file(file, num_bytes)
        if is_text:
            plan_text(content, options, cutter, report)
        else:
            plan_lines(content, file.source, input_format == "jsonl", options, cutter, report)
        while content.stream.raw.read(_BLOCK_BYTES):  # what is behind compressed content
            pass
        return str(content.stream.raw.hexdigest)
