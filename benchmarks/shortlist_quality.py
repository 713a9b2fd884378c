"""How good shortlists are: `auto` and `shortlist` with weights tuned on some sets, reported on others.

    python benchmarks/shortlist_quality.py --index sample.index \
        --tune 'dev=queries:data/queries.tsv#dev' --set 'test=queries:data/queries.tsv#test' --work quality

Every query is asked once by `auto`, without a weight: its candidates with the model's log-probabilities and
the similarities of the vectors are kept in --work. A grid of weights, and other ways to put the two scores
together, are then tried offline on the sets of --tune, which is where the best of each is chosen (mean
nDCG@10 over these sets); the figures are those of --set. Beside them stand methods that are run as `genret
evaluate` runs them. The sets to tune on must not be what the model was trained on: it is surer of such
queries than of any other, and the weight of the vectors would come out too low.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import torch
from harness.report import announce, command_line, environment, write_json
from shortlist_figures.candidates import collect, read, write
from shortlist_figures.figures import (
    METRICS,
    SHOWN,
    Figures,
    TunedSet,
    best,
    curve,
    difference,
    figures_of,
    run_of,
)
from shortlist_figures.fusions import families, weighted

from retrieval import Retriever
from retrieval.checkpoint_fingerprint import folder_fingerprint
from retrieval.evaluation.datasets.readers import SetSpec, read_set
from retrieval.evaluation.datasets.resolver import IndexResolver
from retrieval.evaluation.methods.method import MethodMaker
from retrieval.evaluation.types import LabelledSet, MethodRun
from retrieval.request_checks import DEFAULT_SHORTLIST_SIZE, MAX_SHORTLIST_SIZE

_SEED = 0
_PACKAGES = ("generative-retrieval", "torch", "transformers", "numpy", "faiss-cpu", "scikit-learn", "bm25s")
_SET = "[NAME=]FORMAT:PATH[:QRELS]"


@click.command(context_settings={"show_default": True})
@click.option("--index", required=True, type=click.Path(exists=True), help="With vectors.")
@click.option("--model", help="Checkpoint directory.", show_default="the shipped model")
@click.option(
    "--tune", "tune_specs", multiple=True, required=True, metavar=_SET, help="To choose weights on."
)
@click.option("--set", "set_specs", multiple=True, required=True, metavar=_SET, help="To report.")
@click.option(
    "--method",
    "methods",
    multiple=True,
    default=("beam:10", "disc:4", "disc:4/16", "vectors", "bm25-shortlist", "bm25"),
    help="A method to stand beside them, as genret evaluate names it.",
)
@click.option("--shortlist-size", type=click.IntRange(1, MAX_SHORTLIST_SIZE), default=DEFAULT_SHORTLIST_SIZE)
@click.option("--limit", type=click.IntRange(min=1), help="So many queries of every set, the first ones.")
@click.option("--batch-size", type=click.IntRange(min=1), default=32)
@click.option("--resamples", type=click.IntRange(min=100), default=2000, help="Of the bootstrap.")
@click.option("--threads", type=click.IntRange(min=1), default=1)
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Where candidates are kept; those of the same index, model, set and settings are not asked again.",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False))
def main(
    index: str,
    model: str | None,
    tune_specs: tuple[str, ...],
    set_specs: tuple[str, ...],
    methods: tuple[str, ...],
    shortlist_size: int,
    limit: int | None,
    batch_size: int,
    resamples: int,
    threads: int,
    work: Path,
    json_file: Path | None,
) -> None:
    """Tune the weight of the vectors on some sets and report others."""
    machine = environment(*_PACKAGES)
    announce(machine)
    torch.set_num_threads(threads)
    work.mkdir(parents=True, exist_ok=True)
    with Retriever.open(index, model, num_threads=threads) as retriever:
        tuned_on = [_candidates(retriever, t, limit, shortlist_size, batch_size, work) for t in tune_specs]
        reported = [_candidates(retriever, t, limit, shortlist_size, batch_size, work) for t in set_specs]
        rows: dict[str, list[Figures]] = {}
        times: dict[str, list[float]] = {}
        maker = MethodMaker(retriever, k=10, batch_size=batch_size)
        for name in methods:
            runs = [_answered(maker, name, tuned.labelled) for tuned in reported]
            rows[name] = [figures_of(t.labelled, run) for t, run in zip(reported, runs, strict=True)]
            times[name] = [1000 * run.seconds / len(run.rankings) for run in runs]
            click.echo(f"{name}: done", err=True)
        figures: dict[str, Any] = {
            "index": retriever.index.digest,
            "model": folder_fingerprint(Path(retriever.tokenizer.source)),
            "seed": _SEED,
            "shortlist_size": shortlist_size,
            "sets": {t.labelled.name: _about(t) for t in (*tuned_on, *reported)},
        }
    single = list(rows)
    for name in ("shortlist", "auto"):
        on = [_listed(tuned, name) for tuned in tuned_on]
        shown = [_listed(tuned, name) for tuned in reported]
        figures[name] = _tuned(name, on, shown, rows)
    figures["methods"] = {name: [_plain(f) for f in found] for name, found in rows.items()}
    figures["milliseconds_per_query"] = times
    figures["auto_against_the_best_single"] = _against(
        reported, rows, single, figures["auto"]["row"], resamples
    )
    _show(reported, rows)
    write_json(json_file, command_line(), machine, figures)


def _candidates(
    retriever: Retriever, text: str, limit: int | None, size: int, batch_size: int, work: Path
) -> TunedSet:
    spec = SetSpec.parse(text)
    labelled = read_set(spec, IndexResolver(retriever.index, {}))
    if limit is not None:
        labelled = LabelledSet(
            labelled.name,
            labelled.kind,
            labelled.queries[:limit],
            labelled.num_missing,
            labelled.digest,
            labelled.primary,
        )
    header: dict[str, object] = {
        "index": retriever.index.digest,
        "model": folder_fingerprint(Path(retriever.tokenizer.source)),
        "set": labelled.digest,
        "queries": len(labelled.queries),
        "shortlist_size": size,
    }
    file = work / f"{labelled.name}.candidates.jsonl"
    found = read(file, header)
    if found is None:
        total = len(labelled.queries)
        found = collect(
            retriever,
            labelled.queries,
            size,
            batch_size,
            lambda count: click.echo(f"{labelled.name}: {count}/{total}", err=True),
        )
        write(file, header, found)
    return TunedSet(labelled, found)


def _answered(maker: MethodMaker, name: str, labelled: LabelledSet) -> MethodRun:
    """Run a method on a set, after some queries that are not timed."""
    method = maker.make(name)
    method.answer(labelled.queries[:2], _SEED, lambda count: None)
    rankings = method.answer(labelled.queries, _SEED, lambda count: None)
    seconds = sum(ranking.seconds for ranking in rankings)
    return MethodRun(name, labelled.name, tuple(rankings), seconds, _SEED, method.is_constrained)


def _listed(tuned: TunedSet, method: str) -> TunedSet:
    """Return what a method lists: of `shortlist` what the vectors proposed alone."""
    if method == "auto":
        return tuned
    return TunedSet(tuned.labelled, [candidates.proposed() for candidates in tuned.candidates])


def _tuned(
    method: str, on: Sequence[TunedSet], shown: Sequence[TunedSet], rows: dict[str, list[Figures]]
) -> dict[str, Any]:
    """Choose the best of every way on some sets, and add its figures on others to the rows."""

    def add(name: str, fusion: Any) -> None:
        rows[name] = [figures_of(one.labelled, run_of(one, fusion)) for one in shown]

    found: dict[str, Any] = {"curves": {}, "on_reported_sets": {}, "best": {}}
    add(f"{method}, weight 0", weighted(0.0))
    for number, (family, fusions) in enumerate(families().items()):
        found["curves"][family] = means = curve(on, fusions)
        chosen = best(means, fusions)
        found["best"][family] = chosen.name
        found["on_reported_sets"][family] = curve(shown, fusions)
        name = (
            f"{method}, weight {chosen.name} (tuned)" if not number else f"{method}, {family} {chosen.name}"
        )
        add(name, chosen)
        if not number:
            found["row"] = name
    return found


def _against(
    reported: Sequence[TunedSet],
    rows: dict[str, list[Figures]],
    single: Sequence[str],
    ours: str,
    resamples: int,
) -> dict[str, Any]:
    """Compare `auto` with the best single method of every set, metric by metric."""
    found: dict[str, Any] = {}
    for place, tuned in enumerate(reported):
        for metric, shown in zip(METRICS, SHOWN, strict=True):
            other = max(single, key=lambda name: rows[name][place][metric].value)
            interval = difference(
                tuned.labelled, rows[ours][place][metric], rows[other][place][metric], resamples
            )
            found.setdefault(tuned.labelled.name, {})[shown] = {
                "best_single": other,
                "difference": interval.value,
                "low": interval.low,
                "high": interval.high,
                "p": interval.p_value,
            }
            click.echo(
                f"{tuned.labelled.name} {shown}: {ours} minus {other}: {interval.value:+.3f} "
                f"[{interval.low:+.3f}, {interval.high:+.3f}]"
            )
    return found


def _show(reported: Sequence[TunedSet], rows: dict[str, list[Figures]]) -> None:
    sizes = ", ".join(f"{one.labelled.name} ({len(one.labelled.queries)})" for one in reported)
    click.echo(f"\n{' / '.join(SHOWN)} in %: {sizes}")
    width = max(map(len, rows))
    for name, found in rows.items():
        cells = [" / ".join(f"{100 * f[metric].value:5.1f}" for metric in METRICS) for f in found]
        click.echo(f"{name:{width}}  " + "   ".join(cells))


def _about(tuned: TunedSet) -> dict[str, Any]:
    labelled = tuned.labelled
    return {"queries": len(labelled.queries), "digest": labelled.digest, "missing": labelled.num_missing}


def _plain(figures: Figures) -> dict[str, float]:
    return {shown: figures[metric].value for metric, shown in zip(METRICS, SHOWN, strict=True)}


if __name__ == "__main__":
    main()
