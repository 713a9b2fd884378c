"""`genret serve`: options in, a running server out.

The options are made of the table of settings. click shows them and splits the command line;
`service.configuration` reads their values, as those of files and variables, and names every mistake at once.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from genret.retrieval.command_options import GroupedCommand, described_option, grouped, together
from genret.retrieval.errors import GenretError, IndexNotFoundError, InputError
from genret.retrieval.interruption import handled
from genret.service.commands import usage_error
from genret.service.configuration.kinds import OneOf
from genret.service.configuration.resolve import ConfigurationError, resolve
from genret.service.configuration.server_config import ServerConfig
from genret.service.configuration.settings import SETTINGS, Setting
from genret.service.configuration.sources import config_text
from genret.service.observability.logs import announce
from genret.service.observability.logs import configure as configure_logs
from genret.service.serving.engine_link import Worker

if TYPE_CHECKING:
    from genret.service.serving.server import Server


_F = TypeVar("_F", bound=Callable[..., Any])


class _UnreadChoice(click.Choice[str]):
    """A word that is not read here; the help shows its alternatives."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value


class SettingOption(click.Option):
    """An option whose variable click shows and does not read."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return None: variables are read with the file, below flags."""
        return None


def setting_options(command: _F) -> _F:
    """Add an option for every setting to a command, which gets their values by `given_flags`."""
    groups = groupby(SETTINGS, key=lambda setting: setting.key[0])
    return together(*(grouped(f"Settings of [{name}]", *map(_option, group)) for name, group in groups))(
        command
    )


def given_flags(context: click.Context) -> dict[str, object]:
    """Return the settings that the command line gives."""
    return {
        setting.parameter: context.params[setting.parameter]
        for setting in SETTINGS
        if context.get_parameter_source(setting.parameter) is ParameterSource.COMMANDLINE
    }


def _option(setting: Setting) -> Callable[[_F], _F]:
    shown: dict[str, Any] = {
        "cls": SettingOption,
        "help": setting.help,
        "envvar": setting.variable,
        "show_envvar": True,
        "show_default": setting.unset if setting.default is None else True,
    }
    if setting.negation is not None:
        names = (f"{setting.flag}/{setting.negation}", setting.parameter)
        return click.option(*names, default=setting.default, **shown)
    if isinstance(setting.kind.rule, OneOf):
        shown |= {"type": _UnreadChoice(setting.kind.rule.words), "default": setting.default}
    elif setting.repeated:
        shown |= {"type": str, "metavar": setting.metavar, "multiple": True, "show_default": setting.unset}
    else:
        shown |= {"type": str, "metavar": setting.metavar, "default": setting.default}
    return click.option(setting.flag, setting.parameter, **shown)


def config_options(command: str, file_help: str, print_help: str) -> Callable[[_F], _F]:
    """Add --config (`file`) and --print-config to a command, which is named as in its variable."""
    return together(
        described_option(
            "--config file",
            file_help,
            click.Path(path_type=Path),
            metavar="FILE",
            envvar=f"GENRET_{command}_CONFIG",
            show_default="none",
        ),
        click.option("--print-config", is_flag=True, help=print_help, show_envvar=True),
    )


@contextmanager
def mistakes_as_usage() -> Iterator[None]:
    """Turn mistakes in settings into usage errors."""
    try:
        yield
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error
    except InputError as error:
        raise usage_error(error) from error


_STOPPED = "stopped"
_EXIT_OF_SIGNAL = 128  # plus its number: what a shell says of a process that a signal ended


@click.command("serve", cls=GroupedCommand)
@click.argument("path", metavar="[INDEX]", required=False)
@config_options(
    "SERVE",
    "TOML file of settings; docs/configuration.md describes it. Flags and variables win over it.",
    "Print all settings as such a file, with where each came from, and exit.",
)
@setting_options
@click.pass_context
def serve_command(
    context: click.Context, /, path: str | None, file: Path | None, print_config: bool, **settings: object
) -> None:
    """Serve INDEX over gRPC, and over HTTP where it has a port, until SIGTERM or Ctrl-C.

    One line on stderr says what it opens, one when it is ready and where it listens, one that it has stopped.
    Stopped by a signal it ends with exit code 0; if it was not ready yet, with 130 (Ctrl-C) or 143 (SIGTERM).
    """
    del settings  # read from the context, which knows which of them were given
    with mistakes_as_usage():
        resolved = resolve(given_flags(context), path, os.environ, file)
        if print_config:
            click.echo(config_text(resolved.config, resolved.origins), nl=False)
            return
    try:
        _serve(resolved.config)
    except GenretError as error:
        if resolved.config.log.format != "json":
            raise
        announce(resolved.config.log, str(error), logging.ERROR)
        raise click.exceptions.Exit(1) from error


def _serve(config: ServerConfig) -> None:
    configure_logs(config.log)
    # grpc's C core writes its own lines about errors that are reported here in words.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    say = partial(announce, config.log)
    say(f"opening {', '.join(f'index {spec.name!r}' for spec in config.indexes)}")
    for spec in config.indexes:  # told before ports are taken and a model is loaded
        if not spec.path.exists():
            raise IndexNotFoundError(f"{spec.path}: no such directory")
    gc.disable()  # imports make a million objects that stay; `Server.load` freezes them and turns it on again
    with _signals_before_the_server(say) as stop_if_asked, _worker(config) as worker:
        from genret.service.observability.metrics import CallMetrics
        from genret.service.observability.tracing import start as start_tracing
        from genret.service.serving.heap import tune_process
        from genret.service.serving.server import Server, serve_until_signalled
        from genret.service.version import version

        tune_process()

        async def run() -> signal.Signals | None:
            tracing = start_tracing(config.tracing, version())
            try:
                if worker is None:
                    from genret.service.serving.models import IndexOpener
                    from genret.service.status import told

                    server = Server.in_one_process(config, IndexOpener(config, told), tracing)
                else:
                    from genret.service.serving.engine_process import EngineProcess

                    server = Server(config, EngineProcess(config, worker), CallMetrics(), tracing)
                stop_if_asked()
                return await serve_until_signalled(server, lambda server: say(_readiness(server)))
            finally:
                if tracing is not None:
                    await tracing.stop()

        stopped_early = asyncio.run(run())
        say(_STOPPED)
    if stopped_early is not None:
        raise click.exceptions.Exit(_EXIT_OF_SIGNAL + stopped_early)


@contextmanager
def _worker(config: ServerConfig) -> Iterator[Worker | None]:
    """Start the engine's process, which then imports while this one does; None if there is to be none."""
    if config.one_process:
        yield None
        return
    worker = Worker()
    try:
        yield worker
    finally:
        worker.kill()


@contextmanager
def _signals_before_the_server(say: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """Take signals as an early stop until the server takes them itself, which is after heavy imports.

    Ending the process where the signal arrives is not enough: that may be inside an import whose code goes on
    after whatever it tried has failed. So the block calls what is yielded, which raises SystemExit once more.
    """
    came: list[int] = []

    def stop_if_asked() -> None:
        if came:
            raise SystemExit(_EXIT_OF_SIGNAL + came[-1])

    def on_signal(number: int, frame: object) -> None:
        came.append(number)
        stop_if_asked()

    with (
        handled(on_signal, signal.SIGTERM, signal.SIGINT),
        handled(signal.SIG_IGN, signal.SIGHUP),  # there is nothing to reload yet
    ):
        try:
            yield stop_if_asked
        except SystemExit:
            say(_STOPPED)
            raise


def _readiness(server: Server) -> str:
    """Return a line about the indexes, models and addresses."""
    described = server.engine.describe()
    words = [f"index {i.name!r} ({i.num_entities:,} entities, {i.num_rows:,} rows)" for i in described]
    words += dict.fromkeys(f"model {i.model} on {i.device}" for i in described)
    if server.http is not None:
        words.append(f"HTTP on {server.http.address}")
    if server.monitoring is not None:
        words.append(f"metrics on {server.monitoring.address}")
    return f"ready on {server.address}: {'; '.join(words)}"
