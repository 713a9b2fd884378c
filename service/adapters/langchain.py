"""A retriever of LangChain: documents are entities."""

from __future__ import annotations

from typing import Any

from genret.retrieval.arguments import check_known
from genret.retrieval.errors import InputError, MissingExtraError
from genret.retrieval.types import RequestOptions, RetrievalResult, RetrieveRequest
from genret.service.adapters.entity_source import DEFAULT_TEXT_COLUMN, EntitySource, asked, metadata_of

try:
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from pydantic import Field, PrivateAttr, model_validator
except ModuleNotFoundError as error:
    raise MissingExtraError("langchain_core", "langchain") from error


class LangChainRetriever(BaseRetriever):
    """Finds entities by a query, as documents, best first.

    `index`, `model`, `address` and `connection` name what answers, as those of `EntitySource`, whose errors
    come when this is made and when it is asked. `options` are those of `RetrieveRequest`; the text in
    `text_column` follows the title in `page_content`. `invoke` and its kin take `k`, `method` and the options
    of requests too: `invoke(query, k=3, filter="kind = 'city'")`.
    """

    index: Any = None
    model: str | None = None
    address: str | None = None
    connection: dict[str, Any] = Field(default_factory=dict)
    k: int = 10
    method: Any = "auto"
    options: dict[str, Any] = Field(default_factory=dict)
    text_column: str = DEFAULT_TEXT_COLUMN
    _source: EntitySource = PrivateAttr()

    @model_validator(mode="before")
    @classmethod
    def _check_fields(cls, given: Any) -> Any:
        # pydantic would ignore what it does not know, and find what a filter should have kept out.
        for name in given.keys() & RequestOptions.__annotations__.keys() if isinstance(given, dict) else ():
            raise InputError(name, f"is no field of a retriever; it goes into options={{{name!r}: ...}}")
        check_known(given, cls.model_fields, "is no field of a retriever")
        return given

    def model_post_init(self, context: Any, /) -> None:
        """Check what was given."""
        super().model_post_init(context)
        self._source = EntitySource(self.index, self.model, self.address, self.connection, self.text_column)
        self._asked("-", {})

    @property
    def source(self) -> EntitySource:
        """What answers, to be opened ahead or closed."""
        return self._source

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **options: Any
    ) -> list[Document]:
        return self._documents(self._source.retrieve(self._asked(query, options)))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **options: Any
    ) -> list[Document]:
        return self._documents(await self._source.aretrieve(self._asked(query, options)))

    def _asked(self, query: str, options: dict[str, Any]) -> RetrieveRequest:
        return asked(query, {"k": self.k, "method": self.method, **self.options, **options})

    def _documents(self, found: RetrievalResult) -> list[Document]:
        return [
            Document(id=one.entity_id, page_content=self._source.text_of(one), metadata=metadata_of(one))
            for one in found.candidates
        ]
