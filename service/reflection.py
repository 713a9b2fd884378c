"""Serves gRPC reflection under both of its names, v1alpha and v1, whose messages are the same on the wire.

grpcio-reflection has v1alpha only; clients such as grpcurl ask for v1 first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import Default
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

V1ALPHA = reflection.SERVICE_NAME
V1 = "grpc.reflection.v1.ServerReflection"


def add_reflection(services: Sequence[str], server: Any) -> None:
    """Add reflection of itself and of `services`, full names, to a gRPC server or its stand-in."""
    _define_v1()
    servicer = reflection.aio.ReflectionServicer((*services, V1ALPHA, V1))
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)
    handlers = {
        "ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(
            servicer.ServerReflectionInfo,
            request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(V1, handlers),))
    server.add_registered_method_handlers(V1, handlers)


def _define_v1() -> None:
    """Make v1 known to the pool of descriptors, from which reflection answers; again does nothing."""
    file = FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    text = text_format.MessageToString(file).replace("grpc.reflection.v1alpha", "grpc.reflection.v1")
    renamed = text_format.Parse(text, FileDescriptorProto(), allow_unknown_field=False)
    renamed.name = "grpc/reflection/v1/reflection.proto"
    Default().Add(renamed)
