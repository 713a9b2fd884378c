"""Every limit and address of a server, validated in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from retrieval.errors import InputError
from service.configuration.addresses import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    check_address,
    is_loopback,
    join_address,
)
from service.configuration.bounds import Bounds, check_fields
from service.configuration.rules import RulesError, violations
from service.configuration.sections import (
    AuthConfig,
    HttpConfig,
    LogConfig,
    MetricsConfig,
    ModelSpec,
    TlsConfig,
    TracingConfig,
    check_name,
)

__all__ = [
    "DEFAULT_FILTER_CACHE_MIB",
    "DEFAULT_GRAMMAR_CACHE_MIB",
    "DEFAULT_HOST",
    "DEFAULT_PORT",
    "BatchLimits",
    "IndexSpec",
    "QueueLimits",
    "SchemaSpec",
    "ServerConfig",
    "check_address",
    "is_loopback",
    "join_address",
]

DEFAULT_FILTER_CACHE_MIB = 256
DEFAULT_GRAMMAR_CACHE_MIB = 256


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """An index to serve.

    Attributes:
        name: The name requests use.
        path: Its directory.
        model: Name of the model that answers.
        encoder: Directory or hub id of the encoder that made its vectors; None: where it lay then.
    """

    name: str
    path: Path
    model: str = "default"
    encoder: str | None = None

    def __post_init__(self) -> None:
        check_name("index", self.name)

    @classmethod
    def parse(cls, text: str) -> IndexSpec:
        """Read `NAME=PATH`, or `PATH`, which is named after its last component.

        Raises:
            InputError: an empty name or path.
        """
        return cls(*_name_and_path("index", "PATH", text, lambda path: path.resolve().name))


@dataclass(frozen=True, slots=True)
class SchemaSpec:
    """A JSON Schema that requests may name, and the file it lies in."""

    name: str
    path: Path

    def __post_init__(self) -> None:
        check_name("schema", self.name)

    @classmethod
    def parse(cls, text: str) -> SchemaSpec:
        """Read `NAME=FILE`, or `FILE`, which is named after its stem.

        Raises:
            InputError: an empty name or path.
        """
        return cls(*_name_and_path("schema", "FILE", text, lambda path: path.stem))


def _name_and_path(field_name: str, place: str, text: str, named: Callable[[Path], str]) -> tuple[str, Path]:
    """Read `NAME=PATH`, or a path alone, which `named` names."""
    name, separator, path = text.partition("=")
    if not separator:
        name, path = named(Path(text)), text
    if not path:
        raise InputError(field_name, f"expected NAME={place} or {place}, got {text!r}")
    return name, Path(path)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When a batch is full, and how long it is waited for.

    Attributes:
        max_size: Most requests in one batch.
        max_tokens: Most work in one batch, in tokens as `admission.estimate_tokens` counts them. A single
            request above it runs alone.
        max_delay_ms: Longest wait of an idle device for more requests, milliseconds.
    """

    max_size: Annotated[int, Bounds(1, 4096, "max_batch_size")] = 32
    max_tokens: Annotated[int, Bounds(1, 2**31, "max_batch_tokens")] = 16_384
    max_delay_ms: Annotated[float, Bounds(0, 10_000)] = 2.0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How much unfinished work the server holds before it refuses more.

    Attributes:
        max_requests: Most requests waiting or running.
        max_tokens: Most work waiting or running, in tokens. A single request above it is taken when
            nothing else is there.
        max_wait_seconds: Longest time the work that waits or runs may be expected to take, seconds, where it
            is more than two full batches: one that runs and one that waits keep a device busy, and more of
            them only make all calls slower. What comes on top of it is refused. Work of batches and streams
            takes half of it, and waits outside.
    """

    max_requests: Annotated[int, Bounds(1, 10**6, "max_queue_size")] = 512
    max_tokens: Annotated[int, Bounds(1, 2**40, "max_queue_tokens")] = 262_144
    max_wait_seconds: Annotated[float, Bounds(0.001, 86_400, "max_wait_seconds")] = 1.0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """A server.

    Attributes:
        indexes: What it serves; the first one is the default.
        host: Name or address to listen on.
        port: Port to listen on; 0 picks a free one.
        insecure: Allow plaintext beyond loopback, for calls as for metrics.
        batch: When a batch is full.
        queue: How much work may wait.
        max_request_bytes: Largest message accepted, bytes.
        max_batch_items: Most requests in one BatchRetrieve.
        accept_gzip: Take compressed requests over gRPC, which unpacks them in memory before it looks at their
            size: a message may grow a thousandfold.
        filter_cache_mib: Memory for filters kept for further requests, MiB for each index; 0 keeps none.
        models: Models that indexes name.
        tls: Encryption.
        auth: Who may call.
        http: The JSON over HTTP face.
        metrics: A port of its own for metrics.
        log: What is logged.
        tracing: OpenTelemetry traces.
        schemas: JSON Schemas that requests may name; compiled before the server is ready.
        grammar_cache_mib: Memory for grammars of schemas kept for further requests, MiB; 0 keeps none.
        max_request_seconds: Longest a request may take, whatever its own deadline says.
        lame_duck_seconds: How long a draining server goes on accepting after readiness went off, so that
            balancers notice.
        drain_seconds: How long a draining server waits for requests in flight before it cancels them.
    """

    indexes: tuple[IndexSpec, ...]
    host: str = DEFAULT_HOST
    port: Annotated[int, Bounds(0, 65_535)] = DEFAULT_PORT
    insecure: bool = False
    batch: BatchLimits = field(default_factory=BatchLimits)
    queue: QueueLimits = field(default_factory=QueueLimits)
    max_request_bytes: Annotated[int, Bounds(1024, 2**31 - 1)] = 4 * 2**20
    max_batch_items: Annotated[int, Bounds(1, 10**6)] = 256
    accept_gzip: bool = False
    filter_cache_mib: Annotated[int, Bounds(0, 2**24, "filter_cache")] = DEFAULT_FILTER_CACHE_MIB
    models: tuple[ModelSpec, ...] = (ModelSpec(),)
    tls: TlsConfig = field(default_factory=TlsConfig)
    auth: AuthConfig = field(default_factory=AuthConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    log: LogConfig = field(default_factory=LogConfig)
    tracing: TracingConfig = field(default_factory=TracingConfig)
    schemas: tuple[SchemaSpec, ...] = ()
    grammar_cache_mib: Annotated[int, Bounds(0, 2**24, "grammar_cache")] = DEFAULT_GRAMMAR_CACHE_MIB
    max_request_seconds: Annotated[float, Bounds(0.001, 86_400)] = 120.0
    lame_duck_seconds: Annotated[float, Bounds(0, 3600)] = 0.0
    drain_seconds: Annotated[float, Bounds(0, 3600)] = 30.0

    def __post_init__(self) -> None:
        check_fields(self)
        broken = tuple(violations(self))
        if broken:
            raise RulesError(broken)

    @property
    def address(self) -> str:
        """Where the server is told to listen."""
        return join_address(self.host, self.port)
