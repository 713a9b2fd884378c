"""Calls of any method with any bytes, by a client of gRPC that blocks, and what they end with."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.descriptor_pool import Default
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import status_pb2
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from service.serving.server import SERVICES as API

SERVICES = (*API, health.SERVICE_NAME, reflection.SERVICE_NAME)
CLIENT_DEADLINE_S = 90.0
_CODES = {code.value[0]: code for code in grpc.StatusCode}


@dataclass(frozen=True)
class Outcome:
    """How a call ended.

    Attributes:
        code: Its status.
        text: What the status says.
        items: Statuses inside its answers, one for each item that failed.
        num_answers: Messages that came.
        seconds: How long it took.
    """

    code: grpc.StatusCode
    text: str = ""
    items: list[grpc.StatusCode] = field(default_factory=list)
    num_answers: int = 0
    seconds: float = 0.0


def methods() -> list[MethodDescriptor]:
    """Every method that a server offers."""
    services = (Default().FindServiceByName(name) for name in SERVICES)
    return [method for service in services for method in service.methods]


def path_of(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def call(
    channel: grpc.Channel,
    method: MethodDescriptor,
    raws: Sequence[bytes],
    *,
    cancel_after: int | None = None,
    timeout: float | None = CLIENT_DEADLINE_S,
    metadata: Sequence[tuple[str, str | bytes]] = (),
) -> Outcome:
    """Call a method with bytes; the client's asyncio API reports failed writes in place of statuses.

    Args:
        channel: Where to.
        method: Of any kind: to the transport all are streams of messages either way.
        raws: The messages.
        cancel_after: Answers after which the client cancels; None: it reads all of them.
        timeout: The client's deadline, seconds.
        metadata: What is sent before the messages.
    """
    begun = time.monotonic()
    stream: Any = channel.stream_stream(path_of(method))
    answers = stream(iter(raws), timeout=timeout, metadata=metadata)
    items: list[grpc.StatusCode] = []
    answer_type = GetMessageClass(method.output_type)
    number = 0
    try:
        if cancel_after == 0:
            answers.cancel()
        for number, raw in enumerate(answers, start=1):
            items += [_CODES[status.code] for status in statuses(answer_type.FromString(raw))]
            if number == cancel_after:
                answers.cancel()
    except grpc.RpcError as error:
        code, text = error.code(), str(error.details())
        return Outcome(code, text, items, number, time.monotonic() - begun)
    return Outcome(grpc.StatusCode.OK, "", items, number, time.monotonic() - begun)


def statuses(message: Message) -> Iterator[Any]:
    """Yield every `google.rpc.Status` inside a message."""
    for kind, value in message.ListFields():
        if kind.type != FieldDescriptor.TYPE_MESSAGE or kind.message_type.GetOptions().map_entry:
            continue
        for item in value if kind.is_repeated else [value]:
            if isinstance(item, status_pb2.Status):
                yield item
            else:
                yield from statuses(item)
