"""Addresses are checked before anything connects, and errors of the transport name them."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from retrieval.errors import InputError
from retrieval.types import RetrieveRequest
from service.client import RetrievalClient
from service.client.calls import failed_call
from service.configuration.server_config import check_address
from service.errors import MESSAGE_TOO_LARGE, CallError
from service.main import cli


@pytest.mark.parametrize("address", ["127.0.0.1:50051", "localhost:1", "[::1]:65535", "a.b-c.example:80"])
def test_good_addresses_pass(address: str) -> None:
    check_address(address)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("garbage", "the port is missing in 'garbage'"),
        ("[::1]", "the port is missing in '[::1]'"),
        ("", "the port is missing in ''"),
        (":50051", "expected HOST:PORT, got ':50051'"),
        ("::1:50051", "an IPv6 address needs brackets, as in [::1]:50051; got '::1:50051'"),
        ("http://a:80", "expected HOST:PORT, got 'http://a:80'"),
        ("a/b:80", "expected HOST:PORT"),
        ("a b:80", "expected HOST:PORT"),
        ("[a:80", "expected HOST:PORT, got '[a:80'"),
        ("a:", "the port must be a number in [1, 65535], got '' in 'a:'"),
        ("a:0", "the port must be a number in [1, 65535], got '0'"),
        ("a:65536", "the port must be a number in [1, 65535], got '65536'"),
        ("a:x", "the port must be a number in [1, 65535], got 'x'"),
        ("a:²", "the port must be a number"),
    ],
)
def test_bad_addresses_are_usage_errors(address: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        RetrievalClient(address)
    assert message in str(caught.value)
    for arguments in (["query", "x"], ["health"]):
        result = CliRunner().invoke(cli, [*arguments, "--address", address])
        assert result.exit_code == 2
        assert f"--address: {caught.value.message}" in result.stderr


class _Refused:
    def __init__(self, code: str, details: str) -> None:
        import grpc

        self._code, self._details = getattr(grpc.StatusCode, code), details

    def trailing_metadata(self) -> None:
        return None

    def code(self) -> object:
        return self._code

    def details(self) -> str:
        return self._details


@pytest.mark.parametrize(
    ("code", "details", "message"),
    [
        (
            "UNAVAILABLE",
            "errors resolving nohost:1: [field:hostname lookup error:address lookup failed for nohost:1: "
            "Domain name not found]",
            "no server answers at nohost:1: Domain name not found",
        ),
        (
            "UNAVAILABLE",
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to "
            "remote host: Connection refused",
            "no server answers at nohost:1: Connection refused",
        ),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", "no answer from nohost:1 within 60 s"),
        ("UNIMPLEMENTED", "Method not found!", "nohost:1: Method not found!"),
        ("UNKNOWN", "", "nohost:1: UNKNOWN"),
        (
            "INTERNAL",
            'Internal error from Core Failed "execute_batch": (SendMessageOperation,)',
            "nohost:1 ended the stream while queries were being sent",
        ),
    ],
)
def test_errors_of_the_transport_name_the_address(code: str, details: str, message: str) -> None:
    error = failed_call(_Refused(code, details), "nohost:1", 60, "id")
    assert (str(error), error.request_id, error.reason) == (message, "id", "")


def test_a_host_that_does_not_exist() -> None:
    with (
        RetrievalClient("host.invalid:1", timeout_s=20) as client,
        pytest.raises(CallError) as caught,
    ):
        client.retrieve(RetrieveRequest("x"))
    assert "host.invalid:1" in str(caught.value)
    assert "]" not in str(caught.value)


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        ("SERVER: Received message larger than max (200008 vs. 4096)", MESSAGE_TOO_LARGE),
        ("CLIENT: Sent message larger than max (9 vs. 4)", MESSAGE_TOO_LARGE),
        ("something else is exhausted", ""),
    ],
)
def test_exhaustion_that_grpc_itself_reports(details: str, reason: str) -> None:
    error = failed_call(_Refused("RESOURCE_EXHAUSTED", details), "h:1", 1, "")
    assert (error.reason, error.is_overload) == (reason, False)
