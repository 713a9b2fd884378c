"""Linking mentions: against single calls, and a million short documents in bounded memory.

    python benchmarks/linking.py --index sample.index --json linking.json
    python benchmarks/linking.py --index sample.index --million --json million.json

`--index` is built from `--catalogue`: `build-index data/catalogue.tsv --out sample.index`. The same mentions,
each in a document of its own, are linked by a loop of single `Retriever.link` calls, by one call of
`Retriever.link`, by `open_linker`, and by a run with worker processes, once with all mentions different and
once with repetitions. All take turns in every round. The run is given with and without what it takes to start
workers, which load index and model themselves. All but the workers, who have one thread each, have
`--threads`.

The exit status is 1 when one of them has another entity than single calls for some mention, or a
log-probability that is more than 1e-4 off.

`--million` links that many documents of one sentence each with a run. Sentences are repeated, or it would
take hours: there are `--number` different ones. Memory is that of all processes together; what is above the
model and the index is the peak without that of the same run over a few documents.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pyarrow.parquet as pq
import torch
from harness.processes import MemoryTrace
from harness.report import COUNT, FILE, FOLDER, Spread, benchmark, shown
from harness.sample_data import read_tsv
from harness.timing import in_turn

from genret.retrieval.linking.documents.corpus import CorpusOptions
from genret.retrieval.linking.documents.text_document import Document, Span
from genret.retrieval.linking.link_options import LinkOptions, WorkerOptions
from genret.retrieval.linking.linker import link_documents
from genret.retrieval.linking.run import OutputOptions, RunnerOptions, link_corpus
from genret.retrieval.retriever import Retriever
from genret.retrieval.types import Mention

_TOLERANCE = 1e-4
_BASE = "single links"
_RUN, _START = "run", "start of a run"
_SAMPLES = 60
_WARM_UP_DOCUMENTS = 256
_SHARDS_PER_WORKER = 4
_BEFORE = (
    "Not long ago we read that ",
    "In the second chapter of the guide, ",
    "Those who ask about it are told of ",
    "The notes of the journey name ",
    "Beside all the others there is ",
    "",
)
_BEHIND = (
    ", which is known as: {}.",
    " ({}) was on everybody's mind.",
    ". For those who do not know: {}",
    " and what is said of it, {}, filled the evening.",
)


def _disagreement(figures: dict[str, Any], _options: SimpleNamespace) -> str | None:
    return None if figures.get("agrees", True) else "answers differ from those of single links"


@benchmark("torch", "transformers", "pyarrow", check=_disagreement)
@click.option("--index", required=True, type=FOLDER, help="An index for the small model.")
@click.option(
    "--catalogue",
    type=FILE,
    default=Path("data/catalogue.tsv"),
    help="Sentences are made about its entities.",
)
@click.option("--number", type=COUNT, default=512, help="Mentions, all different.")
@click.option("--repetitions", type=click.IntRange(min=2), default=4, help="Of each mention, second contest.")
@click.option("--million", is_flag=True, help="Link --documents short documents, and watch the memory.")
@click.option("--documents", type=COUNT, default=1_000_000, help="How many with --million.")
@click.option("-k", "--k", "k", type=click.IntRange(1, 10), default=5, help="Candidates kept per mention.")
@click.option("--batch-size", type=COUNT, default=32, help="Mentions per forward.")
@click.option("--workers", type=COUNT, default=2, help="Processes of a run.")
@click.option("--threads", type=COUNT, default=2, help="Threads of torch, for all but a run.")
@click.option("--repeats", type=COUNT, default=5, help="Rounds; all sides take turns.")
def main(options: SimpleNamespace) -> dict[str, Any]:
    """Measure linking."""
    mentions = made_mentions(options.catalogue, options.number)
    with tempfile.TemporaryDirectory() as folder:
        if options.million:
            return {"million": in_bounded_memory(options, mentions, Path(folder))}
        return contests(options, mentions, Path(folder))


def contests(options: SimpleNamespace, mentions: Sequence[Mention], folder: Path) -> dict[str, Any]:
    """Link different mentions, then repeated ones."""
    torch.set_num_threads(options.threads)
    figures: dict[str, Any] = {"agrees": True}
    times = options.repetitions
    works = {"all different": list(mentions), f"each about {times} times": repeated(mentions, times)}
    with Retriever.open(options.index, num_threads=options.threads) as retriever:
        for name, work in works.items():
            click.echo(f"\n{len(work)} mentions, {name}")
            figures[name], agrees = contest(options, retriever, work, folder)
            figures["agrees"] &= agrees
    return figures


def contest(
    options: SimpleNamespace, retriever: Retriever, work: list[Mention], folder: Path
) -> tuple[dict[str, Any], bool]:
    """Link mentions in all ways; return figures, and whether all gave the answers of single links."""
    k, size, out = options.k, options.batch_size, folder / "links"
    documents, few = folder / "documents.jsonl", folder / "few.jsonl"
    write_documents(documents, work)
    write_documents(few, work[: options.workers])
    ways: dict[str, Callable[[], Any]] = {
        _BASE: lambda: _best(retriever.link(mention, k=k)[0] for mention in work),
        "links in batches": lambda: _best(retriever.link(work, k=k, batch_size=size)),
        "open_linker": lambda: link_as_documents(retriever, work, k, size),
        _RUN: lambda: run(documents, len(work), out, options),
        _START: lambda: run(few, len(work[: options.workers]), folder / "few", options),
    }
    agreements, agrees = {}, True
    expected = ways[_BASE]()
    for name, way in ways.items():
        if name in (_BASE, _START):
            continue
        found = way()
        agreements[name] = compared = agreement(expected, answers_in(out) if name == _RUN else found)
        agrees &= compared["num_equal"] == compared["num_mentions"]
        agrees &= compared["largest_difference"] <= _TOLERANCE
    taken = in_turn(ways, options.repeats, warm_up=0)
    seconds = {name: [took.wall_s for took in column] for name, column in taken.items()}
    seconds["run, workers started"] = [
        max(whole - start, 1e-9) for whole, start in zip(seconds[_RUN], seconds[_START], strict=True)
    ]
    rates = {name: Spread.of([len(work) / s for s in c]) for name, c in seconds.items() if name != _START}
    ratios = {name: Spread.of_ratios(seconds[_BASE], seconds[name]) for name in rates if name != _BASE}
    figures = {"seconds": seconds, "per_second": rates, "ratios": {_BASE: ratios}, "agreements": agreements}
    return shown("linked", figures), agrees


def in_bounded_memory(options: SimpleNamespace, mentions: Sequence[Mention], folder: Path) -> dict[str, Any]:
    """Link many short documents, and a few for what model and index take."""
    few, many, number = folder / "few.jsonl", folder / "many.jsonl", options.documents
    write_documents(few, (mentions[n % len(mentions)] for n in range(_WARM_UP_DOCUMENTS)))
    write_documents(many, (mentions[n % len(mentions)] for n in range(number)))
    with MemoryTrace() as at_rest:
        run(few, _WARM_UP_DOCUMENTS, folder / "few", options)
    with MemoryTrace() as trace:
        seconds = run(many, number, folder / "many", options)
    figures = {
        "documents": number,
        "different_sentences": len(mentions),
        "seconds": seconds,
        "documents_per_second": number / seconds,
        "peak_bytes": trace.peak_bytes,
        "model_and_index_bytes": at_rest.peak_bytes,
        "above_bytes": trace.peak_bytes - at_rest.peak_bytes,
        "memory_over_time": trace.thinned(_SAMPLES),
    }
    return shown("many documents", figures)


@dataclass(frozen=True, slots=True)
class Answer:
    """The best entity of a mention; None: NIL."""

    entity_id: str | None
    logprob: float | None


def agreement(one: Sequence[Answer], other: Sequence[Answer]) -> dict[str, Any]:
    """Count the mentions with the same entity; say how far log-probabilities differ at most where it is."""
    same = [(a, b) for a, b in zip(one, other, strict=True) if a.entity_id == b.entity_id]
    differences = [
        abs(a.logprob - b.logprob) for a, b in same if a.logprob is not None and b.logprob is not None
    ]
    most = max(differences, default=0.0)
    return {"num_equal": len(same), "num_mentions": len(one), "largest_difference": most}


def link_as_documents(
    retriever: Retriever, mentions: Sequence[Mention], k: int, batch_size: int
) -> list[Answer]:
    """Link with a linker of its own, with an empty cache."""
    documents, options = list(as_documents(mentions)), LinkOptions(k=k)
    rows = link_documents(retriever, documents, options, batch_size=batch_size, complain=_refuse)
    return [Answer(row["entity_id"], row["logprob"]) for row in rows]


def run(documents: Path, number: int, out: Path, options: SimpleNamespace) -> float:
    """Link a file with worker processes, which begin with nothing in their memory, and return the seconds."""
    shutil.rmtree(out, ignore_errors=True)
    size = max(1, math.ceil(number / (options.workers * _SHARDS_PER_WORKER)))
    summary = link_corpus(
        CorpusOptions((str(documents),), shard_documents=size),
        OutputOptions(str(out)),
        WorkerOptions(str(options.index), batch_size=options.batch_size),
        LinkOptions(k=options.k),
        RunnerOptions(num_workers=options.workers),
    )
    if summary.counts.num_failed or summary.counts.num_rows != number:
        raise RuntimeError(f"{out}: expected {number} rows and no failure, got {summary.counts}")
    return summary.seconds


def answers_in(out: Path) -> list[Answer]:
    """Read what a run wrote."""
    found = []
    for part in sorted(out.glob("*.parquet")):
        table = pq.read_table(part, columns=["entity_id", "logprob"])
        found += [Answer(row["entity_id"], row["logprob"]) for row in table.to_pylist()]
    return found


def _best(results: Iterable[Any]) -> list[Answer]:
    firsts = [result.candidates[0] if result.candidates else None for result in results]
    return [Answer(first.entity_id, first.logprob) if first else Answer(None, None) for first in firsts]


def _refuse(complaint: str) -> None:
    raise RuntimeError(complaint)


def made_mentions(catalogue: Path, number: int, seed: int = 0) -> list[Mention]:
    """Make different sentences about random entities, by title or alias, with a description behind the name.

    The catalogue is TSV with the columns `title`, `aliases`, `kind` and `description`.
    """
    entries = read_tsv(catalogue)
    rng = random.Random(seed)
    mentions: dict[Mention, None] = {}
    while len(mentions) < number:
        entry = rng.choice(entries)
        name = rng.choice([entry["title"], *filter(None, (entry["aliases"] or "").split("|"))])
        behind = rng.choice(_BEHIND).format(entry["description"] or entry["kind"])
        mentions[Mention(name, rng.choice(_BEFORE), behind)] = None
    return list(mentions)


def repeated(mentions: Sequence[Mention], times: int, seed: int = 0) -> list[Mention]:
    """Return as many mentions, of which only one in `times` is another one, in random order."""
    kept = list(mentions[: max(1, len(mentions) // times)])
    drawn = (kept * (times + 1))[: len(mentions)]
    random.Random(seed).shuffle(drawn)
    return drawn


def as_documents(mentions: Iterable[Mention]) -> Iterator[Document]:
    """Yield one document per mention, with its span."""
    for row, mention in enumerate(mentions, 1):
        start = len(mention.left)
        text = mention.left + mention.mention + mention.right
        yield Document("made", row, str(row), text, (Span(start, start + len(mention.mention)),))


def write_documents(file: Path, mentions: Iterable[Mention]) -> None:
    """Write one document per mention as JSON lines."""
    with file.open("w", encoding="utf-8") as out:
        for made in as_documents(mentions):
            spans = [{"start": span.start, "end": span.end} for span in made.spans or ()]
            document = {"id": made.doc_id, "text": made.text, "mentions": spans}
            out.write(json.dumps(document, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
