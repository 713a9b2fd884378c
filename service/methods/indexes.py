"""The methods of `genret.v1.IndexService`."""

from __future__ import annotations

from service.methods.call import Call
from service.pb.genret.v1 import index_service_pb2 as pb
from service.serving.readiness import Readiness
from service.serving.served import IndexTable
from service.wire.indexes import index_to_proto


class IndexMethods:
    """What gRPC and HTTP serve alike. Every method raises what `service.status.TABLE` has rows for.

    Args:
        indexes: What is served.
        readiness: Whether requests are taken.
    """

    def __init__(self, indexes: IndexTable, readiness: Readiness) -> None:
        self._indexes = indexes
        self._readiness = readiness

    async def list_indexes(self, request: pb.ListIndexesRequest, call: Call) -> pb.ListIndexesResponse:
        """List every index."""
        self._readiness.check()
        described = self._indexes.describe()
        messages = [index_to_proto(index, is_default=i == 0) for i, index in enumerate(described)]
        return pb.ListIndexesResponse(indexes=messages)

    async def get_index(self, request: pb.GetIndexRequest, call: Call) -> pb.GetIndexResponse:
        """Describe one index."""
        self._readiness.check()
        description = self._indexes.resolve(request.name).description
        is_default = description is self._indexes.resolve("").description
        return pb.GetIndexResponse(index=index_to_proto(description, is_default))
