"""Evaluates from a plan to a report: reads sets, runs methods, computes figures, and writes everything."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import xxhash

from genret.decoding.model.hf_model import HFLanguageModel
from genret.retrieval.arguments import named
from genret.retrieval.checkpoints import folder_fingerprint
from genret.retrieval.durable import staged_file
from genret.retrieval.errors import InputError, SourceError, require_package
from genret.retrieval.evaluation.datasets.index_entities import IndexResolver, read_redirects
from genret.retrieval.evaluation.datasets.labels import SetSpec, decode_token
from genret.retrieval.evaluation.datasets.readers import read_set
from genret.retrieval.evaluation.labelled_sets import MISSING, LabelledSet
from genret.retrieval.evaluation.method_runner import Reporter, plan_tasks, run_tasks
from genret.retrieval.evaluation.methods.evaluated_method import MethodMaker, MethodSpec
from genret.retrieval.evaluation.metrics import DEFAULT_METRICS, check_metrics
from genret.retrieval.evaluation.reporting.comparison import (
    Overview,
    SetComparison,
    Settings,
    compare,
    make_overview,
)
from genret.retrieval.evaluation.reporting.evaluation_report import Facts, make_document, to_json
from genret.retrieval.evaluation.reporting.quality_plots import Point, draw
from genret.retrieval.evaluation.reporting.report_pages import PLOTS_FOLDER, Drawing, to_html, to_markdown
from genret.retrieval.evaluation.run_files import IDENTITY_FILE, Identity, RunStore
from genret.retrieval.progress import ProgressDisplay
from genret.retrieval.retriever import Retriever
from genret.retrieval.sources.source_files import digest_file
from genret.retrieval.tables import Shown

_PAPER = "#ffffff"
_MOST_WARM_UP = 64
_BETTER = "higher is better, further left is faster."


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """Options of an evaluation."""

    sets: tuple[SetSpec, ...]  # labelled sets, with different names
    methods: tuple[str, ...]  # names of methods, each once
    out: Path  # folder of the report
    k: int = 10  # entities asked for per query
    limit: int | None = None  # most queries per set; None: all
    seed: int = 0  # first seed of methods that draw
    num_seeds: int = 1  # passes of methods that draw, with consecutive seeds
    # Method that others are compared with; None: "trie" if it is asked, else the first
    baseline: str | None = None
    metrics: tuple[str, ...] | None = None  # metrics; None: those that go with the kind of each set
    num_resamples: int = 2000  # number of bootstrap resamples
    batch_size: int = 64  # queries answered together
    redirects: Path | None = None  # file of redirects of titles, or None
    has_plots: bool = True  # whether to draw
    resume: bool = False  # whether to go on with the evaluation in the folder

    def check(self) -> None:
        """Refuse wrong options before a model is loaded, and a folder that holds something else.

        An InputError has the option's name as its field; a MissingExtraError names a library.
        """
        _check_names(self.sets)
        if self.has_plots:
            require_package("matplotlib", "eval,plots", ", or draw nothing: --no-plots")
        for method in self.methods:
            _check_method(method)
        if self.baseline is not None and self.baseline not in self.methods:
            raise InputError(
                "baseline", f"must be one of the methods {list(self.methods)}, got {self.baseline!r}"
            )
        with named("metrics", "metric"):
            check_metrics(self.metrics or DEFAULT_METRICS["queries"])
        _check_folder(self.out, self.resume)

    @property
    def compared_with(self) -> str:
        """The baseline in force."""
        return self.baseline or ("trie" if "trie" in self.methods else self.methods[0])


@dataclass(frozen=True, slots=True, repr=False)
class Evaluated(Shown):
    """Results of an evaluation: a comparison per set, an overview of several, and `results.json`."""

    comparisons: tuple[SetComparison, ...]
    overview: Overview | None
    results: dict[str, Any]

    _rows = "leaders"

    @property
    def leaders(self) -> tuple[dict[str, Any], ...]:
        """The leading metric of every method on every set: value and the ends of its interval."""
        return tuple(
            {"set": one["name"], "method": method["method"], "metric": one["primary"]}
            | method["metrics"][one["primary"]]
            for one in self.results["sets"]
            for method in one["methods"]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `results.json`."""
        return self.results


def evaluate(
    plan: EvaluationPlan, retriever: Retriever, about: Sequence[tuple[str, str]], command: str
) -> Evaluated:
    """Run what is not done yet, and write the report.

    The options passed `check`. `about` are names and values that the report says of index and model beside
    their digests; `command` repeats the evaluation. A GenretError says that a set cannot be read, that the
    folder holds something else, or that a constrained method answered what the index lacks.
    """
    maker = MethodMaker(retriever, plan.k, plan.batch_size)
    methods = [maker.make(name) for name in plan.methods]
    redirects = {} if plan.redirects is None else read_redirects(plan.redirects)
    resolver = IndexResolver(retriever.index, redirects)
    sets = [read_set(replace(spec, limit=plan.limit), resolver) for spec in plan.sets]
    _check_answers(sets, retriever)
    identity = _identity(plan, retriever, sets)
    store = RunStore(plan.out, identity)
    tasks = plan_tasks(sets, methods, range(plan.seed, plan.seed + plan.num_seeds))
    settings = Settings(plan.compared_with, plan.metrics, plan.num_resamples, seed=plan.seed)
    with ProgressDisplay(is_transient=True) as display:
        reporter = Reporter(tasks, display)
        num_warm_up = min(plan.batch_size, _MOST_WARM_UP)
        runs = run_tasks(tasks, store, maker.titles, reporter.report, num_warm_up)
        display.say(f"{len(runs)} runs are done; resampling")
    comparisons = compare(sets, runs, settings)
    overview = None
    if len(sets) > 1:
        overview = make_overview(comparisons, plan.compared_with, settings.confidence)
    facts = Facts(
        title=f"Evaluation of the index {retriever.name}",
        batch_size=plan.batch_size,
        about=(*_about(plan, retriever, sets, identity), *about),
        command=command,
    )
    results = to_json(facts, settings, comparisons, overview)
    evaluated = Evaluated(comparisons, overview, results)
    _write(plan, facts, settings, evaluated)
    return evaluated


def _write(plan: EvaluationPlan, facts: Facts, settings: Settings, evaluated: Evaluated) -> None:
    comparisons, overview = evaluated.comparisons, evaluated.overview
    drawings: list[Drawing] = []
    files: dict[str, str] = {}
    for name, caption, metric, points in _plots(comparisons, overview) if plan.has_plots else ():
        drawings.append(Drawing(name, draw(points, metric), caption))
        files[f"{PLOTS_FOLDER}/{name}.svg"] = draw(points, metric, _PAPER) + "\n"
    document = make_document(facts, settings, comparisons, overview, drawings)
    results = json.dumps(evaluated.results, indent=2, ensure_ascii=False, allow_nan=False)
    files |= {"results.json": f"{results}\n", "report.md": to_markdown(document)}
    files["report.html"] = to_html(document)
    for name, text in files.items():
        with staged_file(plan.out / name) as stream:
            stream.write(text)


def _plots(
    comparisons: Sequence[SetComparison], overview: Overview | None
) -> Iterator[tuple[str, str, str, list[Point]]]:
    """Yield name, caption, metric and points of every drawing that has points."""
    if overview is not None:
        timed = [(row, row.milliseconds) for row in overview.rows if row.milliseconds is not None]
        points = [Point(row.method, milliseconds, None, row.mean) for row, milliseconds in timed]
        if points:
            caption = f"Quality against time, means over the sets: {_BETTER}"
            yield "overview", caption, "mean of the leading metrics", points
    for comparison in comparisons:
        name, metric = comparison.labelled.name, comparison.primary
        known = [(m.method, m.times, m.figures[metric].interval) for m in comparison.methods]
        points = [Point(n, times.mean_ms, found, found.value) for n, times, found in known if times]
        if points:
            caption = f"{name}: {metric} against time, with 95 % intervals. {_BETTER.capitalize()}"
            yield f"set-{name}", caption, metric, points


def _identity(plan: EvaluationPlan, retriever: Retriever, sets: Sequence[LabelledSet]) -> Identity:
    digests = {}
    for labelled in sets:
        asked = xxhash.xxh3_64_hexdigest("\n".join(query.query_id for query in labelled.queries).encode())
        digests[labelled.name] = f"{labelled.digest}, {len(labelled.queries)} queries {asked}"
    model = retriever.model
    dtype = str(model.dtype).removeprefix("torch.") if isinstance(model, HFLanguageModel) else "unknown"
    return Identity(
        index=retriever.index.digest,
        model=folder_fingerprint(Path(retriever.tokenizer.source)),
        dtype=dtype,
        k=plan.k,
        batch_size=plan.batch_size,
        redirects=None if plan.redirects is None else digest_file(plan.redirects).xxh3_128,
        sets=digests,
    )


def _about(
    plan: EvaluationPlan, retriever: Retriever, sets: Sequence[LabelledSet], identity: Identity
) -> list[tuple[str, str]]:
    index = retriever.index
    seeds = ", ".join(str(plan.seed + i) for i in range(plan.num_seeds))
    entities, rows = f"{index.num_entities:,} entities", f"{index.num_rows:,} titles and aliases"
    about = [
        ("index", f"{retriever.name}, {entities}, {rows}, digest {index.digest}"),
        ("model", f"{Path(retriever.tokenizer.name).name}, {identity.dtype}, digest {identity.model}"),
        *((f"set {s.name}", f"{len(s.queries):,} queries, digest {s.digest}") for s in sets),
    ]
    if plan.redirects is not None:
        about.append(("redirects", f"{plan.redirects.name}, digest {identity.redirects}"))
    return [
        *about,
        ("entities asked for", f"k = {plan.k}"),
        ("seeds", f"{seeds} for methods that draw; {plan.seed} for the bootstrap"),
        ("batch size", str(plan.batch_size)),
    ]


def _check_names(sets: Sequence[SetSpec]) -> None:
    if not sets:
        raise InputError("set", "give at least one set: --set NAME=FORMAT:PATH")
    names = [spec.name for spec in sets]
    for name in names:
        if names.count(name) > 1:
            raise InputError("set", f"two sets are called {name!r}; name one of them: OTHER=FORMAT:PATH")
        if name.startswith("."):
            raise InputError(
                "set", f"a name must not begin with a dot, got {name!r}; it names a folder of the report"
            )


def _check_method(text: str) -> None:
    spec = MethodSpec.parse(text)
    if spec.family in ("bm25", "bm25-shortlist"):
        require_package("bm25s", "eval")
    if spec.file is not None and not Path(spec.file).is_file():
        raise InputError("method", f"{text!r}: there is no file {spec.file}")


def _check_answers(sets: Sequence[LabelledSet], retriever: Retriever) -> None:
    """Refuse a set of another catalogue, but for mentions: leaving them without an answer is right."""
    for labelled in sets:
        missing = labelled.missing
        relevant = {e for query in labelled.queries for e, grade in query.gold.items() if grade > 0}
        if labelled.kind != "mentions" and missing and relevant <= set(missing):
            own = retriever.index.entity(0)
            raise InputError(
                "set",
                f"none of the {len(missing):,} relevant answers of {labelled.name} is in the index "
                f"{retriever.name}: expected entities such as {own.entity_id!r} ({own.title}), got "
                f"{decode_token(missing[0].removeprefix(MISSING))!r}; name the index that has the labels",
            )


def _check_folder(out: Path, resume: bool) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise InputError("out", f"must be a folder, {out} is a file")
    if (out / IDENTITY_FILE).exists():
        if not resume:
            raise SourceError(f"{out}: holds an evaluation; go on with it (--resume) or name another --out")
    elif any(out.iterdir()):
        raise SourceError(f"{out}: holds other files; name another --out")


_PACKAGES = ("generative-retrieval", "torch", "transformers", "tokenizers", "numpy", "bm25s", "ir-measures")


def about_machine(threads: int) -> list[tuple[str, str]]:
    """Return the versions and the hardware of a run."""
    versions = []
    for package in _PACKAGES:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:  # an extra, or a checkout that was never installed
            continue
    return [
        ("versions", ", ".join([f"Python {platform.python_version()}", *versions])),
        ("machine", f"{platform.system()} {platform.machine()}, {_processor()}, {os.cpu_count()} cores"),
        ("torch threads", str(threads)),
    ]


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:  # no Linux: platform knows what there is to know
        pass
    return platform.processor() or "unknown processor"
