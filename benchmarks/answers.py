"""Greedy JSON answers: passes and time with forced spans, with drafted tokens, with both and with neither.

    python benchmarks/answers.py --json answers.json
    python benchmarks/answers.py --model default --only simple3 --rounds 3
    python benchmarks/answers.py --target pair/target --draft-model pair/draft --only record --draft-tokens 4

Without `--target` two targets with the small model's tokenizer: the small model, drafted for by a random
Llama of two layers, and a random Llama of 100 million parameters, drafted for by the small model. Every
round answers the same prompts under every schema in each of the four ways in turn, prompts and all; one round
before the others warms up and is left out. Random models agree about nothing, so their drafts show what
drafting costs, not what it gains. That is seen with a pair that `benchmarks/draft_pair.py` has taught: dev
queries are asked in the words it knows, and the schemas `record` and `kinds` ask for the documents it was
taught, `kinds` with a list of the kinds there are.
`--layers` makes the target dearer by layers that change nothing, or little, by `--unlike`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import torch
from draft_pair import of_layers
from harness.report import COUNT, FOLDER, Spread, benchmark, shown
from harness.sample_data import DATA, SMALL_MODEL, read_tsv
from harness.schema_classes import CLASSES, SchemaClass
from harness.timing import Took, in_turn
from harness.twin_models import random_model
from transformers import AutoConfig, LlamaForCausalLM

from genret.decoding.answering import AnswerParams, AnswerText, Speller, write_answers
from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.json_grammar import Grammar, compile_schema
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from genret.decoding.grammar.vocabulary import Vocabulary
from genret.decoding.language_model import LanguageModel
from genret.decoding.model.hf_model import HFLanguageModel
from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.text import TextTokenizer

_WHITESPACES = ("compact", "spaced")
_NAMES = ("title", "kind", "description")
# name -> whether spans are forced, whether tokens are drafted.
WAYS: dict[str, tuple[bool, bool]] = {
    "nothing": (False, False),
    "forced": (True, False),
    "drafted": (False, True),
    "both": (True, True),
}


def _of_documents(name: str, **properties: dict[str, Any]) -> SchemaClass:
    """Return a class of the documents that `draft_pair.py` teaches: strings, save the properties given."""
    schema = {
        "type": "object",
        "properties": {key: properties.get(key, {"type": "string"}) for key in _NAMES},
        "required": [*_NAMES],
        "additionalProperties": False,
    }
    instance = {"title": "Lion", "kind": "animal", "description": "Large social cat"}
    return SchemaClass(name, schema, lambda _: instance)


_SCHEMAS = (
    *CLASSES,
    _of_documents("record"),
    _of_documents("kinds", kind={"enum": sorted({row["kind"] for row in read_tsv(DATA / "catalogue.tsv")})}),
)


@benchmark("torch", "transformers", "tokenizers", "numpy", "numba")
@click.option(
    "--model",
    "models",
    multiple=True,
    type=click.Choice(["default", "random"]),
    default=("default", "random"),
    help="Target; may be repeated.",
)
@click.option(
    "--only",
    multiple=True,
    type=click.Choice([one.name for one in _SCHEMAS]),
    default=[one.name for one in CLASSES],
    show_default="all classes",
    help="This schema; may be repeated.",
)
@click.option("--whitespace", type=click.Choice(_WHITESPACES), multiple=True, default=_WHITESPACES)
@click.option(
    "--way", "ways", multiple=True, type=click.Choice(list(WAYS)), default=list(WAYS), help="May be repeated."
)
@click.option("--queries", type=COUNT, default=4, help="Answers of a batch.")
@click.option("--max-tokens", type=COUNT, default=96, help="Of an answer, at least.")
@click.option(
    "--draft-tokens",
    type=click.IntRange(min=1, max=64),
    multiple=True,
    default=(4,),
    help="Proposed at a time, at most; may be repeated.",
)
@click.option("--target", type=FOLDER, help="Checkpoint of the small model's tokenizer, instead of --model.")
@click.option("--draft-model", type=FOLDER, help="Checkpoint that drafts for --target.")
@click.option("--layers", type=COUNT, help="Layers of --target; further ones change nothing.")
@click.option(
    "--unlike",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Standard deviation of what the further layers of --target write with; 0: they change nothing.",
)
@click.option("--temperature", type=click.FloatRange(min=0), default=0.0)
@click.option("--rounds", type=COUNT, default=7)
@click.option("--tiny", is_flag=True, help="Small random models alone: to see that this runs.")
def main(options: SimpleNamespace) -> dict[str, Any]:
    """Measure answers."""
    target, draft_model = options.target, options.draft_model
    if (target is None) is not (draft_model is None):
        raise click.UsageError("--target and --draft-model go together")
    torch.set_num_threads(1)
    tokenizer = TextTokenizer.load(SMALL_MODEL)
    default = HFLanguageModel.load(SMALL_MODEL, device="cpu", dtype="float32")
    end_token = int(AutoConfig.from_pretrained(SMALL_MODEL).eos_token_id)
    vocabulary = Vocabulary.from_tokenizer(tokenizer.serialized, end_token, default.vocab_size)
    leaves, speller = Leaves(vocabulary), Speller(tokenizer.encode_bytes, vocabulary)
    figures: dict[str, Any] = {}
    if target is not None:
        pairs = {target.name: lambda: taught_pair(target, draft_model, options.layers, options.unlike)}
        asked = dev_prompts(tokenizer, target, options.queries)
    else:

        def llama(hidden: int, layers: int) -> HFLanguageModel:
            return random_model(default.vocab_size, hidden, layers, spread=None)

        pairs = {
            "tiny": lambda: (llama(64, 2), llama(128, 2)),
            "default": lambda: (default, llama(128, 2)),
            "random": lambda: (llama(768, 12), default),
        }
        pairs = {name: pairs[name] for name in (("tiny",) if options.tiny else options.models)}
        asked = [tokenizer.encode_text(f"Record {number} as JSON: ") for number in range(options.queries)]
    for name, pair in pairs.items():
        figures[name] = shown(name, contest(*pair(), leaves, speller, asked, options))
    return figures


def contest(
    target: LanguageModel,
    draft: LanguageModel,
    leaves: Leaves,
    speller: Speller,
    prompts: Sequence[Sequence[int]],
    options: SimpleNamespace,
) -> list[dict[str, Any]]:
    """Measure every schema in every style, in some of the ways; plainly always.

    Greedy answers with and without drafts are compared: the line says whether all tokens are the same. Ways
    with drafts are taken once for every number of tokens at a time; if there are several, as `drafted 4`.
    """
    ways = {
        f"{name} {number}" if drafts and len(options.draft_tokens) > 1 else name: (forces, number)
        for name, (forces, drafts) in WAYS.items()
        if name in {"nothing", *options.ways}
        for number in (options.draft_tokens if drafts else (0,))
    }
    figures = []
    for one in (schema for schema in _SCHEMAS if schema.name in options.only):
        for whitespace in options.whitespace:
            style = GrammarOptions(
                whitespace=whitespace, property_order="schema", extra_properties="declared"
            )
            grammar = compile_schema(one.text, leaves, style)
            budget = max(options.max_tokens, 2 * grammar.tokens_to_finish(grammar.start))
            calls = {
                way: lambda chosen=chosen, grammar=grammar, budget=budget: _write(
                    target, draft, grammar, speller, prompts, chosen, budget, options.temperature
                )
                for way, chosen in ways.items()
            }
            taken = in_turn(calls, options.rounds)
            answers = {way: [a.token_ids for a in column[-1].value] for way, column in taken.items()}
            same = all(
                answers[plain] == answers[way]
                for plain, drafted in (("nothing", "drafted"), ("forced", "both"))
                for way in ways
                if plain in ways and way.startswith(drafted)
            )
            figures.append(
                {
                    "schema": one.name,
                    "whitespace": whitespace,
                    "max_tokens": budget,
                    "drafts_change_nothing": same,
                    "ways": {way: _figures(column, taken["nothing"]) for way, column in taken.items()},
                }
            )
    return figures


def _write(
    target: LanguageModel,
    draft: LanguageModel,
    grammar: Grammar,
    speller: Speller,
    prompts: Sequence[Sequence[int]],
    way: tuple[bool, int],
    budget: int,
    temperature: float,
) -> list[AnswerText]:
    forces, drafts = way
    params = AnswerParams(
        max_tokens=budget, forced_spans=forces, draft_tokens=drafts, temperature=temperature, seed=17
    )
    answers = write_answers(
        target, prompts, [grammar] * len(prompts), params, speller=speller, draft=draft if drafts else None
    )
    written = []
    for answer in answers:
        if not isinstance(answer, AnswerText):
            raise click.ClickException(f"an answer was refused: {answer}")
        written.append(answer)
    return written


def _figures(taken: Sequence[Took], plain: Sequence[Took]) -> dict[str, Any]:
    answers: list[AnswerText] = taken[-1].value
    tokens = sum(len(answer.token_ids) for answer in answers)
    passes = sum(answer.counts.forwards for answer in answers)
    drafted = sum(answer.counts.drafted for answer in answers)
    accepted = sum(answer.counts.accepted for answer in answers)
    return {
        "tokens": tokens,
        "guessed_share": sum(answer.counts.guessed for answer in answers) / tokens,
        "forced_share": sum(answer.counts.forced for answer in answers) / tokens,
        "passes": passes,
        "passes_per_token": passes / tokens,
        "draft_passes": sum(answer.counts.draft_forwards for answer in answers),
        "drafted": drafted,
        "accepted_share": accepted / drafted if drafted else None,
        "milliseconds": Spread.of([1000 * took.wall_s for took in taken]),
        "of_plain_time": Spread.of_ratios([took.wall_s for took in taken], [one.wall_s for one in plain]),
        "of_plain_cpu_time": Spread.of_ratios([took.cpu_s for took in taken], [one.cpu_s for one in plain]),
    }


def taught_pair(
    target: Path, draft: Path, layers: int | None, unlike: float
) -> tuple[HFLanguageModel, HFLanguageModel]:
    """A target, made as deep as asked for, and its draft model."""
    large, small = (LlamaForCausalLM.from_pretrained(path, dtype=torch.float32) for path in (target, draft))
    torch.manual_seed(0)
    deep = of_layers(large, max(layers or 0, large.config.num_hidden_layers), unlike)
    return HFLanguageModel(deep.eval()), HFLanguageModel(small.eval())


def dev_prompts(tokenizer: TextTokenizer, checkpoint: Path, count: int) -> list[list[int]]:
    """Queries that were not trained on, as the checkpoint is asked for JSON."""
    template = CheckpointConfig.load(checkpoint).answer_template(None)
    dev = [row["query"] for row in read_tsv(DATA / "queries.tsv") if row["split"] == "dev"]
    return [template.encode(tokenizer, query) for query in dev[: 7 * count : 7]]


if __name__ == "__main__":
    main()
