"""Between the wire and the service: descriptions of indexes."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from retrieval.errors import GenretError
from service.client.reply import EvidenceInfo, IndexInfo, RankingInfo, ReloadReply, VectorsInfo
from service.pb.genret.v1 import index_service_pb2 as pb
from service.serving.served import IndexDescription, RankingDescription, VectorsDescription
from service.status import failure_of


def index_to_proto(index: IndexDescription, is_default: bool) -> pb.Index:
    """Return the wire's form of an index description."""
    message = pb.Index(
        name=index.name,
        version=index.version,
        digest=index.digest,
        num_rows=index.num_rows,
        num_entities=index.num_entities,
        model=index.model,
        device=index.device,
        is_default=is_default,
        columns=[pb.Column(name=name, type=kind) for name, kind in index.columns],
        max_title_tokens=index.max_title_tokens,
        evidence=[
            pb.Evidence(kind=one.kind, count=one.count, bytes=one.bytes, problem=_words(one.problem))
            for one in index.evidence
        ],
        vectors=None if index.vectors is None else _vectors_to_proto(index.vectors),
        ranking=None if index.ranking is None else _ranking_to_proto(index.ranking),
    )
    if index.loaded_at:
        message.loaded_at.CopyFrom(_timestamp(index.loaded_at))
    return message


def index_from_proto(message: pb.Index) -> IndexInfo:
    """Return the client's form of an index description."""
    at = message.loaded_at
    loaded_at = at.seconds + at.nanos / 1e9 if message.HasField("loaded_at") else None
    return IndexInfo(
        name=message.name,
        version=message.version,
        digest=message.digest,
        num_rows=message.num_rows,
        num_entities=message.num_entities,
        model=message.model,
        device=message.device,
        is_default=message.is_default,
        loaded_at=loaded_at,
        columns=tuple((column.name, column.type) for column in message.columns),
        max_title_tokens=message.max_title_tokens,
        vectors=_vectors_from_proto(message.vectors) if message.HasField("vectors") else None,
        evidence=tuple(EvidenceInfo(one.kind, one.count, one.bytes, one.problem) for one in message.evidence),
        ranking=_ranking_from_proto(message.ranking) if message.HasField("ranking") else None,
    )


def _vectors_to_proto(vectors: VectorsDescription) -> pb.Vectors:
    return pb.Vectors(
        method=vectors.method,
        kind=vectors.kind,
        dimensions=vectors.dimensions,
        count=vectors.count,
        bytes=vectors.bytes,
        recall=vectors.recall,
        usable=vectors.problem is None,
        problem=_words(vectors.problem),
    )


def _ranking_to_proto(ranking: RankingDescription) -> pb.Ranking:
    return pb.Ranking(
        fitted=ranking.fitted,
        fitted_with_model=ranking.fitted_with_model,
        queries=ranking.queries,
        num_queries=ranking.num_queries,
        problem=_words(ranking.problem),
    )


def _ranking_from_proto(message: pb.Ranking) -> RankingInfo:
    return RankingInfo(
        fitted=message.fitted,
        fitted_with_model=message.fitted_with_model,
        queries=message.queries,
        num_queries=message.num_queries,
        problem=message.problem,
    )


def _words(problem: GenretError | None) -> str:
    """Return a problem as answers say it: the error's own words may name a path of the server."""
    return "" if problem is None else failure_of(problem, "").message


def _vectors_from_proto(message: pb.Vectors) -> VectorsInfo:
    return VectorsInfo(
        method=message.method,
        kind=message.kind,
        dimensions=message.dimensions,
        count=message.count,
        bytes=message.bytes,
        recall=message.recall if message.HasField("recall") else None,
        usable=message.usable,
        problem=message.problem,
    )


def indexes_from_proto(message: pb.ListIndexesResponse) -> list[IndexInfo]:
    """Return the client's form of a list of indexes."""
    return [index_from_proto(index) for index in message.indexes]


def reload_from_proto(message: pb.ReloadIndexResponse) -> ReloadReply:
    """Return the client's form of what became of a reload."""
    return ReloadReply(
        index=index_from_proto(message.index),
        previous_version=message.previous_version,
        reloaded=message.reloaded,
        open_ms=message.open_ms,
        warm_up_ms=message.warm_up_ms,
    )


def list_indexes_to_proto() -> pb.ListIndexesRequest:
    """Return the request for every index."""
    return pb.ListIndexesRequest()


def get_index_to_proto(name: str) -> pb.GetIndexRequest:
    """Return the request for one index."""
    return pb.GetIndexRequest(name=name)


def reload_index_to_proto(name: str, force: bool) -> pb.ReloadIndexRequest:
    """Return the request to serve the live version of an index."""
    return pb.ReloadIndexRequest(name=name, force=force)


def _timestamp(seconds: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromMilliseconds(int(seconds * 1000))
    return stamp
