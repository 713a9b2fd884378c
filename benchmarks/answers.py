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
from typing import Any

import click
import torch
from draft_pair import of_layers, rows
from harness.answer_contest import WAYS, contest
from harness.report import announce, command_line, environment, write_json
from harness.schema_classes import CLASSES, SchemaClass
from harness.titles import JSON
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

from genret.decoding.answering import Speller
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from genret.decoding.grammar.vocabulary import Vocabulary
from genret.decoding.model.hf_model import HFLanguageModel
from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.text import TextTokenizer

_ROOT = Path(__file__).resolve().parent.parent
_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
_WHITESPACES = ("compact", "spaced")
_NAMES = ("title", "kind", "description")


def _of_documents(name: str, **properties: dict[str, Any]) -> SchemaClass:
    """A class of the documents that `draft_pair.py` teaches: strings, save where something else is said."""
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
    _of_documents("kinds", kind={"enum": sorted({row["kind"] for row in rows("catalogue")})}),
)


@click.command(context_settings={"show_default": True})
@JSON
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
    show_default="all classes",
    help="This schema; may be repeated.",
)
@click.option("--whitespace", type=click.Choice(_WHITESPACES), multiple=True, default=_WHITESPACES)
@click.option(
    "--way", "ways", multiple=True, type=click.Choice(list(WAYS)), default=list(WAYS), help="May be repeated."
)
@click.option("--queries", type=click.IntRange(min=1), default=4, help="Answers of a batch.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=96, help="Of an answer, at least.")
@click.option(
    "--draft-tokens",
    type=click.IntRange(min=1, max=64),
    multiple=True,
    default=(4,),
    help="Proposed at a time, at most; may be repeated.",
)
@click.option("--target", type=_FOLDER, help="Checkpoint of the small model's tokenizer, instead of --model.")
@click.option("--draft-model", type=_FOLDER, help="Checkpoint that drafts for --target.")
@click.option("--layers", type=click.IntRange(min=1), help="Layers of --target; further ones change nothing.")
@click.option(
    "--unlike",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Standard deviation of what the further layers of --target write with; 0: they change nothing.",
)
@click.option("--temperature", type=click.FloatRange(min=0), default=0.0)
@click.option("--rounds", type=click.IntRange(min=1), default=7)
@click.option("--tiny", is_flag=True, help="Small random models alone: to see that this runs.")
def main(
    json_file: Path | None,
    models: Sequence[str],
    only: Sequence[str],
    whitespace: Sequence[str],
    ways: Sequence[str],
    queries: int,
    max_tokens: int,
    draft_tokens: Sequence[int],
    target: Path | None,
    draft_model: Path | None,
    layers: int | None,
    unlike: float,
    temperature: float,
    rounds: int,
    tiny: bool,
) -> None:
    """Measure answers."""
    if (target is None) is not (draft_model is None):
        raise click.UsageError("--target and --draft-model go together")
    torch.set_num_threads(1)
    facts = environment("torch", "transformers", "tokenizers", "numpy", "numba")
    announce(facts)
    path = _ROOT / "data" / "small-model"
    tokenizer = TextTokenizer.load(path)
    default = HFLanguageModel.load(path, device="cpu", dtype="float32")
    vocab_size = default.vocab_size
    vocabulary = Vocabulary.from_tokenizer(tokenizer.serialized, _end_token(path), vocab_size)
    figures: dict[str, Any] = {}
    if target is not None and draft_model is not None:
        pairs = {target.name: lambda: taught_pair(target, draft_model, layers, unlike)}
        asked = dev_prompts(tokenizer, target, queries)
    else:
        small = random_llama(vocab_size, hidden=128, layers=2)
        pairs = {
            "tiny": lambda: (random_llama(vocab_size, hidden=64, layers=2), small),
            "default": lambda: (default, small),
            "random": lambda: (random_llama(vocab_size, hidden=768, layers=12), default),
        }
        pairs = {name: pairs[name] for name in (("tiny",) if tiny else models)}
        asked = [tokenizer.encode_text(f"Record {number} as JSON: ") for number in range(queries)]
    for name, pair in pairs.items():
        large, small = pair()
        figures[name] = contest(
            large,
            small,
            Leaves(vocabulary),
            Speller(tokenizer.encode_bytes, vocabulary),
            asked,
            [one for one in _SCHEMAS if one.name in (only or [each.name for each in CLASSES])],
            whitespace,
            ways,
            max_tokens=max_tokens,
            draft_tokens=draft_tokens,
            temperature=temperature,
            rounds=rounds,
        )
        _print(name, figures[name])
    write_json(json_file, command_line(), facts, figures)


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
    dev = [row["query"] for row in rows("queries") if row["split"] == "dev"]
    return [template.encode(tokenizer, query) for query in dev[: 7 * count : 7]]


def random_llama(vocab_size: int, hidden: int, layers: int) -> HFLanguageModel:
    """A Llama with random weights, in float32 on the CPU; 100 million parameters with 768 and 12."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=hidden * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        max_position_embeddings=1024,
    )
    return HFLanguageModel(LlamaForCausalLM(config).eval())


def _end_token(path: Path) -> int:
    from transformers import AutoConfig

    return int(AutoConfig.from_pretrained(path).eos_token_id)


def _print(name: str, figures: Sequence[dict[str, Any]]) -> None:
    table = Table(title=name)
    headings = ("way", "tokens", "forced %", "guessed %", "passes a token", "draft passes", "accepted %")
    for heading in ("schema", *headings, "ms of a batch", "of plain time", "of plain CPU time"):
        table.add_column(heading, justify="left" if heading in ("schema", "way") else "right")
    for line in figures:
        for way, said in line["ways"].items():
            accepted = said["accepted_share"]
            table.add_row(
                f"{line['schema']} {line['whitespace']}",
                way,
                str(said["tokens"]),
                f"{100 * said['forced_share']:.0f}",
                f"{100 * said['guessed_share']:.0f}",
                f"{said['passes_per_token']:.2f}",
                str(said["draft_passes"]),
                "" if accepted is None else f"{100 * accepted:.0f}",
                said["milliseconds"].text(0),
                said["of_plain_time"].text(),
                said["of_plain_cpu_time"].text(),
            )
        if not line["drafts_change_nothing"]:
            table.add_row("", "drafts changed answers")
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
