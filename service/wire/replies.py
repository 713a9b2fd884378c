"""Converts answers to queries between protobuf messages and the library's values.

Answers of other kinds share their parts: timings, the index's name and version, the figures of the cache,
and values of metadata.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import Message

from retrieval.explanation import Explanation, ExplanationDraw, ExplanationNode
from retrieval.types import Candidate, KvShare, MetadataValue, RetrievalResult, Timings
from service.client.reply import IndexRef, Reply
from service.errors import CallError
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.serving.served import IndexDescription
from service.wire.options import numbers_of, words_of
from service.wire.rpc_status import error_from_status

_METHOD_NUMBERS = numbers_of(pb.RetrievalMethod.DESCRIPTOR)
_METHODS = {0: "auto", **words_of(pb.RetrievalMethod.DESCRIPTOR)}


def reply_to_proto(
    result: RetrievalResult, index: IndexDescription, queue_ms: float, total_ms: float
) -> pb.RetrieveResponse:
    """Return the wire's form of an answer."""
    response = pb.RetrieveResponse(
        candidates=[_candidate_to_proto(i, c) for i, c in enumerate(result.candidates, start=1)],
        finish_reason=pb.FINISH_REASON_NO_MATCH if result.no_match else pb.FINISH_REASON_OK,
        method=_METHOD_NUMBERS[result.method],
        mass=result.mass,
        mass_stderr=result.mass_stderr,
        mass_lower_bound=result.mass_lower,
        mass_upper_bound=result.mass_upper,
        num_draws=result.num_draws,
        num_accepted=result.num_accepted,
        num_nodes=result.num_nodes,
        num_exact_nodes=result.num_exact_nodes,
        num_scored=result.num_scored,
        shortlist_size=result.shortlist_size,
        nothing_fits=result.nothing_fits,
        missing_evidence=result.missing_evidence,
        num_steps=result.num_steps,
        seed=result.seed,
        abstained=result.abstained,
        timings=timings_to_proto(result.timings, queue_ms, total_ms),
        index=index_ref_to_proto(index),
        kv_usage=kv_to_proto(result.kv),
        explanation=None if result.explanation is None else explanation_to_proto(result.explanation),
    )
    if result.certified is not None:
        response.certified = result.certified
    return response


def reply_from_proto(query: str, message: pb.RetrieveResponse) -> Reply:
    """Return the library's form of an answer to `query`."""
    timings = message.timings
    result = RetrievalResult(
        query=query,
        method=_METHODS[message.method],
        candidates=tuple(_candidate_from_proto(candidate) for candidate in message.candidates),
        certified=optional(message, "certified"),
        mass=optional(message, "mass"),
        mass_stderr=optional(message, "mass_stderr"),
        mass_lower=optional(message, "mass_lower_bound"),
        mass_upper=optional(message, "mass_upper_bound"),
        num_draws=message.num_draws,
        num_accepted=message.num_accepted,
        num_nodes=message.num_nodes,
        num_exact_nodes=message.num_exact_nodes,
        num_scored=message.num_scored,
        shortlist_size=message.shortlist_size,
        nothing_fits=optional(message, "nothing_fits"),
        missing_evidence=tuple(message.missing_evidence),
        num_steps=message.num_steps,
        seed=optional(message, "seed"),
        abstained=message.abstained,
        timings=timings_from_proto(timings),
        kv=kv_from_proto(message.kv_usage),
        explanation=explanation_from_proto(message.explanation) if message.HasField("explanation") else None,
    )
    return Reply(result, timings.queue_ms, timings.total_ms, index_ref_from_proto(message.index))


def batch_reply_from_proto(
    queries: Sequence[str], message: pb.BatchRetrieveResponse, request_id: str = ""
) -> list[Reply | CallError]:
    """Return the answers and errors of a batch, in the order of its queries."""
    return [
        reply_from_proto(query, result.response)
        if result.WhichOneof("outcome") == "response"
        else error_from_status(result.error, request_id)
        for query, result in zip(queries, message.results, strict=True)
    ]


def _candidate_to_proto(rank: int, candidate: Candidate) -> pb.Candidate:
    return pb.Candidate(
        rank=rank,
        entity_id=candidate.entity_id,
        title=candidate.title,
        surface=candidate.surface,
        logprob=candidate.logprob,
        probability=candidate.probability,
        score=candidate.score,
        similarity=candidate.similarity,
        shares=candidate.shares,
        metadata={name: value_to_proto(value) for name, value in candidate.metadata.items()},
    )


def _candidate_from_proto(message: pb.Candidate) -> Candidate:
    metadata: Mapping[str, MetadataValue] = {
        name: value_from_proto(value) for name, value in sorted(message.metadata.items())
    }
    return Candidate(
        entity_id=message.entity_id,
        title=message.title,
        surface=message.surface,
        logprob=message.logprob,
        probability=optional(message, "probability"),
        metadata=metadata,
        score=message.score,
        similarity=optional(message, "similarity"),
        # A map of the wire has no order.
        shares=dict(sorted(message.shares.items(), key=lambda share: (-abs(share[1]), share[0]))),
    )


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


_INT64 = range(-(2**63), 2**63)


def value_to_proto(value: MetadataValue) -> pb.MetadataValue:
    """Return the wire's form of one value of an entity's metadata."""
    if value is None:
        return pb.MetadataValue()
    if isinstance(value, bool):  # before int: a bool is one
        return pb.MetadataValue(bool_value=value)
    if isinstance(value, int):
        return pb.MetadataValue(int_value=value) if value in _INT64 else pb.MetadataValue(double_value=value)
    if isinstance(value, float):
        return pb.MetadataValue(double_value=value)
    return pb.MetadataValue(string_value=value)


def value_from_proto(message: pb.MetadataValue) -> MetadataValue:
    """Return the library's form of one value of an entity's metadata."""
    kind = message.WhichOneof("kind")
    value: MetadataValue = None if kind is None else getattr(message, kind)
    return value


_STATE_NUMBERS = {
    "expanded": pb.EXPLANATION_STATE_EXPANDED,
    "pruned": pb.EXPLANATION_STATE_PRUNED,
    "finished": pb.EXPLANATION_STATE_FINISHED,
    "closed": pb.EXPLANATION_STATE_CLOSED,
}
_STATES = {number: state for state, number in _STATE_NUMBERS.items()}


def explanation_to_proto(explanation: Explanation) -> pb.Explanation:
    """Return the wire's form of an explanation."""
    return pb.Explanation(
        nodes=[_node_to_proto(node) for node in explanation.nodes],
        draws=[
            pb.ExplanationDraw(
                sample=draw.sample,
                draw=draw.draw,
                node=draw.node,
                valid_mass=draw.valid_mass,
                acceptance_probability=draw.acceptance_probability,
                accepted=draw.accepted,
                chosen=draw.chosen,
            )
            for draw in explanation.draws
        ],
        truncated=explanation.truncated,
    )


def explanation_from_proto(message: pb.Explanation) -> Explanation:
    """Return the library's form of an explanation."""
    return Explanation(
        nodes=tuple(_node_from_proto(node) for node in message.nodes),
        draws=tuple(
            ExplanationDraw(
                sample=draw.sample,
                draw=draw.draw,
                node=draw.node,
                valid_mass=draw.valid_mass,
                acceptance_probability=draw.acceptance_probability,
                accepted=draw.accepted,
                chosen=draw.chosen,
            )
            for draw in message.draws
        ),
        truncated=message.truncated,
    )


def _node_to_proto(node: ExplanationNode) -> pb.ExplanationNode:
    return pb.ExplanationNode(
        parent=node.parent,
        depth=node.depth,
        token_id=node.token_id,
        text=node.text,
        logprob=node.logprob,
        total_logprob=node.total_logprob,
        valid_mass=node.valid_mass,
        num_valid=node.num_valid,
        state=_STATE_NUMBERS[node.state],
        candidate_rank=node.candidate_rank,
    )


def _node_from_proto(message: pb.ExplanationNode) -> ExplanationNode:
    return ExplanationNode(
        parent=message.parent if message.HasField("parent") else None,
        depth=message.depth,
        token_id=message.token_id,
        text=message.text,
        logprob=message.logprob,
        total_logprob=message.total_logprob,
        valid_mass=message.valid_mass if message.HasField("valid_mass") else None,
        num_valid=message.num_valid if message.HasField("num_valid") else None,
        state=_STATES[message.state],
        candidate_rank=message.candidate_rank if message.HasField("candidate_rank") else None,
    )
