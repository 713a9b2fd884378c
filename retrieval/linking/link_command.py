"""`genret link`: link a corpus of documents. Its options come in groups, under headings in its help."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from genret.retrieval.arguments import options_of
from genret.retrieval.command_options import (
    DEVICE,
    DTYPE,
    ENCODER,
    ENGINE,
    MODEL,
    SHOWN,
    GroupedCommand,
    flag_names,
    flag_settings,
    grouped,
)
from genret.retrieval.errors import GenretError, InputError
from genret.retrieval.interruption import INTERRUPTED, surely_interrupted
from genret.retrieval.linking.documents.corpus import INPUT_FORMATS, SPAN_UNITS, CorpusOptions
from genret.retrieval.linking.finding.find_options import CASES, FindOptions
from genret.retrieval.linking.link_options import (
    CANDIDATE_SETS,
    MENTION_SOURCES,
    OUTPUT_FORMATS,
    LinkOptions,
    WorkerOptions,
)
from genret.retrieval.linking.run_progress import counted, sentence, shown_run
from genret.retrieval.progress import duration
from genret.retrieval.types import RetrieveRequest

if TYPE_CHECKING:
    from genret.retrieval.linking.run import LinkSummary
    from genret.retrieval.linking.run_plan import RunPlan

_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Any])
Flag = tuple[tuple[str, ...], Mapping[str, Any]]


def flag(*names: str, **settings: Any) -> Flag:
    """Return names and settings of an option that shows its default and the variable that sets it.

    A name without dashes is that of the value.
    """
    return names, {**SHOWN, **settings}


def asked(name: str, **changes: Any) -> Flag:
    """Return the option of a request of this name, with the settings that differ for mentions."""
    option = options_of(RetrieveRequest)[name]
    return (*flag_names(option), name), {**flag_settings(option), **changes}


def flag_group(heading: str, *flags: Flag) -> Callable[[_F], _F]:
    """Return a decorator that adds options to a command, under a heading in its help."""
    return grouped(heading, *(click.option(*names, **settings) for names, settings in flags))


output_flags = flag_group(
    "Output",
    flag(
        "--out",
        required=True,
        type=click.Path(),
        help="A folder of part files; or a name that ends in .parquet or .jsonl: one file, which is made "
        "of parts in NAME.parts in the end.",
    ),
    flag(
        "--format",
        type=click.Choice(OUTPUT_FORMATS),
        help="Format of the parts of a folder.",
        show_default="parquet; of one file its name says it",
    ),
    flag(
        "--overwrite",
        is_flag=True,
        help="Replace the output of another run. Only what such a run wrote is deleted.",
    ),
    flag("--keep-parts", is_flag=True, help="Keep NAME.parts when the one file is made."),
    flag("--drop-nil", is_flag=True, help="Leave mentions without an entity out of the output."),
)


input_flags = flag_group(
    "Input",
    flag(
        "--input-format",
        type=click.Choice(INPUT_FORMATS),
        default="auto",
        help="text: a file is a document; lines: a line is one; auto: by the names.",
    ),
    flag("--id-field", default="id", help="Field or column with a document's id."),
    flag("--text-field", default="text", help="Field or column with its text."),
    flag(
        "--mentions-field",
        default="mentions",
        help="Field or column with its marked spans: objects with start, end and optionally id.",
    ),
    flag("--span-unit", type=click.Choice(SPAN_UNITS), default="codepoint", help="What marked spans count."),
    flag(
        "--max-bad-rows",
        type=click.IntRange(min=0),
        default=0,
        help="Leave out up to this many lines that are no documents; one more ends the run.",
    ),
    flag(
        "--shard-documents",
        default=CorpusOptions(()).shard_documents,
        help="Most documents of a shard, which is what is lost at most when a worker is killed.",
    ),
    flag(
        "--shard-chars",
        default=CorpusOptions(()).shard_chars,
        help="Most characters of a shard; a longer document is linked in parts.",
    ),
)


model_flags = flag_group(
    "Index and model",
    flag("--index", required=True, type=click.Path(), help="Index directory."),
    flag(
        "--verify/--no-verify",
        "verify_digests",
        default=True,
        help="Check the digests of the index's files first.",
    ),
    flag("--model", **MODEL),
    flag("--encoder", **ENCODER),
    flag("--device", **DEVICE),
    flag("--dtype", **DTYPE),
    flag("--engine", **ENGINE),
    flag("--threads", type=click.IntRange(min=1), default=1, help="Torch threads of every worker on a CPU."),
    flag("--batch-size", type=int, default=32, help="Mentions per forward."),
    flag(
        "--cache-entries",
        default=WorkerOptions(index="").cache_entries,
        help="Answers that every worker keeps for mentions put to the model in the same words.",
    ),
)


run_flags = flag_group(
    "Run",
    flag(
        "--runner",
        type=click.Choice(["local", "ray"]),
        default="local",
        help="local: processes of this machine; ray: actors of a Ray cluster, which needs the extra ray.",
    ),
    flag(
        "--workers",
        type=click.IntRange(min=1),
        help="How many link at the same time, each with index and model of its own; 1: this process.",
        show_default="one per usable core; one with a GPU; with Ray what the cluster has room for",
    ),
    flag("--ray-address", help="Ray cluster: auto, or HOST:PORT.", show_default="one is started here"),
    flag(
        "--max-failed",
        type=click.IntRange(min=0),
        help="Mentions that may end by an error before the run does; they are NIL, with their error.",
        show_default="any number",
    ),
    flag(
        "--dry-run",
        is_flag=True,
        help="Read the inputs, say what would be linked and what is done already, and write nothing.",
    ),
    flag("--quiet", is_flag=True, help="No progress, warnings and summary."),
    flag("--json", is_flag=True, help="Print the summary as JSON on standard output."),
)


def default_cache_dir() -> Path | None:
    """Return `genret` in the user's folder for caches; None for a user without a home (containers)."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):  # by the XDG specification a relative path there is to be ignored
        return Path(given) / "genret"
    try:
        return Path("~/.cache/genret").expanduser()
    except RuntimeError:
        return None


mention_flags = flag_group(
    "Mentions that are found, which are names of the index in the text",
    flag(
        "--case",
        type=click.Choice(CASES),
        default="smart",
        help="smart: where the letter case and the words of the text make a name likelier than other "
        "words; sensitive: as the index writes it; insensitive: in any letter case.",
    ),
    flag("--min-chars", type=int, default=FindOptions().min_chars, help="Shorter names are not looked for."),
    flag(
        "--max-entities",
        type=click.IntRange(min=0),
        default=FindOptions().max_entities,
        help="Names of more entities are not looked for; 0: all are.",
    ),
    flag(
        "--max-short-entities",
        type=click.IntRange(min=0),
        default=FindOptions().max_short_entities,
        help="The same for names of one word with at most 3 characters.",
    ),
    flag(
        "--stop-words",
        default="english",
        help="Names that are one such word alone are not looked for: english, none, or a file with one "
        "word per line.",
    ),
    flag(
        "--cache-dir",
        type=click.Path(file_okay=False, path_type=Path),
        help="Where the index's table of names is kept: it is made once, and all workers share it.",
        show_default="genret in $XDG_CACHE_HOME, else in ~/.cache",
    ),
)


linking_flags = flag_group(
    "Linking",
    flag(
        "--mentions",
        type=click.Choice(MENTION_SOURCES),
        default="auto",
        help="given: the documents mark them; found: names of the index; generated: the model writes the "
        "text again with links in it; auto: given where a document marks any, else found.",
    ),
    flag(
        "--candidates",
        type=click.Choice(CANDIDATE_SETS),
        default="auto",
        help="What a mention may be linked to: all entities, or those named so; auto: found mentions to "
        "those named so, given ones to all.",
    ),
    asked(
        "method",
        help="beam: the k most probable titles; disc: samples and their shares; shortlist: entities that "
        "the index's evidence proposes, all of them scored; auto: what beam or disc finds and a "
        "shortlist, in the order of the index's ranking; without evidence just beam or disc.",
    ),
    asked("decoder", help="auto: what finds entities beside the evidence."),
    asked(
        "shortlist_size",
        help="shortlist, auto: entities that the evidence proposes, at most 2000.",
        show_default="shortlist: 100; auto: 24",
    ),
    asked(
        "vector_weight",
        help="shortlist, auto: what a similarity of 1 adds to the log-probability, at most 1000; auto: "
        "in place of the ranking.",
        show_default="shortlist: 0; auto: the ranking makes the order",
    ),
    asked(
        "title_weight",
        help="How much more a title counts than an alias where entities share a name, above 0.",
    ),
    asked("k", default=5, help="Candidates kept per mention, at most 1000."),
    asked("beam_size"),
    asked("seed", default=0, help="disc: the same seed gives the same answers.", show_default=True),
    asked("prompt", show_default="the checkpoint's for mentions"),
    flag(
        "--context-chars",
        type=int,
        help="Characters of text on either side of a mention that the model sees.",
        show_default="the template's",
    ),
    flag(
        "--min-logprob",
        type=float,
        help="Mentions whose best candidate has a lower log-probability are NIL.",
        show_default="no limit",
    ),
    flag(
        "--min-probability",
        type=float,
        help="The same for its probability to be the one meant, in [0, 1].",
        show_default="no limit",
    ),
    asked(
        "min_mass",
        help="disc: NIL when the model's probability that its answer is in the catalogue is below this, "
        "in [0, 1].",
    ),
    *map(asked, ("adaptive", "exact", "exact_budget", "length_penalty", "aggregate")),
    asked("filter", help="Link to entities for which this is true: kind = 'city' and population > 100000"),
)


@click.command("link", cls=GroupedCommand, context_settings={"max_content_width": 100})
@click.argument("inputs", nargs=-1, required=True, type=click.Path())
@output_flags
@input_flags
@model_flags
@linking_flags
@mention_flags
@run_flags
def link_command(inputs: tuple[str, ...], **values: Any) -> None:
    """Link the mentions in INPUTS, documents as JSON Lines, Parquet, text or folders of these.

    Every JSON object or Parquet row has a "text", and optionally an "id" and "mentions", the spans that are
    to be linked. The output has one row per mention, in the order of the documents: where it is, in
    characters and bytes, its entity, title, log-probability and candidates. A mention without an entity is
    NIL: its entity_id is null, and nil_reason says why.

    The output is written shard by shard. A run that was interrupted or killed goes on with the same command
    where it was; when inputs, options, index or model have changed since, it is refused and the change named.
    """
    with _answered(values["out"]), surely_interrupted():
        # Loads pyarrow.
        from genret.retrieval.linking.run import OutputOptions, RunnerOptions, link_corpus, plan_corpus_run

        unlimited = {name: None for name in ("max_entities", "max_short_entities") if values[name] == 0}
        find = _made(FindOptions, values, **unlimited)
        corpus = _made(CorpusOptions, values, inputs=inputs)
        options = _made(LinkOptions, values, find=find, keep_nil=not values["drop_nil"])
        cache_dir = values["cache_dir"] or default_cache_dir()
        worker = _made(
            WorkerOptions,
            values,
            num_threads=values["threads"],
            cache_dir=None if cache_dir is None else str(cache_dir),
        )
        target = _made(OutputOptions, values, output_format=values["format"])
        runner = RunnerOptions(values["runner"], values["workers"], values["ray_address"])
        if values["dry_run"]:
            _tell_plan(plan_corpus_run(corpus, target, worker, options), values["json"])
            return
        with shown_run(values["quiet"]) as display:
            summary = link_corpus(corpus, target, worker, options, runner, display)
        _tell(summary, values["json"], values["quiet"])


def _made(kind: Callable[..., _T], values: Mapping[str, Any], **others: Any) -> _T:
    """Return a dataclass made of the options of the command that have the names of its fields."""
    names = signature(kind).parameters.keys() & values.keys()
    return kind(**{name: values[name] for name in names} | others)


@contextmanager
def _answered(out: str) -> Iterator[None]:
    """Turn errors into lines and exit codes; that of an option or of the argument is a usage error."""
    try:
        yield
    except InputError as error:
        name = "INPUTS" if error.field == "inputs" else "--" + error.field.replace("_", "-")
        raise click.UsageError(f"{name}: {error.message}") from error
    except KeyboardInterrupt as error:
        kept = _notes(error) or f"{out} is as it was before"
        click.echo(f"\ninterrupted: {kept}", err=True)
        sys.exit(INTERRUPTED)
    except GenretError as error:
        raise click.ClickException("\n".join(filter(None, (str(error), _notes(error))))) from error


def _tell(summary: LinkSummary, as_json: bool, quiet: bool) -> None:
    if as_json:
        click.echo(json.dumps(summary.to_dict(), ensure_ascii=False))
    if quiet or as_json:
        return
    if summary.was_complete:
        click.echo(f"{summary.out} is complete already: {sentence(summary.counts)}", err=True)
        return
    seconds = summary.seconds
    text = f"{sentence(summary.counts)} in {f'{seconds:.1f} s' if seconds < 60 else duration(seconds)}"
    if summary.num_resumed:
        text += f" ({summary.num_resumed:,} of {counted(summary.num_shards, 'shard')} were done before)"
    click.echo(f"{text} -> {summary.out}", err=True)


def _tell_plan(plan: RunPlan, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(plan.to_json(), ensure_ascii=False))
        return
    text = f"{counted(plan.corpus.num_documents, 'document')} of {counted(plan.corpus.num_bytes, 'byte')} in "
    text += counted(len(plan.corpus.shards), "shard")
    if plan.is_complete:
        text += f"; {plan.target.name} is complete already"
    elif plan.done:
        text += f"; {len(plan.done):,} are done, {len(plan.missing):,} would be linked"
    click.echo(f"{text} -> {plan.target.name}")


def _notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", ()))
