"""`link_documents`: linking texts from a program, without files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from retrieval.arguments import check_text
from retrieval.errors import InputError
from retrieval.linking.counts import LinkCounts
from retrieval.linking.documents.document import BadDocument, Document
from retrieval.linking.finding.finder import LateFinder
from retrieval.linking.linker import DocumentLinker
from retrieval.linking.options import LinkOptions, WorkerOptions

if TYPE_CHECKING:
    from retrieval.retriever import Retriever

_LOG = logging.getLogger(__name__)
_SOURCE = "documents"


def link_documents(
    retriever: Retriever,
    documents: Iterable[str | Document],
    options: LinkOptions | None = None,
    *,
    batch_size: int = 32,
    cache_entries: int = 100_000,
    counts: LinkCounts | None = None,
    complain: Callable[[str], None] = _LOG.warning,
) -> Iterator[dict[str, Any]]:
    r"""Link the mentions of texts, and yield one row per mention, in the order of the texts.

    Documents are read as they are needed: a generator of millions is linked in bounded memory. `genret link`
    does the same with files, in several processes, and can be resumed.

    Usage::

        from retrieval import Retriever
        from retrieval.linking import Document, LinkOptions, Span, link_documents

        with Retriever.open("titles.index") as retriever:
            for row in link_documents(retriever, ["The Nile flows north.", "We saw lions in Kenya."]):
                print(row["doc_id"], row["start"], row["mention"], row["entity_id"], row["logprob"])

            marked = Document("notes", 1, "note-1", "Mercury is liquid.", spans=(Span(0, 7),))
            rows = list(link_documents(retriever, [marked], LinkOptions(k=3, min_probability=0.5)))

    Args:
        retriever: Index and model; not used for anything else meanwhile.
        documents: Texts, whose mentions are found by the names of the index, or documents, which may mark
            them. Texts are called "documents:1", "documents:2", ….
        options: How mentions are linked; None: the defaults of `LinkOptions`.
        batch_size: Mentions per forward.
        cache_entries: Answers kept for mentions that are put to the model in the same words.
        counts: Added to on the way.
        complain: Gets one line for every mention that failed; it has a row all the same, with the error.

    Yields:
        The columns of `retrieval.linking.rows.SCHEMA` by name: document, span, entity, its probability, and
        the other candidates. A mention without an entity has `entity_id` None and says why in `nil_reason`.

    Raises:
        InputError: an option is out of range or does not fit, or a document is none: it is named.
    """
    chosen = options or LinkOptions()
    worker = WorkerOptions(str(retriever.index.path), batch_size=batch_size, cache_entries=cache_entries)
    finder = LateFinder(retriever.index, chosen.find)
    linker = DocumentLinker(retriever, chosen, worker, finder)
    return _rows(linker, documents, counts or LinkCounts(), complain)


def _rows(
    linker: DocumentLinker,
    documents: Iterable[str | Document],
    counts: LinkCounts,
    complain: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    for rows in linker.link(_checked(documents), counts, complain):
        yield from rows


def _checked(documents: Iterable[str | Document]) -> Iterator[Document | BadDocument]:
    if isinstance(documents, str | bytes):
        raise InputError("documents", f"must be a sequence of documents, got {type(documents).__name__}")
    for number, item in enumerate(documents, 1):
        name = f"documents[{number - 1}]"
        if isinstance(item, str):
            check_text(name, item)
            yield Document(_SOURCE, number, f"{_SOURCE}:{number}", item)
            continue
        if not isinstance(item, Document):
            raise InputError(name, f"must be a str or a Document, got {type(item).__name__}")
        check_text(f"{name}.text", item.text)
        for place, span in enumerate(item.spans or ()):
            if not 0 <= span.start < span.end <= len(item.text):
                raise InputError(
                    f"{name}.spans[{place}]",
                    f"must lie in the text, 0 <= start < end <= {len(item.text)}; "
                    f"got start {span.start}, end {span.end}",
                )
        yield item
