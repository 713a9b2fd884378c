"""`DocumentLinker`: documents in, rows out; batches across documents, answers kept for repeated mentions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from retrieval.linking.counts import LinkCounts
from retrieval.linking.documents.document import BadDocument, Document
from retrieval.linking.generated_rows import GeneratedRows
from retrieval.linking.mention_rows import MentionRows
from retrieval.linking.options import LinkOptions, WorkerOptions

if TYPE_CHECKING:
    from retrieval.linking.finding.finder import SpanFinder
    from retrieval.retriever import Retriever


class DocumentLinker:
    """Links the mentions of documents with one retriever. Used by one thread at a time.

    Args:
        retriever: Index and model.
        options: How mentions are linked.
        worker: Batch size and size of the cache.
        finder: Finds mentions where the options ask for that; None: nothing is found. Knows who is called
            what where only those named so are candidates.

    Raises:
        InputError: an option does not fit the checkpoint, the index or the finder; it is named.
    """

    def __init__(
        self,
        retriever: Retriever,
        options: LinkOptions,
        worker: WorkerOptions,
        finder: SpanFinder | None = None,
    ) -> None:
        self._rows: GeneratedRows | MentionRows
        if options.mentions == "generated":
            self._rows = GeneratedRows(retriever, options, worker)
        else:
            self._rows = MentionRows(retriever, options, worker, finder)

    def link(
        self,
        documents: Iterable[Document | BadDocument],
        counts: LinkCounts,
        complain: Callable[[str], None],
        report: Callable[[LinkCounts], None] = lambda counts: None,
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield rows of `retrieval.linking.rows.SCHEMA`, in the order of the documents and their spans.

        Args:
            documents: Read as they are needed; at most a window of mentions is held.
            counts: Added to on the way.
            complain: Gets one line per bad document and per mention that failed.
            report: Called after every batch.
        """
        return self._rows.link(documents, counts, complain, report)
