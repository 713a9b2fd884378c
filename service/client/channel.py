"""The connection of a client: credentials, gRPC's options and the stubs of the services."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc

from genret.retrieval.errors import InputError
from genret.service.call import REQUEST_ID_KEY, sane_request_id
from genret.service.client.client_options import ClientOptions
from genret.service.pb.genret.v1 import index_service_pb2_grpc as index_grpc
from genret.service.pb.genret.v1 import retrieval_service_pb2_grpc as pb_grpc

_SERVICE_CONFIG = {
    "methodConfig": [
        {
            "name": [{"service": "genret.v1.RetrievalService"}, {"service": "genret.v1.IndexService"}],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}
_KEEPALIVE_TIMEOUT_MS = 10_000
# gRPC's own backoff goes from 1 s to 2 minutes: a client that waits for a server's start would notice late.
_FIRST_BACKOFF_MS, _LAST_BACKOFF_MS = 100, 5_000
Metadata = tuple[tuple[str, str], ...]


class Stubs:
    """The services of a server over one `grpc.Channel` or `grpc.aio.Channel`."""

    def __init__(self, channel: Any) -> None:
        retrieval: Any = pb_grpc.RetrievalServiceStub  # generated, so untyped
        indexes: Any = index_grpc.IndexServiceStub
        self.retrieval = retrieval(channel)
        self.indexes = indexes(channel)
        self.health = health_pb2_grpc.HealthStub(channel)


def open_channel(transport: Any, address: str, options: ClientOptions) -> Any:
    """Open a channel of `transport`, `grpc` or `grpc.aio`; InputError for an unreadable PEM file."""
    compression = grpc.Compression.Gzip if options.gzip else grpc.Compression.NoCompression
    arguments = {"options": _arguments(options), "compression": compression}
    if options.encrypted:
        return transport.secure_channel(address, _credentials(options), **arguments)
    return transport.insecure_channel(address, **arguments)


def metadata(options: ClientOptions, request_id: str) -> Metadata:
    """Return the metadata of a call."""
    pairs = [*options.metadata, (REQUEST_ID_KEY, request_id)]
    if options.token is not None:
        pairs.append(("authorization", f"Bearer {options.token}"))
    return tuple(pairs)


def request_id_of(given: str) -> str:
    """Return the id of a call: the given one, or a new one; raises InputError for a malformed one."""
    sane = sane_request_id(given)
    if given and sane != given:
        raise InputError("request_id", f"must be 1 to 128 of A-Z a-z 0-9 . _ : / -, got {given!r}")
    return sane


def _arguments(options: ClientOptions) -> list[tuple[str, str | int]]:
    arguments: list[tuple[str, str | int]] = [
        ("grpc.service_config", json.dumps(_SERVICE_CONFIG)),
        ("grpc.max_receive_message_length", options.max_reply_bytes),
        ("grpc.initial_reconnect_backoff_ms", _FIRST_BACKOFF_MS),
        ("grpc.min_reconnect_backoff_ms", _FIRST_BACKOFF_MS),
        ("grpc.max_reconnect_backoff_ms", _LAST_BACKOFF_MS),
    ]
    if options.tls_server_name is not None:
        arguments.append(("grpc.ssl_target_name_override", options.tls_server_name))
    if options.keepalive_s is not None:
        arguments.append(("grpc.keepalive_time_ms", int(options.keepalive_s * 1000)))
        arguments.append(("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS))
    return arguments


def _credentials(options: ClientOptions) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=_pem("tls_ca", options.tls_ca),
        private_key=_pem("tls_key", options.tls_key),
        certificate_chain=_pem("tls_certificate", options.tls_certificate),
    )


def _pem(name: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise InputError(name, f"{path}: {error.strerror or error}") from error
    if b"-----BEGIN " not in text:
        raise InputError(name, f"{path}: not a PEM file")
    return text
