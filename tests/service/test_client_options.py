"""Options and addresses of a client are checked before anything connects; transport errors name them."""

from __future__ import annotations

import dataclasses
import inspect
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import grpc
import pytest

import genret.service.client
from genret.retrieval.errors import InputError
from genret.retrieval.types import RetrieveRequest
from genret.service.client import AsyncRetrievalClient, ClientOptions, RetrievalClient
from genret.service.client.calls import failed_call
from genret.service.client.client_options import OptionChanges
from genret.service.errors import CallError
from genret.service.main import cli
from genret.service.status import failure_of
from genret.service.wire.rpc_status import error_from_status, failure_to_proto
from tests.commands import refusal


def test_every_option_can_be_a_keyword() -> None:
    options = {field.name for field in dataclasses.fields(ClientOptions)}
    assert set(get_type_hints(OptionChanges)) == options


def test_the_package_exports_what_it_names() -> None:
    for name in genret.service.client.__all__:
        assert getattr(genret.service.client, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        genret.service.client.nothing  # noqa: B018


@pytest.mark.parametrize("client", [RetrievalClient, AsyncRetrievalClient])
def test_every_call_of_a_client_says_what_it_takes_and_returns(client: Any) -> None:
    listed = "list[Reply | CallError]"
    calls = {"retrieve": "Reply", "retrieve_batch": listed, "link": listed, "answer": "AnswerReply"}
    calls |= {"score": "ScoreReply", "list_indexes": "list[IndexInfo]", "get_index": "IndexInfo"}
    calls |= {"reload_index": "ReloadReply", "health": "str", "complete": "CompleteReply"}
    for name, returned in calls.items():
        method = vars(client)[name]
        assert inspect.iscoroutinefunction(method) == (client is AsyncRetrievalClient)
        assert inspect.signature(method).return_annotation == returned
        assert method.__doc__
    asked = "(self, request: 'RetrieveRequest', index: 'str' = '', **call: 'Unpack[CallOptions]') -> 'Reply'"
    assert str(inspect.signature(client.retrieve)) == asked


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout_s": 0}, "timeout_s: must be a positive number of seconds, got 0"),
        ({"timeout_s": float("nan")}, "timeout_s: must be"),
        ({"tls_certificate": Path("c")}, "tls_key: must be given: a certificate and its key"),
        ({"tls_key": Path("c")}, "tls_certificate: must be given: a certificate"),
        ({"tls_server_name": ""}, "tls_server_name: must not be empty"),
        ({"token": ""}, "token: must be printable ASCII without blanks, and not empty"),
        ({"token": "two words"}, "token: must be"),
        ({"token": "line\n"}, "token: must be"),
        ({"token": "é"}, "token: must be"),
        ({"keepalive_s": 1}, "keepalive_s: must be at least 10 s, got 1"),
        ({"metadata": (("Upper", "x"),)}, "metadata: a name is made of a-z 0-9 . _ -, does not begin"),
        ({"metadata": (("grpc-timeout", "x"),)}, "metadata: a name is made of a-z"),
        ({"metadata": (("data-bin", "x"),)}, "metadata: a name is made of a-z"),
        ({"metadata": (("authorization", "x"),)}, "metadata: 'authorization' is sent by the client itself"),
        ({"metadata": (("application", "\u00e9"),)}, "metadata: the value of 'application' must be"),
        ({"metadata": (("application", " x"),)}, "metadata: the value of 'application' must be printable"),
        ({"timeout": 1}, "timeout: there is no such option; did you mean timeout_s? there are: timeout_s, "),
        ({"max_reply_bytes": 1}, "max_reply_bytes: must be in [1024, 2147483647], got 1"),
    ],
)
def test_options_out_of_range_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        RetrievalClient("127.0.0.1:1", **options)
    assert message in str(caught.value)


@pytest.mark.parametrize("address", ["genret.example:443", "10.0.0.1:443", "[2001:db8::1]:443"])
def test_a_token_goes_to_other_machines_only_where_nobody_can_read_it(address: str) -> None:
    with pytest.raises(InputError, match=r"token: .* is another machine and the connection is not encrypted"):
        RetrievalClient(address, token="secret")
    RetrievalClient(address).close()
    RetrievalClient(address, token="secret", tls=True).close()
    RetrievalClient(address, token="secret", insecure=True).close()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost:1", "[::1]:1"])
def test_a_token_may_stay_on_this_machine_in_plaintext(address: str) -> None:
    RetrievalClient(address, token="secret").close()


def test_options_do_not_show_the_token() -> None:
    assert "secret" not in repr(ClientOptions(token="secret"))


def test_files_that_are_no_certificates_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tls_ca: .*missing: No such file or directory"):
        RetrievalClient("127.0.0.1:1", tls_ca=tmp_path / "missing")
    (tmp_path / "text").write_text("no PEM")
    with pytest.raises(InputError, match=r"tls_ca: .*text: not a PEM file with a certificate"):
        RetrievalClient("127.0.0.1:1", tls_ca=tmp_path / "text")


def test_keywords_change_given_options() -> None:
    with RetrievalClient("127.0.0.1:1", ClientOptions(timeout_s=5, gzip=True), timeout_s=7) as client:
        assert client.options == ClientOptions(timeout_s=7, gzip=True)


def test_errors_carry_what_programs_ask_for() -> None:
    refused = error_from_status(failure_to_proto(failure_of(InputError("k", "too small"), "r")), "r")
    assert (refused.field_violations, refused.request_id) == ((("k", "too small"),), "r")
    assert (refused.reason, refused.retry_after_s, refused.is_overload) == ("", None, False)


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
        assert f"--address: {caught.value.message}" in refusal(cli, *arguments, "--address", address)


def failed(code: str, details: str, address: str = "nohost:1") -> CallError:
    """What a call to an address raises when gRPC itself ends it, within 60 s."""
    call = SimpleNamespace(
        trailing_metadata=lambda: None, code=lambda: grpc.StatusCode[code], details=lambda: details
    )
    return failed_call(call, address, 60, "id")


RESOLVING = "errors resolving nohost:1: [field:hostname lookup error:address lookup failed for nohost:1: "
CONNECTING = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to"
NOBODY = "no server answers at nohost:1"
START = "start one with: genret serve INDEX; take its gRPC port, not HTTP; tls (--tls) only if it encrypts"
TLS = "it is asked without tls (--tls) and certificates"
SENDING = 'Internal error from Core Failed "execute_batch": (SendMessageOperation,)'


@pytest.mark.parametrize(
    ("code", "details", "message"),
    [
        ("UNAVAILABLE", f"{RESOLVING}Domain name not found]", f"{NOBODY}: Domain name not found; {START}"),
        ("UNAVAILABLE", f"{CONNECTING} host: Connection refused", f"{NOBODY}: Connection refused; {START}"),
        ("UNAVAILABLE", f"{CONNECTING}: WRONG_VERSION_NUMBER: X", f"{NOBODY}: it does not encrypt; {TLS}"),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", "no answer from nohost:1 within 60 s"),
        ("UNIMPLEMENTED", "Method not found!", "nohost:1: Method not found!"),
        ("RESOURCE_EXHAUSTED", "something is exhausted", "nohost:1: something is exhausted"),
        ("UNKNOWN", "", "nohost:1: UNKNOWN"),
        ("INTERNAL", SENDING, "nohost:1 ended the stream while queries were being sent"),
        ("CANCELLED", "", "nohost:1 ended the call"),
        ("CANCELLED", "Channel closed!", "nohost:1: Channel closed!"),
    ],
)
def test_errors_of_the_transport_name_the_address(code: str, details: str, message: str) -> None:
    error = failed(code, details)
    assert (str(error), error.request_id, error.reason) == (message, "id", "")
    assert error.code == ("UNAVAILABLE" if "ended" in message else code)


def test_of_localhost_the_address_that_listens_counts() -> None:
    refused = ("UNAVAILABLE", f"{CONNECTING} host: Connection refused")
    with socket.create_server(("127.0.0.1", 0)) as open_port:
        address = f"localhost:{open_port.getsockname()[1]}"
        told = "something listens there, and did not answer; it may encrypt (tls, --tls), or not"
        assert told in str(failed(*refused, address))
    assert START in str(failed(*refused, address))


def test_a_host_that_does_not_exist() -> None:
    with RetrievalClient("host.invalid:1", timeout_s=20) as client, pytest.raises(CallError) as caught:
        client.retrieve(RetrieveRequest("x"))
    assert "host.invalid:1" in str(caught.value)
    assert "]" not in str(caught.value)
