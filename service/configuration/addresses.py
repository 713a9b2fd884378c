"""Addresses to listen on and to connect to."""

from __future__ import annotations

import ipaddress

from retrieval.errors import InputError

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 50051


def join_address(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_address(address: str) -> None:
    """Refuse what is not `host:port` before anything connects to it.

    Raises:
        InputError: says which part is missing or wrong.
    """
    host, separator, port = address.rpartition(":")
    if not separator or address.endswith("]"):
        raise InputError("address", f"expected HOST:PORT, the port is missing in {address!r}")
    bracketed = host.startswith("[") and host.endswith("]")
    name = host[1:-1] if bracketed else host
    if not name or not name.isprintable() or any(sign in name for sign in " []/"):
        raise InputError("address", f"expected HOST:PORT, got {address!r}")
    if ":" in name and not bracketed:
        raise InputError(
            "address", f"an IPv6 address needs brackets, as in [::1]:{DEFAULT_PORT}; got {address!r}"
        )
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65_535):
        raise InputError("address", f"the port must be a number in [1, 65535], got {port!r} in {address!r}")


def is_loopback(host: str) -> bool:
    """Whether `host` can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
