"""`MentionGenerator`: end-to-end linking by a model that writes a text again with links in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from retrieval.errors import GenretError
from retrieval.linking.documents.document import BadDocument, Document
from retrieval.linking.generating.mention import GeneratedMention
from retrieval.linking.generating.options import GenerateOptions

if TYPE_CHECKING:
    from retrieval.retriever import Retriever

Generated = list[GeneratedMention] | GenretError


class MentionGenerator:
    """Finds mentions and links them in one go. Used by one thread at a time, as its retriever is.

    Args:
        retriever: Index and model.
        options: How texts are written.

    Raises:
        InputError: the template or the filter cannot be used with this retriever.
    """

    def __init__(self, retriever: Retriever, options: GenerateOptions | None = None) -> None:
        raise NotImplementedError

    def annotate(self, texts: Sequence[str]) -> list[list[GeneratedMention]]:
        """Return the links of each text, in its order, none overlapping another.

        Raises:
            GenretError: a text cannot be annotated; `annotate_each` gives the others' links all the same.
        """
        raise NotImplementedError

    def annotate_each(self, texts: Sequence[str]) -> list[Generated]:
        """Return the links of each text, or the error that concerns this text alone."""
        raise NotImplementedError

    def annotate_documents(
        self, documents: Iterable[Document | BadDocument]
    ) -> Iterator[tuple[Document | BadDocument, Generated]]:
        """Yield documents in their order, each with its links or its error; a bad document has no links.

        Of a part of a document, what is between `begin` and `end` is annotated; offsets are those of
        `Document.text`. Windows of several documents share forwards; documents are read as they are needed.
        """
        raise NotImplementedError
