"""The `genret` command: one group whose sub-commands are imported when they run.

Neither importing this module nor `genret --help` imports torch, gRPC or Arrow.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

from decoding.errors import DecodingError
from retrieval.errors import GenretError
from retrieval.interruption import INTERRUPTED, sigterm_as_interrupt
from service.version import version


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """Where a command is, and its line in the group's help."""

    module: str
    attribute: str
    short_help: str


COMMANDS = {
    "build": LazyCommand("index_builder.cli", "build_command", "Build an index from files of titles."),
    "update": LazyCommand(
        "index_builder.update_cli", "update_command", "Add, replace and remove entities of an index."
    ),
    "rollback": LazyCommand(
        "index_builder.rollback", "rollback_command", "Make an earlier version of an index live again."
    ),
    "tune": LazyCommand(
        "service.commands.tune", "tune_command", "Fit how an index ranks its candidates to labelled queries."
    ),
    "inspect": LazyCommand("retrieval.index.inspect_command", "inspect_command", "Say what is in an index."),
    "verify": LazyCommand(
        "retrieval.index.inspect_command", "verify_command", "Check every byte of an index."
    ),
    "train": LazyCommand("retrieval.training.train_command", "train_command", "Train or fine-tune a model."),
    "init-model": LazyCommand(
        "service.commands.init_model", "init_model_command", "Write genret.json for a checkpoint."
    ),
    "doctor": LazyCommand(
        "retrieval.doctor_command", "doctor_command", "Check that a model is decoded exactly, layer by layer."
    ),
    "serve": LazyCommand("service.commands.serve", "serve_command", "Serve indexes over gRPC and HTTP."),
    "deploy-ray": LazyCommand(
        "service.commands.deploy_ray", "deploy_ray_command", "Serve by replicas on a Ray cluster."
    ),
    "ask": LazyCommand("service.commands.query", "ask_command", "Ask an index, without a server."),
    "query": LazyCommand("service.commands.query", "query_command", "Ask a running server."),
    "score": LazyCommand(
        "service.commands.score", "score_command", "Score given titles on a running server."
    ),
    "answer": LazyCommand("service.commands.answer", "answer_command", "Ask a running server for JSON."),
    "health": LazyCommand(
        "service.commands.running_server", "health_command", "Say whether a server is ready."
    ),
    "indexes": LazyCommand(
        "service.commands.running_server", "indexes_command", "List the indexes of a running server."
    ),
    "reload": LazyCommand(
        "service.commands.running_server", "reload_command", "Have a running server take up a new version."
    ),
    "token": LazyCommand("service.commands.token", "token_command", "Make and check bearer tokens."),
    "link": LazyCommand(
        "retrieval.linking.link_command", "link_command", "Link the mentions of documents to entities."
    ),
    "evaluate": LazyCommand(
        "retrieval.evaluation.evaluate_command", "evaluate_command", "Compare methods on labelled sets."
    ),
    "demo": LazyCommand("service.commands.demo", "demo_command", "Build, serve, query the sample."),
}


class LazyGroup(click.Group):
    """A group that imports a command when it runs; its errors become one line on stderr and exit code 1."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which a user meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        lazy = COMMANDS.get(cmd_name)
        if lazy is None:
            return None
        command: click.Command = getattr(import_module(lazy.module), lazy.attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.short_help) for name, lazy in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command and turn errors into messages, unless `--debug` asks for the traceback.

        SIGTERM counts as Ctrl-C and ends a command with exit code 130.
        """
        try:
            with sigterm_as_interrupt():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        except (click.ClickException, click.Abort, click.exceptions.Exit, OSError) as error:
            # click prints these itself; of OSError only the broken pipe.
            if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
                raise self._message(ctx, error, str(error)) from error
            raise
        except (GenretError, DecodingError) as error:
            raise self._message(ctx, error, str(error)) from error
        except Exception as error:
            text = f"internal error: {type(error).__name__}: {error} (--debug shows the traceback)"
            raise self._message(ctx, error, text) from error

    @staticmethod
    def _message(ctx: click.Context, error: Exception, text: str) -> Exception:
        return error if ctx.params.get("debug") else click.ClickException(text)


@click.group(
    cls=LazyGroup, context_settings={"auto_envvar_prefix": "GENRET", "help_option_names": ["-h", "--help"]}
)
@click.option("--debug", is_flag=True, help="Show tracebacks.", show_envvar=True)
@click.version_option(version(), prog_name="genret")
def cli(debug: bool) -> None:
    """Generative retrieval: a language model writes titles, and only titles that exist.

    Every option can be set by the environment: GENRET_SERVE_PORT is --port of serve.
    """
    del debug  # read from the context by LazyGroup


if __name__ == "__main__":
    cli()
