"""Every limit and address of a server, validated in one place."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass, field
from pathlib import Path

from retrieval.errors import InputError
from service.configuration.sections import (
    AuthConfig,
    HttpConfig,
    LogConfig,
    MetricsConfig,
    ModelSpec,
    TlsConfig,
    TracingConfig,
)

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 50051
DEFAULT_FILTER_CACHE_MIB = 256
DEFAULT_GRAMMAR_CACHE_MIB = 256


def join_address(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_address(address: str) -> None:
    """Refuse what is not `host:port` before anything connects to it.

    Raises:
        InputError: says which part is missing or wrong.
    """
    host, separator, port = address.rpartition(":")
    if not separator or address.endswith("]"):
        raise InputError("address", f"expected HOST:PORT, the port is missing in {address!r}")
    bracketed = host.startswith("[") and host.endswith("]")
    name = host[1:-1] if bracketed else host
    if not name or not name.isprintable() or any(sign in name for sign in " []/"):
        raise InputError("address", f"expected HOST:PORT, got {address!r}")
    if ":" in name and not bracketed:
        raise InputError(
            "address", f"an IPv6 address needs brackets, as in [::1]:{DEFAULT_PORT}; got {address!r}"
        )
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65_535):
        raise InputError("address", f"the port must be a number in [1, 65535], got {port!r} in {address!r}")


def is_loopback(host: str) -> bool:
    """Whether `host` can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """An index to serve: the name requests use, its directory, and the name of the model that answers."""

    name: str
    path: Path
    model: str = "default"

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable() or self.name != self.name.strip():
            raise InputError(
                "index", f"a name must be printable text without outer blanks, got {self.name!r}"
            )

    @classmethod
    def parse(cls, text: str) -> IndexSpec:
        """Read `NAME=PATH`, or `PATH`, which is named after its last component.

        Raises:
            InputError: an empty name or path.
        """
        name, separator, path = text.partition("=")
        if not separator:
            name, path = Path(text).resolve().name, text
        if not path:
            raise InputError("index", f"expected NAME=PATH or PATH, got {text!r}")
        return cls(name=name, path=Path(path))


@dataclass(frozen=True, slots=True)
class SchemaSpec:
    """A JSON Schema that requests may name, and the file it lies in."""

    name: str
    path: Path

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable() or self.name != self.name.strip():
            raise InputError(
                "schema", f"a name must be printable text without outer blanks, got {self.name!r}"
            )

    @classmethod
    def parse(cls, text: str) -> SchemaSpec:
        """Read `NAME=FILE`, or `FILE`, which is named after its stem.

        Raises:
            InputError: an empty name or path.
        """
        name, separator, path = text.partition("=")
        if not separator:
            name, path = Path(text).stem, text
        if not path:
            raise InputError("schema", f"expected NAME=FILE or FILE, got {text!r}")
        return cls(name=name, path=Path(path))


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When a batch is full, and how long it is waited for.

    Attributes:
        max_size: Most requests in one batch.
        max_tokens: Most work in one batch, in tokens as `admission.estimate_tokens` counts them. A single
            request above it runs alone.
        max_delay_ms: Longest wait of an idle device for more requests, milliseconds.
    """

    max_size: int = 32
    max_tokens: int = 16_384
    max_delay_ms: float = 2.0

    def __post_init__(self) -> None:
        _check_range("max_batch_size", self.max_size, 1, 4096)
        _check_range("max_batch_tokens", self.max_tokens, 1, 2**31)
        _check_range("max_delay_ms", self.max_delay_ms, 0, 10_000)


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How much unfinished work the server holds before it refuses more.

    Attributes:
        max_requests: Most requests waiting or running.
        max_tokens: Most work waiting or running, in tokens. A single request above it is taken when
            nothing else is there.
    """

    max_requests: int = 512
    max_tokens: int = 262_144

    def __post_init__(self) -> None:
        _check_range("max_queue_size", self.max_requests, 1, 10**6)
        _check_range("max_queue_tokens", self.max_tokens, 1, 2**40)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """A server.

    Attributes:
        indexes: What it serves; the first one is the default.
        host: Name or address to listen on.
        port: Port to listen on; 0 picks a free one.
        insecure: Allow plaintext beyond loopback.
        batch: When a batch is full.
        queue: How much work may wait.
        max_request_bytes: Largest message accepted, bytes.
        max_batch_items: Most requests in one BatchRetrieve.
        filter_cache_mib: Memory for filters kept for further requests, MiB for each index; 0 keeps none.
        models: Models that indexes name; the first one is the default.
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
    port: int = DEFAULT_PORT
    insecure: bool = False
    batch: BatchLimits = field(default_factory=BatchLimits)
    queue: QueueLimits = field(default_factory=QueueLimits)
    max_request_bytes: int = 4 * 2**20
    max_batch_items: int = 256
    filter_cache_mib: int = DEFAULT_FILTER_CACHE_MIB
    models: tuple[ModelSpec, ...] = (ModelSpec(),)
    tls: TlsConfig = field(default_factory=TlsConfig)
    auth: AuthConfig = field(default_factory=AuthConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    log: LogConfig = field(default_factory=LogConfig)
    tracing: TracingConfig = field(default_factory=TracingConfig)
    schemas: tuple[SchemaSpec, ...] = ()
    grammar_cache_mib: int = DEFAULT_GRAMMAR_CACHE_MIB
    max_request_seconds: float = 120.0
    lame_duck_seconds: float = 0.0
    drain_seconds: float = 30.0

    def __post_init__(self) -> None:
        if not self.indexes:
            raise InputError("index", "at least one index is needed")
        _check_distinct("index", "indexes", "PATH", [spec.name for spec in self.indexes])
        _check_distinct("schema", "schemas", "FILE", [spec.name for spec in self.schemas])
        _check_range("port", self.port, 0, 65_535)
        _check_range("max_request_bytes", self.max_request_bytes, 1024, 2**31 - 1)
        _check_range("max_batch_items", self.max_batch_items, 1, 10**6)
        _check_range("grammar_cache", self.grammar_cache_mib, 0, 2**24)
        _check_range("filter_cache", self.filter_cache_mib, 0, 2**24)
        _check_range("max_request_seconds", self.max_request_seconds, 0.001, 86_400)
        _check_range("lame_duck_seconds", self.lame_duck_seconds, 0, 3600)
        _check_range("drain_seconds", self.drain_seconds, 0, 3600)
        if not self.host:
            raise InputError("host", "must not be empty")
        if not is_loopback(self.host) and not self.insecure:
            raise InputError(
                "host",
                f"{self.host!r} can be reached from other machines and the connection is not encrypted; "
                "allow that with --insecure, or listen on 127.0.0.1",
            )

    @property
    def address(self) -> str:
        """Where the server is told to listen."""
        return join_address(self.host, self.port)


def _check_distinct(field_name: str, things: str, place: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InputError(
                field_name, f"two {things} are named {name!r}; tell them apart with NAME={place}"
            )


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not math.isfinite(value) or not low <= value <= high:
        raise InputError(name, f"must be in [{low}, {high}], got {value!r}")
