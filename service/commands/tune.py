"""`genret tune`: fit how an index ranks its candidates, and publish what was fitted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from genret.index_builder.command_line import answered, keep_versions_option, shown_progress, talk_options
from genret.retrieval.command_options import GroupedCommand, encoder_option, model_options, prompt_option
from genret.retrieval.command_options import described_option as _option
from genret.retrieval.errors import IndexDirectoryError, InputError

if TYPE_CHECKING:
    from genret.retrieval.index.priors import Prior
    from genret.retrieval.index.reader import Index
    from genret.retrieval.progress import StepProgress
    from genret.retrieval.ranking.ranker import Ranker
    from genret.retrieval.ranking.rankings import Rankings
    from genret.retrieval.ranking.tuned_ranking import SetReport, Tuned, TunedFigure
    from genret.retrieval.retriever import Retriever

_COUNT = click.IntRange(min=1)
_NATURAL = click.IntRange(min=0)


@dataclass(frozen=True, slots=True)
class _Wish:
    index: Path
    model: str | None
    has_model: bool
    hardware: Mapping[str, Any]
    prior: bool
    encoder: str | None
    queries: tuple[str, ...]
    max_bad_rows: int
    limit: int
    made: int | None
    labelled_share: float
    folds: int
    seed: int
    out: Path | None
    keep_versions: int
    dry_run: bool


@dataclass(slots=True)
class _Opened:
    """An index, its evidence, and perhaps a model with the prior that is to be computed."""

    index: Index
    ranker: Ranker
    fingerprint: str
    retriever: Retriever | None = None
    prior: Prior | None = None
    null_prompts: list[list[int]] = field(default_factory=list)
    rankings: Rankings = field(init=False)  # those that it has: the version may be gone at the end


@click.command("tune", cls=GroupedCommand, context_settings={"show_default": True, "max_content_width": 100})
@click.argument("index", type=click.Path(path_type=Path, file_okay=False))
@_option(
    "--queries",
    "Labelled queries: TSV with the columns query and entity_id or title, or JSON Lines; with #SPLIT "
    "the lines whose split it is. A line with neither id nor title says that nothing of the index is meant. "
    "May be given several times.",
    multiple=True,
    metavar="FILE[#SPLIT]",
    show_default="none",
)
@_option(
    "--no-model",
    "Fit the ranking of evidence alone; it also chooses what evidence proposes beside a model.",
    is_flag=True,
)
@model_options
@prompt_option()
@encoder_option
@_option(
    "--prior",
    "Compute what the model says of every entity whatever is asked, keep it with the index, and fit how "
    "much of it is divided out; for models that were not trained on the catalogue. What the index has of it "
    "is not computed again.",
    is_flag=True,
)
@_option(
    "--made",
    "Queries made from the catalogue to go with them, typing errors among them; 0: none.",
    _NATURAL,
    show_default="as many as a build makes, 400 to 1000",
)
@_option(
    "--labelled-share",
    "What all labelled queries count of all queries.",
    click.FloatRange(0, 1, min_open=True, max_open=True),
    0.5,
)
@_option(
    "--folds",
    "Parts of the queries, each measured by weights fitted to the others.",
    click.IntRange(2, 100),
    5,
)
@_option("--limit", "Most queries of a file, drawn at random.", _COUNT, 2000)
@_option(
    "--max-bad-rows",
    "Leave out up to this many queries whose entities the index lacks; more are an error.",
    _NATURAL,
    0,
)
@_option(
    "--seed", "Seed of everything random. A build fits its ranking to queries made by seed 0.", _NATURAL, 1
)
@_option(
    "--out",
    "Write the rankings to this file, and publish nothing.",
    click.Path(path_type=Path, dir_okay=False),
    show_default="a new version of INDEX",
)
@keep_versions_option
@_option("--dry-run", "Fit and measure, and publish nothing.", is_flag=True)
@talk_options
def tune_command(
    index: Path,
    no_model: bool,
    model: str | None,
    device: str,
    dtype: str,
    threads: int,
    prompt: str | None,
    as_json: bool,
    quiet: bool,
    debug: bool,
    **others: Any,
) -> None:
    """Fit how `auto` ranks the candidates of an INDEX, for one model or without any.

    The ranking is fitted to labelled queries and to queries made from the catalogue. What it is worth is
    measured on queries that it was not fitted to, beside the ranking that was there. The new version of
    the index differs from the live one in its ranking alone; `genret rollback` takes it back. See
    docs/ranking.md.
    """
    from genret.retrieval.index.versions import live_or_none

    if no_model and model is not None:
        raise click.UsageError("--model and --no-model exclude each other")
    hardware = {"device": device, "dtype": dtype, "num_threads": threads, "prompt": prompt}
    wish = _Wish(index, model, not no_model, hardware, **others)
    if wish.prior and (no_model or wish.out is not None):
        other = "--no-model" if no_model else "--out"
        raise click.UsageError(f"--prior and {other} exclude each other: a prior is of a model, in the index")
    is_kept = wish.dry_run or wish.out is not None
    with (
        answered(index, live_or_none(index), is_kept, debug),
        shown_progress(quiet, "genret tune") as progress,
        _opened(wish, progress) as opened,
    ):
        with _kept_on_failure(wish, opened, progress):
            tuned, files, num_unknown = _fitted(wish, opened, progress)
        version = opened.index.version
        if not wish.dry_run:
            progress.phase("publishing" if wish.out is None else "writing")
            version = _keep(wish, opened, tuned, files)
        told = {
            "index": str(index),
            "model": opened.fingerprint or None,
            "parent": opened.index.version,
            "version": version,
            "published": version != opened.index.version,
            "dry_run": wish.dry_run,
            "out": None if wish.out is None or wish.dry_run else str(wish.out),
            "left_out": num_unknown,
            "prior": None if opened.prior is None else list(opened.prior.queries),
            **tuned.to_dict(),
        }
    if as_json:
        click.echo(json.dumps(told, ensure_ascii=False, allow_nan=False))
    elif not quiet:
        click.echo("\n".join([*_lines(tuned, num_unknown), "", _outcome(told)]))


@contextmanager
def _kept_on_failure(wish: _Wish, opened: _Opened, progress: StepProgress) -> Iterator[None]:
    """Publish the computed part of the prior where the block fails or is interrupted."""
    before = None if opened.prior is None else opened.prior.num_missing
    try:
        yield
    except BaseException:
        if opened.prior is not None and opened.prior.num_missing != before and not wish.dry_run:
            progress.note("keeping what there is of the prior: the same command goes on from there")
            _published(wish, opened, {}, [], 0)
        raise


@contextmanager
def _opened(wish: _Wish, progress: StepProgress) -> Iterator[_Opened]:
    """Open the index, with the model that is asked for."""
    from genret.retrieval.index.reader import Index
    from genret.retrieval.ranking.ranker import Ranker
    from genret.retrieval.ranking.rankings import NO_MODEL

    if not wish.has_model:
        device = str(wish.hardware["device"])
        with Index.open(wish.index) as index:
            ranker = Ranker.open(index, wish.encoder, "cpu" if device == "auto" else device)
            yield _checked(_Opened(index, ranker, NO_MODEL))
        return
    from genret.retrieval.checkpoints import folder_fingerprint
    from genret.retrieval.ranking.prior import begun_prior, null_prompts
    from genret.retrieval.retriever import Retriever

    with Retriever.open(wish.index, wish.model, encoder=wish.encoder, **wish.hardware) as retriever:
        fingerprint = folder_fingerprint(Path(retriever.tokenizer.source))
        index, ranker, prior, prompts = retriever.index, retriever.ranker, None, list[list[int]]()
        if wish.prior:
            prompts = null_prompts(retriever.config, retriever.tokenizer)
            prior = begun_prior(index, fingerprint, prompts, retriever.config.title_weight, progress)
        yield _checked(_Opened(index, ranker, fingerprint, retriever, prior, prompts))


def _checked(opened: _Opened) -> _Opened:
    """Refuse evidence that is not whole: weights fitted without one kind are wrong with it."""
    from genret.retrieval.ranking.ranker import PRIOR, RANKING
    from genret.retrieval.ranking.rankings import Rankings

    for kind, problem in opened.ranker.problems.items():
        if kind not in (RANKING, PRIOR):  # without them weights are fitted that do without
            raise IndexDirectoryError(f"the evidence {kind} cannot be used: {problem}")
    opened.ranker.require(opened.index)
    opened.rankings = Rankings() if RANKING in opened.ranker.problems else Rankings.read(opened.index)
    return opened


def _fitted(wish: _Wish, opened: _Opened, progress: StepProgress) -> tuple[Tuned, list[Path], int]:
    """Return the ranking fitted, the files it was fitted to, and the number of queries left out."""
    from genret.retrieval.ranking.prior import complete_prior
    from genret.retrieval.ranking.tuned_ranking import decoder_of, made_set, read_query_sets, tune

    index, evidence = opened.index, opened.ranker.evidence
    progress.phase("reading queries")
    sets = read_query_sets(wish.queries, index, wish.max_bad_rows, wish.limit, wish.seed)
    files = [one.path for one in sets if one.path is not None]
    num_unknown = sum(one.num_unknown for one in sets)
    if wish.made != 0:
        sets.append(made_set(index, evidence, wish.made, wish.seed))
    if not sets:
        raise InputError("queries", "there is nothing to fit to: --queries names none, and --made is 0")
    decode, before = None, opened.ranker.alone
    if (retriever := opened.retriever) is not None:
        decode, before = decoder_of(retriever), opened.ranker.ranking
        if opened.prior is not None:
            complete_prior(opened.prior, index, retriever.model, opened.null_prompts, progress)
            evidence.use_prior(opened.prior)
    tuned = tune(
        sets,
        evidence,
        decode,
        before,
        progress,
        labelled_share=wish.labelled_share,
        folds=wish.folds,
        seed=wish.seed,
    )
    return tuned, files, num_unknown


def _keep(wish: _Wish, opened: _Opened, tuned: Tuned, files: list[Path]) -> str:
    """Publish a ranking, or write it to a file; return the version that is live."""
    from genret.retrieval.durable import write_synced
    from genret.retrieval.index.layout import RANKING_FILE

    rankings = opened.rankings.with_one(opened.fingerprint, tuned.ranking).to_bytes()
    if wish.out is not None:
        try:
            write_synced(wish.out, rankings)
        except OSError as error:
            raise InputError("out", f"{wish.out}: cannot be written: {error.strerror}") from error
        return opened.index.version
    told = tuned.ranking.provenance
    num_queries = 0 if told is None else told.num_queries
    return _published(wish, opened, {RANKING_FILE: rankings}, files, num_queries)


def _published(
    wish: _Wish, opened: _Opened, made: dict[str, bytes], files: list[Path], num_queries: int
) -> str:
    """Publish a version with other rankings, or none other, and with the prior; return its id."""
    from genret.index_builder.update_evidence import publish_rankings
    from genret.retrieval.index.layout import PRIOR_FILE
    from genret.retrieval.index.priors import priors_to_bytes, read_priors

    options = {
        "model": opened.fingerprint,
        "queries": [str(Path(text).name) for text in wish.queries],
        "made": wish.made,
        "labelled_share": wish.labelled_share,
        "limit": wish.limit,
        "seed": wish.seed,
    }
    if opened.prior is not None:
        options["prior"] = list(opened.prior.queries)
        try:
            others = read_priors(opened.index)
        except IndexDirectoryError:  # damaged, and useless: the new file takes its place
            others = {}
        made[PRIOR_FILE] = priors_to_bytes({**others, opened.fingerprint: opened.prior}.values())
    parent = opened.index.version
    return publish_rankings(wish.index, parent, made, files, options, num_queries, wish.keep_versions)


def _lines(tuned: Tuned, num_unknown: int) -> list[str]:
    lines = []
    if num_unknown:
        lines.append(f"{num_unknown:,} queries left out: the index lacks their entities")
    for report in tuned.reports:
        lines += _report_lines(report)
    return [*lines, "weights, before and after:", *_weight_lines(tuned)]


def _report_lines(report: SetReport) -> list[str]:
    nothing = f", {report.num_nothing:,} for nothing of the index" if report.num_nothing else ""
    found = f"{report.num_found:,} find their entity among the candidates"
    figures = [f"  {name:<18} {_figure(figure)}" for name, figure in report.figures.items()]
    return [f"{report.name}: {report.num_queries:,} queries{nothing}; {found}", *figures]


def _figure(figure: TunedFigure) -> str:
    ends = (figure.before, figure.after)
    before, after = (f"{one.value:.3f} [{one.low:.3f}, {one.high:.3f}]" for one in ends)
    change = figure.difference
    return f"{before} -> {after}   {change.value:+.3f} [{change.low:+.3f}, {change.high:+.3f}]"


def _weight_lines(tuned: Tuned) -> list[str]:
    from genret.retrieval.evidence.evidence import FEATURES

    lines = []
    kind = ""
    for feature, before, after in zip(FEATURES, tuned.before.weights, tuned.ranking.weights, strict=True):
        if not before and not after:
            continue
        if feature.kind != kind:
            kind = feature.kind
            lines.append(f"  {kind}")
        lines.append(f"    {feature.name:<16} {before:8.2f} -> {after:8.2f}   {feature.meaning}")
    return lines


def _outcome(told: Mapping[str, Any]) -> str:
    model = f"for the model {told['model']}" if told["model"] else "without a model"
    if told["dry_run"]:
        return f"{told['index']}: dry run, version {told['version']} stays live; fitted {model}"
    if told["out"] is not None:
        return f"{told['out']}: the ranking {model}; {told['index']} is unchanged"
    return f"{told['index']}: version {told['version']}, before: {told['parent']}; ranking {model}"
