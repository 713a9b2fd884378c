"""Shared parts of the commands that make versions: options, progress, summaries, errors."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

from genret.retrieval.command_options import described_option, together
from genret.retrieval.errors import GenretError, InputError
from genret.retrieval.index.layout import WORK_DIR
from genret.retrieval.index.versions import live_or_none
from genret.retrieval.interruption import INTERRUPTED, sigterm_as_interrupt
from genret.retrieval.progress import ProgressDisplay, StepProgress

if TYPE_CHECKING:
    from genret.index_builder.build import BuildSummary
    from genret.index_builder.build_plan import BuildPlan
    from genret.index_builder.update import UpdateSummary

_F = TypeVar("_F", bound=Callable[..., Any])


def option_group(
    argument: str, read: Callable[..., Any], *options: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Callable[[_F], Callable[..., Any]]:
    """Return a decorator that adds options to a command, which gets them all as one argument.

    `read` makes its value; its parameters are the names of the options. An `InputError` is a usage error.
    """

    def decorate(command: _F) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_group(**values: Any) -> Any:
            taken = {name: values.pop(name) for name in inspect.signature(read).parameters}
            try:
                value = read(**taken)
            except InputError as error:
                raise usage_error(error) from error
            return command(**{argument: value}, **values)

        return together(*options)(with_group)

    return decorate


# Keywords, and with hyphens flags, by the names that errors have for what they say.
KEYWORDS = {"sources": "source", "types": "type", "title": "title_column", "entity_id": "id_column"}
KEYWORDS["weight"] = "weight_column"


def usage_error(error: InputError) -> click.UsageError:
    """Return an error as that of a command, which names the flag of what is wrong, if it has one."""
    context = click.get_current_context(silent=True)
    flag = f"--{KEYWORDS.get(error.field, error.field).replace('_', '-')}"
    has_one = context is not None and any(flag in option.opts for option in context.command.params)
    return click.UsageError(f"{flag if has_one else error.field}: {error.message}")


def bad_row_options(fails: str, place: str) -> Callable[[_F], _F]:
    """Return a decorator that adds `max_bad_rows` and `rejects`; `fails` names what too many bad rows fail.

    `place` is the name of the parameter that holds the index directory.
    """
    return together(
        described_option(
            "--max-bad-rows",
            f"Leave out up to this many bad rows; more fail the {fails}.",
            click.IntRange(min=0),
            0,
        ),
        described_option(
            "--rejects",
            "Where bad rows are written, if there are any; by a dry run, only when given.",
            click.Path(path_type=Path, dir_okay=False),
            show_default=f"{place}.rejects.tsv",
        ),
    )


keep_versions_option = described_option(
    "--keep-versions", "Superseded versions to keep beside the live one.", click.IntRange(min=0), 2
)


def options_like(table: Callable[..., Any]) -> Callable[[_F], _F]:
    """Return a decorator that adds the options of a function that options were added to."""

    def add(command: _F) -> _F:
        params = [*getattr(command, "__click_params__", ()), *vars(table)["__click_params__"]]
        vars(command)["__click_params__"] = params
        return command

    return add


threads_option = described_option(
    "--threads", "Threads of the tokenizer.", click.IntRange(min=1), show_default="all cores"
)
talk_options = together(
    described_option("--json as_json", "Summary as JSON.", is_flag=True),
    described_option("--quiet", "No progress and no summary.", is_flag=True),
    described_option("--debug", "Show tracebacks of errors.", is_flag=True),
)


def use_threads(threads: int | None) -> None:
    """Set the number of threads of the tokenizer; None: all cores."""
    if threads is not None:  # read once, when the tokenizer first needs its thread pool
        os.environ["RAYON_NUM_THREADS"] = str(threads)


def rejects_file(given: Path | None, index: Path, dry_run: bool) -> Path | None:
    """Return the file of bad rows: by default beside the index, none for a dry run."""
    index = index if index.name else index.resolve()  # "." has none
    return given if dry_run else given or index.with_name(index.name + ".rejects.tsv")


def left_out(summary: BuildSummary | BuildPlan | UpdateSummary) -> str:
    """Return the report on bad rows."""
    where = "" if summary.rejects_file is None else f"; all of them are in {summary.rejects_file}"
    return f"{summary.report}\nleft out{where}"


def tell(summary: BuildSummary | BuildPlan | UpdateSummary, as_json: bool, quiet: bool) -> None:
    """Print the summary, as JSON or as text, and the report on bad rows to standard error."""
    if summary.report and not quiet:
        click.echo(left_out(summary), err=True)
    if as_json:
        click.echo(json.dumps(summary.to_dict(), ensure_ascii=False))
    elif not quiet:
        click.echo(str(summary))


@contextlib.contextmanager
def answered(out: Path, before: str | None, dry_run: bool, debug: bool) -> Iterator[None]:
    """Turn errors and interrupts into messages and exit codes."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo("\ninterrupted" if dry_run else _interrupted(out, before), err=True)
        sys.exit(INTERRUPTED)
    except GenretError as error:
        if debug:
            raise
        if isinstance(error, InputError):
            raise usage_error(error) from error
        raise click.ClickException(str(error)) from error


@contextlib.contextmanager
def making_version(
    out: Path, command: str, dry_run: bool, quiet: bool, debug: bool
) -> Iterator[StepProgress]:
    """Yield the progress of a command that makes a version of an index; see `answered`."""
    with (
        answered(out, live_or_none(out), dry_run, debug),
        sigterm_as_interrupt(),
        shown_progress(quiet, command) as progress,
    ):
        yield progress


@contextlib.contextmanager
def shown_progress(quiet: bool, command: str) -> Iterator[StepProgress]:
    """Yield a progress that shows a bar on a terminal, else lines prefixed with `command`, or nothing."""
    if quiet:
        yield StepProgress()
        return
    with ProgressDisplay(_columns, prefix=f"{command}: ") as display:
        yield StepProgress(display)


def _columns() -> list[ProgressColumn]:
    text, note = TextColumn("{task.description}"), TextColumn("{task.fields[note]}")
    return [SpinnerColumn(), text, BarColumn(), note, TimeElapsedColumn()]


def _interrupted(out: Path, before: str | None) -> str:
    # Imported late: what was interrupted has it, and other commands do without.
    from genret.index_builder.shard_maker import kept_records

    now = live_or_none(out)
    if now != before:
        return f"\ninterrupted after publication: {out} is now at version {now}"
    kept = kept_records(out / WORK_DIR)
    noun = "record is" if kept == 1 else "records are"
    go_on = f"; {kept:,} {noun} tokenised already: the same command goes on from there" if kept else ""
    if before is None:
        return f"\ninterrupted: nothing was built at {out}{go_on}"
    return f"\ninterrupted: {out} is unchanged, version {before} stays live{go_on}"
