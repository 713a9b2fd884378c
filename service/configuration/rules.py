"""What must hold between the parts of a server's configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from retrieval.errors import InputError
from service.configuration.addresses import is_loopback, join_address

if TYPE_CHECKING:
    from service.configuration.config import ServerConfig


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
    for field, host in (
        ("host", config.host),
        ("http_host", config.http.host),
        ("metrics_host", config.metrics.host),
    ):
        if not _may_be_host(host):
            yield RuleError(field, f"must be a host name or an address, got {host!r}")
    taken: dict[int, str] = {}
    for field, port in (
        ("port", config.port),
        ("http_port", config.http.port),
        ("metrics_port", config.metrics.port),
    ):
        if not port:
            continue  # off, or a free one is picked
        if port in taken:
            other = taken[port].replace("_", "-")
            yield RuleError(field, f"must differ from --{other}, which is {port} as well")
        taken.setdefault(port, field)


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
    for field, host, used in calls:
        if used and _may_be_host(host) and not config.tls.enabled and not is_loopback(host):
            yield RuleError(
                field,
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
