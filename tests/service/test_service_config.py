"""Configuration is checked where it is made, and the message names the option."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from retrieval.errors import InputError
from service.configuration.server_config import (
    BatchLimits,
    HttpConfig,
    IndexSpec,
    LogConfig,
    MetricsConfig,
    ModelSpec,
    QueueLimits,
    RulesError,
    SchemaSpec,
    ServerConfig,
    TlsConfig,
    TracingConfig,
    is_loopback,
    join_address,
)

ONE = (IndexSpec("a", Path("a")),)


@pytest.mark.parametrize(
    ("text", "name", "path"),
    [
        ("wiki=/data/x", "wiki", "/data/x"),
        ("/data/wiki", "wiki", "/data/wiki"),
        ("/data/wiki/", "wiki", "/data/wiki"),
        ("a=b=c", "a", "b=c"),
    ],
)
def test_an_index_is_named_or_takes_its_directorys_name(text: str, name: str, path: str) -> None:
    assert IndexSpec.parse(text) == IndexSpec(name, Path(path))


@pytest.mark.parametrize("text", ["", "=x", "a=", " =x", "a\n=x"])
def test_index_names_that_cannot_be_used(text: str) -> None:
    with pytest.raises(InputError, match="index"):
        IndexSpec.parse(text)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "::1"])
def test_loopback_needs_no_encryption(host: str) -> None:
    assert is_loopback(host)
    assert ServerConfig(indexes=ONE, host=host).host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "example.org"])
def test_plaintext_beyond_loopback_must_be_asked_for(host: str) -> None:
    with pytest.raises(InputError, match="--insecure"):
        ServerConfig(indexes=ONE, host=host)
    assert ServerConfig(indexes=ONE, host=host, insecure=True).host == host


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: ServerConfig(indexes=()), "index"),
        (lambda: ServerConfig(indexes=ONE * 2), "index"),
        (lambda: ServerConfig(indexes=ONE, host=""), "host"),
        (lambda: ServerConfig(indexes=ONE, port=65_536), "port"),
        (lambda: ServerConfig(indexes=ONE, port=-1), "port"),
        (lambda: ServerConfig(indexes=ONE, max_request_seconds=0), "max_request_seconds"),
        (lambda: ServerConfig(indexes=ONE, filter_cache_mib=-1), "filter_cache"),
        (lambda: ServerConfig(indexes=ONE, drain_seconds=float("nan")), "drain_seconds"),
        (lambda: ServerConfig(indexes=ONE, models=()), "add_model"),
        (lambda: ServerConfig(indexes=ONE, models=(ModelSpec(),) * 2), "add_model"),
        (lambda: ServerConfig(indexes=(IndexSpec("a", Path("a"), "b"),)), "use_model"),
        (lambda: ServerConfig(indexes=ONE, schemas=(SchemaSpec("s", Path("s")),) * 2), "schema"),
        (lambda: ServerConfig(indexes=ONE, port=5, metrics=MetricsConfig(port=5)), "metrics_port"),
        (lambda: ServerConfig(indexes=ONE, tls=TlsConfig(certificate=Path("c"))), "tls_certificate"),
        (lambda: ServerConfig(indexes=ONE, log=LogConfig(queries=True)), "log_queries"),
        (lambda: ServerConfig(indexes=ONE, tracing=TracingConfig("a:1")), "tracing_endpoint"),
        (lambda: TracingConfig(sample_ratio=1.5), "tracing_sample_ratio"),
        (lambda: HttpConfig(port=-1), "http_port"),
        (lambda: MetricsConfig(port=70_000), "metrics_port"),
        (lambda: LogConfig(level="loud"), "log_level"),
        (lambda: ModelSpec(dtype="int8"), "dtype"),
        (lambda: ModelSpec(num_threads=0), "threads"),
        (lambda: ModelSpec(" a"), "add_model"),
        (lambda: BatchLimits(max_size=1.5), "max_batch_size"),  # type: ignore[arg-type]
        (lambda: BatchLimits(max_size=True), "max_batch_size"),
        (lambda: BatchLimits(max_size="5"), "max_batch_size"),  # type: ignore[arg-type]
        (lambda: BatchLimits(max_size=0), "max_batch_size"),
        (lambda: BatchLimits(max_tokens=0), "max_batch_tokens"),
        (lambda: BatchLimits(max_delay_ms=-1), "max_delay_ms"),
        (lambda: QueueLimits(max_requests=0), "max_queue_size"),
        (lambda: QueueLimits(max_tokens=0), "max_queue_tokens"),
    ],
)
def test_values_out_of_range_name_their_option(make: Any, field: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert caught.value.field == field


def test_all_rules_that_are_broken_are_told() -> None:
    with pytest.raises(RulesError) as caught:
        ServerConfig(indexes=ONE, host="::", tls=TlsConfig(key=Path("k")), log=LogConfig(queries=True))
    assert [broken.field for broken in caught.value.broken] == ["host", "tls_key", "log_queries"]
    assert all(str(broken) in str(caught.value) for broken in caught.value.broken)


def test_ipv6_addresses_get_brackets() -> None:
    assert join_address("::1", 5) == "[::1]:5"
    assert ServerConfig(indexes=ONE, port=7).address == "127.0.0.1:7"
