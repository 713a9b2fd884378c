"""`genret evaluate`: methods side by side on labelled sets."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from genret.retrieval.command_options import GroupedCommand, model_options, prompt_option
from genret.retrieval.command_options import described_option as _option
from genret.retrieval.evaluation.methods.evaluated_method import METHOD_FORMS
from genret.retrieval.interruption import INTERRUPTED

if TYPE_CHECKING:
    from genret.retrieval.evaluation.evaluation import Evaluated, EvaluationPlan

_COUNT = click.IntRange(min=1)
DEFAULT_METHODS = "unconstrained trie disc:1 disc:2 disc:3 disc:4 beam:10 bm25-shortlist bm25"


@click.command("evaluate", cls=GroupedCommand)
@_option("--index index_path", "Index directory.", click.Path(), required=True)
@model_options
@prompt_option()
@_option(
    "--set sets",
    "A labelled set: beir, kilt, trec, mentions or queries; may be given several times. queries reads "
    "JSON Lines or TSV; '#' names one split of a file: queries:labels.tsv#test.",
    multiple=True,
    required=True,
    metavar="[NAME=]FORMAT:PATH[:QRELS]",
)
@_option(
    "--method methods",
    f"A method, may be given several times: {', '.join(METHOD_FORMS)}.",
    multiple=True,
    metavar="METHOD",
    show_default=f"{DEFAULT_METHODS}; with evidence in the index also evidence shortlist auto, and with "
    "vectors also vectors",
)
@_option("-k --k k", "Entities asked for per query.", click.IntRange(1, 1000), 10)
@_option("--out", "Folder of the report and the runs.", click.Path(path_type=Path), required=True)
@_option("--limit", "Queries of every set that are asked, the first ones.", _COUNT, show_default="all")
@_option(
    "--seeds num_seeds",
    "Passes of methods that draw, each with its own seed.",
    click.IntRange(1, 100),
    1,
)
@_option("--seed", "The first of these seeds.", click.IntRange(0, 2**31), 0)
@_option(
    "--baseline",
    "The method that the others are compared with.",
    metavar="METHOD",
    show_default="trie if it is asked, else the first method",
)
@_option(
    "--metric metrics",
    "A metric, the first one leads; may be given several times: nDCG@10, RR@10, Success@1, R@100, AP, "
    "Rprec(KILT), F1(InKB), accuracy, …",
    multiple=True,
    metavar="METRIC",
    show_default="those that go with the set",
)
@_option(
    "--resamples", "Bootstrap resamples behind intervals and p-values.", click.IntRange(100, 1_000_000), 2000
)
@_option("--batch-size", "Queries answered together; 1 gives latencies.", click.IntRange(1, 4096), 64)
@_option("--resume", "Continue the evaluation in --out.", is_flag=True)
@_option(
    "--redirects",
    "File of former titles in labels: lines of an old title, a tab and the present one.",
    click.Path(path_type=Path, dir_okay=False),
    show_default="none",
)
@_option("--no-plots", "Draw nothing, which needs no matplotlib.", is_flag=True)
@_option(
    "--format output",
    "Format of the summary on standard output.",
    click.Choice(["text", "json"]),
    "text",
)
@_option("--json as_json", "The same as --format json.", is_flag=True)
def evaluate_command(
    index_path: str,
    model: str | None,
    device: str,
    dtype: str,
    threads: int,
    prompt: str | None,
    sets: tuple[str, ...],
    methods: tuple[str, ...],
    out: Path,
    metrics: tuple[str, ...],
    resamples: int,
    no_plots: bool,
    output: str,
    as_json: bool,
    **others: Any,
) -> None:
    """Compare methods on labelled sets and write a report.

    Every method answers every set. OUT/runs keeps the answers of a method to a set as soon as they are
    complete, so Ctrl-C loses only the running one, and --resume goes on there. OUT/report.html,
    OUT/report.md and OUT/results.json hold the results: metrics with confidence intervals, differences
    to a baseline, answers that do not exist, and times. Exit code 1: also if a constrained method
    answered what is not in the index.
    """
    from genret.retrieval.errors import InputError
    from genret.retrieval.evaluation.datasets.labels import SetSpec
    from genret.retrieval.evaluation.evaluation import EvaluationPlan, about_machine, evaluate
    from genret.retrieval.evaluation.reporting.evaluation_report import about_set
    from genret.retrieval.retriever import Retriever

    try:
        plan = EvaluationPlan(
            sets=tuple(SetSpec.parse(text) for text in sets),
            methods=tuple(dict.fromkeys(methods)) or _default_methods(index_path),
            out=out,
            metrics=tuple(dict.fromkeys(metrics)) or None,
            num_resamples=resamples,
            has_plots=not no_plots,
            **others,
        )
        plan.check()
        loading = {"device": device, "dtype": dtype, "threads": threads, "prompt": prompt}
        command = _command(index_path, model, sets, plan, loading)
        with Retriever.open(
            index_path, model, device=device, dtype=dtype, num_threads=threads, prompt=prompt
        ) as retriever:
            about = [("device", str(retriever.model.device)), *about_machine(threads)]
            evaluated = evaluate(plan, retriever, about, command)
    except KeyboardInterrupt:
        click.echo(f"\ninterrupted: the runs that were done are in {out}; --resume goes on", err=True)
        sys.exit(INTERRUPTED)
    except InputError as error:
        raise click.UsageError(f"--{error.field.replace('_', '-')}: {error.message}") from error
    for comparison in evaluated.comparisons:
        if comparison.labelled.missing:
            click.echo(f"{comparison.labelled.name}: {about_set(comparison)}", err=True)
    if as_json or output == "json":
        click.echo(json.dumps({**evaluated.results, "out": str(out)}, ensure_ascii=False, allow_nan=False))
    else:
        click.echo("\n".join(_summary(evaluated)))
        click.echo(f"{out / 'report.html'}", err=True)


def _default_methods(index_path: str) -> tuple[str, ...]:
    from genret.retrieval.evaluation.methods.evaluated_method import (
        DEFAULT_EVIDENCE_METHODS,
        DEFAULT_VECTOR_METHODS,
    )
    from genret.retrieval.index.manifest import OLD_VECTOR_METHODS
    from genret.retrieval.index.reader import Index

    with Index.open(index_path, verify_digests=False) as index:
        has_vectors = index.vectors is not None and index.vectors.method not in OLD_VECTOR_METHODS
        return (
            *DEFAULT_METHODS.split(),
            *(DEFAULT_EVIDENCE_METHODS if index.evidence is not None or has_vectors else ()),
            *(DEFAULT_VECTOR_METHODS if has_vectors else ()),
        )


def _command(
    index_path: str,
    model: str | None,
    sets: tuple[str, ...],
    plan: EvaluationPlan,
    loading: Mapping[str, object],
) -> str:
    words = ["genret", "evaluate", "--index", index_path]
    for name, values in (("set", sets), ("method", plan.methods), ("metric", plan.metrics or ())):
        for value in values:
            words += [f"--{name}", value]
    options: dict[str, object] = {
        "model": model,
        "k": plan.k,
        "seeds": plan.num_seeds,
        "seed": plan.seed,
        "baseline": plan.compared_with,
        "resamples": plan.num_resamples,
        "batch-size": plan.batch_size,
        **loading,
        "limit": plan.limit,
        "redirects": plan.redirects,
        "out": plan.out,
    }
    for name, option in options.items():
        words += [] if option is None else [f"--{name}", str(option)]
    return shlex.join([*words, "--no-plots"] if not plan.has_plots else words)


def _summary(evaluated: Evaluated) -> list[str]:
    """Return the leading metric of every method on every set as lines of text."""
    comparisons = evaluated.comparisons
    header = ["method", *(f"{c.labelled.name} {c.primary}" for c in comparisons), "ms per query"]
    rows = [header]
    for place, method in enumerate(comparisons[0].methods):
        times = [c.methods[place].times for c in comparisons]
        known = [t.mean_ms for t in times if t is not None]
        figures = [c.methods[place].figures[c.primary].interval for c in comparisons]
        cells = [f"{f.value:.3f} [{f.low:.3f}, {f.high:.3f}]" for f in figures]
        rows.append([method.method, *cells, f"{sum(known) / len(known):.1f}" if known else "–"])
    widths = [max(len(row[at]) for row in rows) for at in range(len(header))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
