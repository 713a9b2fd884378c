"""The `genret` command: one group whose sub-commands are imported when they run.

Neither importing this module nor `genret --help` imports torch, gRPC or Arrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from genret.decoding.errors import DecodingError
from genret.retrieval.errors import GenretError, did_you_mean
from genret.retrieval.interruption import INTERRUPTED, sigterm_as_interrupt
from genret.service.version import version

# By name: the module of `NAME_command`, and the line in the group's help.
COMMANDS: dict[str, tuple[str, str]] = {
    "build": ("index_builder.cli", "Build an index from files of titles."),
    "update": ("index_builder.cli", "Add, replace and remove entities of an index."),
    "rollback": ("index_builder.rollback", "Make an earlier version of an index live again."),
    "tune": ("service.commands.tune", "Fit how an index ranks its candidates to labelled queries."),
    "inspect": ("retrieval.index.inspect_command", "Say what is in an index."),
    "verify": ("retrieval.index.inspect_command", "Check every byte of an index."),
    "train": ("retrieval.training.train_command", "Train or fine-tune a model."),
    "init-model": ("service.commands.init_model", "Write genret.json for a checkpoint."),
    "doctor": ("retrieval.doctor_command", "Check that a model is decoded exactly, layer by layer."),
    "serve": ("service.commands.serve", "Serve indexes over gRPC and HTTP."),
    "warm-cache": ("service.commands.warm_cache", "Compile ahead what a first start would."),
    "deploy-ray": ("service.commands.deploy_ray", "Serve by replicas on a Ray cluster."),
    "ask": ("service.commands.query", "Ask an index, without a server."),
    "complete": ("service.commands.complete", "Complete what is typed, without a server."),
    "query": ("service.commands.query", "Ask a running server."),
    "score": ("service.commands.score", "Score given titles on a running server."),
    "answer": ("service.commands.answer", "Ask a running server for JSON."),
    "health": ("service.commands.running_server", "Say whether a server is ready."),
    "indexes": ("service.commands.running_server", "List the indexes of a running server."),
    "reload": ("service.commands.running_server", "Have a running server take up a new version."),
    "token": ("service.commands.token", "Make and check bearer tokens."),
    "link": ("retrieval.linking.link_command", "Link the mentions of documents to entities."),
    "evaluate": ("retrieval.evaluation.evaluate_command", "Compare methods on labelled sets."),
    "demo": ("service.commands.demo", "Build, serve, query the sample."),
}


# By name: what a user may type, below the help of the command.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "build": ("genret build films.tsv --out films.index", "genret build films.tsv --dry-run"),
    "update": ("genret update films.index --add new.tsv", "genret update films.index --remove-id Q42"),
    "rollback": ("genret rollback films.index",),
    "tune": ("genret tune films.index --queries queries.tsv#train",),
    "inspect": ("genret inspect films.index", "genret inspect films.index --json"),
    "verify": ("genret verify films.index",),
    "train": ("genret train --catalogue films.tsv --preset tiny --out model",),
    "init-model": ("genret init-model ./SmolLM2-360M",),
    "doctor": ("genret doctor ./SmolLM2-360M", "genret doctor --json -"),
    "serve": ("genret serve films.index --http-port 8080", "genret serve --config server.toml"),
    "warm-cache": ("genret warm-cache", "NUMBA_CACHE_DIR=/cache genret warm-cache"),
    "deploy-ray": ("genret deploy-ray films.index --num-replicas 2",),
    "ask": ('genret ask films.index "film with a talking pig"',),
    "complete": ('genret complete films.index "the lor"',),
    "query": ('genret query "film with a talking pig" -k 3', "genret query - --json < queries.txt"),
    "score": ('genret score "film with a talking pig" Babe Cars',),
    "answer": ('genret answer --schema film.json "film with a talking pig"',),
    "health": ("genret health --wait 30",),
    "indexes": ("genret indexes", "genret indexes films --json"),
    "reload": ("genret reload films",),
    "token": ("genret token new --scope admin", "genret token check tokens.txt --json"),
    "link": ("genret link texts.jsonl --index films.index --out links.parquet",),
    "evaluate": ("genret evaluate --index films.index --set queries:queries.tsv --out report",),
    "demo": ("genret demo",),
}


class LazyGroup(click.Group):
    """A group that imports a command when it runs; its errors become one line on stderr and exit code 1."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which a user meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"genret.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        command.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in EXAMPLES.get(cmd_name, ()))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; for an unknown one, name the one that is most like it."""
        if args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}{did_you_mean(args[0], COMMANDS, '.')}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin so, without importing any, and the group's options."""
        found = [
            CompletionItem(n, help=about) for n, (_, about) in COMMANDS.items() if n.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, short_help) for name, (_, short_help) in COMMANDS.items()])

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
