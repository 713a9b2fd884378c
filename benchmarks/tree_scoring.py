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

import copy
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pyarrow.parquet as pq
import torch
from harness.report import COUNT, Spread, benchmark, shown
from harness.sample_data import SMALL_MODEL
from harness.timing import in_turn
from harness.titles import DATA
from harness.twin_models import END, FIRST, Sizes, Twins
from tokenizers import Tokenizer
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from genret.decoding.row_scores import RowScores, score_rows
from genret.decoding.row_trees import RowLayout

Rows = Sequence[Sequence[int]]

_GPT2_TOKENS = 50_257
_TITLE_TOKENS = 8
_MODELS = ("llama", "default")
_ALLOWED = 1e-4


def _differing(figures: list[dict[str, Any]], _options: SimpleNamespace) -> str | None:
    apart = [apart for one in figures for apart in one["largest_difference"].values()]
    return "scores differ from those of a peer" if max(apart, default=0.0) >= _ALLOWED else None


@benchmark("torch", "transformers", check=_differing)
@DATA
@click.option("--models", multiple=True, type=click.Choice(_MODELS), default=_MODELS, help="May be repeated.")
@click.option("--titles", "kind", type=click.Choice(("made", "real")), default="made", help="Which titles.")
@click.option("--numbers", multiple=True, type=COUNT, default=(100,), help="Titles scored.")
@click.option("--prompt", type=COUNT, default=256, help="Tokens of the prompt.")
@click.option("--repeats", type=COUNT, default=5, help="Rounds; all sides take turns.")
@click.option("--peers", type=click.Choice(("none", "once", "all")), default="all", help="`padded` in `all`.")
@click.option("--peer-batch", type=COUNT, default=100, help="Rows of a peer's batch.")
@click.option("--threads", type=COUNT, default=1, help="Threads of torch, for all sides.")
def main(options: SimpleNamespace) -> list[dict[str, Any]]:
    """Measure the scoring of given titles."""
    torch.set_num_threads(options.threads)
    found = []
    for name in options.models:
        twins = _twins(name)
        for number in options.numbers:
            if options.kind == "made":
                rows = _made(number, twins.vocab_size)
            else:
                rows = _real(number, options.data, twins.vocab_size)
            about = {"model": name, "titles": f"{number} {options.kind}"}
            found.append(shown(name, about | _measure(twins, rows, options)))
    return found


def _twins(name: str) -> Twins:
    if name == "default":
        return Twins.load(SMALL_MODEL)
    return Twins.random(Sizes(vocab_size=_GPT2_TOKENS))


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


def _measure(twins: Twins, rows: Rows, options: SimpleNamespace) -> dict[str, Any]:
    """Score titles with all sides in turn.

    Returns:
        Distinct beginnings of titles, whole titles included (`tree_nodes`); those with a forward; the share
        of the tree's multiplications that is the output layer's; multiplications of the tree over those of
        the prompt (`floor`); processor and wall time by side, seconds; tree over `prefill`, in pairs; and the
        largest difference of a log-probability by peer.
    """
    rng, batch = random.Random(1), options.peer_batch
    tokens = [rng.randrange(FIRST, twins.vocab_size) for _ in range(options.prompt)]
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
    if options.peers != "none":
        once = PromptOnce(stock, tokens)
        sides["prompt once"] = lambda: once.scores(rows, batch)
    if options.peers == "all":
        sides["padded"] = lambda: padded(stock, tokens, rows, min(batch, 20))
    sides["tree"](), sides["prefill"]()
    taken = in_turn(sides, options.repeats, warm_up=0)
    cpu = {side: [took.cpu_s for took in column] for side, column in taken.items()}
    scores = {side: taken[side][-1].value for side in ("tree", "prompt once", "padded") if side in taken}
    nodes, head = RowLayout.of([rows], twins.vocab_size), stock.get_output_embeddings().weight
    tables = [module.weight for module in stock.modules() if isinstance(module, torch.nn.Embedding)]
    # Tied tables count once.
    outside = sum({id(table): table.numel() for table in (*tables, head)}.values())
    body = sum(p.numel() for p in stock.parameters() if p.ndim == 2) - outside
    forwards = len(nodes.trees.tokens)
    return {
        "tree_nodes": len(nodes.step_nodes),
        "forward_nodes": forwards,
        "head_share": head.numel() / (head.numel() + body),
        "floor": forwards * (body + head.numel()) / (options.prompt * body + head.numel()),
        "cpu_s": {side: Spread.of(values) for side, values in cpu.items()},
        "wall_s": {side: Spread.of([took.wall_s for took in column]) for side, column in taken.items()},
        "ratio": Spread.of_ratios(cpu["tree"], cpu["prefill"]),
        "largest_difference": {
            side: max(abs(mine - theirs) for mine, theirs in zip(scores["tree"], peer, strict=True))
            for side, peer in scores.items()
            if side != "tree"
        },
    }


@torch.no_grad()
def padded(model: PreTrainedModel, prompt: Sequence[int], rows: Rows, batch: int) -> list[float]:
    """Score prompt and row together, some rows at a time, with logits of the rows' tokens alone."""
    found: list[float] = []
    for start in range(0, len(rows), batch):
        some = rows[start : start + batch]
        tokens, lengths = _rectangle(some)
        width = tokens.shape[1]
        texts = torch.cat([torch.tensor(prompt).expand(len(some), -1), tokens], dim=1)
        # Rows end on the right, where nothing that counts looks; logits from the prompt's last token on.
        logits = model(input_ids=texts, use_cache=False, logits_to_keep=width + 1).logits
        found += _sums(logits[:, :-1], tokens, lengths)
    return found


class PromptOnce:
    """A prompt that was run once, whose keys and values every row gets a copy of."""

    @torch.no_grad()
    def __init__(self, model: PreTrainedModel, prompt: Sequence[int]) -> None:
        self._model = model
        output = model(input_ids=torch.tensor([list(prompt)]), use_cache=True, logits_to_keep=1)
        self._last: Tensor = output.logits
        self._cache: DynamicCache = output.past_key_values

    @torch.no_grad()
    def scores(self, rows: Rows, batch: int) -> list[float]:
        """Score rows of at least two tokens, some at a time, each with its copy."""
        found: list[float] = []
        for start in range(0, len(rows), batch):
            some = rows[start : start + batch]
            tokens, lengths = _rectangle(some)
            cache = copy.deepcopy(self._cache)
            cache.batch_repeat_interleave(len(some))
            first = self._last.expand(len(some), -1, -1)
            later = self._model(input_ids=tokens[:, :-1], past_key_values=cache, use_cache=True).logits
            beginnings = _sums(first, tokens[:, :1], lengths)
            endings = _sums(later, tokens[:, 1:], lengths - 1)
            found += [one + other for one, other in zip(beginnings, endings, strict=True)]
        return found


def _rectangle(rows: Rows) -> tuple[Tensor, Tensor]:
    """Rows padded on the right, and their lengths. Shapes: (n, L) and (n, 1)."""
    lengths = torch.tensor([[len(row)] for row in rows])
    width = int(lengths.max())
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows]), lengths


def _sums(logits: Tensor, tokens: Tensor, lengths: Tensor) -> list[float]:
    """Sum log-probabilities of the rows. Shapes: (n, L, V), (n, L) and (n, 1)."""
    logprobs = (logits.gather(2, tokens[..., None])[..., 0] - logits.logsumexp(-1)).double()
    return torch.where(torch.arange(tokens.shape[1]) < lengths, logprobs, 0.0).sum(1).tolist()


if __name__ == "__main__":
    main()
