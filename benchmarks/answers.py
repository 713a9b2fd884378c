"""Greedy JSON answers: passes and time with forced spans, with drafted tokens, with both and with neither.

    python benchmarks/answers.py --json answers.json
    python benchmarks/answers.py --model default --only simple3 --rounds 3

Two targets with the shipped model's tokenizer: the shipped model, drafted for by a random Llama of two
layers, and a random Llama of 100 million parameters, drafted for by the shipped model. Every round answers
the same prompts under every schema in each of the four ways in turn, prompts and all; one round before the
others warms up and is left out. Random models agree about nothing, so their drafts show what drafting costs,
not what it gains.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import torch
from harness.answer_contest import WAYS, contest
from harness.report import announce, command_line, environment, write_json
from harness.schema_classes import CLASSES
from harness.titles import JSON
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

from decoding.answering import Speller
from decoding.grammar.leaves.factory import Leaves
from decoding.grammar.vocabulary.vocabulary import Vocabulary
from decoding.hf_model import HFLanguageModel
from retrieval.text import TextTokenizer

_ROOT = Path(__file__).resolve().parent.parent
_WHITESPACES = ("compact", "spaced")


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
    type=click.Choice([one.name for one in CLASSES]),
    show_default="all",
    help="This schema; may be repeated.",
)
@click.option("--whitespace", type=click.Choice(_WHITESPACES), multiple=True, default=_WHITESPACES)
@click.option("--queries", type=click.IntRange(min=1), default=4, help="Answers of a batch.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=96, help="Of an answer, at least.")
@click.option("--draft-tokens", type=click.IntRange(min=1, max=64), default=4, help="Proposed at a time.")
@click.option("--rounds", type=click.IntRange(min=1), default=7)
@click.option("--tiny", is_flag=True, help="Small random models alone: to see that this runs.")
def main(
    json_file: Path | None,
    models: Sequence[str],
    only: Sequence[str],
    whitespace: Sequence[str],
    queries: int,
    max_tokens: int,
    draft_tokens: int,
    rounds: int,
    tiny: bool,
) -> None:
    """Measure answers."""
    torch.set_num_threads(1)
    facts = environment("torch", "transformers", "tokenizers", "numpy", "numba")
    announce(facts)
    path = _ROOT / "data" / "default-model"
    tokenizer = TextTokenizer.load(path)
    default = HFLanguageModel.load(path, device="cpu", dtype="float32")
    vocab_size = default.vocab_size
    vocabulary = Vocabulary.from_tokenizer(tokenizer.serialized, _end_token(path), vocab_size)
    figures: dict[str, Any] = {}
    for name in ("tiny",) if tiny else models:
        small = random_llama(vocab_size, hidden=128, layers=2)
        target, draft = {
            "tiny": lambda: (random_llama(vocab_size, hidden=64, layers=2), small),  # noqa: B023
            "default": lambda: (default, small),  # noqa: B023
            "random": lambda: (random_llama(vocab_size, hidden=768, layers=12), default),
        }[name]()
        figures[name] = contest(
            target,
            draft,
            Leaves(vocabulary),
            Speller(tokenizer.encode_bytes, vocabulary),
            [tokenizer.encode_text(f"Record {number} as JSON: ") for number in range(queries)],
            [one for one in CLASSES if not only or one.name in only],
            whitespace,
            max_tokens=max_tokens,
            draft_tokens=draft_tokens,
            rounds=rounds,
        )
        _print(name, figures[name])
    write_json(json_file, command_line(), facts, figures)


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
    table = Table(title=f"{name}: passes a token, milliseconds of a batch")
    for heading in ("schema", "whitespace", "tokens", *WAYS):
        table.add_column(heading, justify="left" if heading == "schema" else "right")
    for line in figures:
        ways = [line["ways"][way] for way in WAYS]
        cells = [f"{way['passes_per_token']:.2f}  {way['milliseconds'].text(0)}" for way in ways]
        table.add_row(line["schema"], line["whitespace"], str(ways[0]["tokens"]), *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
