"""One step of the constraint against its peers, and as a share of a model's decode step.

    python benchmarks/constraint_step.py --index six_million.index
    python benchmarks/constraint_step.py --titles six_million.parquet --work /large/disk   # builds the index

Branches stand on prefixes of real titles, 1 to 6 tokens deep; a figure is the mean over depths and prefixes.
Verification of 50 candidates per branch, half of them valid where so many are, is measured against the
full-row PPV below. Exact children are measured against a trie of nested dictionaries
walked from the root: bare, which lists the tokens, and inside transformers' PrefixConstrainedLogitsProcessor,
which makes a masked (branches, vocabulary) matrix of them; `processor` is TitleTrieLogitsProcessor, which
does the same with our trie. The dictionaries of 6,000,000 titles take about 7 GB.

Steps are timed *hot*, the same one several times on end, and *cold*, with the processor's caches emptied
before, which is how a model leaves them. Everything is checked to give equal results before it is timed. One
core, one thread; all sides in turn.
"""

from __future__ import annotations

import gc
import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import click
import numpy as np
import numpy.typing as npt
import torch
from harness.dictionary_trie import Node, tokens_after, whole_dictionary
from harness.prefixes import sample_prefixes, walk
from harness.report import FOLDER, Spread, benchmark, shown
from harness.timing import in_turn, timed
from harness.titles import index_of_titles, input_options, write_tsv
from harness.twin_models import random_model
from torch import Tensor
from transformers import PrefixConstrainedLogitsProcessor

from genret.decoding.constraints import EdgeChooser, expand
from genret.decoding.errors import KernelsError
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.trie.logits_processor import TitleTrieLogitsProcessor
from genret.decoding.trie.title_trie import TitleTrie
from genret.retrieval.index.reader import Index

_BRANCHES = (1, 16, 128)
_MODEL_BRANCHES = (1, 128)
_HIDDEN, _LAYERS = 768, 9  # of the model: 102 M parameters with a vocabulary of 50,257
_DEPTHS = range(1, 7)
_PREFIXES = 256  # per depth; steps of few branches are taken from several groups of them
_MAX_GROUPS = 4
_CANDIDATES = 50
_CALLS = 3  # of a hot step, whose median counts
_CACHE_BYTES = 64 << 20  # beyond a core's share of the last cache
_PROMPT_TOKENS = 64
_PAIRS = (
    ("full-row PPV", "verify"),
    ("dictionaries + processor", "children"),
    ("dictionaries", "children"),
    ("topk", "children"),
    ("dictionaries + processor", "processor"),
)

IntArray = npt.NDArray[np.int64]


class Case(NamedTuple):
    """Branches that take a step together."""

    prefixes: list[tuple[int, ...]]  # one per branch, all of one length
    ids: Tensor  # of the prefixes; shape: (n, d), int64
    candidates: Tensor  # tokens to be verified; shape: (n, 50), int64
    logits: Tensor  # shape: (n, V), float32


class Timed(NamedTuple):
    """A call to be timed, and an untimed one that must come before it."""

    call: Callable[[], object]
    prepare: Callable[[], object] = lambda: None

    def seconds(self, caches: IntArray | None) -> float:
        """Return the time of a call with emptied caches, or without `caches` the median of some calls.

        `caches` is larger than the processor's: adding to it leaves them as a model's weights do.
        """
        seconds = []
        for _ in range(_CALLS if caches is None else 1):
            self.prepare()
            if caches is not None:
                caches += 1
            seconds.append(timed(self.call).wall_s)
        return statistics.median(seconds)


class FullRowPPV:
    """Parallel prefix verification as the paper has it, corrected and batched: binary search over all rows.

    The printed routine adds up the signs of the columns, which is no order, and reads past the last row; here
    the first column that differs decides, and one search serves all branches and candidates. Columns behind
    the deepest prefix are left out, which only makes it faster. Rows are sorted and padded with -1; shape:
    (R, W), int32.
    """

    def __init__(self, rows: Tensor) -> None:
        self._prefixes = [rows[:, :width].contiguous() for width in range(1, rows.shape[1] + 1)]
        # Of a difference, only the sign of the first column that differs may count.
        self._weights = [2.0 ** torch.arange(width).flip(0) for width in range(1, rows.shape[1] + 1)]

    def verify(self, prefixes: Tensor, token_ids: Tensor) -> Tensor:
        """Return which candidates continue their prefix to the prefix of some row.

        Shapes: (n, d), int32; (n, M), int32; returned: (n, M), bool.
        """
        (branches, depth), candidates = prefixes.shape, token_ids.shape[1]
        rows, weights = self._prefixes[depth], self._weights[depth]
        repeated = prefixes.unsqueeze(1).expand(branches, candidates, depth)
        wanted = torch.cat([repeated, token_ids.unsqueeze(2)], dim=2).view(-1, depth + 1)
        low = torch.zeros(len(wanted), dtype=torch.int64)
        high = torch.full_like(low, len(rows))
        for _ in range(len(rows).bit_length()):
            middle = (low + high) // 2
            found = rows.index_select(0, middle.clamp(max=len(rows) - 1))
            smaller = torch.mv(torch.sign(found - wanted).float(), weights) < 0
            is_open = low < high
            low = torch.where(is_open & smaller, middle + 1, low)
            high = torch.where(is_open & ~smaller, middle, high)
        there = rows.index_select(0, low.clamp(max=len(rows) - 1)) == wanted
        return ((low < len(rows)) & there.all(dim=1)).view(branches, candidates)


def row_matrix(index: Index, width: int) -> Tensor:
    """Return the first tokens of all rows in the order of rank, padded with -1. Shape: (R, width), int32."""
    tokens, offsets = index.rows.flat()
    starts, lengths = offsets[:-1], np.diff(offsets)
    matrix = np.full((len(starts), width), -1, dtype=np.int32)
    for column in range(width):
        there = lengths > column
        matrix[there, column] = tokens[starts[there] + column]
    return torch.from_numpy(matrix)


@benchmark("numpy", "torch", "transformers", "numba")
@input_options
@click.option("--index", type=FOLDER, help="Measure on this index instead of building one.")
@click.option("--repeats", type=click.IntRange(min=5), default=7, help="Rounds; in each, everyone in turn.")
def main(options: SimpleNamespace) -> dict[str, Any]:
    """Measure steps of the constraint."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    with index_of_titles(options, write_tsv) as opened:
        return measure(opened, options.repeats)


def measure(index: Index, repeats: int) -> dict[str, Any]:
    """Take all figures."""
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    prefixes = sample_prefixes(index, np.arange(index.num_rows), _PREFIXES, rng, _DEPTHS)
    rows = row_matrix(index, max(_DEPTHS) + 1)
    gc.disable()
    root = whole_dictionary(*index.rows.flat())
    gc.enable()
    gc.collect()
    gc.freeze()  # nobody pays for walking through the dictionaries
    peer, tries = FullRowPPV(rows), make_tries(index)
    figures: dict[str, Any] = {"rows": index.num_rows, "steps": []}
    for branches in _BRANCHES:
        cases = make_cases(prefixes, branches, root, index.vocab_size, rng)
        check(cases, tries, peer, root)
        contests = [contestants(case, tries, peer, root) for case in cases]
        figures["steps"] += [steps(contests, tries, branches, repeats, cold) for cold in (False, True)]
    model = random_model(index.vocab_size, _HIDDEN, _LAYERS)
    for branches in _MODEL_BRANCHES:
        cases = make_cases(prefixes, branches, root, index.vocab_size, rng)
        figures.setdefault("shares", []).append(shares(cases, tries, model, branches, repeats))
    return figures


def make_tries(index: Index) -> dict[str, TitleTrie]:
    """Return the trie once per kernels that can be had here."""
    tries = {}
    for name in ("numba", "torch"):
        try:
            tries[name] = TitleTrie(index.trie_arrays(), index.vocab_size, kernels=name)
        except KernelsError as error:
            click.echo(f"left out: {error}")
    return tries


def make_cases(
    prefixes: list[list[tuple[int, ...]]],
    branches: int,
    root: Node,
    vocab_size: int,
    rng: np.random.Generator,
) -> list[Case]:
    """Cut the prefixes of every depth into groups of so many branches."""
    logits = torch.randn(branches, vocab_size)
    cases = []
    for of_depth in prefixes:
        for group in range(min(_PREFIXES // branches, _MAX_GROUPS)):
            mine = of_depth[group * branches : (group + 1) * branches]
            candidates = []
            for prefix in mine:
                valid = rng.permutation(tokens_after(root, prefix))[: _CANDIDATES // 2]
                others = rng.choice(vocab_size, _CANDIDATES - len(valid), replace=False)
                candidates.append(rng.permutation(np.concatenate([valid, others])))
            cases.append(Case(mine, torch.tensor(mine), torch.from_numpy(np.array(candidates)), logits))
    return cases


def check(cases: list[Case], tries: dict[str, TitleTrie], peer: FullRowPPV, root: Node) -> None:
    """Stop unless everyone gives the same answers."""
    for case in cases:
        valid = peer.verify(case.ids.int(), case.candidates.int())
        listed = [sorted(tokens_after(root, prefix)) for prefix in case.prefixes]
        masked = dictionary_processor(root, len(case.prefixes))(case.ids, case.logits)
        for name, trie in tries.items():
            states = walk(trie, case.prefixes)
            if not torch.equal(trie.verify(states, case.candidates) >= 0, valid):
                raise click.ClickException(f"{name}: verification differs from full-row PPV")
            children = trie.children(states)
            counts = torch.bincount(children.owner, minlength=len(states)).tolist()
            if [part.tolist() for part in children.token.split(counts)] != listed:
                raise click.ClickException(f"{name}: children differ from the dictionaries'")
            processor = TitleTrieLogitsProcessor(trie, 0, trie.vocab_size - 1)
            if not torch.equal(processor(case.ids, case.logits), masked):
                raise click.ClickException(f"{name}: scores differ from PrefixConstrainedLogitsProcessor's")
        for prefix, mine, candidates in zip(listed, valid, case.candidates, strict=True):
            if mine.tolist() != [token in prefix for token in candidates.tolist()]:
                raise click.ClickException("full-row PPV differs from the dictionaries")


def dictionary_processor(root: Node, branches: int) -> PrefixConstrainedLogitsProcessor:
    """Return transformers' processor over the dictionaries; the branches are the beams of one prompt."""
    return PrefixConstrainedLogitsProcessor(lambda _, written: tokens_after(root, written.tolist()), branches)


def steps(
    contests: list[dict[str, Timed]], kernels: Iterable[str], branches: int, repeats: int, cold: bool
) -> dict[str, Any]:
    """Time everyone's step."""
    caches = np.zeros(_CACHE_BYTES // 8, dtype=np.int64) if cold else None

    def mean_us(name: str) -> float:
        return 1e6 * statistics.fmean(contest[name].seconds(caches) for contest in contests)

    taken = in_turn({name: partial(mean_us, name) for name in contests[0]}, repeats)
    times = {name: [took.value for took in column] for name, column in taken.items()}
    ratios = {
        f"{peer} / {ours}, {name}": Spread.of_ratios(times[peer], times[f"{ours}, {name}"])
        for name in kernels
        for peer, ours in _PAIRS
    }
    us = {name: Spread.of(column) for name, column in times.items()}
    entry = {"branches": branches, "cold": cold, "ratios": ratios, "us": us}
    return shown(f"{branches} branches, {'cold' if cold else 'hot'}", entry)


def contestants(case: Case, tries: dict[str, TitleTrie], peer: FullRowPPV, root: Node) -> dict[str, Timed]:
    """Return what is timed on one group of branches."""
    ids, candidates = case.ids.int(), case.candidates.int()
    theirs = dictionary_processor(root, len(case.prefixes))
    contest = {
        "full-row PPV": Timed(partial(peer.verify, ids, candidates)),
        "dictionaries": Timed(lambda: [tokens_after(root, prefix) for prefix in case.prefixes]),
        "dictionaries + processor": Timed(partial(theirs, case.ids, case.logits)),
        "topk": Timed(partial(case.logits.topk, _CANDIDATES)),
    }
    for name, trie in tries.items():
        states = walk(trie, case.prefixes)
        processor = TitleTrieLogitsProcessor(trie, 0, trie.vocab_size - 1)
        contest[f"verify, {name}"] = Timed(partial(trie.verify, states, case.candidates))
        contest[f"children, {name}"] = Timed(partial(trie.children, states))
        contest[f"processor, {name}"] = Timed(
            partial(processor, case.ids, case.logits), partial(processor, case.ids[:, :-1], case.logits)
        )
    return contest


def shares(
    cases: list[Case], tries: dict[str, TitleTrie], model: HFLanguageModel, branches: int, repeats: int
) -> dict[str, Any]:
    """Time children and their mass, cold, beside steps of a model at the same depths."""
    sums = {
        name: [Timed(partial(children_and_mass, trie, walk(trie, c.prefixes), c.logits)) for c in cases]
        for name, trie in tries.items()
    }
    caches = np.zeros(_CACHE_BYTES // 8, dtype=np.int64)

    def mean_seconds(some: Sequence[Timed]) -> float:
        return statistics.fmean(one.seconds(caches) for one in some)

    calls: dict[str, Callable[[], float]] = {
        "model": partial(mean_step_seconds, model, branches, len(_DEPTHS)),
        **{name: partial(mean_seconds, some) for name, some in sums.items()},
    }
    taken = in_turn(calls, repeats)
    times = {name: [1e3 * took.value for took in column] for name, column in taken.items()}
    entry: dict[str, Any] = {"branches": branches, "ms": {n: Spread.of(v) for n, v in times.items()}}
    for name in tries:
        entry[f"percent, {name}"] = Spread.of(
            [100 * a / b for a, b in zip(times[name], times["model"], strict=True)]
        )
    return shown(f"{branches} branches beside a model", entry)


def mean_step_seconds(model: HFLanguageModel, branches: int, num_steps: int) -> float:
    """Return the mean time of the first steps of so many branches behind a prompt of 64 tokens."""
    session = model.prefill([torch.randint(model.vocab_size, (_PROMPT_TOKENS,)).tolist()])
    parents, seconds = torch.zeros(1, branches, dtype=torch.int64), []
    for _ in range(num_steps):
        tokens = torch.randint(model.vocab_size, (1, branches))
        seconds.append(timed(session.step, parents, tokens).wall_s)
        parents = torch.arange(branches).unsqueeze(0)
    return statistics.fmean(seconds)


def children_and_mass(trie: TitleTrie, states: Tensor, logits: Tensor) -> Tensor:
    """List the children with their log-probabilities and add them up. Shape: (n,)."""
    return EdgeChooser(expand(trie, states, logits), len(states)).log_mass


if __name__ == "__main__":
    main()
