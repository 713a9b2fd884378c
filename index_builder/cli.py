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
from index_builder.config import BuildOptions, SourceFormat
from index_builder.progress import Bar, BuildProgress, LogLines, Silent
from retrieval.defaults import default_model_dir
from retrieval.errors import GenretError, IndexDirectoryError, InputError
from retrieval.index.versions import live_version
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
@click.argument("titles", metavar="TITLES", envvar=_ENV + "TITLES")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    envvar=_ENV + "OUT",
    show_envvar=True,
    show_default="TITLES with its suffix replaced by .index",
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
@click.option(
    "--format",
    "source_format",
    type=click.Choice(["auto", "tsv", "lines"]),
    default="auto",
    envvar=_ENV + "FORMAT",
    show_envvar=True,
    help="tsv: a header with `title`, optionally `entity_id` and `aliases` (separated by |), further columns "
    "are metadata. lines: one title per line. auto: tsv if line 1 has a field `title`.",
)
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
    help="Where bad rows are written, if there are any.",
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
    titles: str,
    out: Path | None,
    tokenizer: str | None,
    title_context: str | None,
    title_prefix: str | None,
    title_suffix: str | None,
    end_token: str | None,
    source_format: SourceFormat,
    max_bad_rows: int,
    rejects: Path | None,
    max_title_tokens: int,
    keep_versions: int,
    threads: int | None,
    as_json: bool,
    quiet: bool,
    debug: bool,
) -> None:
    """Build an index from a file of TITLES ("-": standard input).

    The new version replaces the live one in one step, once it is complete; until then, and if anything
    fails, the live one stays as it is.
    """
    if out is None:
        if titles == STDIN:
            raise click.UsageError("titles from standard input have no name; say where with --out INDEX")
        out = _beside(Path(titles))
    if threads is not None:  # read once, when the tokenizer first needs its thread pool
        os.environ["RAYON_NUM_THREADS"] = str(threads)
    before = _live(out)
    try:
        text_tokenizer = TextTokenizer.load(tokenizer if tokenizer is not None else default_model_dir())
        overrides = {
            "context": title_context,
            "prefix": title_prefix,
            "suffix": title_suffix,
            "end_token": end_token,
        }
        options = BuildOptions(
            out=out,
            format=source_format,
            rendering=_rendering(text_tokenizer, overrides),
            max_bad_rows=max_bad_rows,
            max_title_tokens=max_title_tokens,
            rejects=rejects or out.with_name(out.name + ".rejects.tsv"),
            keep_versions=keep_versions,
        )
        with sigterm_as_interrupt(), _progress(quiet) as progress:
            summary = build_index(titles, text_tokenizer, options, progress)
    except KeyboardInterrupt:
        click.echo(_interrupted(out, before), err=True)
        sys.exit(INTERRUPTED)
    except GenretError as error:
        if debug:
            raise
        if isinstance(error, InputError):
            raise click.UsageError(str(error)) from error
        raise click.ClickException(str(error)) from error
    if summary.report and not quiet:
        click.echo(f"{summary.report}\nleft out; all of them are in {summary.rejects_file}", err=True)
    if as_json:
        click.echo(json.dumps(summary.to_json(), ensure_ascii=False))
    elif not quiet:
        click.echo(_describe(summary))


def _beside(titles: Path) -> Path:
    if titles.name in ("", ".."):  # "." and "/" are no files either, which the build says better
        titles = titles.resolve() / "titles"
    return titles.with_name((titles.stem or titles.name) + ".index")


def _rendering(tokenizer: TextTokenizer, overrides: dict[str, str | None]) -> Rendering:
    """Return the checkpoint's rendering, with what the command line says put over it."""
    base = Rendering.of_checkpoint(Path(tokenizer.source)) or Rendering()
    given = {name: value for name, value in overrides.items() if value is not None}
    return Rendering.from_json({**base.to_json(), **given})


def _live(out: Path) -> str | None:
    try:
        return live_version(out)
    except IndexDirectoryError:  # none yet, or a damaged pointer, which the build replaces
        return None


def _interrupted(out: Path, before: str | None) -> str:
    now = _live(out)
    if now != before:
        return f"\ninterrupted after publication: {out} is now at version {now}"
    if before is None:
        return f"\ninterrupted: nothing was built at {out}"
    return f"\ninterrupted: {out} is unchanged, version {before} stays live"


@contextlib.contextmanager
def _progress(quiet: bool) -> Iterator[BuildProgress]:
    if quiet:
        yield Silent()
    elif sys.stderr.isatty():
        with Bar() as bar:
            yield bar
    else:
        yield LogLines()


def _describe(summary: BuildSummary) -> str:
    counts, manifest = summary.manifest.counts, summary.manifest
    lines = [
        f"{summary.index}: version {summary.version}",
        f"  {counts.entities:,} entities, {counts.rows:,} rows of up to {counts.depth} tokens, "
        f"{counts.nodes:,} trie nodes",
        f"  {manifest.num_bytes:,} bytes, {manifest.num_bytes / counts.rows:.1f} per row",
    ]
    duplicates = manifest.history[-1].duplicates
    if duplicates:
        lines.append(f"  {duplicates:,} repeated rows counted once")
    return "\n".join(lines)
