"""Between the wire and the library: values of entities' metadata."""

from __future__ import annotations

from retrieval.types import MetadataValue
from service.pb.genret.v1 import retrieval_service_pb2 as pb

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
