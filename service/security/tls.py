"""Makes the TLS of a server's listeners, gRPC and HTTP, from PEM files that are read again when they change.

The certificate, its key and the authorities of clients are checked together by the standard library's `ssl`,
whose errors are put in words that name the setting and the file.
"""

from __future__ import annotations

import logging
import re
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc

from genret.retrieval.errors import InputError
from genret.service.configuration.server_config import TlsConfig
from genret.service.security.watched_files import WatchedFiles, read_file, warn_if_exposed

Value = TypeVar("Value")


def server_credentials(tls: TlsConfig) -> grpc.ServerCredentials:
    """Return credentials for a gRPC listener, TLS 1.2 or newer.

    The files are checked before every handshake: changed and usable ones serve that connection and later
    ones; unusable ones are logged, and the earlier ones stay.

    Raises:
        InputError: under the name of the setting that is wrong.
    """

    def read() -> CertificateSet:
        found = load_certificates(tls)
        warn_of_doubts(tls)
        return found

    certificates = _watch(tls, read)
    handed_out = certificates.current()

    def changed_since_then() -> Any:  # called by gRPC on its own threads, one handshake each
        nonlocal handed_out
        current = certificates.current()
        if current == handed_out:
            return None
        configuration = _grpc_configuration(current)
        handed_out = current
        return configuration

    return grpc.dynamic_ssl_server_credentials(
        _grpc_configuration(handed_out), changed_since_then, tls.client_ca is not None
    )


def ssl_context(tls: TlsConfig) -> ssl.SSLContext:
    """Return a context for an HTTP listener, TLS 1.2 or newer, which takes up changed files as gRPC's does.

    Raises:
        InputError: under the name of the setting that is wrong.
    """

    def read() -> ssl.SSLContext:
        found = load_certificates(tls)
        context = server_context(*paths_of(tls))
        context.set_alpn_protocols(["http/1.1"])
        if tls.client_ca is not None and found.client_ca is not None:
            require_clients(context, found.client_ca, tls.client_ca)
        return context

    contexts = _watch(tls, read)
    first = contexts.current()

    def use_current(connection: Any, server_name: str | None, context: ssl.SSLContext) -> None:
        connection.context = contexts.current()

    first.sni_callback = use_current  # called for clients that name no server, too
    return first


def _watch(tls: TlsConfig, read: Callable[[], Value]) -> WatchedFiles[Value]:
    paths: list[Path] = [path for path in (tls.certificate, tls.key, tls.client_ca) if path is not None]
    # A look costs a few system calls, little beside the handshake.
    return WatchedFiles("the TLS certificate", paths, read, min_interval_s=0.0)


def _grpc_configuration(certificates: CertificateSet) -> Any:
    pairs = [(certificates.key, certificates.chain)]
    return grpc.ssl_server_certificate_configuration(pairs, certificates.client_ca)


CERTIFICATE, KEY, CLIENT_CA = "tls.certificate", "tls.key", "tls.client_ca"
_LOG = logging.getLogger(__name__)
_CERTIFICATE_MARK = b"-----BEGIN CERTIFICATE-----"
_FIRST_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
# Keys that gRPC's TLS serves; with others, which `ssl` takes, every handshake would fail. In DER: the
# identifiers of RSA, and of elliptic curves with P-256 and with P-384.
_EC = "06072a8648ce3d0201"
_KEY_TYPES = tuple(
    bytes.fromhex(kind)
    for kind in ("06092a864886f70d010101", f"{_EC}06082a8648ce3d030107", f"{_EC}06052b81040022")
)
_READ_TRIES = 3
_SOON_S = 7 * 86_400
# OpenSSL's numbers, which `ssl` passes on without names.
_NOT_YET_VALID, _EXPIRED = 9, 10


@dataclass(frozen=True, slots=True, repr=False)  # the key must not get into a log or a traceback
class CertificateSet:
    """The chain and key of a TLS listener, and the authorities of required client certificates, as PEM."""

    chain: bytes
    key: bytes
    client_ca: bytes | None


def load_certificates(tls: TlsConfig) -> CertificateSet:
    """Read and check the files of `tls`; InputError names the setting that is wrong."""
    for _ in range(_READ_TRIES):
        found = _read(tls)
        _check(found, tls)
        # `ssl` checks files, not bytes: read again, so that the bytes used are those checked.
        if _read(tls) == found:
            return found
    raise InputError(CERTIFICATE, f"{tls.certificate} and {tls.key} keep changing while they are read")


def warn_of_doubts(tls: TlsConfig) -> None:
    """Log doubts about usable files: exposure of the key, validity in time, purpose."""
    certificate, key = paths_of(tls)
    warn_if_exposed(KEY, key)
    doubt = _doubt(server_context(certificate, key), read_file(CERTIFICATE, certificate))
    if doubt is not None:
        _LOG.warning("%s: %s: the certificate %s", CERTIFICATE, certificate, doubt)


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return a server's context, TLS 1.2 or newer; InputError if certificate and key cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a passphrase OpenSSL would ask for one on the terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except ssl.SSLError as error:
        raise _unusable(error, certificate, key) from error
    except OSError as error:  # gone since it was read
        raise InputError(CERTIFICATE, f"cannot read {certificate} or {key}: {error.strerror}") from error
    return context


def require_clients(context: ssl.SSLContext, client_ca: bytes, source: Path) -> None:
    """Make a context ask clients for a certificate of one of the authorities in `client_ca`."""
    try:
        context.load_verify_locations(cadata=client_ca.decode("ascii", "replace"))
    except ssl.SSLError as error:
        raise InputError(CLIENT_CA, f"{source} holds no usable certificate: {_reason(error)}") from error
    context.verify_mode = ssl.CERT_REQUIRED


def paths_of(tls: TlsConfig) -> tuple[Path, Path]:
    """Return the files of certificate and key, which a server's configuration names together."""
    assert tls.certificate is not None
    assert tls.key is not None
    return tls.certificate, tls.key


def _read(tls: TlsConfig) -> CertificateSet:
    certificate, key = paths_of(tls)
    chain, private = read_file(CERTIFICATE, certificate), read_file(KEY, key)
    client_ca = None if tls.client_ca is None else read_file(CLIENT_CA, tls.client_ca)
    return CertificateSet(chain, private, client_ca)


def _check(found: CertificateSet, tls: TlsConfig) -> None:
    certificate, key = paths_of(tls)
    _check_marked(CERTIFICATE, certificate, found.chain)
    if b"PRIVATE KEY-----" not in found.key:
        raise InputError(KEY, f"{key} is not a PEM file with a private key")
    if b"ENCRYPTED" in found.key:
        raise InputError(KEY, f"{key} is protected by a passphrase; give a key without one")
    context = server_context(certificate, key)
    _check_key_type(found.chain, certificate)
    if tls.client_ca is not None and found.client_ca is not None:
        _check_marked(CLIENT_CA, tls.client_ca, found.client_ca)
        require_clients(context, found.client_ca, tls.client_ca)


def _check_key_type(chain: bytes, path: Path) -> None:
    first = _FIRST_CERTIFICATE.search(chain)
    encoded = ssl.PEM_cert_to_DER_cert(first[0].decode("ascii")) if first else b""
    if not any(kind in encoded for kind in _KEY_TYPES):
        raise InputError(
            CERTIFICATE,
            f"{path} has a key that gRPC cannot serve with; use RSA, or an elliptic curve P-256 or P-384",
        )


def _check_marked(field: str, path: Path, content: bytes) -> None:
    if _CERTIFICATE_MARK not in content:
        raise InputError(field, f"{path} is not a PEM file with a certificate")


def _unusable(error: ssl.SSLError, certificate: Path, key: Path) -> InputError:
    if error.reason == "KEY_VALUES_MISMATCH":
        return InputError(KEY, f"{key} is not the key of the certificate in {certificate}")
    # OpenSSL does not name the file it failed on: try the certificate alone.
    try:
        ssl.create_default_context(cafile=certificate)
    except ssl.SSLError as unreadable:
        return InputError(CERTIFICATE, f"{certificate} cannot be used: {_reason(unreadable)}")
    except OSError as gone:
        return InputError(CERTIFICATE, f"cannot read {certificate}: {gone.strerror}")
    if error.reason in {"EE_KEY_TOO_SMALL", "CA_MD_TOO_WEAK", "CA_KEY_TOO_SMALL"}:
        return InputError(CERTIFICATE, f"{certificate} is too weak: {_reason(error)}")
    return InputError(KEY, f"{key} cannot be used: {_reason(error)}")


def _reason(error: ssl.SSLError) -> str:
    return error.reason.lower().replace("_", " ") if error.reason else "it cannot be read as PEM"


def _doubt(context: ssl.SSLContext, chain: bytes) -> str | None:
    """Return what keeps clients from connecting, now or soon, if anything."""
    try:
        left = _seconds_left(context, chain)
    except ssl.SSLCertVerificationError as error:
        what = {_EXPIRED: "has expired", _NOT_YET_VALID: "is not valid yet"}.get(error.verify_code)
        return what or f"will be refused: {error.verify_message}"
    except ssl.SSLError as error:
        return f"failed in a trial handshake: {_reason(error)}"
    return f"expires in {left / 3600:.0f} hours" if left < _SOON_S else None


def _seconds_left(context: ssl.SSLContext, chain: bytes) -> float:
    """Return how long a certificate is valid, by a handshake in memory with a client that trusts it alone.

    Raises:
        ssl.SSLError: the handshake fails, as with an expired certificate.
    """
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    client_context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # trust what is no authority's own
    client_context.load_verify_locations(cadata=chain.decode("ascii", "replace"))
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    certificate = client.getpeercert() or {}
    return ssl.cert_time_to_seconds(str(certificate["notAfter"])) - time.time()
