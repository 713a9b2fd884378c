"""The methods of `genret.v1.IndexService`."""

from __future__ import annotations

from service.methods.call import Call
from service.pb.genret.v1 import index_service_pb2 as pb
from service.serving.readiness import Readiness
from service.serving.reload import Reloader
from service.serving.served import IndexDescription, IndexTable
from service.wire.indexes import index_to_proto


class IndexMethods:
    """What gRPC and HTTP serve alike. Every method raises what `service.status.TABLE` has rows for.

    Args:
        indexes: What is served.
        readiness: Whether requests are taken.
        reloader: Serves new versions.
    """

    def __init__(self, indexes: IndexTable, readiness: Readiness, reloader: Reloader) -> None:
        self._indexes = indexes
        self._readiness = readiness
        self._reloader = reloader

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
        return pb.GetIndexResponse(index=self._message(description))

    async def reload_index(self, request: pb.ReloadIndexRequest, call: Call) -> pb.ReloadIndexResponse:
        """Serve the live version of an index.

        It takes as long as it takes, whatever a request may: the call's own deadline ends the wait, and the
        reload goes on.
        """
        self._readiness.check()
        done = await self._reloader.reload(request.name, request.force)
        return pb.ReloadIndexResponse(
            index=self._message(done.description),
            previous_version=done.previous_version,
            reloaded=done.reloaded,
            open_ms=done.open_ms,
            warm_up_ms=done.warm_up_ms,
        )

    def _message(self, description: IndexDescription) -> pb.Index:
        default = self._indexes.resolve("").description
        return index_to_proto(description, is_default=description.name == default.name)
