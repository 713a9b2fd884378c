"""Converts descriptions of indexes between protobuf messages and the service's values."""

from __future__ import annotations

from dataclasses import replace

from genret.retrieval.errors import GenretError
from genret.service.client.reply import EvidenceInfo, IndexInfo, RankingInfo, ReloadReply, VectorsInfo
from genret.service.pb.genret.v1 import index_service_pb2 as pb
from genret.service.serving.served import IndexDescription, RankingDescription, VectorsDescription
from genret.service.status import failure_of
from genret.service.wire.fields import fields_from_proto, fields_to_proto


def index_to_proto(index: IndexDescription, is_default: bool) -> pb.Index:
    """Return the wire's form of an index description."""
    message = pb.Index(
        **fields_to_proto(index, pb.Index),
        is_default=is_default,
        columns=[pb.Column(name=name, type=kind) for name, kind in index.columns],
        evidence=[
            pb.Evidence(kind=one.kind, count=one.count, bytes=one.bytes, problem=_words(one.problem))
            for one in index.evidence
        ],
        vectors=None if index.vectors is None else _vectors_to_proto(index.vectors),
        ranking=None if index.ranking is None else _ranking_to_proto(index.ranking),
    )
    if index.loaded_at:
        message.loaded_at.FromMilliseconds(int(index.loaded_at * 1000))
    return message


def index_from_proto(message: pb.Index) -> IndexInfo:
    """Return the client's form of an index description."""
    at = message.loaded_at
    loaded_at = at.seconds + at.nanos / 1e9 if message.HasField("loaded_at") else None
    return IndexInfo(
        **fields_from_proto(message, IndexInfo),
        loaded_at=loaded_at,
        columns=tuple((column.name, column.type) for column in message.columns),
        vectors=VectorsInfo(**fields_from_proto(message.vectors, VectorsInfo))
        if message.HasField("vectors")
        else None,
        evidence=tuple(EvidenceInfo(**fields_from_proto(one, EvidenceInfo)) for one in message.evidence),
        ranking=RankingInfo(**fields_from_proto(message.ranking, RankingInfo))
        if message.HasField("ranking")
        else None,
    )


def _vectors_to_proto(vectors: VectorsDescription) -> pb.Vectors:
    plain = fields_to_proto(replace(vectors, problem=None), pb.Vectors)
    return pb.Vectors(**plain, usable=vectors.problem is None, problem=_words(vectors.problem))


def _ranking_to_proto(ranking: RankingDescription) -> pb.Ranking:
    plain = fields_to_proto(replace(ranking, problem=None), pb.Ranking)
    return pb.Ranking(**plain, problem=_words(ranking.problem))


def _words(problem: GenretError | None) -> str:
    """Return a problem's text for clients: the error's own may name a path of the server."""
    return "" if problem is None else failure_of(problem, "").message


def indexes_from_proto(message: pb.ListIndexesResponse) -> list[IndexInfo]:
    """Return the client's form of a list of indexes."""
    return [index_from_proto(index) for index in message.indexes]


def reload_from_proto(message: pb.ReloadIndexResponse) -> ReloadReply:
    """Return the client's form of a reload's outcome."""
    return ReloadReply(**fields_from_proto(message, ReloadReply), index=index_from_proto(message.index))
