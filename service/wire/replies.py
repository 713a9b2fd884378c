"""Between the wire and the library: answers to queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retrieval.types import Candidate, MetadataValue, RetrievalResult
from service.client.reply import Reply
from service.errors import CallError
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.serving.served import IndexDescription
from service.wire.explanation import explanation_from_proto, explanation_to_proto
from service.wire.metadata import value_from_proto, value_to_proto
from service.wire.methods import METHOD_NUMBERS, METHODS
from service.wire.reply_parts import (
    index_ref_from_proto,
    index_ref_to_proto,
    kv_from_proto,
    kv_to_proto,
    optional,
    timings_from_proto,
    timings_to_proto,
)
from service.wire.status import error_from_status


def reply_to_proto(
    result: RetrievalResult, index: IndexDescription, queue_ms: float, total_ms: float
) -> pb.RetrieveResponse:
    """Return the wire's form of an answer."""
    response = pb.RetrieveResponse(
        candidates=[_candidate_to_proto(i, c) for i, c in enumerate(result.candidates, start=1)],
        finish_reason=pb.FINISH_REASON_NO_MATCH if result.no_match else pb.FINISH_REASON_OK,
        method=METHOD_NUMBERS[result.method],
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
        method=METHODS[message.method],
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
