"""Mentions in context: each becomes a query of its own, with the model's template for mentions."""

from __future__ import annotations

import asyncio

from retrieval.types import RetrieveRequest
from service.methods.call import Call
from service.methods.failures import failure_status
from service.methods.queries import Queries
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.serving.served import IndexTable, ServedIndex
from service.wire.linking import link_options_from_proto, mention_error, mention_from_proto


class Linker:
    """Links the mentions of a call.

    Args:
        indexes: What is served.
        queries: Answers what mentions become.
    """

    def __init__(self, indexes: IndexTable, queries: Queries) -> None:
        self._indexes = indexes
        self._queries = queries

    async def link(self, message: pb.LinkRequest, call: Call) -> pb.LinkResponse:
        """Link mentions, each with its own outcome.

        Raises:
            InputError: the options cannot be used for any mention.
            UnknownIndexError: there is no such index.
        """
        options = link_options_from_proto(message)
        with self._indexes.use(message.index) as served:
            items = (self._item(served, mention, options, call) for mention in message.mentions)
            return pb.LinkResponse(results=await asyncio.gather(*items))

    async def _item(
        self, served: ServedIndex, mention: pb.Mention, options: RetrieveRequest, call: Call
    ) -> pb.LinkResult:
        try:
            request = served.retriever.mention_request(mention_from_proto(mention), options)
            return pb.LinkResult(response=await self._queries.answer_in_turn(served, request, call))
        except Exception as error:
            return pb.LinkResult(error=failure_status(mention_error(error), call.request_id))
