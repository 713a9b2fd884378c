"""Whether JSON answers are valid: ten thousand of them, under fifty schemas, whatever the model.

    python benchmarks/answer_validity.py --json answer_validity.json
    python benchmarks/answer_validity.py --model random --dtype bfloat16 --answers 1000

The small model, and a Llama with random weights and the same tokenizer, answer the sample queries:
greedily, by sampling at several temperatures, by beam search and by DISC, in several styles, with budgets
from the smallest there is. Every answer is validated by `jsonschema`, and its titles are looked up in the
sample catalogue. Anything but 100 % is an error. Ctrl-C ends a run early: what was counted is printed, and
missing answers count as not given.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import torch
from harness.answer_schemas import SCHEMAS
from harness.leaning_model import random_llama
from harness.report import announce, command_line, environment, write_json
from harness.titles import JSON
from harness.validity import ValidityRun
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from transformers import AutoConfig

from genret.decoding.model.hf_model import HFLanguageModel
from genret.index_builder.build import build_index
from genret.index_builder.build_options import BuildOptions
from genret.retrieval.answers.answerer import Answerer
from genret.retrieval.answers.schemas import AnswerEngine
from genret.retrieval.filters.entity_filter import FilterStore
from genret.retrieval.index.reader import Index
from genret.retrieval.kv_memory import PrefixStore
from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.text import TextTokenizer

_DATA = Path(__file__).resolve().parent.parent / "data"
_MODEL = _DATA / "small-model"


@click.command(context_settings={"show_default": True})
@JSON
@click.option(
    "--model",
    "models",
    multiple=True,
    type=click.Choice(["default", "random"]),
    default=("default", "random"),
    help="May be repeated.",
)
@click.option("--answers", "number", type=click.IntRange(min=1), default=10_000, help="Of each model.")
@click.option("--batch-size", type=click.IntRange(min=1), default=100, help="Requests that decode together.")
@click.option("--hidden", type=click.IntRange(min=64), default=768, help="Of the random model.")
@click.option("--layers", type=click.IntRange(min=1), default=14, help="Of the random model.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16"]),
    default="float32",
    help="Of the random model: processors with matrix units are several times faster with bfloat16.",
)
@click.option("--tiny", is_flag=True, help="A small random model alone: to see that this runs.")
def main(
    json_file: Path | None,
    models: Sequence[str],
    number: int,
    batch_size: int,
    hidden: int,
    layers: int,
    dtype: str,
    tiny: bool,
) -> None:
    """Count valid answers."""
    torch.set_num_threads(1)
    facts = environment("torch", "transformers", "tokenizers", "jsonschema", "numba")
    announce(facts)
    tokenizer = TextTokenizer.load(_MODEL)
    figures: dict[str, Any] = {}
    with _catalogue(tokenizer) as (index, titles):
        for name in ("random",) if tiny else models:
            model = HFLanguageModel.load(_MODEL, device="cpu", dtype="float32")
            if name == "random":
                size = (64, 1) if tiny else (hidden, layers)
                model = random_llama(model.vocab_size, *size, dtype=getattr(torch, dtype))
            engine = AnswerEngine(tokenizer, _end_token(), model.vocab_size)
            engine.add_index("catalogue", index, FilterStore(index, "cpu", 1 << 24))
            config = CheckpointConfig.load(_MODEL)
            answerer = Answerer(model, tokenizer, config, PrefixStore(model), engine)
            run = ValidityRun(answerer, SCHEMAS, titles, _queries())
            _run(run, name, number, batch_size)
            figures[name] = run.figures()
            _print(name, figures[name])
    write_json(json_file, command_line(), facts, figures)
    wrong = [_wrong(name, found, number) for name, found in figures.items() if found["valid"] != number]
    if wrong:
        raise click.ClickException("; ".join(wrong))


def _wrong(name: str, found: dict[str, Any], number: int) -> str:
    """What is wrong with the answers of one model."""
    causes = [str(causes) for causes in (found["invalid"], found["refused"]) if causes]
    return " ".join([f"{name}: {found['valid']:,} of {number:,} answers are there and valid", *causes])


def _run(run: ValidityRun, name: str, number: int, batch_size: int) -> None:
    """Answer until all are answered, or the user has seen enough."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(name, total=number)
        try:
            run.run(number, batch_size, lambda count: progress.advance(task, count))
        except KeyboardInterrupt:
            progress.console.print("stopped; what was counted follows")


@contextmanager
def _catalogue(tokenizer: TextTokenizer) -> Iterator[tuple[Index, frozenset[str]]]:
    """Yield an index of the sample catalogue, and its titles."""
    file = _DATA / "catalogue.tsv"
    with file.open(encoding="utf-8", newline="") as rows:
        titles = frozenset(
            row["title"] for row in csv.DictReader(rows, delimiter="\t", quoting=csv.QUOTE_NONE)
        )
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "catalogue.index"
        build_index(file, tokenizer, BuildOptions(out=out))
        with Index.open(out) as index:
            yield index, titles


def _queries() -> list[str]:
    with (_DATA / "queries.tsv").open(encoding="utf-8", newline="") as rows:
        return [row["query"] for row in csv.DictReader(rows, delimiter="\t", quoting=csv.QUOTE_NONE)][:1000]


def _end_token() -> int:
    return int(AutoConfig.from_pretrained(_MODEL).eos_token_id)


def _print(name: str, figures: dict[str, Any]) -> None:
    table = Table(title=f"{name}: {figures['answers_per_second']:.1f} answers a second")
    for heading in ("method", "answers", "valid", "smallest budget", "tokens", "forced %", "passes"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for method, line in [*figures["methods"].items(), ("all", figures)]:
        counts = (line["answers"], line["valid"], line["smallest_budget"], line["tokens"])
        cells = [f"{count:,}" for count in counts]
        table.add_row(method, *cells, f"{100 * line['forced_share']:.0f}", f"{line['forwards']:,}")
    Console().print(table)


if __name__ == "__main__":
    main()
