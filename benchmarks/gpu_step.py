"""A step of the constraint on a GPU: how long, and which share of a model's decode step.

    python benchmarks/gpu_step.py --index six_million.index
    python benchmarks/gpu_step.py --index sample.index --device cpu --branches 4 --layers 2 --hidden 64

Branches stand on prefixes of random rows, 0 to 6 tokens deep (all on one node at depth 0, as in DISC); a
figure is the mean over depths. `verify` looks at 50 candidates per branch, `padded` lists the children in as
many columns as any prefix of the depth needs, `children` lists them ragged and waits. `step` is
the whole step of DISC with static shapes, log-sum-exp and choice included, and `graph` the same replayed from
a CUDA graph. The model is a random Llama of 1.2 billion parameters in bfloat16, with one prompt of 64 tokens.
The loop is the one that DISC runs on CUDA, timed in turn with host-driven draws; that it never waits for the
device is tested by tests/decoding/test_devices.py.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import torch
from harness.prefixes import sample_prefixes, walk
from harness.report import COUNT, FOLDER, Spread, benchmark, shown
from harness.timing import in_turn
from harness.twin_models import Sizes, random_llama, synchronize
from torch import Tensor

from genret.decoding.disc.draws import FIRST, DrawBatch, Proposer
from genret.decoding.disc.static_proposer import DrawWalk, StaticProposer, static_step
from genret.decoding.disc.tree_proposer import TreeProposer
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.params import MAX_SAMPLES, DiscParams
from genret.decoding.stopping import StopPoll
from genret.decoding.trie.title_trie import TitleTrie
from genret.retrieval.index.reader import Index

_DEPTHS = range(7)
_CANDIDATES = 50
_STEPS = 6  # of the model, in a row
_CALLS = 10
PROMPT = [1] * 64


@benchmark("numpy", "torch", "transformers")
@click.option("--index", type=FOLDER, required=True, help="Its trie is put on the device.")
@click.option(
    "--branches",
    type=click.IntRange(1, 8192),
    multiple=True,
    default=(1, 128, 1024),
    help="Branches at once.",
)
@click.option("--device", default="cuda", help="cpu checks the script; its figures mean nothing.")
@click.option("--layers", type=COUNT, default=16, help="Layers of the model.")
@click.option("--hidden", type=click.IntRange(min=64), default=2048, help="Its width, a multiple of 64.")
@click.option("--repeats", type=COUNT, default=7, help="Measurements of each kind.")
def main(options: SimpleNamespace) -> list[dict[str, Any]] | None:
    """Measure steps of the constraint and of DISC on a GPU."""
    where, hidden = torch.device(options.device), options.hidden
    if where.type == "cuda" and not torch.cuda.is_available():
        click.echo("no CUDA device on this machine: nothing was measured")
        return None
    if hidden % 64:
        raise click.UsageError(f"--hidden must be a multiple of 64, got {hidden}")
    torch.manual_seed(0)
    figures = []
    with torch.no_grad(), Index.open(options.index, verify_digests=False) as index:
        trie = TitleTrie(index.trie_arrays(), index.vocab_size, where)
        click.echo(f"{trie.num_rows:,} rows, {trie.num_bytes / 1e9:.2f} GB on the device")
        sizes = Sizes(trie.vocab_size, hidden, options.layers, max(1, hidden // 256), 4 * hidden)
        model = HFLanguageModel(random_llama(sizes, where, torch.bfloat16))
        for number in options.branches:
            figure = measure(index, trie, model, number, options.repeats)
            figures.append(shown(f"{number} branches", figure))
    return figures


def measure(
    index: Index, trie: TitleTrie, model: HFLanguageModel, branches: int, repeats: int
) -> dict[str, Any]:
    """Take all figures for a number of branches."""
    device = model.device
    rows = sample_prefixes(index, np.arange(trie.num_rows), branches, np.random.default_rng(0), _DEPTHS)
    query = torch.zeros(branches, dtype=torch.int64, device=device)
    stands = [walk(trie, prefixes, query) for prefixes in rows]
    contests = [
        contestants(trie, states[:1] if depth == 0 else states, depth, branches)
        for depth, states in enumerate(stands)
    ]

    def mean_seconds(name: str) -> float:
        return statistics.fmean(seconds_per_call(contest[name], device) for contest in contests)

    taken = in_turn({name: partial(mean_seconds, name) for name in contests[0]}, repeats)
    times = {name: [took.value for took in column] for name, column in taken.items()}
    decode = [decode_seconds(model, branches) for _ in range(repeats + 1)][1:]
    us = {name: Spread.of([1e6 * s for s in column]) for name, column in times.items()}
    fastest = "graph" if "graph" in times else "step"
    return {
        "rows": trie.num_rows,
        "branches": branches,
        "us": us,
        "decode_us": Spread.of([1e6 * s for s in decode]),
        "step_share_of_decode": Spread.of_ratios(times["step"], decode),
        "fastest_share_of_decode": Spread.of_ratios(times[fastest], decode),
        "loop": loop(trie, model, branches, repeats),
    }


def contestants(trie: TitleTrie, states: Tensor, depth: int, n: int) -> dict[str, Callable[[], object]]:
    """Return what is timed from the states of n draws: one for all, or one each."""
    device, nodes = states.device, len(states)
    width = max(1, trie.width_at(depth))
    candidates = torch.randint(trie.vocab_size, (nodes, _CANDIDATES), device=device)
    draws = DrawWalk(
        state=states.expand(1, n).contiguous(),
        log_weight=torch.zeros(1, n, dtype=torch.float64, device=device),
        logprob=torch.zeros(1, n, dtype=torch.float64, device=device),
        running=torch.ones(1, n, dtype=torch.bool, device=device),
        finished=torch.zeros(1, n, dtype=torch.bool, device=device),
        broken=torch.zeros((), dtype=torch.bool, device=device),
    )
    step = partial(
        static_step,
        trie,
        draws,
        torch.randn(1, nodes, trie.vocab_size, device=device),
        torch.rand(1, n, dtype=torch.float64, device=device),
        torch.zeros(1, dtype=torch.bool, device=device),
        torch.full((1, n), -torch.inf, dtype=torch.float64, device=device),
        None,
        width,
        None,
    )
    found: dict[str, Callable[[], object]] = {
        "verify": partial(trie.verify, states, candidates),
        "padded": partial(trie.padded_children, states, width),
        "children": partial(trie.children, states),
        "step": step,
    }
    if device.type == "cuda":
        found["graph"] = captured(step)
    return found


def captured(call: Callable[[], object]) -> Callable[[], object]:
    """Return the replay of a call, captured in a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = call()

    def replay() -> object:
        graph.replay()
        return held  # what the graph writes to must outlive it

    return replay


def decode_seconds(model: HFLanguageModel, branches: int) -> float:
    """Return the time of one forward of the model on so many branches."""
    session = model.prefill([PROMPT])
    parents = torch.arange(branches, device=model.device).unsqueeze(0)
    step = partial(session.step, parents, parents % model.vocab_size)
    step()
    return seconds_per_call(step, model.device, _STEPS)


def seconds_per_call(call: Callable[[], object], device: torch.device, calls: int = _CALLS) -> float:
    """Return the time of a call among several in a row."""
    synchronize(device)
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    synchronize(device)
    return (time.perf_counter() - begun) / calls


def loop(trie: TitleTrie, model: HFLanguageModel, branches: int, repeats: int) -> dict[str, Any]:
    """Time drawing whole titles against host-driven draws."""
    kinds = {"static": StaticProposer, "tree": TreeProposer}
    taken = in_turn({n: partial(draw, trie, model, branches, kind) for n, kind in kinds.items()}, repeats)
    static, tree = ([took.value for took in taken[name]] for name in kinds)
    return {
        "static_ms": Spread.of([1e3 * s for s in static]),
        "tree_ms": Spread.of([1e3 * s for s in tree]),
        "tree_over_static": Spread.of_ratios(tree, static),
    }


def draw(
    trie: TitleTrie, model: HFLanguageModel, branches: int, kind: Callable[[DrawBatch], Proposer]
) -> float:
    """Make so many draws for one query; return the time behind its prompt."""
    samples = min(branches, MAX_SAMPLES)
    params = DiscParams(num_samples=samples, num_draws=-(-branches // samples))
    session = model.prefill([PROMPT])
    batch = DrawBatch(session, trie, [params], StopPoll(1, None, None, model.device), range(1))
    draws = batch.new_draws([(0, sample, 0, params.num_draws) for sample in range(samples)])
    synchronize(model.device)
    begun = time.perf_counter()
    kind(batch).run(draws, FIRST, None)
    synchronize(model.device)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
