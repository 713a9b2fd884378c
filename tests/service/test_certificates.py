"""Certificate files are refused in words that name the setting, and doubtful ones are warned of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from retrieval.errors import InputError
from service.configuration.server_config import AuthConfig, TlsConfig
from service.security import authority
from service.security.tls import load_certificates, server_credentials, ssl_context, warn_of_doubts
from tests.service.certificates import Authority, CertificateFiles, PrivateKey, write_key
from tests.service.secured_server import secured


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def damaged(path: Path) -> Path:
    first, second, *others = path.read_text().splitlines()
    copy = path.with_name(f"damaged-{path.name}")
    copy.write_text("\n".join((first, "*" * len(second), *others)))
    return copy


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


Bad = Callable[[Authority, CertificateFiles, Path], TlsConfig]
BAD: dict[str, tuple[Bad, str]] = {
    "certificate is not there": (
        lambda ca, good, tmp: TlsConfig(tmp / "none.pem", good.key),
        "tls.certificate: cannot read .*none.pem: No such file",
    ),
    "key is not there": (
        lambda ca, good, tmp: TlsConfig(good.certificate, tmp / "none.key"),
        "tls.key: cannot read .*none.key: No such file",
    ),
    "authorities are not there": (
        lambda ca, good, tmp: TlsConfig(good.certificate, good.key, tmp / "none.ca"),
        "tls.client_ca: cannot read .*none.ca: No such file",
    ),
    "a directory": (lambda ca, good, tmp: TlsConfig(tmp, good.key), "tls.certificate: Is a directory"),
    "a device": (
        lambda ca, good, tmp: TlsConfig(Path("/dev/zero"), good.key),
        "tls.certificate: /dev/zero is not a regular file",
    ),
    "too large": (
        lambda ca, good, tmp: TlsConfig(written(tmp / "large", b"x" * (2**20 + 1)), good.key),
        "tls.certificate: larger than 1 MiB",
    ),
    "certificate is no PEM": (
        lambda ca, good, tmp: TlsConfig(written(tmp / "der", b"\x30\x82\x01"), good.key),
        "tls.certificate: der is not a PEM file with a certificate",
    ),
    "files swapped": (
        lambda ca, good, tmp: TlsConfig(good.key, good.certificate),
        "tls.certificate: not a PEM file with a certificate",
    ),
    "key is a certificate": (
        lambda ca, good, tmp: TlsConfig(good.certificate, good.certificate),
        "tls.key: not a PEM file with a private key",
    ),
    "key of another": (
        lambda ca, good, tmp: TlsConfig(good.certificate, write_key(tmp / "other.key")),
        "tls.key: other.key is not the key of the certificate in .*good.pem",
    ),
    "key with a passphrase": (
        lambda ca, good, tmp: TlsConfig(good.certificate, write_key(tmp / "locked", password=b"secret")),
        "tls.key: locked is protected by a passphrase",
    ),
    "certificate is damaged": (
        lambda ca, good, tmp: TlsConfig(damaged(good.certificate), good.key),
        "tls.certificate: damaged-good.pem cannot be used: it cannot be read as PEM",
    ),
    "key is damaged": (
        lambda ca, good, tmp: TlsConfig(good.certificate, damaged(good.key)),
        "tls.key: damaged-good.key cannot be used: it cannot be read as PEM",
    ),
    "authorities are damaged": (
        lambda ca, good, tmp: TlsConfig(good.certificate, good.key, damaged(ca.ca_file)),
        "tls.client_ca: holds no usable certificate",
    ),
    "authorities are a key": (
        lambda ca, good, tmp: TlsConfig(good.certificate, good.key, good.key),
        "tls.client_ca: not a PEM file with a certificate",
    ),
    "certificate without a key": (
        lambda ca, good, tmp: TlsConfig(good.certificate),
        "tls.key: is needed with tls.certificate",
    ),
    "key without a certificate": (
        lambda ca, good, tmp: TlsConfig(key=good.key),
        "tls.certificate: is needed with tls.key",
    ),
    "authorities without a certificate": (
        lambda ca, good, tmp: TlsConfig(client_ca=ca.ca_file),
        "tls.certificate: is needed with tls.client_ca",
    ),
}


@pytest.mark.parametrize("use", [server_credentials, ssl_context])
@pytest.mark.parametrize("name", BAD)
def test_unusable_files_are_refused_under_the_name_of_their_setting(
    ca: Authority, tmp_path: Path, name: str, use: Callable[[TlsConfig], object]
) -> None:
    make, told = BAD[name]
    field, _, message = told.partition(": ")
    tls = make(ca, ca.issue("good"), tmp_path)
    with pytest.raises(InputError, match=message) as caught:
        use(tls)
    assert caught.value.field == field


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
def test_keys_are_refused_with_which_no_grpc_client_would_get_through(ca: Authority, kind: str) -> None:
    good = kind in GOOD_KEYS
    files = ca.issue("server", key=(GOOD_KEYS | BAD_KEYS)[kind]())
    tls = TlsConfig(files.certificate, files.key)

    async def scenario() -> bytes:
        trusting = grpc.ssl_channel_credentials(ca.ca_bytes)
        async with (
            secured(authority.Authority(AuthConfig()), tls) as running,
            running.channel(trusting) as channel,
        ):
            return await running.echo(channel)

    if good:
        assert asyncio.run(scenario()) == b"echo"
    else:
        with pytest.raises(InputError, match=r"gRPC cannot serve with|too weak") as caught:
            asyncio.run(scenario())
        assert caught.value.field == "tls.certificate"


def test_usable_files_are_read_whole_and_the_key_is_not_shown(ca: Authority) -> None:
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
    ca: Authority, caplog: pytest.LogCaptureFixture, issue: dict[str, float], message: str
) -> None:
    files = ca.issue("doubtful", **issue)  # type: ignore[arg-type]
    server_credentials(TlsConfig(files.certificate, files.key))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("tls.certificate: ")
    assert record.getMessage().endswith(message)


@pytest.mark.parametrize("with_intermediate", [True, False])
def test_a_good_certificate_is_not_warned_of(
    ca: Authority, caplog: pytest.LogCaptureFixture, with_intermediate: bool
) -> None:
    files = (ca.intermediate() if with_intermediate else ca).issue("good", days_valid=90)
    warn_of_doubts(TlsConfig(files.certificate, files.key, ca.ca_file))
    assert caplog.records == []


@pytest.mark.parametrize(("mode", "exposed"), [(0o600, False), (0o640, False), (0o644, True), (0o620, True)])
def test_a_key_that_others_may_use_is_warned_of(
    ca: Authority, caplog: pytest.LogCaptureFixture, mode: int, exposed: bool
) -> None:
    files = ca.issue("good")
    files.key.chmod(mode)
    server_credentials(TlsConfig(files.certificate, files.key))
    assert ["tls.key" in record.getMessage() for record in caplog.records] == [True] * exposed
