"""The commands `build-index TITLES`, also `genret build`, and `genret update INDEX`, and their reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from genret.index_builder.build import BuildSummary, build_index
from genret.index_builder.build_options import (
    BuildOptions,
    EvidenceChange,
    EvidenceOptions,
    VectorBuildOptions,
    VectorChange,
)
from genret.index_builder.build_plan import BuildPlan, plan_build
from genret.index_builder.command_line import (
    bad_row_options,
    keep_versions_option,
    making_version,
    options_like,
    rejects_file,
    talk_options,
    tell,
    threads_option,
    use_threads,
)
from genret.index_builder.flags import build_evidence_flags, row_count, source_flags, update_evidence_flags
from genret.index_builder.source_copies import Source, source_copies
from genret.index_builder.update import UpdateRequest, update_index
from genret.retrieval.checkpoints import SETTINGS_FILE, settings_folder
from genret.retrieval.command_options import GroupedCommand, grouped, prompt_option
from genret.retrieval.command_options import described_option as option
from genret.retrieval.compatibility import default_model_of
from genret.retrieval.defaults import default_model, missing_weights, small_model_dir
from genret.retrieval.index.reader import Index
from genret.retrieval.progress import StepProgress
from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.sources.remote_files import is_remote, shown_address, source_path
from genret.retrieval.sources.source_files import STDIN
from genret.retrieval.text import Rendering, TextTokenizer


@option(
    "--tokenizer",
    "Tokenizer of the model that will write the titles: a checkpoint directory, a tokenizer.json or a "
    "hub id.",
    metavar="DIR_OR_ID",
    show_default="that of --weigh-model, else of the default model",
)
@prompt_option(
    "The template the index is for: it says how titles are rendered, as far as no --title-... does.",
)
@option(
    "--title-context",
    "Last text of the prompt; titles are tokenised after it.",
    show_default="the checkpoint's, else empty",
)
@option(
    "--title-prefix",
    'Text in front of every title, such as " ".',
    show_default="the checkpoint's, else empty",
)
@option(
    "--title-suffix", 'Text behind every title, such as ">".', show_default="the checkpoint's, else empty"
)
@option(
    "--end-token",
    "Token that closes every title: one of the vocabulary, or text that is one, such as \\n.",
    show_default="the prompt's, else the tokenizer's end-of-sequence token",
)
@grouped("Catalogue files", source_flags)
@grouped("Evidence and vectors", build_evidence_flags)
@bad_row_options(fails="build", place="OUT")
@option(
    "--max-title-tokens",
    "Titles of more tokens, end token included, are bad rows.",
    click.IntRange(min=2),
    256,
)
@keep_versions_option
@option(
    "--no-resume",
    "Begin anew, although an earlier build of the same input was cut short and could be taken up.",
    is_flag=True,
)
@option(
    "--dry-run",
    "Build nothing, and say what a build would make: exactly, or of a large input by a sample.",
    is_flag=True,
)
@option(
    "--sql",
    "TITLES is a database, sqlite:///shop.db or postgresql://user@host/database, and the rows are the "
    "result of this query; needs the extra `sql`.",
    metavar="QUERY",
    show_default="none",
)
@option(
    "--sample",
    "Rows that a dry run reads, of an input of at least twice as many; 0 or all: every one, which "
    "finds all bad rows.",
    row_count,
    metavar="ROWS|all",
    show_default="10000 of more than 100,000 rows, or all with --rejects",
)
@threads_option
def build_wish(
    tokenizer: str | None,
    prompt: str | None,
    title_context: str | None,
    title_prefix: str | None,
    title_suffix: str | None,
    end_token: str | None,
    options: BuildOptions,
    evidence: tuple[EvidenceOptions | None, VectorBuildOptions | None],
    no_resume: bool,
    dry_run: bool,
    sample: int | None,
    sql: str | None,
    **limits: Any,
) -> BuildWish:
    """Return what the options of a build say; the table of these options is `build_wish.__click_params__`."""
    overrides = {
        "context": title_context,
        "prefix": title_prefix,
        "suffix": title_suffix,
        "end_token": end_token,
    }
    fields, vectors = evidence
    options = replace(
        options, prompt=prompt, resume=not no_resume, evidence=fields, vectors=vectors, **limits
    )
    given = {name: value for name, value in overrides.items() if value is not None}
    if sample is not None and not dry_run:
        raise click.UsageError("--sample goes with --dry-run")
    if options.rejects is not None and dry_run:
        if sample:
            raise click.UsageError("--rejects takes all rows: it goes with --sample 0")
        sample = 0
    return BuildWish(options, tokenizer, given, dry_run, sample, sql)


@dataclass(frozen=True, slots=True)
class BuildWish:
    """A build as its options say it, before a tokenizer is loaded."""

    options: BuildOptions  # options without a place and a rendering
    # Place of the tokenizer; None: that of the model to weigh, else of the default model
    tokenizer: str | None
    overrides: dict[str, str]  # parts of the rendering of titles, by name, that go before those of the prompt
    dry_run: bool  # whether nothing is to be built
    sample: int | None  # rows that a dry run reads, as `plan_build` has it
    sql: str | None  # query whose result is the source; None: the sources are files or rows

    @property
    def model(self) -> str | Path:
        """Place of the tokenizer."""
        weighed = None if self.options.evidence is None else self.options.evidence.model_place
        return self.tokenizer or weighed or default_model()

    @property
    def advice(self) -> str | None:
        """How to install the default model, in whose place the small one is used; None: it is not."""
        missing = missing_weights() if self.model == small_model_dir() else None
        return missing and f"titles have the tokens of the small model; for the default model: {missing}"

    def run(
        self, sources: Sequence[Source], out: Path, progress: StepProgress, warn: Callable[[str], None]
    ) -> BuildSummary | BuildPlan:
        """Build, or plan the build. Raises `GenretError` as `build_index` and `plan_build` do."""
        options, prompt = self.options, self.options.prompt
        use_threads(options.threads)
        tokenizer = TextTokenizer.load(self.model)
        rendering = _rendering(tokenizer, prompt, self.overrides)
        if (doubt := tokenizer.doubt_of_end(rendering)) is not None:
            warn(f"warning: {doubt}")
        rejects = rejects_file(options.rejects, out, self.dry_run)
        options = replace(options, out=out, rendering=rendering, rejects=rejects)
        with source_copies(out, self.dry_run, options.resume, progress) as copies:
            sources = copies.of(sources) if self.sql is None else copies.of_query(sources, self.sql)
            options = copies.for_options(options)
            if self.dry_run:
                return plan_build(sources, tokenizer, options, progress, self.sample)
            summary = build_index(sources, tokenizer, options, progress)
        if prompt is not None and prompt != CheckpointConfig.load(Path(tokenizer.source)).default_prompt:
            return replace(summary, prompt=prompt)
        return summary


@click.command(
    "build-index",
    cls=GroupedCommand,
    epilog="\b\nExamples:\n  build-index films.tsv --out films.index",
    context_settings={
        "auto_envvar_prefix": "GENRET_BUILD",
        "show_default": True,
        "max_content_width": 100,
        "help_option_names": ["-h", "--help"],
    },
)
@click.argument("titles", metavar="TITLES...", nargs=-1, required=True, envvar="GENRET_BUILD_TITLES")
@option(
    "--out",
    "Index directory; an index that is there gets a new version.",
    click.Path(path_type=Path, file_okay=False),
    show_default="the first of TITLES with its suffix replaced by .index",
)
@options_like(build_wish)
@talk_options
def build_command(
    titles: tuple[str, ...], out: Path | None, as_json: bool, quiet: bool, debug: bool, **said: Any
) -> None:
    """Build an index from files of TITLES, or their addresses such as s3://bucket/titles.parquet ("-":
    standard input).

    The new version replaces the live one in one step, once it is complete; until then, and if anything
    fails, the live one stays as it is. A build that was interrupted goes on where it was when the same
    command runs again.
    """
    wish = build_wish(**said)
    if out is None:
        if titles[0] == STDIN and not wish.dry_run:
            raise click.UsageError("titles from standard input have no name; say where with --out INDEX")
        first = shown_address(titles[0]).rpartition("/")[2] if is_remote(titles[0]) else titles[0]
        out = _beside(Path("titles" if first in (STDIN, "") else first))
    command = click.get_current_context().command_path
    with making_version(out, command, wish.dry_run, quiet, debug) as progress:
        made = wish.run(titles, out, progress, partial(click.echo, err=True))
    if wish.advice is not None:
        click.echo(wish.advice, err=True)
    tell(made, as_json, quiet)
    if isinstance(made, BuildPlan) and made.would_fail:
        raise click.exceptions.Exit(1)


def _beside(titles: Path) -> Path:
    if titles.name in ("", ".."):  # "." and "/" are no files either; the build has a better message for them
        titles = titles.resolve() / "titles"
    return titles.with_name((titles.stem or titles.name) + ".index")


def _rendering(tokenizer: TextTokenizer, prompt: str | None, given: dict[str, str]) -> Rendering:
    """Return the rendering of a checkpoint's prompt, with what the options say of it applied."""
    folder = Path(tokenizer.source)
    base = Rendering()  # if there is a tokenizer alone
    settings = settings_folder(folder)
    if prompt is not None or any((settings / name).is_file() for name in ("config.json", SETTINGS_FILE)):
        base = CheckpointConfig.load(folder).with_prompt(prompt).title_rendering()
    if "end_token" in given:  # as it is written in a shell
        given = {**given, "end_token": given["end_token"].replace("\\n", "\n")}
    return Rendering.from_json({**base.to_json(), **given})


@click.command(
    "update", cls=GroupedCommand, context_settings={"show_default": True, "max_content_width": 100}
)
@click.argument("index", type=click.Path(path_type=Path, file_okay=False))
@option(
    "--add",
    "A titles file, or its address. An entity whose id is there already replaces that one; without a "
    "column of ids, titles are ids. May be given several times.",
    source_path,
    multiple=True,
    metavar="FILE",
    show_default="none",
)
@option(
    "--remove",
    "A file of ids to remove, one per line. May be given several times.",
    click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    metavar="FILE",
    show_default="none",
)
@option(
    "--remove-id",
    "An id to remove. May be given several times.",
    multiple=True,
    metavar="ID",
    show_default="none",
)
@option("--ignore-missing", "Ids to remove that are not there are no bad rows.", is_flag=True)
@option(
    "--tokenizer",
    "The tokenizer the index was built with. Needed for --add alone.",
    metavar="DIR_OR_ID",
    show_default="that of the default model of the index",
)
@grouped("Catalogue files", source_flags)
@grouped("Evidence and vectors", update_evidence_flags)
@bad_row_options(fails="update", place="INDEX")
@keep_versions_option
@option("--dry-run", "Say what would change, and publish nothing.", is_flag=True)
@threads_option
@talk_options
def update_command(
    index: Path,
    add: tuple[Path, ...],
    remove: tuple[Path, ...],
    remove_id: tuple[str, ...],
    ignore_missing: bool,
    tokenizer: str | None,
    options: BuildOptions,
    evidence: tuple[EvidenceChange, VectorChange],
    rejects: Path | None,
    dry_run: bool,
    threads: int | None,
    as_json: bool,
    quiet: bool,
    debug: bool,
    **limits: Any,
) -> None:
    """Add, replace and remove entities of an INDEX, or change its evidence, vectors or weights.

    What is there and stays is not tokenised again. The new version replaces the live one in one step, and
    has the files that a build of the same entities would have. `genret rollback` takes it back. Evidence
    that is there is kept in step: past queries move with their entities, and vectors of texts that stay are
    taken over.
    """
    use_threads(threads)
    fields, vectors = evidence
    with making_version(index, "genret update", dry_run, quiet, debug) as progress:
        weight = options.mapping.weight
        request = UpdateRequest(add, remove, remove_id, ignore_missing, dry_run, vectors, weight, fields)
        rejects = rejects_file(rejects, index, dry_run)
        options = replace(options, out=index, rejects=rejects, threads=threads, **limits)
        loaded = None
        if add and tokenizer is None:
            with Index.open(index, verify_digests=False) as opened:
                tokenizer = str(default_model_of(opened))
        if add and tokenizer is not None:
            loaded = TextTokenizer.load(tokenizer)
        with source_copies(index, dry_run, True, progress) as copies:
            fields = replace(fields, queries=copies.of_queries(fields.queries))
            request = replace(request, add=copies.of_paths(add), evidence=fields)
            summary = update_index(request, loaded, copies.for_options(options), progress)
    tell(summary, as_json, quiet)
