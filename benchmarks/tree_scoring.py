"""Scores of given titles from one forward over a token tree: against the prompt's own prefill, and peers.

    python benchmarks/tree_scoring.py                                 # every model, titles that share nothing
    python benchmarks/tree_scoring.py --models llama --titles real --numbers 10 --numbers 100 --peers once

`made` titles are 8 random tokens each and share none, so that 100 of them are a tree of 800 nodes (the last
token of each needs no forward). `real` titles are a shortlist as words propose it: titles of a list, each
with a word of a query in it. Their tokens are GPT-2's, and the end token follows.

Sides take turns in every round; times are of the process (CPU) and of the clock. `prefill` is ours, `prompt`
stock transformers' forward over the prompt with the logits of its last token, and `prompt, all logits` with
those of all. `padded` is a batch of prompt and title, `prompt once` a batch of titles behind copies of a
prompt's keys and values; neither is given a tree. `floor` is the ratio of multiplications, nodes against
prompt, that no implementation can go below: linear layers and head, without attention.

The exit status is 1 when a score of ours differs from one of a peer by 1e-4 or more.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as pq
import torch
from harness.peer_scoring import PromptOnce, padded
from harness.report import Spread, announce, command_line, environment, write_json
from harness.titles import DATA, JSON
from harness.twin_models import END, FIRST, Sizes, Twins
from tokenizers import Tokenizer
from transformers import GPT2Config, GPT2LMHeadModel

from genret.decoding.row_scores import RowScores, score_rows
from genret.decoding.row_trees import RowLayout

Rows = list[list[int]]

ROOT = Path(__file__).resolve().parent.parent
_GPT2_TOKENS = 50_257
_SMALL_VOCABULARY = 4_096
_TITLE_TOKENS = 8
_MODELS = ("llama", "llama-small-vocabulary", "gpt2", "default")
_ALLOWED = 1e-4


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one model and one list of titles. Seconds of the process unless said otherwise.

    Attributes:
        model: Its name.
        titles: Which titles, how many.
        tree_nodes: Distinct beginnings of titles, whole titles included.
        forward_nodes: Of these, those with a forward.
        head_share: Of the tree's multiplications, those of the output layer.
        floor: Multiplications of the tree over those of the prompt.
        cpu_s: By side.
        wall_s: By side.
        ratio: Tree over `prefill`, measured in pairs.
        largest_difference: Of a log-probability, by peer.
    """

    model: str
    titles: str
    tree_nodes: int
    forward_nodes: int
    head_share: float
    floor: float
    cpu_s: dict[str, Spread]
    wall_s: dict[str, Spread]
    ratio: Spread
    largest_difference: dict[str, float]


@click.command(context_settings={"show_default": True})
@JSON
@DATA
@click.option("--models", multiple=True, type=click.Choice(_MODELS), default=_MODELS, help="May be repeated.")
@click.option("--titles", "kind", type=click.Choice(("made", "real")), default="made", help="Which titles.")
@click.option("--numbers", multiple=True, type=click.IntRange(min=1), default=(100,), help="Titles scored.")
@click.option("--prompt", type=click.IntRange(min=1), default=256, help="Tokens of the prompt.")
@click.option("--repeats", type=click.IntRange(min=1), default=5, help="Rounds; all sides take turns.")
@click.option("--peers", type=click.Choice(("none", "once", "all")), default="all", help="`padded` in `all`.")
@click.option("--peer-batch", type=click.IntRange(min=1), default=100, help="Rows of a peer's batch.")
@click.option("--threads", type=click.IntRange(min=1), default=1, help="Threads of torch, for all sides.")
def main(
    json_file: Path | None,
    data: Path,
    models: Sequence[str],
    kind: str,
    numbers: Sequence[int],
    prompt: int,
    repeats: int,
    peers: str,
    peer_batch: int,
    threads: int,
) -> None:
    """Measure the scoring of given titles."""
    torch.set_num_threads(threads)
    facts = environment("torch", "transformers") | {"threads": threads}
    announce(facts)
    found = []
    for name in models:
        twins = _twins(name)
        for number in numbers:
            rows = (
                _made(number, twins.vocab_size) if kind == "made" else _real(number, data, twins.vocab_size)
            )
            found.append(_measure(name, f"{number} {kind}", twins, rows, prompt, repeats, peers, peer_batch))
            _show(found[-1])
    write_json(json_file, command_line(), facts, found)
    if any(apart >= _ALLOWED for one in found for apart in one.largest_difference.values()):
        sys.exit(1)


def _twins(name: str) -> Twins:
    if name == "default":
        return Twins.load(ROOT / "data" / "small-model")
    if name == "gpt2":
        torch.manual_seed(0)
        return Twins(GPT2LMHeadModel(GPT2Config()))
    return Twins.random(Sizes(vocab_size=_SMALL_VOCABULARY if name != "llama" else _GPT2_TOKENS))


def _made(number: int, vocab_size: int) -> Rows:
    rng = random.Random(0)
    firsts = rng.sample(range(FIRST, vocab_size), number)
    return [
        [first, *(rng.randrange(FIRST, vocab_size) for _ in range(_TITLE_TOKENS - 1))] for first in firsts
    ]


def _real(number: int, data: Path, vocab_size: int) -> Rows:
    """A shortlist: titles with a word of a query, those with more of its words first."""
    titles = pq.read_table(data / "titles" / "wikipedia_en.parquet", columns=["title"])["title"].to_pylist()
    asked = ("national", "museum", "history", "south", "river", "football")
    counts = {title: sum(word in asked for word in set(title.lower().split())) for title in titles}
    best = sorted(
        (title for title, count in counts.items() if count), key=lambda title: (-counts[title], title)
    )
    tokenizer = Tokenizer.from_file(str(data / "tokenizers" / "gpt2.tokenizer.json"))
    encoded = tokenizer.encode_batch([f" {title}" for title in best[:number]], add_special_tokens=False)
    # Ids of a smaller vocabulary are folded: what is shared stays shared.
    return [[*(token % (vocab_size - FIRST) + FIRST for token in one.ids), END] for one in encoded]


def _measure(
    name: str, titles: str, twins: Twins, rows: Rows, prompt: int, repeats: int, peers: str, batch: int
) -> Figures:
    rng = random.Random(1)
    tokens = [rng.randrange(FIRST, twins.vocab_size) for _ in range(prompt)]
    model, stock = twins.model(), twins.stock
    session, asked = model.prefill([tokens]), torch.tensor([tokens])

    def scored() -> list[float | None]:
        (result,) = score_rows(session, [rows])
        assert isinstance(result, RowScores)
        return list(result.logprobs)

    @torch.no_grad()
    def forward(**options: Any) -> None:
        stock(input_ids=asked, use_cache=True, **options)

    sides: dict[str, Callable[[], Any]] = {
        "prefill": lambda: model.prefill([tokens]),
        "prompt": lambda: forward(logits_to_keep=1),
        "prompt, all logits": forward,
        "tree": scored,
    }
    if peers != "none":
        once = PromptOnce(stock, tokens)
        sides["prompt once"] = lambda: once.scores(rows, batch)
    if peers == "all":
        sides["padded"] = lambda: padded(stock, tokens, rows, min(batch, 20))
    cpu: dict[str, list[float]] = {side: [] for side in sides}
    wall: dict[str, list[float]] = {side: [] for side in sides}
    answers: dict[str, list[float]] = {}
    sides["tree"](), sides["prefill"]()
    for _ in range(repeats):
        for side, call in sides.items():
            begun, begun_cpu = time.perf_counter(), time.process_time()
            answer = call()
            cpu[side].append(time.process_time() - begun_cpu)
            wall[side].append(time.perf_counter() - begun)
            if side in ("tree", "prompt once", "padded"):
                answers[side] = answer
    layout = RowLayout.of([rows], twins.vocab_size)
    nodes, head = len(layout.trees.tokens), _head_size(twins)
    body = sum(p.numel() for p in twins.stock.parameters() if p.ndim == 2) - _embedding_sizes(twins)
    return Figures(
        name,
        titles,
        len(layout.step_nodes),
        nodes,
        head / (head + body),
        nodes * (body + head) / (prompt * body + head),
        {side: Spread.of(values) for side, values in cpu.items()},
        {side: Spread.of(values) for side, values in wall.items()},
        Spread.of_ratios(cpu["tree"], cpu["prefill"]),
        {
            side: max(abs(mine - theirs) for mine, theirs in zip(answers["tree"], answer, strict=True))
            for side, answer in answers.items()
            if side != "tree"
        },
    )


def _head_size(twins: Twins) -> int:
    return int(twins.stock.get_output_embeddings().weight.numel())


def _embedding_sizes(twins: Twins) -> int:
    """Parameters of embeddings and head, tied ones once: what no linear layer inside the model has."""
    tables = [module.weight for module in twins.stock.modules() if isinstance(module, torch.nn.Embedding)]
    tables.append(twins.stock.get_output_embeddings().weight)
    return sum({id(table): table.numel() for table in tables}.values())


def _show(figures: Figures) -> None:
    click.echo(
        f"\n{figures.model}, {figures.titles} titles: {figures.tree_nodes:,} nodes, "
        f"{figures.forward_nodes:,} with a forward; head {figures.head_share:.0%} of the tree; "
        f"floor {figures.floor:.2f}"
    )
    click.echo(f"tree / prefill {figures.ratio.text()}")
    for side, spread in figures.cpu_s.items():
        apart = figures.largest_difference.get(side)
        click.echo(
            f"  {side:20} {1000 * spread.median:9,.0f} ms CPU "
            f"({1000 * spread.min:,.0f}–{1000 * spread.max:,.0f}), "
            f"{1000 * figures.wall_s[side].median:9,.0f} ms wall"
            + ("" if apart is None else f", differs by at most {apart:.1e}")
        )


if __name__ == "__main__":
    main()
