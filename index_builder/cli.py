"""The command line of the builder: `build-index TITLES`, also `genret build`."""

from __future__ import annotations

from pathlib import Path

import click

from index_builder.build import BuildSummary, build_index
from index_builder.command_line import (
    answered,
    bad_row_options,
    keep_versions_option,
    load_tokenizer,
    rejects_file,
    shown_progress,
    talk_options,
    tell,
    use_threads,
)
from index_builder.config import BuildOptions
from index_builder.describe import describe_build, describe_plan
from index_builder.evidence_flags import EvidenceWishes, build_evidence_flags
from index_builder.plan import BuildPlan, plan_build
from index_builder.source_flags import SourceFlags, source_flags
from retrieval.checkpoints import SETTINGS_FILE, settings_folder
from retrieval.index.versions import live_or_none
from retrieval.interruption import sigterm_as_interrupt
from retrieval.options import prompt_option
from retrieval.prompts import CheckpointConfig
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
    show_default="that of --weigh-model, else of the default model",
    help="Tokenizer of the model that will write the titles: a checkpoint directory, a tokenizer.json or a "
    "hub id.",
)
@prompt_option(
    "The template the index is for: it says how titles are rendered, as far as no --title-... does.",
    envvar=_ENV + "PROMPT",
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
    show_default="the prompt's, else the tokenizer's end-of-sequence token",
    help="Token that closes every title: one of the vocabulary, or text that is one, such as \\n.",
)
@source_flags(_ENV)
@build_evidence_flags(_ENV)
@bad_row_options(_ENV, fails="build", place="OUT")
@click.option(
    "--max-title-tokens",
    type=click.IntRange(min=2),
    default=256,
    envvar=_ENV + "MAX_TITLE_TOKENS",
    show_envvar=True,
    help="Titles of more tokens, end token included, are bad rows.",
)
@keep_versions_option(_ENV)
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
@talk_options(_ENV)
def build_command(
    titles: tuple[str, ...],
    out: Path | None,
    tokenizer: str | None,
    prompt: str | None,
    title_context: str | None,
    title_prefix: str | None,
    title_suffix: str | None,
    end_token: str | None,
    flags: SourceFlags,
    evidence: EvidenceWishes,
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
    use_threads(threads)
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
        weighed = None if evidence.evidence is None else evidence.evidence.model_place
        text_tokenizer = load_tokenizer(tokenizer or weighed)
        rendering = _rendering(text_tokenizer, prompt, overrides)
        if (doubt := text_tokenizer.doubt_of_end(rendering)) is not None:
            click.echo(f"warning: {doubt}", err=True)
        options = BuildOptions(
            out=out,
            format=flags.format,
            mapping=flags.mapping,
            aliases=flags.aliases,
            unescape_html=flags.unescape_html,
            rendering=rendering,
            prompt=prompt,
            max_bad_rows=max_bad_rows,
            max_title_tokens=max_title_tokens,
            rejects=rejects_file(rejects, out, dry_run),
            keep_versions=keep_versions,
            memory_limit=flags.memory_limit,
            resume=not no_resume,
            evidence=evidence.evidence,
            vectors=evidence.vectors,
            threads=threads,
        )
        made: BuildSummary | BuildPlan
        if dry_run:
            made = plan_build(titles, text_tokenizer, options, progress)
        else:
            made = build_index(titles, text_tokenizer, options, progress)
    told = describe_plan(made) if isinstance(made, BuildPlan) else describe_build(made)
    tell(made, told, as_json, quiet)


def _beside(titles: Path) -> Path:
    if titles.name in ("", ".."):  # "." and "/" are no files either, which the build says better
        titles = titles.resolve() / "titles"
    return titles.with_name((titles.stem or titles.name) + ".index")


def _rendering(tokenizer: TextTokenizer, prompt: str | None, overrides: dict[str, str | None]) -> Rendering:
    """Return the rendering of a prompt of the checkpoint, with what the command line says put over it.

    Raises:
        InputError: there is no such prompt, or an option is no text.
        ModelError: the checkpoint's `genret.json` is malformed.
    """
    folder = Path(tokenizer.source)
    base = Rendering()  # of a tokenizer alone
    settings = settings_folder(folder)
    if prompt is not None or any((settings / name).is_file() for name in ("config.json", SETTINGS_FILE)):
        base = CheckpointConfig.load(folder).with_prompt(prompt).title_rendering()
    given = {name: value for name, value in overrides.items() if value is not None}
    if "end_token" in given:
        given["end_token"] = given["end_token"].replace("\\n", "\n")  # as it is written in a shell
    return Rendering.from_json({**base.to_json(), **given})
