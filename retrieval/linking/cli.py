"""`genret link`: link a file of mentions."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from retrieval.interruption import INTERRUPTED, sigterm_as_interrupt
from retrieval.options import SHOWN, adaptive_option, model_options
from retrieval.scoring_options import scoring_options

if TYPE_CHECKING:
    from retrieval.linking.runner import LinkOptions, LinkSummary

_LOG_EVERY_S = 5.0


@click.command("link")
@click.argument("mentions", type=click.Path())
@click.option("--out", required=True, type=click.Path(), help="Output file, .parquet or .jsonl.", **SHOWN)
@click.option(
    "--index",
    "index_path",
    required=True,
    type=click.Path(),
    envvar="GENRET_LINK_INDEX",
    help="Index directory.",
    **SHOWN,
)
@model_options
@click.option(
    "--method",
    default="beam",
    type=click.Choice(["beam", "disc"]),
    help="beam: the k most probable titles; disc: samples and their shares.",
    **SHOWN,
)
@click.option(
    "-k", "--k", "k", type=int, default=5, help="Candidates kept per mention, at most 1000.", **SHOWN
)
@click.option(
    "--beam-size",
    type=int,
    help="beam: live prefixes per step, at most 1000; disc: prefixes per draw, at most 64.",
    show_default="beam: the larger of k and 10; disc: 1",
    show_envvar=True,
)
@click.option("--seed", type=int, default=0, help="disc: the same seed gives the same answers.", **SHOWN)
@click.option(
    "--min-logprob",
    type=float,
    help="Mentions whose best candidate has a lower log-probability are NIL.",
    show_default="no limit",
    show_envvar=True,
)
@click.option(
    "--min-mass",
    type=float,
    help="disc: NIL when the model's probability that its answer is in the catalogue is below this, "
    "in [0, 1].",
    show_default="no limit",
    show_envvar=True,
)
@adaptive_option
@scoring_options
@click.option(
    "--filter",
    "predicate",
    envvar="GENRET_LINK_FILTER",
    help="Link to entities for which this is true: kind = 'city' and population > 100000",
    show_default="all entities",
    show_envvar=True,
)
@click.option("--batch-size", type=int, default=32, help="Mentions per forward.", **SHOWN)
@click.option(
    "--max-bad-rows",
    type=int,
    default=0,
    help="Unreadable lines allowed; they are left out and reported.",
    **SHOWN,
)
@click.option("--overwrite", is_flag=True, help="Replace an existing output file.", **SHOWN)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    envvar="GENRET_LINK_JSON",
    help="Print the summary as JSON on standard output.",
    **SHOWN,
)
def link_command(
    mentions: str,
    out: str,
    index_path: str,
    model: str | None,
    device: str,
    dtype: str,
    threads: int,
    method: str,
    k: int,
    beam_size: int | None,
    seed: int,
    min_logprob: float | None,
    min_mass: float | None,
    adaptive: bool,
    exact: bool,
    exact_budget: int | None,
    length_penalty: float,
    aggregate: str | None,
    predicate: str | None,
    batch_size: int,
    max_bad_rows: int,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Link MENTIONS, a .jsonl or .jsonl.gz file (or - for standard input).

    Every line is an object with "mention" and optionally "id", "left" and "right", the text around it.
    The output has one row per mention, in the same order: id, mention, entity_id, title, surface,
    logprob, probability, candidates, error, mass, abstained, score, certified. A mention without an entity
    is NIL: its entity_id is null. mass is the probability that the model's answer is in the catalogue, as
    disc estimates and bounds it; where it is below --min-mass, abstained is true and there are no
    candidates. Candidates come in the order of score; certified says whether beam has proven them.
    """
    from retrieval.errors import GenretError, InputError
    from retrieval.linking.mentions import check_source
    from retrieval.linking.runner import LinkOptions
    from retrieval.linking.writer import check_output

    reporter = _Reporter()
    started = time.monotonic()
    try:  # all that can be refused is refused before a model is loaded
        options = LinkOptions(
            method=method,
            k=k,
            beam_size=beam_size,
            seed=seed,
            min_logprob=min_logprob,
            min_mass=min_mass,
            adaptive=adaptive,
            exact=exact,
            exact_budget=exact_budget,
            length_penalty=length_penalty,
            aggregate=aggregate,
            batch_size=batch_size,
            max_bad_rows=max_bad_rows,
            filter=predicate,
        )
        check_output(out)
        check_source(mentions)
        if Path(out).exists() and not overwrite:
            raise click.UsageError(f"{out} exists already; replace it with --overwrite")
        with sigterm_as_interrupt():
            summary = _run(mentions, out, index_path, model, device, dtype, threads, options, reporter)
    except KeyboardInterrupt:
        state = "is as it was" if Path(out).exists() else "was not written"
        click.echo(f"\ninterrupted after {_sentence(reporter.summary)}: {out} {state}", err=True)
        sys.exit(INTERRUPTED)
    except InputError as error:
        raise click.UsageError(f"--{error.field.replace('_', '-')}: {error.message}") from error
    except GenretError as error:
        raise click.ClickException(str(error)) from error
    seconds = time.monotonic() - started
    if as_json:
        click.echo(json.dumps({**asdict(summary), "seconds": round(seconds, 3), "out": out}))
    else:
        click.echo(f"{_sentence(summary)} in {seconds:.1f} s -> {out}", err=True)


def _run(
    mentions: str,
    out: str,
    index_path: str,
    model: str | None,
    device: str,
    dtype: str,
    threads: int,
    options: LinkOptions,
    reporter: _Reporter,
) -> LinkSummary:
    from retrieval.linking.mentions import read_mentions
    from retrieval.linking.runner import link_mentions
    from retrieval.linking.writer import LinkWriter
    from retrieval.retriever import Retriever

    with Retriever.open(index_path, model, device=device, dtype=dtype, num_threads=threads) as retriever:
        if options.filter is not None:
            retriever.check_filter(options.filter)  # else every mention would fail of it
        metadata = {
            "index_version": retriever.index.version,
            "index_digest": retriever.index.digest,
            "model": model or "default",
            "options": json.dumps(asdict(options), sort_keys=True),
        }
        with LinkWriter(out, metadata) as writer, reporter:
            rows = read_mentions(mentions)
            return link_mentions(
                retriever, mentions, rows, writer, options, reporter.report, reporter.complain
            )


class _Reporter:
    """Progress on stderr: a live line on a terminal, a line every few seconds elsewhere."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        from retrieval.linking.runner import LinkSummary

        self.summary = LinkSummary()
        self._console = Console(stderr=True)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("linking"),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("linking", total=None, rate="")
        self._started = self._last = time.monotonic()

    def __enter__(self) -> None:
        self._started = self._last = time.monotonic()
        self._bar.start()

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def report(self, summary: LinkSummary) -> None:
        """Show where the run is."""
        self.summary = summary
        now = time.monotonic()
        rate = f"{summary.num_mentions / max(now - self._started, 1e-9):.1f}/s"
        self._bar.update(self._task, completed=summary.num_mentions, rate=rate)
        if not self._console.is_terminal and now - self._last >= _LOG_EVERY_S:
            self._last = now
            click.echo(f"{_sentence(summary)}, {rate}", err=True)

    def complain(self, message: str) -> None:
        """Say what is wrong with one line of the input."""
        self._console.print(f"warning: {message}", markup=False, highlight=False, soft_wrap=True)


def _sentence(summary: LinkSummary) -> str:
    text = f"{_counted(summary.num_mentions, 'mention')}: "
    text += f"{summary.num_linked:,} linked, {summary.num_nil:,} NIL"
    if summary.num_failed:
        text += f", {summary.num_failed:,} failed"
    if summary.num_unproven:
        text += f" ({_counted(summary.num_unproven, 'list')} not proven exact)"
    if summary.num_bad_rows:
        text += f"; {_counted(summary.num_bad_rows, 'bad row')} left out"
    return text


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
