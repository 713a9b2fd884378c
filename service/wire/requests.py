"""Between the wire and the library: queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrieval.errors import InputError
from retrieval.types import RetrieveRequest
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.wire.methods import DECODER_NUMBERS, DECODERS, METHOD_NUMBERS, METHODS

_AGGREGATES: dict[int, str | None] = {
    pb.AGGREGATION_UNSPECIFIED: None,
    pb.AGGREGATION_SUM: "sum",
    pb.AGGREGATION_MAX: "max",
}
_AGGREGATION_NUMBERS = {
    None: pb.AGGREGATION_UNSPECIFIED,
    "sum": pb.AGGREGATION_SUM,
    "max": pb.AGGREGATION_MAX,
}
# Scalars of a request that may be unset.
_OPTIONAL_FIELDS = (
    "k",
    "beam_size",
    "num_draws",
    "num_samples",
    "temperature",
    "top_m",
    "seed",
    "min_mass",
    "exact_budget",
    "shortlist_size",
    "vector_weight",
    "title_weight",
)
# Fields that are called otherwise here than in the library.
_WIRE_FIELDS = {
    "allow_ids": "allow_entity_ids.ids",
    "deny_ids": "deny_entity_ids",
    "aggregate": "aggregation",
    "prompt": "prompt_template",
}


def request_from_proto(message: pb.RetrieveRequest) -> RetrieveRequest:
    """Return the library's form of a request.

    Raises:
        InputError: a field is out of range.
    """
    if message.method not in METHODS:
        known = ", ".join(pb.RetrievalMethod.keys())
        raise InputError("method", f"must be one of {known}, got {message.method}")
    if message.aggregation not in _AGGREGATES:
        known = ", ".join(pb.Aggregation.keys())
        raise InputError("aggregation", f"must be one of {known}, got {message.aggregation}")
    if message.decoder not in DECODERS:
        known = ", ".join(map(pb.RetrievalMethod.Name, DECODERS))
        raise InputError("decoder", f"must be one of {known}, got {_method_name(message.decoder)}")
    options: dict[str, Any] = {
        name: getattr(message, name) for name in _OPTIONAL_FIELDS if message.HasField(name)
    }
    if message.HasField("allow_entity_ids"):
        options["allow_ids"] = tuple(message.allow_entity_ids.ids)
    try:
        return RetrieveRequest(
            query=message.query,
            method=METHODS[message.method],
            prompt=message.prompt_template or None,
            adaptive=message.adaptive,
            exact=message.exact,
            explain=message.explain,
            length_penalty=message.length_penalty,
            aggregate=_AGGREGATES[message.aggregation],
            decoder=DECODERS[message.decoder],
            shortlist_query=message.shortlist_query or None,
            filter=message.filter or None,
            deny_ids=tuple(message.deny_entity_ids),
            **options,
        )
    except InputError as error:
        raise request_error(error) from None


def request_error(error: InputError) -> InputError:
    """Return what is wrong with a request under the name the field has here."""
    return InputError(_WIRE_FIELDS.get(error.field, error.field), error.message)


def request_to_proto(request: RetrieveRequest, index: str = "") -> pb.RetrieveRequest:
    """Return the wire's form of a request."""
    options = {name: getattr(request, name) for name in _OPTIONAL_FIELDS}
    allowed = request.allow_ids
    return pb.RetrieveRequest(
        index=index,
        query=request.query,
        method=METHOD_NUMBERS[request.method],
        prompt_template=request.prompt or "",
        adaptive=request.adaptive,
        exact=request.exact,
        explain=request.explain,
        length_penalty=request.length_penalty,
        aggregation=_AGGREGATION_NUMBERS[request.aggregate],
        decoder=DECODER_NUMBERS[request.decoder],
        shortlist_query=request.shortlist_query or "",
        filter=request.filter or "",
        allow_entity_ids=None if allowed is None else pb.EntityIds(ids=allowed),
        deny_entity_ids=request.deny_ids,
        **{name: value for name, value in options.items() if value is not None},
    )


def _method_name(number: int) -> str:
    """Return what the wire calls a method, the number itself for one it does not know."""
    return pb.RetrievalMethod.Name(number) if number in pb.RetrievalMethod.values() else str(number)


def batch_request_to_proto(requests: Sequence[RetrieveRequest], index: str = "") -> pb.BatchRetrieveRequest:
    """Return the wire's form of several requests to one index."""
    return pb.BatchRetrieveRequest(requests=[request_to_proto(request, index) for request in requests])
