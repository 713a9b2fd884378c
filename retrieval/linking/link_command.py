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
    GroupedCommand,
    flag_names,
    flag_settings,
    grouped,
    shown_option,
)
from genret.retrieval.command_options import described_option as option
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
_COUNT, _NATURAL = click.IntRange(min=1), click.IntRange(min=0)
_FIND = FindOptions()


def asked(name: str, **changes: Any) -> Callable[[Any], Any]:
    """Return the option of a request of this name, with the settings that differ for mentions."""
    request = options_of(RetrieveRequest)[name]
    return shown_option(*flag_names(request), name, **{**flag_settings(request), **changes})


output_flags = grouped(
    "Output",
    option(
        "--out",
        "A folder of part files; or a name that ends in .parquet or .jsonl: one file, which is made "
        "of parts in NAME.parts in the end.",
        click.Path(),
        required=True,
    ),
    option(
        "--format",
        "Format of the parts of a folder.",
        click.Choice(OUTPUT_FORMATS),
        show_default="parquet; of one file its name says it",
    ),
    option(
        "--overwrite",
        "Replace the output of another run. Only what such a run wrote is deleted.",
        is_flag=True,
    ),
    option("--keep-parts", "Keep NAME.parts when the one file is made.", is_flag=True),
    option("--drop-nil", "Leave mentions without an entity out of the output.", is_flag=True),
)

input_flags = grouped(
    "Input",
    option(
        "--input-format",
        "text: a file is a document; lines: a line is one; auto: by the names.",
        click.Choice(INPUT_FORMATS),
        "auto",
    ),
    option("--id-field", "Field or column with a document's id.", default="id"),
    option("--text-field", "Field or column with its text.", default="text"),
    option(
        "--mentions-field",
        "Field or column with its marked spans: objects with start, end and optionally id.",
        default="mentions",
    ),
    option("--span-unit", "What marked spans count.", click.Choice(SPAN_UNITS), "codepoint"),
    option(
        "--max-bad-rows",
        "Leave out up to this many lines that are no documents; one more ends the run.",
        _NATURAL,
        0,
    ),
    option(
        "--shard-documents",
        "Most documents of a shard, which is what is lost at most when a worker is killed.",
        default=CorpusOptions(()).shard_documents,
    ),
    option(
        "--shard-chars",
        "Most characters of a shard; a longer document is linked in parts.",
        default=CorpusOptions(()).shard_chars,
    ),
)

model_flags = grouped(
    "Index and model",
    option("--index", "Index directory.", click.Path(), required=True),
    option(
        "--verify/--no-verify verify_digests",
        "Check the digests of the index's files first.",
        default=True,
        envvar="GENRET_LINK_VERIFY_DIGESTS",
    ),
    shown_option("--model", **MODEL),
    shown_option("--encoder", **ENCODER),
    shown_option("--device", **DEVICE),
    shown_option("--dtype", **DTYPE),
    shown_option("--engine", **ENGINE),
    option("--threads", "Torch threads of every worker on a CPU.", _COUNT, 1),
    option("--batch-size", "Mentions per forward.", int, 32),
    option(
        "--cache-entries",
        "Answers that every worker keeps for mentions put to the model in the same words.",
        default=WorkerOptions(index="").cache_entries,
    ),
)

run_flags = grouped(
    "Run",
    option(
        "--runner",
        "local: processes of this machine; ray: actors of a Ray cluster, which needs the extra ray.",
        click.Choice(["local", "ray"]),
        "local",
    ),
    option(
        "--workers",
        "How many link at the same time, each with index and model of its own; 1: this process.",
        _COUNT,
        show_default="one per usable core; one with a GPU; with Ray what the cluster has room for",
    ),
    option("--ray-address", "Ray cluster: auto, or HOST:PORT.", show_default="one is started here"),
    option(
        "--max-failed",
        "Mentions that may end by an error before the run does; they are NIL, with their error.",
        _NATURAL,
        show_default="any number",
    ),
    option(
        "--dry-run",
        "Read the inputs, say what would be linked and what is done already, and write nothing.",
        is_flag=True,
    ),
    option("--quiet", "No progress, warnings and summary.", is_flag=True),
    option("--json", "Print the summary as JSON on standard output.", is_flag=True),
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


mention_flags = grouped(
    "Mentions that are found, which are names of the index in the text",
    option(
        "--case",
        "smart: where the letter case and the words of the text make a name likelier than other "
        "words; sensitive: as the index writes it; insensitive: in any letter case.",
        click.Choice(CASES),
        "smart",
    ),
    option("--min-chars", "Shorter names are not looked for.", int, _FIND.min_chars),
    option(
        "--max-entities",
        "Names of more entities are not looked for; 0: all are.",
        _NATURAL,
        _FIND.max_entities,
    ),
    option(
        "--max-short-entities",
        "The same for names of one word with at most 3 characters.",
        _NATURAL,
        _FIND.max_short_entities,
    ),
    option(
        "--stop-words",
        "Names that are one such word alone are not looked for: english, none, or a file with one "
        "word per line.",
        default="english",
    ),
    option(
        "--cache-dir",
        "Where the index's table of names is kept: it is made once, and all workers share it.",
        click.Path(file_okay=False, path_type=Path),
        show_default="genret in $XDG_CACHE_HOME, else in ~/.cache",
    ),
)

linking_flags = grouped(
    "Linking",
    option(
        "--mentions",
        "given: the documents mark them; found: names of the index; generated: the model writes the "
        "text again with links in it; auto: given where a document marks any, else found.",
        click.Choice(MENTION_SOURCES),
        "auto",
    ),
    option(
        "--candidates",
        "What a mention may be linked to: all entities, or those named so; auto: found mentions to "
        "those named so, given ones to all.",
        click.Choice(CANDIDATE_SETS),
        "auto",
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
    option(
        "--context-chars",
        "Characters of text on either side of a mention that the model sees.",
        int,
        show_default="the template's",
    ),
    option(
        "--min-logprob",
        "Mentions whose best candidate has a lower log-probability are NIL.",
        float,
        show_default="no limit",
    ),
    option(
        "--min-probability",
        "The same for its probability to be the one meant, in [0, 1].",
        float,
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
