"""A retriever of LlamaIndex: nodes are entities."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genret.retrieval.arguments import check_known
from genret.retrieval.errors import MissingExtraError
from genret.retrieval.types import MethodOptions, RetrievalResult, RetrieveRequest
from genret.service.adapters.entity_source import (
    DEFAULT_TEXT_COLUMN,
    OWN_METADATA,
    EntitySource,
    asked,
    metadata_of,
)
from genret.service.adapters.foreign_filters import llama_index_filter

try:
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
    from llama_index.core.vector_stores.types import MetadataFilters
except ModuleNotFoundError as error:
    raise MissingExtraError("llama_index.core", "llama-index") from error

if TYPE_CHECKING:
    from genret.retrieval.retriever import Retriever


class LlamaIndexRetriever(BaseRetriever):
    """Finds entities by a query, as nodes with the entity's id, best first; the score is the candidate's.

    A language model is shown the title, the text and the catalogue's columns, not the numbers.

    Args:
        index, model, address, connection: What answers, as of `EntitySource`; opened when first asked.
        similarity_top_k: Entities wanted.
        filters: Which entities may be found; with a `filter` among the options, both must pass.
        method: Method, by its name or as an object.
        options: Further options of every request, as of `RetrieveRequest`.
        text_column: Column whose text follows the title in a node.
        **base: Arguments of LlamaIndex's retriever: `callback_manager`, `objects`, `verbose`, ...

    Raises:
        InputError: an argument cannot be used, or the filters cannot be written as a predicate.
    """

    def __init__(
        self,
        index: str | Path | Retriever | None = None,
        model: str | Path | None = None,
        address: str | None = None,
        *,
        connection: Mapping[str, Any] | None = None,
        similarity_top_k: int = 10,
        filters: MetadataFilters | None = None,
        method: str | MethodOptions = "auto",
        options: Mapping[str, Any] | None = None,
        text_column: str = DEFAULT_TEXT_COLUMN,
        **base: Any,
    ) -> None:
        check_known(base, _ARGUMENTS, "is no argument of the retriever")
        super().__init__(**base)
        self.source = EntitySource(index, model, address, connection, text_column)
        given = {"k": similarity_top_k, "method": method, **(options or {})}
        self._request = asked("-", given, llama_index_filter(filters), "similarity_top_k")

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._nodes(self.source.retrieve(self._asked(query_bundle)))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._nodes(await self.source.aretrieve(self._asked(query_bundle)))

    def _asked(self, query: QueryBundle) -> RetrieveRequest:
        return replace(self._request, query=query.query_str)

    def _nodes(self, found: RetrievalResult) -> list[NodeWithScore]:
        # The title and the text stand in the node's text already.
        hidden = [*OWN_METADATA, self.source.text_column]
        return [
            NodeWithScore(
                node=TextNode(
                    id_=one.entity_id,
                    text=self.source.text_of(one),
                    metadata=metadata_of(one),
                    excluded_llm_metadata_keys=hidden,
                    excluded_embed_metadata_keys=hidden,
                ),
                score=one.score,
            )
            for one in found.candidates
        ]


_ARGUMENTS = [
    name
    for kind in (LlamaIndexRetriever, BaseRetriever)
    for name in inspect.signature(kind.__init__).parameters
    if name not in ("self", "base")
]
