"""`genret link`: link a corpus of documents."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from retrieval.interruption import INTERRUPTED, surely_interrupted
from retrieval.linking.finding.find_options import FindOptions
from retrieval.linking.link_flags import (
    GroupedCommand,
    Values,
    as_usage,
    input_flags,
    linking_flags,
    mention_flags,
    model_flags,
    output_flags,
    run_flags,
)
from retrieval.linking.link_options import LinkOptions, WorkerOptions

if TYPE_CHECKING:
    from retrieval.linking.run import LinkSummary
    from retrieval.linking.run_plan import RunPlan


@click.command("link", cls=GroupedCommand, context_settings={"max_content_width": 100})
@click.argument("inputs", nargs=-1, required=True, type=click.Path())
@output_flags
@input_flags
@model_flags
@linking_flags
@mention_flags
@run_flags
def link_command(
    inputs: tuple[str, ...],
    output: Values,
    reading: Values,
    model: Values,
    linking: Values,
    find: tuple[FindOptions, Path | None],
    run: Values,
) -> None:
    """Link the mentions in INPUTS, documents as JSON Lines, Parquet, text or folders of these.

    Every JSON object or Parquet row has a "text", and optionally an "id" and "mentions", the spans that are
    to be linked. The output has one row per mention, in the order of the documents: where it is, in
    characters and bytes, its entity, title, log-probability and candidates. A mention without an entity is
    NIL: its entity_id is null, and nil_reason says why.

    The output is written shard by shard. A run that was interrupted or killed goes on with the same command
    where it was; when inputs, options, index or model have changed since, it is refused and the change named.
    """
    with _answered(output["out"]), surely_interrupted():
        from retrieval.linking.documents.corpus import CorpusOptions
        from retrieval.linking.run import OutputOptions, RunnerOptions, link_corpus, plan_corpus_run
        from retrieval.linking.run_progress import shown_run

        corpus = CorpusOptions(inputs, **{name: reading[name] for name in reading if name != "max_bad_rows"})
        options = LinkOptions(find=find[0], keep_nil=not output["drop_nil"], **linking)
        cache_dir = None if find[1] is None else str(find[1])
        computing = {name: model[name] for name in model if name != "threads"}
        worker = WorkerOptions(num_threads=model["threads"], cache_dir=cache_dir, **computing)
        target = OutputOptions(
            out=output["out"],
            output_format=output["format"],
            max_bad_rows=reading["max_bad_rows"],
            max_failed=run["max_failed"],
            overwrite=output["overwrite"],
            keep_parts=output["keep_parts"],
        )
        runner = RunnerOptions(run["runner"], run["workers"], run["ray_address"])
        if run["dry_run"]:
            _tell_plan(plan_corpus_run(corpus, target, worker, options), run["json"])
            return
        with shown_run(run["quiet"]) as display:
            summary = link_corpus(corpus, target, worker, options, runner, display)
        _tell(summary, run["json"], run["quiet"])


@contextmanager
def _answered(out: str) -> Iterator[None]:
    """Turn errors into lines and exit codes."""
    from retrieval.errors import GenretError

    try:
        with as_usage():
            yield
    except KeyboardInterrupt as error:
        kept = _notes(error) or f"{out} is as it was before"
        click.echo(f"\ninterrupted: {kept}", err=True)
        sys.exit(INTERRUPTED)
    except GenretError as error:
        raise click.ClickException("\n".join(filter(None, (str(error), _notes(error))))) from error


def _tell(summary: LinkSummary, as_json: bool, quiet: bool) -> None:
    from retrieval.linking.run_progress import counted, duration, sentence

    if as_json:
        click.echo(json.dumps(summary.to_json(), ensure_ascii=False))
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
    from retrieval.linking.run_progress import counted

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
