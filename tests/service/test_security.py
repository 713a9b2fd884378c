"""Security: tokens, scopes, where the server listens, browsers, certificates, and the manual's page."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from genret.retrieval.errors import InputError
from genret.service.call import CallScope, Priority, current_client, current_priority, enter
from genret.service.configuration.server_config import (
    HttpConfig,
    IndexSpec,
    ServerConfig,
    TlsConfig,
)
from genret.service.errors import PermissionDeniedError, UnauthenticatedError
from genret.service.gateway import http_calls as calls
from genret.service.gateway import http_server
from genret.service.main import cli
from genret.service.pb.genret.v1 import index_service_pb2, retrieval_service_pb2
from genret.service.security import bearer_tokens as tokens_module
from genret.service.security.authority import (
    Authority,
    enter_as,
    refuse_cross_site,
    refuse_foreign_host,
)
from genret.service.security.bearer_tokens import (
    MAX_CHARACTERS,
    MAX_LIVE,
    METHOD_SCOPES,
    MIN_CHARACTERS,
    Scope,
    Token,
    TokenSet,
    digest_of,
    line_of,
    new_token,
    parse_tokens,
    read_token_file,
)
from genret.service.security.tls import load_certificates, server_credentials, ssl_context, warn_of_doubts
from genret.service.security.watched_files import WatchedFiles
from tests.commands import json_of, refusal, succeed
from tests.service.certificates import Authority as CertificateAuthority
from tests.service.certificates import PrivateKey, write_key
from tests.service.secured_server import secured, tokens_in

READ, ADMIN = "r" * 22 + "ead-Token_1", "a" * 22 + "dmin-Token_2"
CONFIG = ServerConfig(indexes=(IndexSpec("any", Path("any")),))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tokens_in(tmp_path, f"read {READ}", f"admin {ADMIN}"))


def test_a_principal_has_a_scope_and_a_fingerprint_that_is_no_secret(authority: Authority) -> None:
    principal = authority.authorize(f"Bearer {READ}", Scope.READ)
    assert principal.scope is Scope.READ
    assert principal.fingerprint == digest_of(READ).hex()[:8]
    assert authority.authorize(f"bearer {ADMIN}", Scope.READ).scope is Scope.ADMIN
    assert authority.authorize(f"BEARER   {ADMIN} ", Scope.ADMIN).scope is Scope.ADMIN


NO_TOKENS = (None, "", " ", "x" * 2**20, "Bearer", "Bearer ", "Bearer sha256:" + digest_of(READ).hex())
MORE_THAN_A_TOKEN = (READ, f"Basic {READ}", f"Bearer {READ} x", f"Bearer {READ}, Bearer {ADMIN}")
OTHER_TOKENS = (f"Bearer {READ[:-1]}", f"Bearer {READ}x", f"Bearer {READ.swapcase()}", f"Bearer {READ}\u00e9")
ODD_HEADERS = (f"Bearer\t{READ}", "Bearer \ud800\udfff", "Bearer " + "x" * 2**20, "Bearer " + " " * 2**20)


@pytest.mark.parametrize("header", [*NO_TOKENS, *MORE_THAN_A_TOKEN, *OTHER_TOKENS, *ODD_HEADERS])
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
        ({"host": "0.0.0.0", "token_file": None}, False),
    ],
)
def test_tokens_that_travel_unencrypted_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], warned: bool
) -> None:
    token_file = tokens_in(tmp_path, f"read {READ}")
    Authority.of(replace(CONFIG, **{"insecure": True, "token_file": token_file, **changes}))
    assert ["unencrypted" in record.getMessage() for record in caplog.records] == [True] * warned


def test_every_method_of_the_api_says_what_it_asks_for() -> None:
    methods = {
        f"/{service.full_name}/{method.name}"
        for module in (retrieval_service_pb2, index_service_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert methods == {name for name in METHOD_SCOPES if name.startswith("/genret.")}
    admin = [name for name in methods if METHOD_SCOPES[name] is Scope.ADMIN]
    assert admin == ["/genret.v1.IndexService/ReloadIndex"]
    assert all(METHOD_SCOPES[name] is not None for name in methods)


A, B, C, D = (f"{letter}-token-of-16-ch" for letter in "abcd")


def parse(*lines: str) -> TokenSet:
    return parse_tokens(lines, "FILE")


def scope_of(tokens: TokenSet, presented: str) -> Scope | None:
    found = tokens.find(presented)
    return None if found is None else found.scope


def test_lines_are_scopes_with_tokens_or_digests() -> None:
    digest = hashlib.sha256(B.encode()).hexdigest()
    lines = ("# a comment", "", f"read {A}", f"  admin\tsha256:{digest.upper()}  \r", "   # another")
    tokens = parse(*lines, f"read {D}", line_of(Scope.ADMIN, new_token()))
    found = [scope_of(tokens, token) for token in (A, B, D)]
    assert found == [Scope.READ, Scope.ADMIN, Scope.READ], "two of a scope may be live"
    for stranger in ("", C, A[:-1], A + "x", A.upper(), digest, f"sha256:{digest}"):
        assert scope_of(tokens, stranger) is None
    assert A not in repr(tokens)


SECRET = "sEcReT-oF-tHe-OpErAtOr"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["# nothing but a comment"], "FILE holds no token"),
        ([], "FILE holds no token"),
        ([SECRET], "line 1: expected a scope first"),
        ([f"write {SECRET}"], "line 1: expected a scope first"),
        ([f"READ {SECRET}"], "line 1: expected a scope first"),
        (["", "# x", "read"], "line 3: expected one token after the scope, without blanks, .*; 0 fields"),
        ([f"read {SECRET} {SECRET}"], "line 1: expected one token after the scope"),
        ([f"read {SECRET} # mine"], "line 1: expected one token after the scope"),
        (["read fifteen-letters"], "line 1: a token must have 16 to 512 characters, this one has 15"),
        (["read " + SECRET * 40], "line 1: a token must have 16 to 512 characters"),
        ([f"read {SECRET}\u00e9"], "line 1: a token must be of printable ASCII"),
        ([f"read {SECRET}\x07"], "line 1: a token must be of printable ASCII"),
        ([f"read sha256:{SECRET}"], "line 1: expected 64 hexadecimal digits after sha256:"),
        ([f"read sha256:{'0' * 63}"], "line 1: expected 64 hexadecimal digits after sha256:, got 63"),
        ([f"read {SECRET}", f"admin {SECRET}"], "line 2: the same token as in line 1"),
        ([f"read {SECRET}", line_of(Scope.READ, SECRET)], "line 2: the same token as in line 1"),
        ([f"read idle {SECRET}"], r"line 1: expected one token after the scope, .*; 2 fields are there"),
        (["read bulk"], "line 1: a token must have 16 to 512 characters"),
        ([f"read {SECRET}{n}" for n in range(1001)], "line 1001: expected at most 1,000 tokens"),
    ],
)
def test_a_bad_line_is_named_and_its_token_is_not_shown(lines: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse(*lines)
    assert caught.value.field == "auth.token_file"
    text = f"{caught.value} {caught.value.__cause__!r}"
    assert SECRET not in text
    assert A not in text


@given(st.text(max_size=80))
def test_no_line_crashes_the_reader_or_is_repeated(line: str) -> None:
    told = ""
    try:
        parse(line)
    except InputError as error:
        told = str(error)
    assert len(line) < 16 or line not in told


@given(st.text(max_size=600))
def test_no_presented_text_crashes_the_comparison(presented: str) -> None:
    assert parse(f"read {A}").find(presented + "\ud800") is None


def test_every_token_is_compared_whatever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    compared, truly = [], hmac.compare_digest

    def compare(held: bytes, shown: bytes) -> bool:
        compared.append(held)
        return truly(held, shown)

    tokens = parse(f"read {A}", f"read {B}", f"admin {C}")
    monkeypatch.setattr(tokens_module.hmac, "compare_digest", compare)
    for presented in (A, B, C, "none of them"):
        compared.clear()
        tokens.find(presented)
        assert compared == [token.digest for token in tokens.tokens]


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    return tokens_in(tmp_path, f"read {A}")


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"read \xff\xfe")
    os.mkfifo(tmp_path / "pipe")  # to which nobody writes
    for path, message in (
        (tmp_path / "none", "No such file"),
        (tmp_path, "Is a directory"),
        (Path("/dev/zero"), "not a regular file"),
        (tmp_path / "binary", "binary is not UTF-8 text"),
        (tmp_path / "pipe", "pipe is not a regular file"),
    ):
        with pytest.raises(InputError, match=message):
            read_token_file(path)


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o640, 0o604, 0o620, 0o660])
def test_a_secret_that_others_may_use_is_warned_of(
    tmp_path: Path, token_file: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    files = CertificateAuthority(tmp_path).issue("good")
    for path in (token_file, files.key):
        path.chmod(mode)
    read_token_file(token_file)
    server_credentials(TlsConfig(files.certificate, files.key))
    exposed = mode in (0o604, 0o620, 0o660)
    warned = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert warned == ["auth.token_file", "tls.key"] * exposed


def test_files_are_not_looked_at_more_often_than_asked(token_file: Path) -> None:
    watched = WatchedFiles("the tokens", (token_file,), lambda: read_token_file(token_file), 3600.0)
    token_file.write_text(f"admin {B}\n")
    assert scope_of(watched.current(), B) is None
    assert watched.reload()
    assert scope_of(watched.current(), B) is Scope.ADMIN
    token_file.write_text("")
    assert not watched.reload()
    assert scope_of(watched.current(), B) is Scope.ADMIN


OWN = {"host": "search.example:8080"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec-fetch-site": "same-origin", "origin": "http://search.example:8080"},
        {"sec-fetch-site": "same-origin", "origin": "https://known-to-the-proxy.example"},
        {"sec-fetch-site": "none"},
        {"origin": "http://search.example:8080"},
        {"origin": "https://search.example:8080"},
    ],
)
def test_own_pages_and_programs_may_send_anything(headers: dict[str, str]) -> None:
    refuse_cross_site("POST", OWN | headers)


FOREIGN = ("https://evil.example", "http://search.example:8081", "http://search.example:8080.evil.example")


@pytest.mark.parametrize(
    "headers",
    [
        *({"sec-fetch-site": site} for site in ("cross-site", "same-site", "")),
        {"sec-fetch-site": "cross-site", "origin": "http://search.example:8080"},
        *({"origin": origin} for origin in (*FOREIGN, "null", "", "http://[broken")),
    ],
)
def test_other_pages_may_only_send_what_changes_nothing(headers: dict[str, str]) -> None:
    refuse_cross_site("GET", OWN | headers)
    for method in ("POST", "PUT", "DELETE", "PATCH", "INVENTED"):
        with pytest.raises(PermissionDeniedError, match="another origin"):
            refuse_cross_site(method, OWN | headers)


LOOPBACK = ("localhost", "localhost:8080", "127.0.0.1:8080", "127.9.9.9", "[::1]:8080", "LOCALHOST:1")
LIKE_LOOPBACK = ("localhost.evil.example", "127.0.0.1.evil.example:80", "[::1", "@localhost@x")


@pytest.mark.parametrize("host", [*LOOPBACK, "", "search.example", "10.0.0.1:8080", *LIKE_LOOPBACK])
def test_loopback_is_this_machine_and_other_names_are_not(host: str) -> None:
    refused = pytest.raises(PermissionDeniedError, match=r"start the server with auth\.token_file")
    with contextlib.nullcontext() if host in LOOPBACK else refused:
        refuse_foreign_host({"host": host})


PAGE = Path(__file__).parents[2] / "docs" / "security.md"
TEXT = " ".join(PAGE.read_text("utf-8").split())


def test_the_token_of_the_example_has_the_line_below_it() -> None:
    (block,) = re.findall(r"```\n\$ genret token new --scope read\n(.+)\n(.+)\n```", PAGE.read_text("utf-8"))
    token, line = block
    assert line == line_of(Scope.READ, token)


def test_numbers_are_those_of_the_code() -> None:
    assert f"{MIN_CHARACTERS} to {MAX_CHARACTERS} printable ASCII characters" in TEXT
    assert f"At most {MAX_LIVE:,} are live" in TEXT
    headers, body = http_server._MAX_HEADER_BYTES // 1024, calls._BODY_SECONDS
    assert f"Headers have {headers} KiB and {http_server._HEADER_SECONDS:.0f} seconds" in TEXT
    assert f"and {body:.0f} seconds." in TEXT


def test_scopes_are_those_of_the_methods() -> None:
    assert "`admin` allows that and ReloadIndex" in TEXT
    free = {name.split("/")[1] for name, scope in METHOD_SCOPES.items() if scope is None}
    assert free == {"grpc.health.v1.Health"}


@pytest.fixture
def ca(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of certificates and keys, good and bad."""
    folder = tmp_path_factory.mktemp("files")
    ca = CertificateAuthority(folder, "ca")
    ca.issue("good")
    (folder / "large").write_bytes(b"x" * (2**20 + 1))
    (folder / "der").write_bytes(b"\x30\x82\x01")
    write_key(folder / "other.key")
    write_key(folder / "locked", password=b"secret")
    for name in ("good.pem", "good.key", "ca.ca.pem"):
        first, second, *others = (folder / name).read_text().splitlines()
        (folder / f"damaged-{name}").write_text("\n".join((first, "*" * len(second), *others)))
    return folder


# Certificate, key and authorities of clients; then the setting that is blamed, and for what.
BAD = """
none.pem good.key - tls.certificate: cannot read .*none.pem: No such file
good.pem none.key - tls.key: cannot read .*none.key: No such file
good.pem good.key none.ca tls.client_ca: cannot read .*none.ca: No such file
. good.key - tls.certificate: Is a directory
/dev/zero good.key - tls.certificate: /dev/zero is not a regular file
large good.key - tls.certificate: larger than 1 MiB
der good.key - tls.certificate: der is not a PEM file with a certificate
good.key good.pem - tls.certificate: not a PEM file with a certificate
good.pem good.pem - tls.key: not a PEM file with a private key
good.pem other.key - tls.key: other.key is not the key of the certificate in .*good.pem
good.pem locked - tls.key: locked is protected by a passphrase
damaged-good.pem good.key - tls.certificate: damaged-good.pem cannot be used: it cannot be read as PEM
good.pem damaged-good.key - tls.key: damaged-good.key cannot be used: it cannot be read as PEM
good.pem good.key damaged-ca.ca.pem tls.client_ca: holds no usable certificate
good.pem good.key good.key tls.client_ca: not a PEM file with a certificate
"""


@pytest.mark.parametrize("use", [server_credentials, ssl_context])
@pytest.mark.parametrize("row", BAD.strip().splitlines(), ids=lambda row: " ".join(row.split()[:3]))
def test_unusable_files_are_refused_under_the_name_of_their_setting(
    files: Path, row: str, use: Callable[[TlsConfig], object]
) -> None:
    *names, field, message = row.split(maxsplit=4)
    with pytest.raises(InputError, match=message) as caught:
        use(TlsConfig(*(None if name == "-" else files / name for name in names)))
    assert f"{caught.value.field}:" == field


GOOD_KEYS: dict[str, Callable[[], PrivateKey]] = {
    "RSA": lambda: rsa.generate_private_key(65537, 2048),
    "P-256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "P-384": lambda: ec.generate_private_key(ec.SECP384R1()),
}
BAD_KEYS: dict[str, Callable[[], PrivateKey]] = {
    "short RSA": lambda: rsa.generate_private_key(65537, 1024),
    "P-521": lambda: ec.generate_private_key(ec.SECP521R1()),
    "secp256k1": lambda: ec.generate_private_key(ec.SECP256K1()),
    "Ed25519": ed25519.Ed25519PrivateKey.generate,
}


@pytest.mark.parametrize("kind", [*GOOD_KEYS, *BAD_KEYS])
def test_keys_are_refused_with_which_no_grpc_client_would_get_through(
    ca: CertificateAuthority, kind: str
) -> None:
    good = kind in GOOD_KEYS
    files = ca.issue("server", key=(GOOD_KEYS | BAD_KEYS)[kind]())
    tls = TlsConfig(files.certificate, files.key)

    async def scenario() -> bytes:
        trusting = grpc.ssl_channel_credentials(ca.ca_bytes)
        async with secured(Authority(None), tls) as running, running.channel(trusting) as channel:
            return await running.echo(channel)

    if good:
        assert asyncio.run(scenario()) == b"echo"
    else:
        with pytest.raises(InputError, match=r"gRPC cannot serve with|too weak") as caught:
            asyncio.run(scenario())
        assert caught.value.field == "tls.certificate"


def test_usable_files_are_read_whole_and_the_key_is_not_shown(ca: CertificateAuthority) -> None:
    files = ca.intermediate().issue("server")
    found = load_certificates(TlsConfig(files.certificate, files.key, ca.ca_file))
    assert (found.chain, found.key, found.client_ca) == (files.chain_bytes, files.key_bytes, ca.ca_bytes)
    assert found.chain.count(b"BEGIN CERTIFICATE") == 2
    assert "PRIVATE" not in repr(found)


@pytest.mark.parametrize(
    ("issue", "message"),
    [
        ({"days_valid": -1}, "has expired"),
        ({"days_valid": 2}, "expires in 48 hours"),
        ({"days_old": -1}, "is not valid yet"),
        ({"client": True}, "will be refused: unsuitable certificate purpose"),
    ],
)
def test_a_doubtful_certificate_is_used_with_a_warning(
    ca: CertificateAuthority, caplog: pytest.LogCaptureFixture, issue: dict[str, float], message: str
) -> None:
    files = ca.issue("doubtful", **issue)  # type: ignore[arg-type]
    server_credentials(TlsConfig(files.certificate, files.key))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("tls.certificate: ")
    assert record.getMessage().endswith(message)


@pytest.mark.parametrize("with_intermediate", [True, False])
def test_a_good_certificate_is_not_warned_of(
    ca: CertificateAuthority, caplog: pytest.LogCaptureFixture, with_intermediate: bool
) -> None:
    files = (ca.intermediate() if with_intermediate else ca).issue("good", days_valid=90)
    warn_of_doubts(TlsConfig(files.certificate, files.key, ca.ca_file))
    assert caplog.records == []


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("priority", Priority)
def test_a_new_token_works_with_the_line_below_it(tmp_path: Path, scope: Scope, priority: Priority) -> None:
    new = ("token", "new", "--scope", scope.value, "--priority", priority.value)
    token, line = succeed(cli, *new).stdout.splitlines()
    assert token not in line
    path = tokens_in(tmp_path, line)
    found = read_token_file(path).find(token)
    assert found is not None
    assert (found.scope, found.priority) == (scope, priority)
    shown = {"scope": scope.value, "priority": priority.value, "fingerprint": found.fingerprint}
    assert json_of(cli, "token", "check", path, "--json") == shown
    bulk = "bulk " if priority is Priority.BULK else ""
    assert succeed(cli, "token", "check", path).stdout == f"{scope.value} {bulk}{found.fingerprint}\n"
    document = json_of(cli, *new, "--json")
    assert parse(document["line"]).find(document["token"]) is not None


def test_a_new_token_may_read_and_is_urgent_unless_told_otherwise() -> None:
    token, line = succeed(cli, "token", "new").stdout.splitlines()
    assert line == line_of(Scope.READ, token)


def test_a_bad_file_is_told_by_line_and_without_its_tokens(tmp_path: Path) -> None:
    path = tokens_in(tmp_path, "read a-token-that-is-long-enough", "read tooshort")
    said = refusal(cli, "token", "check", path, code=1)
    assert "tokens, line 2: a token must have 16 to 512 characters" in said
    assert "a-token-that" not in said
    assert "tooshort" not in said


async def test_a_call_has_the_priority_it_asks_for_and_with_a_bulk_token_never_a_better_one() -> None:
    for sent, best, expected in (
        ("", Priority.INTERACTIVE, Priority.INTERACTIVE),
        ("bulk", Priority.INTERACTIVE, Priority.BULK),
        ("interactive", Priority.BULK, Priority.BULK),
        ("", Priority.BULK, Priority.BULK),
    ):
        enter(CallScope("id", "Answer", priority=sent))
        enter_as(Token(Scope.READ, bytes.fromhex("0123abcd"), best))
        assert current_priority() is expected
    enter(CallScope("id", "Answer", priority="now"))
    with pytest.raises(InputError, match="x-request-priority: must be interactive or bulk, got 'now'"):
        current_priority()


async def test_a_client_is_its_token_or_else_its_address() -> None:
    enter(CallScope("id", "Answer", peer="10.0.0.7"))
    assert current_client() == "10.0.0.7"
    enter_as(Token(Scope.READ))
    assert current_client() == "10.0.0.7"
    enter_as(Token(Scope.READ, bytes.fromhex("0123abcd")))
    assert current_client() == "0123abcd"
