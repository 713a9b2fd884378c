"""TLS for the listeners of a server, gRPC and HTTP. Certificates are read again when their files change."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc

from service.configuration.sections import TlsConfig
from service.security.certificates import (
    CertificateSet,
    load_certificates,
    paths_of,
    require_clients,
    server_context,
    warn_of_doubts,
)
from service.security.watched_files import WatchedFiles

Value = TypeVar("Value")


def server_credentials(tls: TlsConfig) -> grpc.ServerCredentials:
    """Return credentials for a gRPC listener; gRPC takes TLS 1.2 or newer.

    Before every handshake the files are looked at. If they changed and are usable, they serve that connection
    and further ones; if they are not, that is logged and the earlier ones stay. Connections that are open
    keep what they began with.

    Raises:
        InputError: under the name of the setting that is wrong.
    """

    def read() -> CertificateSet:
        found = load_certificates(tls)
        warn_of_doubts(tls)
        return found

    certificates = _watch(tls, read)
    handed_out = certificates.current()

    def changed_since_then() -> Any:  # called by gRPC on threads of its own, one handshake each
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
    """Return a context for an HTTP listener, TLS 1.2 or newer, which takes up changed files as gRPC's do.

    Raises:
        InputError: under the name of the setting that is wrong.
    """

    def read() -> ssl.SSLContext:
        return _http_context(tls, load_certificates(tls))

    contexts = _watch(tls, read)
    first = contexts.current()

    def use_current(connection: Any, server_name: str | None, context: ssl.SSLContext) -> None:
        connection.context = contexts.current()

    first.sni_callback = use_current  # called for clients that name no server, too
    return first


def _watch(tls: TlsConfig, read: Callable[[], Value]) -> WatchedFiles[Value]:
    paths: list[Path] = [path for path in (tls.certificate, tls.key, tls.client_ca) if path is not None]
    # A look costs a few system calls, next to nothing beside the handshake it precedes.
    return WatchedFiles("the TLS certificate", paths, read, min_interval_s=0.0)


def _grpc_configuration(certificates: CertificateSet) -> Any:
    pairs = [(certificates.key, certificates.chain)]
    return grpc.ssl_server_certificate_configuration(pairs, certificates.client_ca)


def _http_context(tls: TlsConfig, certificates: CertificateSet) -> ssl.SSLContext:
    context = server_context(*paths_of(tls))
    context.set_alpn_protocols(["http/1.1"])
    if tls.client_ca is not None and certificates.client_ca is not None:
        require_clients(context, certificates.client_ca, tls.client_ca)
    return context
