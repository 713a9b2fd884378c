"""Linking mentions: against single calls and `generate`, and a million short documents in bounded memory.

    python benchmarks/linking.py --index sample.index --json linking.json
    python benchmarks/linking.py --index sample.index --mentions dev.jsonl
    python benchmarks/linking.py --index sample.index --million --json million.json

`--index` is built from `--catalogue`: `build-index data/catalogue.tsv --out sample.index`. The same mentions,
each in a document of its own, are linked by a loop of single `Retriever.link` calls, by transformers'
`generate` with a dictionary trie (one at a time, and in batches of neighbours in length, with the same
prompts and as many beams), by one call of `Retriever.link`, by the `DocumentLinker`, and by a run with worker
processes, once with all mentions different and once with repetitions. All take turns in every round. The run
is given with and without what it takes to start workers, which load index and model themselves. All but the
workers, who have one thread each, have `--threads`.

The exit status is 1 when one of ours has another entity than single calls for some mention, or a
log-probability that is more than 1e-4 off. `generate` keeps other beams when a title ends, so its answers are
compared and counted.

`--million` links that many documents of one sentence each with a run. Sentences are repeated, or it would
take hours: there are `--number` different ones. Memory is that of all processes together; what is above the
model and the index is the peak without that of the same run over a few documents.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
from harness.made_mentions import made_mentions, mentions_of, repeated, write_documents
from harness.memory_trace import MemoryTrace
from harness.report import Spread, announce, command_line, environment, write_json
from harness.titles import JSON

from genret.retrieval.types import Mention

_TOLERANCE = 1e-4
_BASE = "single links"
_RUN, _START = "run", "start of a run"
_SAMPLES = 60
_WARM_UP_DOCUMENTS = 256


@dataclass(frozen=True, slots=True)
class Options:
    """What all ways of linking have in common."""

    index: Path
    k: int
    batch_size: int
    workers: int
    threads: int
    repeats: int


@click.command(context_settings={"show_default": True})
@JSON
@click.option(
    "--index",
    required=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="An index for the small model.",
)
@click.option(
    "--catalogue",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    default=Path("data/catalogue.tsv"),
    help="Sentences are made about its entities.",
)
@click.option(
    "--mentions",
    "mentions_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Take mentions from these JSON lines instead.",
)
@click.option("--number", type=click.IntRange(min=1), default=512, help="Mentions, all different.")
@click.option("--repetitions", type=click.IntRange(min=2), default=4, help="Of each mention, second contest.")
@click.option("--million", is_flag=True, help="Link --documents short documents, and watch the memory.")
@click.option("--documents", type=click.IntRange(min=1), default=1_000_000, help="How many with --million.")
@click.option("-k", "--k", "k", type=click.IntRange(1, 10), default=5, help="Candidates kept per mention.")
@click.option("--batch-size", type=click.IntRange(min=1), default=32, help="Mentions per forward.")
@click.option("--workers", type=click.IntRange(min=1), default=2, help="Processes of a run.")
@click.option("--threads", type=click.IntRange(min=1), default=2, help="Threads of torch, for all but a run.")
@click.option("--repeats", type=click.IntRange(min=1), default=5, help="Rounds; all sides take turns.")
@click.option("--without-generate", is_flag=True, help="Leave out transformers' `generate`.")
def main(
    json_file: Path | None,
    index: Path,
    catalogue: Path,
    mentions_file: Path | None,
    number: int,
    repetitions: int,
    million: bool,
    documents: int,
    without_generate: bool,
    **chosen: Any,
) -> None:
    """Measure linking."""
    facts = environment("torch", "transformers", "pyarrow")
    announce(facts)
    options = Options(index=index, **chosen)
    if mentions_file is None:
        mentions = made_mentions(catalogue, number)
    else:
        mentions = mentions_of(mentions_file, number)
    figures: dict[str, Any]
    with tempfile.TemporaryDirectory() as folder:
        if million:
            figures = {"million": in_bounded_memory(options, mentions, documents, Path(folder))}
        else:
            figures = contests(options, mentions, repetitions, not without_generate, Path(folder))
    write_json(json_file, command_line(), facts, figures)
    if not figures.get("agrees", True):
        raise SystemExit(1)


def contests(
    options: Options, mentions: Sequence[Mention], repetitions: int, with_generate: bool, folder: Path
) -> dict[str, Any]:
    """Link different mentions, then repeated ones."""
    import torch
    from harness.linking_contest import Generation, dictionary_of

    from genret.retrieval.retriever import Retriever

    torch.set_num_threads(options.threads)
    figures: dict[str, Any] = {}
    with Retriever.open(options.index, num_threads=options.threads) as retriever:
        generation = None
        if with_generate:
            from transformers import AutoModelForCausalLM

            from genret.retrieval.defaults import small_model_dir

            stock = AutoModelForCausalLM.from_pretrained(small_model_dir(), dtype=torch.float32).eval()
            beams = max(options.k, 10)
            generation = Generation(stock, retriever, dictionary_of(retriever.index), beams)
        agrees = True
        for name, work in (
            ("all different", list(mentions)),
            (f"each about {repetitions} times", repeated(mentions, repetitions)),
        ):
            click.echo(f"\n{len(work)} mentions, {name}")
            contest = Contest(options, retriever, generation, work, folder)
            figures[name] = contest.measured()
            agrees &= contest.agrees
    return {**figures, "agrees": agrees}


class Contest:
    """All ways of linking some mentions."""

    def __init__(
        self, options: Options, retriever: Any, generation: Any, work: list[Mention], folder: Path
    ) -> None:
        from harness import linking_contest

        self._options = options
        self._number = len(work)
        self._out = folder / "links"
        k, batch_size, workers = options.k, options.batch_size, options.workers
        documents, few = folder / "documents.jsonl", folder / "few.jsonl"
        write_documents(documents, work)
        write_documents(few, work[:workers])
        run = partial(linking_contest.run, index=options.index, k=k, batch_size=batch_size, workers=workers)
        self.ways: dict[str, Callable[[], Any]] = {
            _BASE: partial(linking_contest.link_singly, retriever, work, k),
            "links in batches": partial(linking_contest.link_together, retriever, work, k, batch_size),
            "DocumentLinker": partial(linking_contest.link_as_documents, retriever, work, k, batch_size),
            _RUN: partial(run, documents, len(work), self._out),
            _START: partial(run, few, len(work[:workers]), folder / "few"),
        }
        if generation is not None:
            self.ways["generate, one at a time"] = partial(generation.link, work, 1)
            self.ways["generate in batches"] = partial(generation.link, work, batch_size)
        self.agrees = True

    def measured(self) -> dict[str, Any]:
        """Compare the answers, then take the times."""
        agreements = self._compare()
        seconds: dict[str, list[float]] = {name: [] for name in self.ways}
        for _ in range(self._options.repeats):
            for name, way in self.ways.items():
                begun = time.perf_counter()
                way()
                seconds[name].append(time.perf_counter() - begun)
        seconds["run, workers started"] = [
            max(whole - start, 1e-9) for whole, start in zip(seconds[_RUN], seconds[_START], strict=True)
        ]
        rates = {name: Spread.of([self._number / s for s in taken]) for name, taken in seconds.items()}
        del rates[_START]
        bases = [name for name in seconds if name == _BASE or name.startswith("generate")]
        ratios = {
            base: {
                name: Spread.of_ratios(seconds[base], seconds[name]) for name in rates if name not in bases
            }
            for base in bases
        }
        for name, rate in rates.items():
            click.echo(f"  {name:26} {rate.text(1):>24} mentions/s")
        for base, columns in ratios.items():
            for name, ratio in columns.items():
                click.echo(f"  {name:26} {ratio.text(2):>24} x {base}")
        return {"seconds": seconds, "per_second": rates, "ratios": ratios, "agreements": agreements}

    def _compare(self) -> dict[str, Any]:
        from harness.linking_contest import Agreement, answers_in

        expected = self.ways[_BASE]()
        agreements = {}
        for name, way in self.ways.items():
            if name in (_BASE, _START):
                continue
            answers = way()
            found = Agreement.of(expected, answers_in(self._out) if name == _RUN else answers)
            agreements[name] = found
            click.echo(
                f"  {name:26} the entity of single links in {found.num_equal} of {found.num_mentions}, "
                f"log-probabilities differ by at most {found.largest_difference:.1e}"
            )
            if not name.startswith("generate"):
                same = found.num_equal == found.num_mentions
                self.agrees &= same and found.largest_difference <= _TOLERANCE
        return agreements


def in_bounded_memory(
    options: Options, mentions: Sequence[Mention], number: int, folder: Path
) -> dict[str, Any]:
    """Link many short documents, and a few for what model and index take."""
    from harness.linking_contest import run

    few, many = folder / "few.jsonl", folder / "many.jsonl"
    write_documents(few, (mentions[n % len(mentions)] for n in range(_WARM_UP_DOCUMENTS)))
    write_documents(many, (mentions[n % len(mentions)] for n in range(number)))
    link = partial(
        run, index=options.index, k=options.k, batch_size=options.batch_size, workers=options.workers
    )
    with MemoryTrace() as at_rest:
        link(few, _WARM_UP_DOCUMENTS, folder / "few")
    with MemoryTrace() as trace:
        seconds = link(many, number, folder / "many")
    above = trace.peak_bytes - at_rest.peak_bytes
    click.echo(
        f"{number:,} documents of {len(mentions):,} different sentences in {seconds:,.0f} s: "
        f"{number / seconds:,.0f} documents/s; peak {trace.peak_bytes / 2**20:,.0f} MiB, "
        f"{above / 2**20:,.0f} MiB above model and index"
    )
    return {
        "documents": number,
        "different_sentences": len(mentions),
        "seconds": seconds,
        "documents_per_second": number / seconds,
        "peak_bytes": trace.peak_bytes,
        "model_and_index_bytes": at_rest.peak_bytes,
        "above_bytes": above,
        "memory_over_time": trace.thinned(_SAMPLES),
    }


if __name__ == "__main__":
    sys.exit(main())
