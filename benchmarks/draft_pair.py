"""A target and a draft model that agree: both made of the small model, and taught the same documents.

    python benchmarks/draft_pair.py --out pair --minutes 5

The draft has the first layer of the small model alone; the target has all, and with `--target-layers`
further ones, which change nothing at first. Each learns from a title, an alias, a description or a training
query to write

    {"title": "Lion", "kind": "animal", "description": "Large social cat of Africa and India, ..."}

`benchmarks/answers.py --target pair/target --draft-model pair/draft` measures them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from random import Random
from types import SimpleNamespace

import click
import torch
from harness.report import NEW_FOLDER, benchmark
from harness.sample_data import DATA, SMALL_MODEL, read_tsv
from torch import Tensor
from transformers import LlamaForCausalLM

from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.text import TextTokenizer
from genret.retrieval.training.examples import with_answers
from genret.retrieval.training.trainer import build_optimizer

_IGNORED = -100  # what the loss leaves out
_RISES = 0.03  # share of the run in which the rate rises
_LOG_STEPS = 50

Example = tuple[list[int], list[int]]  # a prompt and the document behind it


@benchmark("torch", "transformers")
@click.option("--out", type=NEW_FOLDER, required=True)
@click.option("--only", type=click.Choice(["target", "draft"]), help="Make this one alone.")
@click.option("--target-layers", type=click.IntRange(min=4), default=4)
@click.option("--draft-layers", type=click.IntRange(min=1, max=4), default=1)
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), default=5, help="Of CPU time, each.")
@click.option("--batch-size", type=click.IntRange(min=1), default=16)
@click.option("--learning-rate", type=float, default=4e-3)
def main(options: SimpleNamespace) -> None:
    """Make a target and a draft model."""
    torch.set_num_threads(1)
    tokenizer = TextTokenizer.load(SMALL_MODEL)
    config = with_answers(CheckpointConfig.load(SMALL_MODEL))
    for name, layers in (("target", options.target_layers), ("draft", options.draft_layers)):
        if options.only in (None, name):
            torch.manual_seed(17)
            model = of_layers(LlamaForCausalLM.from_pretrained(SMALL_MODEL, dtype=torch.float32), layers)
            loss = teach(model, examples(tokenizer, config), options)
            click.echo(f"{name}: {layers} layers, last loss {loss:.3f}")
            folder = options.out / name
            model.save_pretrained(folder)
            config.save(folder)
            for file in ("tokenizer.json", "tokenizer_config.json"):
                (folder / file).write_bytes((SMALL_MODEL / file).read_bytes())


def of_layers(shipped: LlamaForCausalLM, layers: int, spread: float = 0.0) -> LlamaForCausalLM:
    """A model of the first layers of another, and of further ones.

    What these add to what they read has random weights of some standard deviation: with 0 they add nothing.
    """
    config = type(shipped.config)(**{**shipped.config.to_dict(), "num_hidden_layers": layers})
    model = LlamaForCausalLM(config)
    model.load_state_dict(
        {name: weight for name, weight in shipped.state_dict().items() if name in model.state_dict()},
        strict=False,
    )
    for layer in model.model.layers[shipped.config.num_hidden_layers :]:
        torch.nn.init.normal_(layer.self_attn.o_proj.weight, std=spread)
        torch.nn.init.normal_(layer.mlp.down_proj.weight, std=spread)
    return model


def examples(tokenizer: TextTokenizer, config: CheckpointConfig) -> Iterator[Example]:
    """Prompts and documents, without end and always the same."""
    random = Random(17)
    entities = {row["entity_id"]: row for row in read_tsv(DATA / "catalogue.tsv")}
    queries: dict[str, list[str]] = {}
    for row in read_tsv(DATA / "queries.tsv"):
        if row["split"] == "train" and row["entity_id"] in entities:
            queries.setdefault(row["entity_id"], []).append(row["query"])
    template = config.answer_template(None)
    end = tokenizer.end_token_id(config.rendering)
    while True:
        for entity in random.sample(sorted(entities), len(entities)):
            row = entities[entity]
            words = row["description"].split()
            asked = random.choice(
                [
                    row["title"],
                    random.choice([row["title"], *row["aliases"].split("|")]),
                    " ".join(random.sample(words, (len(words) + 1) // 2)),
                    *(random.choice(queries.get(entity, [row["title"]])) for _ in range(3)),
                ]
            )
            document = {key: row[key] for key in ("title", "kind", "description")}
            text = json.dumps(document, ensure_ascii=False)
            yield template.encode(tokenizer, asked), [*tokenizer.encode_text(text, after="\n"), end]


def teach(model: LlamaForCausalLM, source: Iterator[Example], options: SimpleNamespace) -> float:
    """Teach for some time of this thread; the mean loss of the last steps."""
    optimizer = build_optimizer(model, "muon", options.learning_rate, 0.05)
    begun, losses = time.thread_time(), list[float]()
    rates = [group["lr"] for group in optimizer.param_groups]
    model.train()
    while (spent := (time.thread_time() - begun) / 60 / options.minutes) < 1:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * min(spent / _RISES, (1 - spent) / (1 - _RISES)) + 1e-6
        tokens, labels = _batch([next(source) for _ in range(options.batch_size)])
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=tokens, labels=labels, attention_mask=(tokens != 0).long()).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
        if len(losses) % _LOG_STEPS == 0:
            click.echo(
                f"{len(losses)} steps, {spent:.0%}, loss {sum(losses[-_LOG_STEPS:]) / _LOG_STEPS:.3f}",
                err=True,
            )
    last = losses[-_LOG_STEPS:]
    return sum(last) / len(last)


def _batch(chosen: list[Example]) -> tuple[Tensor, Tensor]:
    longest = max(len(prompt) + len(document) for prompt, document in chosen)
    tokens = torch.zeros((len(chosen), longest), dtype=torch.long)
    labels = torch.full_like(tokens, _IGNORED)
    for row, (prompt, document) in enumerate(chosen):
        whole = len(prompt) + len(document)
        tokens[row, :whole] = torch.tensor([*prompt, *document])
        labels[row, len(prompt) : whole] = torch.tensor(document)
    return tokens, labels


if __name__ == "__main__":
    main()
