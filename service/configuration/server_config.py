"""Defines a server's configuration: `ServerConfig`, its parts, and the rules that hold between them.

Each part validates its own fields; `violations` finds what is wrong between parts.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from retrieval.errors import InputError, SourceError
from service.configuration.kinds import Bounds, OneOf, check_fields

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 50051


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


DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
LOG_LEVELS = ("debug", "info", "warning", "error")


def check_name(field: str, name: str) -> None:
    """Refuse a name that could not be told from others in a message or a command line.

    Args:
        field: What the error calls it.
        name: Name of an index, a model or a schema.

    Raises:
        InputError: it is empty, not printable or begins or ends with blanks.
    """
    if not name or not name.isprintable() or name != name.strip():
        raise InputError(field, f"a name must be printable text without outer blanks, got {name!r}")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Which checkpoint answers, and where it runs.

    Attributes:
        name: Name by which indexes refer to it.
        checkpoint: Checkpoint directory or hub id; None: the shipped one of the first index.
        device: "auto", "cpu", "cuda", "cuda:1", ...
        dtype: "auto", "float32", "bfloat16", "float16" or "float64".
        num_threads: Torch threads on a CPU.
        prompt: Template of requests that name none; None: the checkpoint's default.
        draft: Checkpoint that proposes tokens of JSON answers; None for no drafts.
        trust_remote_code: Run model code that a hub checkpoint brings along.
    """

    name: str = "default"
    checkpoint: str | None = None
    device: str = "auto"
    dtype: Annotated[str, OneOf(DTYPES)] = "auto"
    num_threads: Annotated[int, Bounds(1, 4096, "threads")] = 1
    prompt: str | None = None
    draft: str | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        check_name("add_model", self.name)
        check_fields(self)

    @property
    def display_name(self) -> str | None:
        """What replies call the model, of a local checkpoint its directory's name; None: not known yet."""
        if self.checkpoint is None:
            return None
        path = Path(self.checkpoint)
        return path.resolve().name if path.exists() else self.checkpoint


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Encryption of what the server listens on; off without a certificate.

    Attributes:
        certificate: PEM file with the server's certificate chain.
        key: PEM file with its private key.
        client_ca: PEM file with the authorities of client certificates, which are then required (mTLS).
    """

    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None

    @property
    def enabled(self) -> bool:
        """Whether connections are encrypted."""
        return self.certificate is not None


@dataclass(frozen=True, slots=True)
class AuthConfig:
    """Who may call.

    Attributes:
        token_file: File of bearer tokens with their scopes; None: nobody is asked for one.
    """

    token_file: Path | None = None


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """The JSON over HTTP face; off without a port.

    Attributes:
        host: Name or address to listen on.
        port: Port; 0 picks a free one; None: not served.
        explorer: Whether the page to explore with is served, too.
    """

    host: str = "127.0.0.1"
    port: Annotated[int | None, Bounds(0, 65_535, "http_port")] = None
    explorer: bool = True

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """A port of its own for /metrics, /livez and /readyz, which asks for no token; off without a port.

    Attributes:
        host: Name or address to listen on.
        port: Port; 0 picks a free one; None: not served.
    """

    host: str = "127.0.0.1"
    port: Annotated[int | None, Bounds(0, 65_535, "metrics_port")] = None

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class LogConfig:
    """What is logged to stderr.

    Attributes:
        level: "debug", "info", "warning" or "error".
        format: "text" for people, "json" for one JSON object a line.
        requests: Log a line for every call, whatever the level is.
        queries: With it the text of queries, which otherwise never stands in a log.
    """

    level: Annotated[str, OneOf(LOG_LEVELS, "log_level")] = "warning"
    format: Annotated[Literal["text", "json"], OneOf(("text", "json"), "log_format")] = "text"
    requests: bool = False
    queries: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class TracingConfig:
    """OpenTelemetry traces (extra `otel`); off without an endpoint.

    Attributes:
        endpoint: OTLP/gRPC collector, as http://host:4317.
        sample_ratio: Share of the traces begun here that are kept, in [0, 1].
    """

    endpoint: str | None = None
    sample_ratio: Annotated[float, Bounds(0, 1, "tracing_sample_ratio")] = 1.0

    def __post_init__(self) -> None:
        check_fields(self)


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


class RuleError(InputError):
    """A setting is wrong beside another one.

    Args:
        field: Name of the option that is to blame.
        message: What was expected and what was got.
        name: Which index, model or schema it is about, if any.
    """

    def __init__(self, field: str, message: str, name: str = "") -> None:
        super().__init__(field, message)
        self.name = name


class RulesError(InputError):
    """A configuration breaks rules.

    Args:
        broken: What is wrong, at least one; the error has the field of the first.
    """

    def __init__(self, broken: Sequence[RuleError]) -> None:
        first, *others = broken
        super().__init__(first.field, "; ".join([first.message, *map(str, others)]))
        self.broken = tuple(broken)


def violations(config: ServerConfig) -> Iterator[RuleError]:
    """Find every rule that a configuration breaks."""
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
    yield from _distinct("index", "indexes", "PATH", [spec.name for spec in config.indexes])
    yield from _distinct("add_model", "models", "CHECKPOINT", models)
    yield from _distinct("schema", "schemas", "FILE", [spec.name for spec in config.schemas])
    for spec in config.indexes:
        if spec.model not in models:
            known = ", ".join(repr(name) for name in models) or "none"
            message = f"index {spec.name!r} names the model {spec.model!r}; models here: {known}"
            yield RuleError("use_model", message, spec.name)


def _distinct(field: str, things: str, place: str, names: Sequence[str]) -> Iterator[RuleError]:
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        yield RuleError(field, f"two {things} are named {name!r}; tell them apart with NAME={place}", name)


def _addresses(config: ServerConfig) -> Iterator[RuleError]:
    for name, host in (
        ("host", config.host),
        ("http_host", config.http.host),
        ("metrics_host", config.metrics.host),
    ):
        if not _may_be_host(host):
            yield RuleError(name, f"must be a host name or an address, got {host!r}")
    taken: dict[int, str] = {}
    for name, port in (
        ("port", config.port),
        ("http_port", config.http.port),
        ("metrics_port", config.metrics.port),
    ):
        if not port:
            continue  # off, or a free one is picked
        if port in taken:
            other = taken[port].replace("_", "-")
            yield RuleError(name, f"must differ from --{other}, which is {port} as well")
        taken.setdefault(port, name)


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
    # Metrics are never encrypted, whatever the calls are.
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


# More than any schema that is compiled by default; a wrong file must not fill the memory.
_MAX_SCHEMA_BYTES = 4 * 2**20


def read_schema(file: Path) -> str:
    """Return the text of a schema file.

    Raises:
        SourceError: it cannot be read, or is no UTF-8 text of a sensible size.
    """
    try:
        with file.open("rb") as stream:
            raw = stream.read(_MAX_SCHEMA_BYTES + 1)
    except OSError as error:
        raise SourceError(f"{file}: cannot be read: {error.strerror or error}") from error
    if len(raw) > _MAX_SCHEMA_BYTES:
        raise SourceError(
            f"{file}: a schema of at most {_MAX_SCHEMA_BYTES:,} bytes is expected, this is larger"
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceError(f"{file}: not valid UTF-8 at byte {error.start + 1}") from error
