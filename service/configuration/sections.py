"""The parts of a server's configuration, each validated on its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from retrieval.errors import InputError
from service.configuration.bounds import Bounds, OneOf, check_fields

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
