"""Whether JSON answers are valid: ten thousand of them, under fifty schemas, whatever the model.

    python benchmarks/answer_validity.py --json answer_validity.json
    python benchmarks/answer_validity.py --model random --dtype bfloat16 --answers 1000

The small model, and a Llama with random weights and the same tokenizer, answer the sample queries:
greedily, by sampling at several temperatures, by beam search and by DISC, in several styles, with budgets
from the smallest there is. Every answer is validated by `jsonschema`, and its titles are looked up in the
sample catalogue. Anything but 100 % is an error.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import torch
from harness.answer_schemas import SCHEMAS, AnswerSchema
from harness.report import COUNT, benchmark, shown
from harness.sample_data import DATA, SMALL_MODEL, read_tsv, sample_queries
from harness.twin_models import random_model
from transformers import AutoConfig

from genret.decoding.model.hf_model import HFLanguageModel
from genret.index_builder.build import build_index
from genret.index_builder.build_options import BuildOptions
from genret.retrieval.answers.answer_types import AnswerOptions, AnswerRequest, AnswerResult
from genret.retrieval.answers.answerer import Answerer
from genret.retrieval.answers.schemas import AnswerEngine
from genret.retrieval.answers.validation import AnswerValidator, InvalidAnswerError
from genret.retrieval.filters.entity_filter import FilterStore
from genret.retrieval.index.reader import Index
from genret.retrieval.loaded_model import PrefixStore
from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.text import TextTokenizer

# name -> options of a request.
METHODS: dict[str, AnswerOptions] = {
    "greedy": {},
    "greedy, nothing forced": {"forced_spans": False, "whitespace": "compact"},
    "sample": {"method": "sample"},
    "sample, cold": {"method": "sample", "temperature": 0.3, "extra_properties": "allowed"},
    "sample, hot": {
        "method": "sample",
        "temperature": 5.0,
        "whitespace": "flexible",
        "property_order": "any",
    },
    "beam": {"method": "beam", "beam_size": 2},
    "disc": {"method": "disc", "num_draws": 2},
}
# Tokens beyond those of the shortest document.
SPARE = (0, 1, 8, 40)


def _missing(figures: dict[str, Any], options: SimpleNamespace) -> str | None:
    """Say what is wrong with the answers of each model."""
    wrong = []
    for name, found in figures.items():
        if found["valid"] != options.number:
            causes = [str(dict(causes)) for causes in (found["invalid"], found["refused"]) if causes]
            said = f"{name}: {found['valid']:,} of {options.number:,} answers are there and valid"
            wrong.append(" ".join([said, *causes]))
    return "; ".join(wrong) or None


@benchmark("torch", "transformers", "tokenizers", "jsonschema", "numba", check=_missing)
@click.option(
    "--model",
    "models",
    multiple=True,
    type=click.Choice(["default", "random"]),
    default=("default", "random"),
    help="May be repeated.",
)
@click.option("--answers", "number", type=COUNT, default=10_000, help="Of each model.")
@click.option("--batch-size", type=COUNT, default=100, help="Requests that decode together.")
@click.option("--hidden", type=click.IntRange(min=64), default=768, help="Of the random model.")
@click.option("--layers", type=COUNT, default=14, help="Of the random model.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16"]),
    default="float32",
    help="Of the random model: processors with matrix units are several times faster with bfloat16.",
)
@click.option("--tiny", is_flag=True, help="A small random model alone: to see that this runs.")
def main(options: SimpleNamespace) -> dict[str, Any]:
    """Count valid answers."""
    torch.set_num_threads(1)
    tokenizer, config = TextTokenizer.load(SMALL_MODEL), CheckpointConfig.load(SMALL_MODEL)
    end_token = int(AutoConfig.from_pretrained(SMALL_MODEL).eos_token_id)
    catalogue = DATA / "catalogue.tsv"
    titles = frozenset(row["title"] for row in read_tsv(catalogue))
    queries = sample_queries()[:1000]
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "catalogue.index"
        build_index(catalogue, tokenizer, BuildOptions(out=out))
        with Index.open(out) as index:
            for name in ("random",) if options.tiny else options.models:
                model = HFLanguageModel.load(SMALL_MODEL, device="cpu", dtype="float32")
                if name == "random":
                    size = (64, 1) if options.tiny else (options.hidden, options.layers)
                    model = random_model(model.vocab_size, *size, dtype=getattr(torch, options.dtype))
                engine = AnswerEngine(tokenizer, end_token, model.vocab_size)
                engine.add_index("catalogue", index, FilterStore(index, "cpu", 1 << 24))
                answerer = Answerer(model, tokenizer, config, PrefixStore(model), engine)
                run = ValidityRun(answerer, titles, queries)
                run.run(options.number, options.batch_size)
                figures[name] = shown(name, run.figures())
    return figures


@dataclass
class Tally:
    """Counts of some requests."""

    answers: int = 0
    valid: int = 0  # their titles included
    invalid: Counter[str] = field(default_factory=Counter)  # faults of the other answers
    refused: Counter[str] = field(default_factory=Counter)  # requests that were not answered, by message
    tokens: int = 0  # of all answers, end tokens included
    forced: int = 0  # of these tokens
    forwards: int = 0  # passes that answers took part in, behind their prompts
    smallest_budget: int = 0  # answers under the smallest budget there is

    def figures(self) -> dict[str, Any]:
        """Return the counts and the share of forced tokens."""
        return {**vars(self), "forced_share": self.forced / self.tokens if self.tokens else 0.0}


class ValidityRun:
    """Answers requests in batches and checks every answer."""

    def __init__(self, answerer: Answerer, titles: frozenset[str], queries: Sequence[str]) -> None:
        self._answerer, self._titles, self._queries = answerer, titles, queries
        self._validators = {one.name: AnswerValidator(one.text) for one in SCHEMAS}
        self._needed: dict[tuple[str, str], int] = {}
        self.by_method: dict[str, Tally] = {name: Tally() for name in METHODS}
        self.seconds = 0.0

    def run(self, number: int, batch_size: int) -> None:
        """Answer so many requests."""
        waiting = self._requests(number)
        while batch := [asked for _, asked in zip(range(batch_size), waiting, strict=False)]:
            begun = time.perf_counter()
            jobs = [self._answerer.job(request) for _, _, _, request in batch]
            replies = self._answerer.run(jobs)
            self.seconds += time.perf_counter() - begun
            for (schema, method, is_smallest, _), reply in zip(batch, replies, strict=True):
                self._count(schema, self.by_method[method], is_smallest, reply)

    def figures(self) -> dict[str, Any]:
        """Return all counts, by method and together."""
        total = Tally()
        for tally in self.by_method.values():
            for name, count in vars(tally).items():
                setattr(total, name, getattr(total, name) + count)
        return {
            **total.figures(),
            "seconds": self.seconds,
            "answers_per_second": total.answers / self.seconds if self.seconds else 0.0,
            "methods": {name: tally.figures() for name, tally in self.by_method.items()},
        }

    def _requests(self, number: int) -> Iterator[tuple[AnswerSchema, str, bool, AnswerRequest]]:
        """Every schema under every method and budget in turn."""
        methods = list(METHODS)
        for asked in range(number):
            schema = SCHEMAS[asked % len(SCHEMAS)]
            turn = asked // len(SCHEMAS) + asked
            method = methods[turn % len(methods)]
            spare = SPARE[turn // len(methods) % len(SPARE)]
            query = self._queries[asked % len(self._queries)]
            request = AnswerRequest(query, schema.text, seed=asked, **METHODS[method])
            key = (schema.name, method)
            if key not in self._needed:
                grammar = self._answerer.job(request).schema.grammar
                self._needed[key] = grammar.tokens_to_finish(grammar.start)
            yield schema, method, spare == 0, replace(request, max_tokens=self._needed[key] + spare)

    def _count(self, schema: AnswerSchema, tally: Tally, is_smallest: bool, reply: object) -> None:
        if isinstance(reply, InvalidAnswerError):
            tally.answers += 1
            tally.invalid[f"{schema.name}: {reply}"] += 1
            return
        if not isinstance(reply, AnswerResult):
            tally.refused[f"{schema.name}: {reply}"] += 1
            return
        tally.answers += 1
        tally.tokens += reply.num_tokens
        tally.forced += reply.num_forced
        tally.forwards += reply.num_forwards
        tally.smallest_budget += is_smallest
        try:
            self._validators[schema.name].check(reply.text)
        except InvalidAnswerError as error:
            tally.invalid[f"{schema.name}: {error}"] += 1
            return
        unknown = [found.title for found in reply.entities if found.title not in self._titles]
        if unknown:
            tally.invalid[f"{schema.name}: no title: {unknown[0]!r}"] += 1
            return
        tally.valid += 1


if __name__ == "__main__":
    main()
