"""Mentions of documents, each with its place, its context, and the request that links it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeGuard

from genret.retrieval.errors import InputError
from genret.retrieval.linking.documents.text_document import BadDocument, Document, DocumentPlace, Span
from genret.retrieval.linking.link_options import LinkOptions
from genret.retrieval.linking.run_progress import LinkCounts
from genret.retrieval.types import Mention, RetrieveRequest, with_options

if TYPE_CHECKING:
    from genret.retrieval.prompts import CheckpointConfig


Documents = Iterable[Document | BadDocument]
Complain = Callable[[str], None]
Report = Callable[[LinkCounts], None]


@dataclass(frozen=True, slots=True)
class PlacedMention:
    """A mention on its way to an answer. Holds no document, however long that is."""

    source: str  # the document's input file
    row: int  # its line or row there
    doc_id: str  # its id
    place: DocumentPlace  # where the mention is in the whole document
    context: Mention  # the mention, and as much text around it as the model may see
    mention_id: str | None  # what the input calls it
    origin: str  # "given", "found" or "generated"

    @classmethod
    def of(cls, document: Document, span: Span, context: Mention, origin: str) -> PlacedMention:
        """Return the mention of a span of a document."""
        place = document.place(span)
        return cls(document.source, document.row, document.doc_id, place, context, span.mention_id, origin)

    def complaint(self, reason: str) -> str:
        """Return a line that says what is wrong with the mention, and where it is."""
        at = f"characters [{self.place.start}, {self.place.end})"
        return f"{self.source}, line {self.row}: document {self.doc_id!r}, {at}: {reason}"


def is_counted(
    document: Document | BadDocument, counts: LinkCounts, complain: Complain
) -> TypeGuard[Document]:
    """Count a document once, with the part that it begins with; complain of a bad one: False."""
    if isinstance(document, BadDocument):
        counts.num_bad_documents += 1
        complain(str(document))
        return False
    counts.num_documents += document.offset == 0 and document.begin == 0
    return True


class MentionContexts:
    """Makes requests out of spans, in the words of one prompt template.

    The context is cut at exactly the template's width, even within a word, as in `Retriever.link` and in
    `genret train --mentions`.

    Raises:
        InputError: the template that `options` names is not there.
    """

    def __init__(self, config: CheckpointConfig, options: LinkOptions) -> None:
        template = config.prompt(config.mention_prompt if options.prompt is None else options.prompt)
        if options.context_chars is not None:
            template = replace(template, context_chars=options.context_chars)
        self._template = template
        self._asks_evidence = options.asks_evidence
        self._asked = with_options(options.k, options.method, template.name, options.request_options())

    def around(self, text: str, start: int, end: int) -> Mention:
        """Return a span with as much of the text around it as the template shows."""
        width = self._template.context_chars
        return Mention(text[start:end], text[max(0, start - width) : start], text[end : end + width])

    def query(self, mention: Mention) -> str:
        """Return what the model reads of a mention: equal queries have equal answers."""
        query = self._template.mention_query(mention)
        return query.lower() if self._template.lowercase else query

    def request(self, mention: Mention) -> RetrieveRequest:
        """Return the request that links a mention; an empty mention raises `InputError`."""
        if not mention.mention.strip():
            raise InputError("mention", "must not be empty")
        asked = replace(self._asked, query=self._template.mention_query(mention))
        return replace(asked, shortlist_query=mention.mention) if self._asks_evidence else asked

    def narrowed(
        self, mention: Mention, request: RetrieveRequest, check: Callable[[RetrieveRequest], object]
    ) -> RetrieveRequest:
        """Return a request that the model refused with as much context as it takes.

        Args:
            mention: The mention and its context.
            request: The refused request.
            check: Raises an `InputError` where a request cannot be taken.

        Raises:
            InputError: the mention is too long even without context.
        """
        fitting = self._cut(mention, request, 0)
        check(fitting)
        least, most = 0, max(len(mention.left), len(mention.right))  # `least` fits
        while least + 1 < most:
            width = (least + most) // 2
            wider = self._cut(mention, request, width)
            try:
                check(wider)
            except InputError:
                most = width
            else:
                least, fitting = width, wider
        return fitting

    def _cut(self, mention: Mention, request: RetrieveRequest, width: int) -> RetrieveRequest:
        left = mention.left[-width:] if width else ""
        query = self._template.mention_query(Mention(mention.mention, left, mention.right[:width]))
        return replace(request, query=query)
