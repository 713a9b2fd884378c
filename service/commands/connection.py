"""Options of commands that ask a server: its address, timeout, --index and --json; and how errors read."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from genret.retrieval.command_options import described_option, grouped, shown_option
from genret.retrieval.errors import InputError
from genret.retrieval.interruption import surely_interrupted
from genret.service.call import Priority
from genret.service.client.client_options import ClientOptions
from genret.service.commands import usage_error
from genret.service.configuration.server_config import DEFAULT_HOST, DEFAULT_PORT, check_address, join_address

if TYPE_CHECKING:
    from genret.service.client import RetrievalClient
    from genret.service.errors import CallError

TOKEN_VARIABLE = "GENRET_TOKEN"
# Attributes of ClientOptions whose options are called otherwise.
_OPTION_NAMES = {"tls_certificate": "tls_cert", "timeout_s": "timeout", "token": "token_file"}
_F = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Connection:
    """A server's `host:port`, and how to connect to it."""

    address: str
    options: ClientOptions

    @contextmanager
    def open(self) -> Iterator[RetrievalClient]:
        """Yield a client; nothing connects before the first call.

        Raises:
            ClickException: a file of --tls-* cannot be used, or a call in the block failed.
        """
        from genret.service.client import RetrievalClient
        from genret.service.errors import CallError

        try:
            client = RetrievalClient(self.address, self.options)
        except InputError as error:
            raise _option_error(error) from error
        with client:
            try:
                yield client
            except CallError as error:
                raise click.ClickException(told(error)) from error


def connection_options(timeout_s: float, waits_for: str = "an answer") -> Callable[[_F], _F]:
    """Add the options of a server to a command, which takes them as one argument `connection`.

    `timeout_s` is the default of --timeout, seconds, and `waits_for` what it limits.
    """

    def add(command: _F) -> _F:
        @functools.wraps(command)
        def run(
            *,
            address: str,
            tls_cert: Path | None,
            token_file: Path | None,
            metadata: tuple[str, ...],
            timeout: float,
            **values: Any,
        ) -> None:
            # Before grpc is imported: its C core writes lines of its own about errors that are told in words.
            os.environ.setdefault("GRPC_VERBOSITY", "NONE")
            taken = {name: values.pop(name) for name in _TAKEN}
            taken |= {"timeout_s": timeout, "tls_certificate": tls_cert}
            # A signal may leave a lock of gRPC's, or of a stream's, half taken, and that error would be told.
            with surely_interrupted():
                try:
                    options = ClientOptions(**taken, metadata=tuple(map(_name_and_value, metadata)))
                    options = replace(options, token=_token(token_file))
                    options.check(address)
                except InputError as error:
                    raise _option_error(error) from error
                command(**values, connection=Connection(address, options))

        timeout = described_option("--timeout", f"Seconds to wait for {waits_for}.", float, timeout_s)
        with_options: _F = grouped("Server", *_OPTIONS, timeout)(run)
        return with_options

    return add


def index_option(help_text: str) -> Callable[[_F], _F]:
    """Add --index, the name of an index of the server, to a command."""
    return described_option("--index", help_text, default="", show_default="the server's first")


def json_option(item: str) -> Callable[[_F], _F]:
    """Add --json to a command that then prints an object per item."""
    return described_option("--json as_json_lines", f"One JSON object per {item}.", is_flag=True)


def _file_option(name: str, help_text: str, unset: str) -> Callable[[_F], _F]:
    return shown_option(name, type=click.Path(path_type=Path), help=help_text, show_default=unset)


def _checked_address(context: click.Context, parameter: click.Parameter, value: str) -> str:
    try:
        check_address(value)
    except InputError as error:
        raise usage_error(error) from error
    return value


_OPTIONS = (
    described_option(
        "--address",
        "The server, as host:port.",
        default=join_address(DEFAULT_HOST, DEFAULT_PORT),
        callback=_checked_address,
    ),
    described_option("--tls", "Encrypt; any of the next four implies it.", is_flag=True),
    _file_option("--tls-ca", "PEM file of the authorities to trust.", "those that gRPC brings along"),
    _file_option("--tls-cert", "PEM file of this client's own certificate.", "none"),
    _file_option("--tls-key", "PEM file of its private key.", "none"),
    described_option(
        "--tls-server-name",
        "Name that the server's certificate must have.",
        show_default="that of the address",
    ),
    _file_option(
        "--token-file", "File that holds a bearer token.", f"the token in {TOKEN_VARIABLE}, else none"
    ),
    described_option("--insecure", "Send the token unencrypted to other machines.", is_flag=True),
    described_option(
        "--priority",
        "Calls of priority bulk give way to others.",
        click.Choice([priority.value for priority in Priority]),
        Priority.INTERACTIVE.value,
    ),
    described_option(
        "--metadata",
        "Send this with every call: application=genret tells Ray Serve whom a call is for. Repeatable.",
        multiple=True,
        metavar="NAME=VALUE",
        show_default="nothing",
    ),
)
# Options that ClientOptions has under the same names.
_TAKEN = ("tls", "tls_ca", "tls_key", "tls_server_name", "insecure", "priority")


def _name_and_value(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise InputError("metadata", f"expected NAME=VALUE, got {text!r}")
    return name, value


def _token(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("token", f"{file}: {getattr(error, 'strerror', None) or 'not a text'}") from error
    if not text:
        raise InputError("token", f"{file}: holds no token")
    if len(text.split()) > 1:
        raise InputError(
            "token", f"{file}: holds more than a token; of `genret token new` keep the first line"
        )
    return text


def _option_error(error: InputError) -> click.UsageError:
    return usage_error(InputError(_OPTION_NAMES.get(error.field, error.field), error.message))


def told(error: CallError) -> str:
    """Return the text of an error, with advice where there is any."""
    if error.retry_after_s is not None:
        return f"{error}; try again in {error.retry_after_s:.2g} s"
    is_asked = error.code == "UNAUTHENTICATED"
    return f"{error}; name a token with --token-file, or in {TOKEN_VARIABLE}" if is_asked else str(error)
