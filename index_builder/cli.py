"""The command line of the builder: `build-index TITLES`, also `genret build`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from index_builder.build import BuildSummary, build_index
from index_builder.config import BuildOptions
from index_builder.describe import describe_build, describe_plan
from index_builder.journal import kept_records
from index_builder.plan import BuildPlan, plan_build
from index_builder.progress import Bar, BuildProgress, LogLines, Silent
from index_builder.publish import work_root
from index_builder.source_flags import SourceFlags, source_flags
from retrieval.defaults import default_model_dir
from retrieval.errors import GenretError, InputError
from retrieval.index.versions import live_or_none
from retrieval.interruption import INTERRUPTED, sigterm_as_interrupt
from retrieval.sources import STDIN
from retrieval.text import Rendering, TextTokenizer

_ENV = "GENRET_BUILD_"


@click.command(
    "build-index",
    context_settings={
        "show_default": True,
        "max_content_width": 100,
        "help_option_names": ["-h", "--help"],
    },
)
@click.argument("titles", metavar="TITLES...", nargs=-1, required=True, envvar=_ENV + "TITLES")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    envvar=_ENV + "OUT",
    show_envvar=True,
    show_default="the first of TITLES with its suffix replaced by .index",
    help="Index directory; an index that is there gets a new version.",
)
@click.option(
    "--tokenizer",
    metavar="DIR_OR_ID",
    envvar=_ENV + "TOKENIZER",
    show_envvar=True,
    show_default="that of the shipped default model",
    help="Tokenizer of the model that will write the titles: a checkpoint directory, a tokenizer.json or a "
    "hub id.",
)
@click.option(
    "--title-context",
    envvar=_ENV + "TITLE_CONTEXT",
    show_envvar=True,
    show_default="the checkpoint's, else empty",
    help="Last text of the prompt; titles are tokenised after it.",
)
@click.option(
    "--title-prefix",
    envvar=_ENV + "TITLE_PREFIX",
    show_envvar=True,
    show_default="the checkpoint's, else empty",
    help='Text in front of every title, such as " ".',
)
@click.option(
    "--title-suffix",
    envvar=_ENV + "TITLE_SUFFIX",
    show_envvar=True,
    show_default="the checkpoint's, else empty",
    help='Text behind every title, such as ">".',
)
@click.option(
    "--end-token",
    envvar=_ENV + "END_TOKEN",
    show_envvar=True,
    show_default="the tokenizer's end-of-sequence token",
    help="Token that closes every title.",
)
@source_flags(_ENV)
@click.option(
    "--max-bad-rows",
    type=click.IntRange(min=0),
    default=0,
    envvar=_ENV + "MAX_BAD_ROWS",
    show_envvar=True,
    help="Leave out up to this many bad rows; more fail the build.",
)
@click.option(
    "--rejects",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar=_ENV + "REJECTS",
    show_envvar=True,
    show_default="OUT.rejects.tsv",
    help="Where bad rows are written, if there are any; by a dry run, only when given.",
)
@click.option(
    "--max-title-tokens",
    type=click.IntRange(min=2),
    default=256,
    envvar=_ENV + "MAX_TITLE_TOKENS",
    show_envvar=True,
    help="Titles of more tokens, end token included, are bad rows.",
)
@click.option(
    "--keep-versions",
    type=click.IntRange(min=0),
    default=2,
    envvar=_ENV + "KEEP_VERSIONS",
    show_envvar=True,
    help="Superseded versions to keep beside the live one.",
)
@click.option(
    "--no-resume",
    is_flag=True,
    envvar=_ENV + "NO_RESUME",
    show_envvar=True,
    help="Begin anew, although an earlier build of the same input was cut short and could be taken up.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    envvar=_ENV + "DRY_RUN",
    show_envvar=True,
    help="Read and tokenise everything, build nothing, and say what a build would make.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    envvar=_ENV + "THREADS",
    show_envvar=True,
    show_default="all cores",
    help="Threads of the tokenizer.",
)
@click.option(
    "--json", "as_json", is_flag=True, envvar=_ENV + "JSON", show_envvar=True, help="Summary as JSON."
)
@click.option(
    "--quiet", is_flag=True, envvar=_ENV + "QUIET", show_envvar=True, help="No progress and no summary."
)
@click.option(
    "--debug", is_flag=True, envvar=_ENV + "DEBUG", show_envvar=True, help="Show tracebacks of errors."
)
def build_command(
    titles: tuple[str, ...],
    out: Path | None,
    tokenizer: str | None,
    title_context: str | None,
    title_prefix: str | None,
    title_suffix: str | None,
    end_token: str | None,
    flags: SourceFlags,
    max_bad_rows: int,
    rejects: Path | None,
    max_title_tokens: int,
    keep_versions: int,
    no_resume: bool,
    dry_run: bool,
    threads: int | None,
    as_json: bool,
    quiet: bool,
    debug: bool,
) -> None:
    """Build an index from files of TITLES ("-": standard input).

    The new version replaces the live one in one step, once it is complete; until then, and if anything
    fails, the live one stays as it is. A build that was interrupted goes on where it was when the same
    command runs again.
    """
    if out is None:
        if titles[0] == STDIN and not dry_run:
            raise click.UsageError("titles from standard input have no name; say where with --out INDEX")
        out = _beside(Path("titles" if titles[0] == STDIN else titles[0]))
    if threads is not None:  # read once, when the tokenizer first needs its thread pool
        os.environ["RAYON_NUM_THREADS"] = str(threads)
    overrides = {
        "context": title_context,
        "prefix": title_prefix,
        "suffix": title_suffix,
        "end_token": end_token,
    }
    before = live_or_none(out)
    with (
        answered(out, before, dry_run, debug),
        sigterm_as_interrupt(),
        shown_progress(quiet, "build-index") as progress,
    ):
        text_tokenizer = TextTokenizer.load(tokenizer if tokenizer is not None else default_model_dir())
        options = BuildOptions(
            out=out,
            format=flags.format,
            mapping=flags.mapping,
            aliases=flags.aliases,
            unescape_html=flags.unescape_html,
            rendering=_rendering(text_tokenizer, overrides),
            max_bad_rows=max_bad_rows,
            max_title_tokens=max_title_tokens,
            rejects=rejects if dry_run else rejects or out.with_name(out.name + ".rejects.tsv"),
            keep_versions=keep_versions,
            memory_limit=flags.memory_limit,
            resume=not no_resume,
        )
        made: BuildSummary | BuildPlan
        if dry_run:
            made = plan_build(titles, text_tokenizer, options, progress)
        else:
            made = build_index(titles, text_tokenizer, options, progress)
    if made.report and not quiet:
        where = "" if made.rejects_file is None else f"; all of them are in {made.rejects_file}"
        click.echo(f"{made.report}\nleft out{where}", err=True)
    if as_json:
        click.echo(json.dumps(made.to_json(), ensure_ascii=False))
    elif not quiet:
        click.echo(describe_plan(made) if isinstance(made, BuildPlan) else describe_build(made))


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


def _beside(titles: Path) -> Path:
    if titles.name in ("", ".."):  # "." and "/" are no files either, which the build says better
        titles = titles.resolve() / "titles"
    return titles.with_name((titles.stem or titles.name) + ".index")


def _rendering(tokenizer: TextTokenizer, overrides: dict[str, str | None]) -> Rendering:
    """Return the checkpoint's rendering, with what the command line says put over it."""
    base = Rendering.of_checkpoint(Path(tokenizer.source)) or Rendering()
    given = {name: value for name, value in overrides.items() if value is not None}
    return Rendering.from_json({**base.to_json(), **given})


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


@contextlib.contextmanager
def shown_progress(quiet: bool, command: str) -> Iterator[BuildProgress]:
    """Yield what shows the progress: a bar on a terminal, else lines with `command` in front, or nothing."""
    if quiet:
        yield Silent()
    elif sys.stderr.isatty():
        with Bar() as bar:
            yield bar
    else:
        yield LogLines(command=command)
