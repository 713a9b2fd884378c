"""Configuration is checked where it is made, and the message names the option."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from retrieval.errors import InputError
from service.configuration.config import (
    BatchLimits,
    IndexSpec,
    QueueLimits,
    ServerConfig,
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


def test_ipv6_addresses_get_brackets() -> None:
    assert join_address("::1", 5) == "[::1]:5"
    assert ServerConfig(indexes=ONE, port=7).address == "127.0.0.1:7"
