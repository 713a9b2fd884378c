"""Between the wire and the library: what every answer says beside its result."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from retrieval.types import KvShare, Timings
from service.client.reply import IndexRef
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.serving.served import IndexDescription


def timings_to_proto(timings: Timings, queue_ms: float, total_ms: float) -> pb.Timings:
    """Return the wire's form of where the time of a request went."""
    return pb.Timings(
        queue_ms=queue_ms,
        prefill_ms=timings.prefill_ms,
        decode_ms=timings.decode_ms,
        total_ms=total_ms,
        shortlist_ms=timings.shortlist_ms,
        score_ms=timings.score_ms,
    )


def timings_from_proto(message: pb.Timings) -> Timings:
    """Return the library's form of the time that a model took."""
    parts = (message.prefill_ms, message.decode_ms, message.shortlist_ms, message.score_ms)
    prefill_ms, decode_ms, shortlist_ms, score_ms = parts
    return Timings(prefill_ms, decode_ms, sum(parts), shortlist_ms, score_ms)


def index_ref_to_proto(index: IndexDescription) -> pb.IndexRef:
    """Return the wire's form of which index answered."""
    return pb.IndexRef(name=index.name, version=index.version, digest=index.digest)


def index_ref_from_proto(message: pb.IndexRef) -> IndexRef:
    """Return the client's form of which index answered."""
    return IndexRef(message.name, message.version, message.digest)


def kv_to_proto(kv: KvShare) -> pb.KvUsage:
    """Return the wire's form of key/value memory."""
    return pb.KvUsage(
        peak_bytes=kv.peak_bytes,
        per_branch_bytes=kv.per_branch_bytes,
        saved_bytes=kv.saved_bytes,
        shared_prefix_bytes=kv.shared_prefix_bytes,
        num_collections=kv.num_collections,
    )


def kv_from_proto(message: pb.KvUsage) -> KvShare:
    """Return the library's form of key/value memory."""
    return KvShare(
        peak_bytes=message.peak_bytes,
        per_branch_bytes=message.per_branch_bytes,
        shared_prefix_bytes=message.shared_prefix_bytes,
        num_collections=message.num_collections,
    )


def optional(message: Message, name: str) -> Any:
    """Return a field, None where it is not set."""
    return getattr(message, name) if message.HasField(name) else None
