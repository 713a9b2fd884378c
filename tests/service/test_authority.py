"""Who may do what: by token, and without tokens by where the server listens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.configuration.server_config import AuthConfig, HttpConfig, IndexSpec, ServerConfig, TlsConfig
from service.errors import PermissionDeniedError, UnauthenticatedError
from service.pb.genret.v1 import index_service_pb2, retrieval_service_pb2
from service.security.authority import Authority
from service.security.bearer_tokens import METHOD_SCOPES, Scope, digest_of

READ, ADMIN = "r" * 22 + "ead-Token_1", "a" * 22 + "dmin-Token_2"
CONFIG = ServerConfig(indexes=(IndexSpec("any", Path("any")),))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    path = tmp_path / "tokens"
    path.write_text(f"read {READ}\nadmin {ADMIN}\n")
    path.chmod(0o600)
    return Authority(AuthConfig(path))


def test_a_principal_has_a_scope_and_a_fingerprint_that_is_no_secret(authority: Authority) -> None:
    principal = authority.authorize(f"Bearer {READ}", Scope.READ)
    assert principal.scope is Scope.READ
    assert principal.fingerprint == digest_of(READ).hex()[:8]
    assert authority.authorize(f"bearer {ADMIN}", Scope.READ).scope is Scope.ADMIN
    assert authority.authorize(f"BEARER   {ADMIN} ", Scope.ADMIN).scope is Scope.ADMIN


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        " ",
        "Bearer",
        "Bearer ",
        READ,
        f"Basic {READ}",
        f"Bearer {READ} x",
        f"Bearer {READ}, Bearer {ADMIN}",
        f"Bearer\t{READ}",
        f"Bearer {READ[:-1]}",
        f"Bearer {READ}x",
        f"Bearer {READ.swapcase()}",
        f"Bearer {READ}\u00e9",
        "Bearer \ud800\udfff",
        "Bearer " + "x" * 2**20,
        "x" * 2**20,
        "Bearer " + " " * 2**20,
        "Bearer sha256:" + digest_of(READ).hex(),
    ],
)
@pytest.mark.parametrize("scope", Scope)
def test_other_headers_are_unauthenticated_whatever_is_asked_for(
    authority: Authority, header: str | None, scope: Scope
) -> None:
    with pytest.raises(UnauthenticatedError) as caught:
        authority.authorize(header, scope)
    assert READ[:8] not in str(caught.value)


def test_a_refusal_does_not_tell_how_much_of_a_token_was_right(authority: Authority) -> None:
    texts = set()
    for wrong in (READ[:-1] + "!", "!" * len(READ), READ + "!", ADMIN[:-1]):
        with pytest.raises(UnauthenticatedError) as caught:
            authority.authorize(f"Bearer {wrong}", Scope.ADMIN)
        texts.add(str(caught.value))
    assert len(texts) == 1


def test_a_read_token_is_told_what_it_lacks(authority: Authority) -> None:
    with pytest.raises(PermissionDeniedError, match=r"needs a token of scope admin; .* scope read"):
        authority.authorize(f"Bearer {READ}", Scope.ADMIN)


CLIENTS_NEED_CERTIFICATES = TlsConfig(Path("c.pem"), Path("k.pem"), Path("ca.pem"))


@pytest.mark.parametrize(
    ("config", "allowed"),
    [
        (CONFIG, True),
        (replace(CONFIG, host="0.0.0.0", insecure=True), False),
        (replace(CONFIG, host="::", insecure=True, tls=TlsConfig(Path("c.pem"), Path("k.pem"))), False),
        (replace(CONFIG, host="0.0.0.0", insecure=True, tls=CLIENTS_NEED_CERTIFICATES), True),
        (replace(CONFIG, insecure=True, http=HttpConfig(host="0.0.0.0", port=0)), False),
        (replace(CONFIG, insecure=True, http=HttpConfig(host="0.0.0.0", port=None)), True),
    ],
)
def test_without_tokens_reloading_is_for_who_is_trusted_to_connect(
    config: ServerConfig, allowed: bool
) -> None:
    authority = Authority.of(config)
    assert not authority.requires_tokens
    assert authority.authorize(None, Scope.READ).fingerprint == ""
    assert authority.authorize("Bearer whatever", Scope.READ).fingerprint == ""
    assert authority.reload()
    if allowed:
        assert authority.authorize(None, Scope.ADMIN).scope is Scope.ADMIN
    else:
        with pytest.raises(PermissionDeniedError, match=r"start it with auth\.token_file or tls\.client_ca"):
            authority.authorize(None, Scope.ADMIN)


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({}, False),
        ({"host": "0.0.0.0"}, True),
        ({"http": HttpConfig(host="0.0.0.0", port=0)}, True),
        ({"http": HttpConfig(host="0.0.0.0", port=None)}, False),
        ({"host": "0.0.0.0", "tls": TlsConfig(Path("c.pem"), Path("k.pem"))}, False),
        ({"host": "0.0.0.0", "auth": AuthConfig()}, False),
    ],
)
def test_tokens_that_travel_unencrypted_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], warned: bool
) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"read {READ}\n")
    path.chmod(0o600)
    Authority.of(replace(CONFIG, **{"insecure": True, "auth": AuthConfig(path), **changes}))
    assert ["unencrypted" in record.getMessage() for record in caplog.records] == [True] * warned


def test_every_method_of_the_api_says_what_it_asks_for() -> None:
    methods = {
        f"/{service.full_name}/{method.name}"
        for module in (retrieval_service_pb2, index_service_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert methods == {name for name in METHOD_SCOPES if name.startswith("/genret.")}
    assert {name for name in methods if METHOD_SCOPES[name] is Scope.ADMIN} == {
        "/genret.v1.IndexService/ReloadIndex"
    }
    assert all(METHOD_SCOPES[name] is not None for name in methods)
