"""A retriever component of Haystack: documents are entities."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from genret.retrieval.arguments import check_keywords
from genret.retrieval.errors import MissingExtraError
from genret.retrieval.types import RetrievalResult, RetrieveRequest
from genret.service.adapters.entity_source import DEFAULT_TEXT_COLUMN, EntitySource, asked, metadata_of
from genret.service.adapters.foreign_filters import haystack_filter

try:
    from haystack import Document, component, default_from_dict, default_to_dict
except ModuleNotFoundError as error:
    raise MissingExtraError("haystack", "haystack") from error

if TYPE_CHECKING:
    from genret.retrieval.retriever import Retriever


@component
class HaystackRetriever:
    """Finds entities by a query, as documents with the entity's id, best first; the score is the candidate's.

    Args:
        index, model, address, connection: What answers, as of `EntitySource`; an index is opened by `warm_up`
            or when first asked, and an open retriever cannot be written to a pipeline's file.
        top_k: Entities wanted.
        filters: Haystack's filters, for runs that are given none.
        method: Name of the method.
        options: Further options of every request, as of `RetrieveRequest`; a `filter` among them must pass
            beside the filters.
        text_column: Column whose text follows the title in a document.

    Raises:
        InputError: an argument cannot be used, or the filters cannot be written as a predicate.
    """

    @check_keywords
    def __init__(
        self,
        index: str | Path | Retriever | None = None,
        model: str | None = None,
        address: str | None = None,
        connection: dict[str, Any] | None = None,
        top_k: int = 10,
        filters: dict[str, Any] | None = None,
        method: str = "auto",
        options: dict[str, Any] | None = None,
        text_column: str = DEFAULT_TEXT_COLUMN,
    ) -> None:
        self.source = EntitySource(index, model, address, connection, text_column)
        self.top_k, self.filters, self.method = top_k, filters, method
        self.options = dict(options or {})
        self._asked("-", None, None)

    def warm_up(self) -> None:
        """Load the index and its model; nothing of a server."""
        self.source.open()

    def to_dict(self) -> dict[str, Any]:
        """Return the component as Haystack writes it; InputError for an open retriever."""
        return default_to_dict(
            self,
            **self.source.saved(),
            top_k=self.top_k,
            filters=self.filters,
            method=self.method,
            options=self.options,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> HaystackRetriever:
        """Return the component that `to_dict` has written."""
        return default_from_dict(cls, data)

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Answer one query; `filters` and `top_k` take the place of the component's own."""
        return self._documents(self.source.retrieve(self._asked(query, filters, top_k)))

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Answer one query as `run` does, without blocking the event loop."""
        return self._documents(await self.source.aretrieve(self._asked(query, filters, top_k)))

    def _asked(self, query: str, filters: dict[str, Any] | None, top_k: int | None) -> RetrieveRequest:
        given = {"k": self.top_k if top_k is None else top_k, "method": self.method, **self.options}
        return asked(query, given, haystack_filter(self.filters if filters is None else filters), "top_k")

    def _documents(self, found: RetrievalResult) -> dict[str, list[Document]]:
        documents = [
            Document(
                id=one.entity_id,
                content=self.source.text_of(one),
                meta=metadata_of(one),
                score=one.score,
            )
            for one in found.candidates
        ]
        return {"documents": documents}
