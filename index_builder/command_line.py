"""What the commands that make versions have in common: options, progress, summaries, errors."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

from index_builder.publish import work_root
from index_builder.workplace import kept_records
from retrieval.compatibility import default_model_of
from retrieval.defaults import default_model, missing_weights, small_model_dir
from retrieval.errors import GenretError, InputError
from retrieval.index.reader import Index
from retrieval.index.versions import live_or_none
from retrieval.interruption import INTERRUPTED
from retrieval.progress import ProgressDisplay, StepProgress
from retrieval.text import TextTokenizer

_F = TypeVar("_F", bound=Callable[..., Any])


class Summary(Protocol):
    """What a command has to say in the end."""

    @property
    def report(self) -> str:
        """A few lines about the bad rows; "" when there are none."""

    @property
    def rejects_file(self) -> Path | None:
        """Where the bad rows were written, or None."""

    def to_json(self) -> dict[str, Any]:
        """Return everything as a JSON object."""


def bad_row_options(prefix: str, fails: str, place: str) -> Callable[[_F], _F]:
    """Return a decorator that adds `max_bad_rows` and `rejects`.

    Args:
        prefix: Of the environment variables, such as "GENRET_BUILD_".
        fails: What too many bad rows fail.
        place: Name of the parameter that says where the index is.
    """
    return _options(
        click.option(
            "--max-bad-rows",
            type=click.IntRange(min=0),
            default=0,
            envvar=prefix + "MAX_BAD_ROWS",
            show_envvar=True,
            help=f"Leave out up to this many bad rows; more fail the {fails}.",
        ),
        click.option(
            "--rejects",
            type=click.Path(path_type=Path, dir_okay=False),
            envvar=prefix + "REJECTS",
            show_envvar=True,
            show_default=f"{place}.rejects.tsv",
            help="Where bad rows are written, if there are any; by a dry run, only when given.",
        ),
    )


def keep_versions_option(prefix: str) -> Callable[[_F], _F]:
    """Return a decorator that adds `keep_versions`; `prefix` as in `bad_row_options`."""
    return click.option(
        "--keep-versions",
        type=click.IntRange(min=0),
        default=2,
        envvar=prefix + "KEEP_VERSIONS",
        show_envvar=True,
        help="Superseded versions to keep beside the live one.",
    )


def talk_options(prefix: str, has_threads: bool = True) -> Callable[[_F], _F]:
    """Return a decorator that adds `threads`, `as_json`, `quiet` and `debug`; `prefix` as above.

    Args:
        prefix: As in `bad_row_options`.
        has_threads: Whether the command has a tokenizer of its own to give threads to.
    """
    threads = click.option(
        "--threads",
        type=click.IntRange(min=1),
        envvar=prefix + "THREADS",
        show_envvar=True,
        show_default="all cores",
        help="Threads of the tokenizer.",
    )
    return _options(
        *((threads,) if has_threads else ()),
        click.option(
            "--json",
            "as_json",
            is_flag=True,
            envvar=prefix + "JSON",
            show_envvar=True,
            help="Summary as JSON.",
        ),
        click.option(
            "--quiet",
            is_flag=True,
            envvar=prefix + "QUIET",
            show_envvar=True,
            help="No progress and no summary.",
        ),
        click.option(
            "--debug",
            is_flag=True,
            envvar=prefix + "DEBUG",
            show_envvar=True,
            help="Show tracebacks of errors.",
        ),
    )


def use_threads(threads: int | None) -> None:
    """Tell the tokenizer how many threads to use; None: all cores."""
    if threads is not None:  # read once, when the tokenizer first needs its thread pool
        os.environ["RAYON_NUM_THREADS"] = str(threads)


def load_tokenizer(name: str | None) -> TextTokenizer:
    """Return the tokenizer named, or that of the shipped model that can be used here, which is told."""
    if name is not None:
        return TextTokenizer.load(name)
    model = default_model()
    if model == small_model_dir() and (missing := missing_weights()) is not None:
        click.echo(f"titles get the tokens of the small model; for the default model: {missing}", err=True)
    return TextTokenizer.load(model)


def tokenizer_of(index: Path) -> TextTokenizer:
    """Return the tokenizer of the shipped model that an index was built for.

    Raises:
        GenretError: there is no such model here, or no index.
    """
    with Index.open(index, verify_digests=False) as opened:
        return TextTokenizer.load(default_model_of(opened))


def rejects_file(given: Path | None, index: Path, dry_run: bool) -> Path | None:
    """Return where bad rows are written: beside the index, if not said otherwise; by a dry run nowhere."""
    return given if dry_run else given or index.with_name(index.name + ".rejects.tsv")


def tell(summary: Summary, text: str, as_json: bool, quiet: bool) -> None:
    """Write what was made, as JSON or as `text`, and a few bad rows to standard error."""
    if summary.report and not quiet:
        where = "" if summary.rejects_file is None else f"; all of them are in {summary.rejects_file}"
        click.echo(f"{summary.report}\nleft out{where}", err=True)
    if as_json:
        click.echo(json.dumps(summary.to_json(), ensure_ascii=False))
    elif not quiet:
        click.echo(text)


@contextlib.contextmanager
def answered(out: Path, before: str | None, dry_run: bool, debug: bool) -> Iterator[None]:
    """Turn what may go wrong into lines and exit codes."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo("\ninterrupted" if dry_run else _interrupted(out, before), err=True)
        sys.exit(INTERRUPTED)
    except GenretError as error:
        if debug:
            raise
        if isinstance(error, InputError):
            raise click.UsageError(str(error)) from error
        raise click.ClickException(str(error)) from error


@contextlib.contextmanager
def shown_progress(quiet: bool, command: str) -> Iterator[StepProgress]:
    """Yield what shows the progress: a bar on a terminal, else lines with `command` in front, or nothing."""
    if quiet:
        yield StepProgress()
        return
    with ProgressDisplay(_columns, prefix=f"{command}: ") as display:
        yield StepProgress(display)


def _columns() -> list[ProgressColumn]:
    text, note = TextColumn("{task.description}"), TextColumn("{task.fields[note]}")
    return [SpinnerColumn(), text, BarColumn(), note, TimeElapsedColumn()]


def _interrupted(out: Path, before: str | None) -> str:
    now = live_or_none(out)
    if now != before:
        return f"\ninterrupted after publication: {out} is now at version {now}"
    kept = kept_records(work_root(out))
    noun = "record is" if kept == 1 else "records are"
    go_on = f"; {kept:,} {noun} tokenised already: the same command goes on from there" if kept else ""
    if before is None:
        return f"\ninterrupted: nothing was built at {out}{go_on}"
    return f"\ninterrupted: {out} is unchanged, version {before} stays live{go_on}"


def _options(*options: Callable[[_F], _F]) -> Callable[[_F], _F]:
    """Return one decorator for several, which the help shows in this order."""

    def decorate(command: _F) -> _F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
