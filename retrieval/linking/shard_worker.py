"""`ShardWorker`, which every runner runs: links one shard and writes its part and its record."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from genret.retrieval.durable import appearing, writing
from genret.retrieval.errors import IndexMismatchError, SourceError
from genret.retrieval.index.layout import VERSIONS_DIR
from genret.retrieval.index.small_files import digest_file
from genret.retrieval.linking.documents.corpus import Shard
from genret.retrieval.linking.documents.corpus_reading import CorpusReader
from genret.retrieval.linking.documents.text_document import BadDocument, Document
from genret.retrieval.linking.link_options import LinkJob
from genret.retrieval.linking.output.folder import ShardRecord, part_name, record_file, write_record
from genret.retrieval.linking.output.part_files import write_part
from genret.retrieval.linking.run_progress import LinkCounts, LinkListener

if TYPE_CHECKING:
    from genret.retrieval.linking.linker import GeneratedRows, MentionRows
    from genret.retrieval.retriever import Retriever

MAX_COMPLAINTS = 20  # per shard; what failed is in its rows besides


class ShardWorker:
    """Opens index, model and finder once and links shards, one at a time.

    It keeps caches, and the input file read last open: the next shard mostly goes on in it. The job comes
    from the coordinator, maybe from another machine; without a linker, one is made with its index and model.
    A GenretError says that these cannot be opened, or that the index is not the one the job is about.
    """

    def __init__(self, job: LinkJob, linker: MentionRows | GeneratedRows | None = None) -> None:
        self._job = job
        self._retriever: Retriever | None = None
        self._reader = CorpusReader(job.corpus)
        self._linker = self._open(job) if linker is None else linker
        self._metadata = part_metadata(job)

    def run(self, shard: Shard, report: Callable[[LinkCounts], None] = lambda counts: None) -> ShardRecord:
        """Link a shard: write its part file, flush and rename it, then its record, and return the record.

        A run that is killed before the rename leaves nothing but a hidden file, which the next run removes.
        `report` gets the counts so far after every batch; they go on changing.
        """
        started = time.monotonic()
        part = Path(self._job.out) / part_name(shard.number, self._job.output_format)
        counts = LinkCounts()
        complaints: list[str] = []
        bad: list[str] = []

        def complain(text: str) -> None:
            if len(complaints) < MAX_COMPLAINTS:
                complaints.append(text)

        with appearing(part) as staging:
            rows = self._linker.link(self._documents(shard, bad), LinkListener(counts, complain, report))
            counts.num_rows = write_part(staging, self._job.output_format, self._metadata, rows, part)
            with writing(part):
                num_bytes, digest = staging.stat().st_size, digest_file(staging)
        record = ShardRecord(
            shard=shard.number,
            key=self._job.key,
            digest=shard.digest,
            part=part.name,
            num_bytes=num_bytes,
            counts=counts,
            complaints=tuple(complaints),
            seconds=round(time.monotonic() - started, 3),
            part_digest=digest,
            first_bad=bad[0] if bad else "",
        )
        write_record(record_file(part.parent, shard.number), record)
        return record

    def close(self) -> None:
        """Release the index and the input file. Idempotent."""
        self._reader.close()
        if self._retriever is not None:
            self._retriever.close()
            self._retriever = None

    def _open(self, job: LinkJob) -> MentionRows | GeneratedRows:
        from genret.retrieval.linking.linker import open_linker
        from genret.retrieval.retriever import Retriever  # torch and transformers take seconds to import

        worker = job.worker
        retriever = Retriever.open(
            _version(worker.index, job.index_version),
            worker.model,
            device=worker.device,
            dtype=worker.dtype,
            engine=worker.engine,
            num_threads=worker.num_threads,
            prompt=job.options.prompt,
            verify_digests=worker.verify_digests,
            encoder=worker.encoder,
        )
        self._retriever = retriever
        try:
            if job.index_digest and retriever.index.digest != job.index_digest:
                raise IndexMismatchError(
                    f"the index {worker.index} was {job.index_digest} when the run began, is now "
                    f"{retriever.index.digest}; finished shards are kept, and go with the old index only"
                )
            if job.options.mentions != "generated":  # else every mention would fail of a prompt, too
                retriever.prompt_template(job.options.prompt or retriever.config.mention_prompt)
            return open_linker(retriever, job.options, worker)
        except BaseException:
            self.close()
            raise

    def _documents(self, shard: Shard, bad: list[str]) -> Iterator[Document | BadDocument]:
        """Yield the documents of a shard; bad ones are added to `bad`."""
        allowed = self._job.max_bad_documents
        for document in self._reader.read(shard):
            if isinstance(document, BadDocument):
                bad.append(str(document))
                if allowed is not None and len(bad) > allowed:
                    raise SourceError(too_many_bad(bad[-1], len(bad), allowed))
            yield document


def too_many_bad(complaint: str, number: int, allowed: int) -> str:
    """Return the message about one bad document too many."""
    return (
        f"{complaint} (bad document {number}, {allowed} allowed; allow more with --max-bad-rows, "
        "which leaves them out)"
    )


def part_metadata(job: LinkJob) -> dict[str, str]:
    """Return the metadata of Parquet files about the run; "genret." is put before every name."""
    return {
        "index_version": job.index_version or job.index_digest,
        "index_digest": job.index_digest,
        "model": job.worker.model or "default",
        "model_fingerprint": job.model_fingerprint,
        "options": json.dumps(asdict(job.options), sort_keys=True),
        "run": job.key,
    }


def _version(index: str, version: str) -> Path:
    """Return the folder of the version that the run began with, even if another one has become live since.

    Where the index no longer keeps it: the index itself, whose live version is then seen to be another.
    """
    folder = Path(index) / VERSIONS_DIR / version
    return folder if version and folder.is_dir() else Path(index)
