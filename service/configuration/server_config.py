"""A server's configuration: `ServerConfig`, its parts, and the rules that hold between them.

Each part validates its own fields; `violations` finds errors between parts. The table in
`service.configuration.settings` says what every field means.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from genret.retrieval.errors import InputError, SourceError
from genret.service.configuration.kinds import Bounds, Checkpoint, OneOf, check_fields

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 50051


def join_address(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_address(address: str) -> None:
    """Refuse an address that is not `host:port`; the InputError says which part is missing or wrong."""
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


def numeric_address(host: str) -> IPv4Address | IPv6Address | None:
    """Return a host that is written as an address; None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Whether `host` can be reached from this machine only."""
    address = numeric_address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
LOG_LEVELS = ("debug", "info", "warning", "error")


def check_name(field: str, name: str) -> None:
    """Refuse, by InputError under `field`, a name that messages and command lines could not show."""
    if not name or not name.isprintable() or name != name.strip():
        raise InputError(field, f"a name must be printable text without outer blanks, got {name!r}")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A checkpoint, and the engine or device that runs it; None: the first index's shipped one, no engine."""

    name: str = "default"
    checkpoint: Checkpoint | None = None
    device: str = "auto"
    dtype: Annotated[str, OneOf(DTYPES)] = "auto"
    num_threads: Annotated[int, Bounds(1, 4096, "threads")] = 1
    prompt: str | None = None
    draft: Checkpoint | None = None
    trust_remote_code: bool = False
    engine: str | None = None

    def __post_init__(self) -> None:
        check_name("add_model", self.name)
        check_fields(self)

    @property
    def display_name(self) -> str | None:
        """The model's name in replies, for a local checkpoint its directory's; None: not known yet."""
        if self.checkpoint is None:
            return None
        path = Path(self.checkpoint)
        return path.resolve().name if path.exists() else self.checkpoint


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Encryption of the listeners, by PEM files; off without a certificate."""

    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None

    @property
    def enabled(self) -> bool:
        """Whether connections are encrypted."""
        return self.certificate is not None


class _Checked:
    """A part of the configuration whose fields break no rule of theirs."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class HttpConfig(_Checked):
    """The JSON over HTTP face; off without a port. Port 0 picks a free one."""

    host: str = "127.0.0.1"
    port: Annotated[int | None, Bounds(0, 65_535, "http_port")] = None
    explorer: bool = True


@dataclass(frozen=True, slots=True)
class MetricsConfig(_Checked):
    """A separate port for /metrics, /livez and /readyz without tokens; off without a port."""

    host: str = "127.0.0.1"
    port: Annotated[int | None, Bounds(0, 65_535, "metrics_port")] = None


@dataclass(frozen=True, slots=True)
class LogConfig(_Checked):
    """Logging to stderr."""

    level: Annotated[str, OneOf(LOG_LEVELS, "log_level")] = "warning"
    format: Annotated[Literal["text", "json"], OneOf(("text", "json"), "log_format")] = "text"
    requests: bool = False
    queries: bool = False


@dataclass(frozen=True, slots=True)
class TracingConfig(_Checked):
    """OpenTelemetry traces (extra `otel`) to an OTLP/gRPC collector; off without an endpoint."""

    endpoint: str | None = None
    sample_ratio: Annotated[float, Bounds(0, 1, "tracing_sample_ratio")] = 1.0


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """An index to serve, the name of its model, and its encoder; None as encoder: where it was then."""

    name: str
    path: Path
    model: str = "default"
    encoder: Checkpoint | None = None

    def __post_init__(self) -> None:
        check_name("index", self.name)


@dataclass(frozen=True, slots=True)
class SchemaSpec:
    """A JSON Schema that requests may name, and its file."""

    name: str
    path: Path

    def __post_init__(self) -> None:
        check_name("schema", self.name)


@dataclass(frozen=True, slots=True)
class BatchLimits(_Checked):
    """Limits of a batch; tokens are those of `admission.estimate_tokens`, and a larger request runs alone."""

    max_size: Annotated[int, Bounds(1, 4096, "max_batch_size")] = 32
    max_tokens: Annotated[int, Bounds(1, 2**31, "max_batch_tokens")] = 16_384
    max_delay_ms: Annotated[float, Bounds(0, 10_000)] = 2.0
    max_forward_ms: Annotated[float, Bounds(0, 10_000)] = 100.0


@dataclass(frozen=True, slots=True)
class QueueLimits(_Checked):
    """Limits of the unfinished work of a device, waiting or running; what is more is refused.

    A request of more tokens is taken when nothing else is there. What runs at once, a full batch, is taken
    however long it may take; as much again, by which many devices get more done, if it is expected to begin
    within twice `max_wait_seconds`; what is more, within `max_wait_seconds`.
    """

    max_requests: Annotated[int, Bounds(1, 10**6, "max_queue_size")] = 512
    max_tokens: Annotated[int, Bounds(1, 2**40, "max_queue_tokens")] = 262_144
    max_wait_seconds: Annotated[float, Bounds(0.001, 86_400, "max_wait_seconds")] = 1.0


@dataclass(frozen=True, slots=True)
class ConnectionLimits(_Checked):
    """Limits of the connections of each port."""

    max: Annotated[int, Bounds(16, 10**6, "connections_max")] = 4096
    max_per_address: Annotated[int, Bounds(1, 10**6, "connections_max_per_address")] = 1024
    max_idle_seconds: Annotated[float, Bounds(0.001, 86_400, "connections_max_idle_seconds")] = 300.0
    max_age_seconds: Annotated[float, Bounds(0.001, 10**6, "connections_max_age_seconds")] = 3600.0


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """A server. The first index is the default one; sizes and times have their unit in their name."""

    indexes: tuple[IndexSpec, ...]
    host: str = DEFAULT_HOST
    port: Annotated[int, Bounds(0, 65_535)] = DEFAULT_PORT
    insecure: bool = False
    allowed_hosts: str | None = None
    one_process: bool = False
    warm_completion: bool = False
    batch: BatchLimits = field(default_factory=BatchLimits)
    queue: QueueLimits = field(default_factory=QueueLimits)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    max_request_bytes: Annotated[int, Bounds(1024, 2**31 - 1)] = 4 * 2**20
    max_client_bytes: Annotated[int, Bounds(1024, 2**40)] = 64 * 2**20
    max_bytes: Annotated[int, Bounds(1024, 2**40, "max_bytes_in_flight")] = 128 * 2**20
    max_batch_items: Annotated[int, Bounds(1, 10**6)] = 256
    accept_gzip: bool = False
    filter_cache_mib: Annotated[int, Bounds(0, 2**24, "filter_cache")] = 256
    models: tuple[ModelSpec, ...] = (ModelSpec(),)
    tls: TlsConfig = field(default_factory=TlsConfig)
    token_file: Path | None = None
    http: HttpConfig = field(default_factory=HttpConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    log: LogConfig = field(default_factory=LogConfig)
    tracing: TracingConfig = field(default_factory=TracingConfig)
    schemas: tuple[SchemaSpec, ...] = ()
    grammar_cache_mib: Annotated[int, Bounds(0, 2**24, "grammar_cache")] = 256
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
        """The configured gRPC address."""
        return join_address(self.host, self.port)


class RuleError(InputError):
    """A setting is wrong beside another one; `name` is the index, model or schema it is about, if any."""

    def __init__(self, field: str, message: str, name: str = "") -> None:
        super().__init__(field, message)
        self.name = name


class RulesError(InputError):
    """A configuration breaks at least one rule; the error has the field of the first."""

    def __init__(self, broken: Sequence[RuleError]) -> None:
        first, *others = broken
        super().__init__(first.field, "; ".join([first.message, *map(str, others)]))
        self.broken = tuple(broken)


def violations(config: ServerConfig) -> Iterator[RuleError]:
    """Yield every rule that a configuration breaks."""
    yield from _names(config)
    yield from _addresses(config)
    yield from _plaintext(config)
    yield from _tls(config)
    if config.log.queries and not config.log.requests:
        yield RuleError(
            "log_queries", "queries are logged with their requests, which needs --log-requests as well"
        )
    if config.tracing.endpoint is not None and not _is_url(config.tracing.endpoint):
        yield RuleError(
            "tracing_endpoint",
            f"must be a URL such as http://127.0.0.1:4317 or https://..., got {config.tracing.endpoint!r}",
        )


def _names(config: ServerConfig) -> Iterator[RuleError]:
    if not config.indexes:
        yield RuleError("index", "at least one index is needed")
    if not config.models:
        yield RuleError("add_model", "at least one model is needed")
    models = [spec.name for spec in config.models]
    yield from _distinct("index", "indexes", [spec.name for spec in config.indexes])
    yield from _distinct("add_model", "models", models)
    yield from _distinct("schema", "schemas", [spec.name for spec in config.schemas])
    for spec in config.indexes:
        if spec.model not in models:
            known = ", ".join(repr(name) for name in models) or "none"
            message = f"index {spec.name!r} names the model {spec.model!r}; models here: {known}"
            yield RuleError("use_model", message, spec.name)


_PLACES = {"indexes": "PATH", "models": "CHECKPOINT", "schemas": "FILE"}


def named_twice(things: str, name: str) -> str:
    """Return what is wrong with two "indexes", "models" or "schemas" of one name."""
    return f"two {things} are named {name!r}; tell them apart with NAME={_PLACES[things]}"


def _distinct(field: str, things: str, names: Sequence[str]) -> Iterator[RuleError]:
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        yield RuleError(field, named_twice(things, name), name)


def _addresses(config: ServerConfig) -> Iterator[RuleError]:
    hosts = [("host", config.host), ("http_host", config.http.host), ("metrics_host", config.metrics.host)]
    for name, host in hosts:
        if not _may_be_host(host):
            yield RuleError(name, f"must be a host name or an address, got {host!r}")
    for name in (config.allowed_hosts or "").split(","):
        host = name.strip().removeprefix("*.")
        if config.allowed_hosts is not None and host != "*" and not _HOST_NAME.fullmatch(host):
            yield RuleError(
                "allowed_hosts",
                f"must be names without ports, with commas between them, got {name.strip()!r}",
            )
    ports = [("port", config.port), ("http_port", config.http.port), ("metrics_port", config.metrics.port)]
    taken: dict[int, str] = {}
    for name, port in ports:
        if not port:
            continue  # off, or picked freely
        if port in taken:
            other = taken[port].replace("_", "-")
            yield RuleError(name, f"must differ from --{other}, which is {port} as well")
        taken.setdefault(port, name)


_HOST_NAME = re.compile(r"[\w-]+(\.[\w-]+)*", re.ASCII)


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets without an address, a port that is no number
        return False


def _may_be_host(host: str) -> bool:
    return bool(host) and host.isprintable() and " " not in host


def _plaintext(config: ServerConfig) -> Iterator[RuleError]:
    if config.insecure:
        return
    calls = [("host", config.host, True), ("http_host", config.http.host, config.http.port is not None)]
    for name, host, used in calls:
        if used and _may_be_host(host) and not config.tls.enabled and not is_loopback(host):
            yield RuleError(
                name,
                f"{host!r} can be reached from other machines and the connection is not encrypted; "
                "allow that with --insecure, encrypt with --tls-certificate, or listen on 127.0.0.1",
            )
    # Metrics are never encrypted.
    metrics = config.metrics
    if metrics.port is not None and _may_be_host(metrics.host) and not is_loopback(metrics.host):
        yield RuleError(
            "metrics_host",
            f"{join_address(metrics.host, metrics.port)} can be reached from other machines and metrics are "
            "served without encryption; allow that with --insecure, or listen on 127.0.0.1",
        )


def _tls(config: ServerConfig) -> Iterator[RuleError]:
    tls = config.tls
    if tls.certificate is not None and tls.key is None:
        yield RuleError("tls_certificate", "a certificate needs its private key, --tls-key")
    if tls.key is not None and tls.certificate is None:
        yield RuleError("tls_key", "a private key needs its certificate, --tls-certificate")
    if tls.client_ca is not None and tls.certificate is None:
        yield RuleError(
            "tls_client_ca",
            "clients can show certificates to an encrypted server only: --tls-certificate is needed",
        )


# More than any schema that compiles by default; a wrong file must not fill the memory.
_MAX_SCHEMA_BYTES = 4 * 2**20


def read_text(file: Path, max_bytes: int, too_large: str) -> str:
    """Return a UTF-8 text of limited size; raises SourceError that names the file."""
    try:
        with file.open("rb") as stream:
            raw = stream.read(max_bytes + 1)
    except OSError as error:
        raise SourceError(f"{file}: cannot be read: {error.strerror or error}") from error
    if len(raw) > max_bytes:
        raise SourceError(f"{file}: {too_large}")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceError(f"{file}: not valid UTF-8 at byte {error.start + 1}") from error


def read_schema(file: Path) -> str:
    """Return the text of a schema file; raises SourceError."""
    too_large = f"a schema of at most {_MAX_SCHEMA_BYTES:,} bytes is expected, this is larger"
    return read_text(file, _MAX_SCHEMA_BYTES, too_large)
