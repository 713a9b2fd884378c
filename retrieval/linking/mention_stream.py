"""The mentions of documents, one after the other, each with where it is and the text around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retrieval.linking.contexts import MentionContexts
from retrieval.linking.counts import LinkCounts
from retrieval.linking.documents.document import BadDocument, Document, Place, Span
from retrieval.types import Mention

if TYPE_CHECKING:
    from retrieval.linking.finding.finder import SpanFinder

# Documents without a mention make no batch: so often they are reported all the same.
_REPORT_DOCUMENTS = 1000


@dataclass(frozen=True, slots=True)
class PlacedMention:
    """A mention on its way to an answer. Holds no document, however long that is.

    Attributes:
        source: The document's input file.
        row: Its line or row there.
        doc_id: Its id.
        place: Where the mention is in the whole document.
        context: The mention, and as much text around it as the model may see.
        mention_id: What the input calls it.
        origin: "given" or "found".
    """

    source: str
    row: int
    doc_id: str
    place: Place
    context: Mention
    mention_id: str | None
    origin: str

    def complaint(self, reason: str) -> str:
        """Return a line that says what is wrong with it, and where it is."""
        at = f"characters [{self.place.start}, {self.place.end})"
        return f"{self.source}, line {self.row}: document {self.doc_id!r}, {at}: {reason}"


def is_first_part(document: Document) -> bool:
    """Whether a document is whole, or the part that a long one begins with: each is counted once."""
    return document.offset == 0 and document.begin == 0


class MentionStream:
    """Reads documents as their mentions are asked for.

    Args:
        mentions: "auto", "given" or "found".
        contexts: Cuts the text around a mention.
        finder: Finds mentions; None: nothing is found.
    """

    def __init__(self, mentions: str, contexts: MentionContexts, finder: SpanFinder | None) -> None:
        self._mentions = mentions
        self._contexts = contexts
        self._finder = finder

    def read(
        self,
        documents: Iterable[Document | BadDocument],
        counts: LinkCounts,
        complain: Callable[[str], None],
        report: Callable[[LinkCounts], None],
    ) -> Iterator[tuple[PlacedMention, Document, Span]]:
        """Yield mentions in the order of the documents, and in each of them in that of its spans."""
        for number, document in enumerate(documents, 1):
            if number % _REPORT_DOCUMENTS == 0:
                report(counts)
            if isinstance(document, BadDocument):
                counts.num_bad_documents += 1
                complain(str(document))
                continue
            counts.num_documents += is_first_part(document)
            origin, spans = self._spans(document)
            for span in spans:
                placed = PlacedMention(
                    document.source,
                    document.row,
                    document.doc_id,
                    document.place(span),
                    self._contexts.around(document.text, span.start, span.end),
                    span.mention_id,
                    origin,
                )
                yield placed, document, span

    def _spans(self, document: Document) -> tuple[str, Sequence[Span]]:
        if self._mentions == "given" or (self._mentions == "auto" and document.spans is not None):
            given = document.spans or ()
            begin, end = document.begin, document.end
            # The others are in the text around this part, and another part's.
            return "given", [span for span in given if begin <= span.start < end]
        if self._finder is None:
            return "found", ()
        return "found", self._finder.find(document.text, document.begin, document.end)
