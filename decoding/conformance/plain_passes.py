"""Makes the reference: every path of a random token tree run alone, by the model's own attention, uncached.

Must run before the model's attention is replaced. One pass over a leaf's path answers for all branches on it,
since a causal model's answer does not depend on later tokens; branches that several leaves share show the
model's own rounding (and whether the model is causal at all). A `LayerReader` reads the output of every
decoder layer through the model's own head: it shows where a difference begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from genret.decoding.conformance.difference import Difference
from genret.decoding.model.architectures import decoder_layers

_PADDING_SHARE = 0.2


@dataclass(frozen=True, slots=True, eq=False)
class RandomTree:
    """The trees of Q queries, all of one depth and one width. Depth 0 is the prompt alone."""

    prompts: tuple[tuple[int, ...], ...]  # Their lengths may differ. Length Q
    prefix_length: int  # Tokens of the shared prefix, fewer than the shortest prompt has
    # Column of every branch's parent one level up, -1 for padding branches; 0 at depth 1. Shape: (depth, Q,
    # B), int64.
    parents: Tensor
    tokens: Tensor  # Token of every branch. Shape: (depth, Q, B), int64

    @property
    def num_queries(self) -> int:
        """Q."""
        return len(self.prompts)

    @property
    def depth(self) -> int:
        """Tokens on the deepest branches."""
        return self.tokens.shape[0]

    def columns(self, depth: int) -> Tensor:
        """Return whether each branch is real, not padding. Shape: (Q, B), bool; (Q, 1) at depth 0."""
        if depth == 0:
            return torch.ones(self.num_queries, 1, dtype=torch.bool)
        return self.parents[depth - 1] >= 0

    def ancestry(self, query: int, depth: int, column: int) -> list[int]:
        """Return the columns on the way from depth 0 to a branch, both included. Length depth + 1."""
        columns = [column]
        for level in range(depth - 1, -1, -1):
            column = int(self.parents[level, query, column]) if level else 0
            columns.append(column)
        return columns[::-1]

    def path(self, query: int, depth: int, column: int) -> list[int]:
        """Return the tokens from the prompt to a branch. Length depth."""
        columns = self.ancestry(query, depth, column)
        return [int(self.tokens[level, query, columns[level + 1]]) for level in range(depth)]

    def leaves(self) -> Iterator[tuple[int, int, int]]:
        """Yield (query, depth, column) of every branch without children, childless prompts included."""
        for query in range(self.num_queries):
            for depth in range(self.depth + 1):
                below = set(self.parents[depth, query].tolist()) if depth < self.depth else set()
                for column in self.columns(depth)[query].nonzero()[:, 0].tolist():
                    if column not in below:
                        yield query, depth, column


def random_tree(
    lengths: Sequence[int],
    prefix_length: int,
    depth: int,
    branches: int,
    allowed: Tensor,
    generator: torch.Generator,
) -> RandomTree:
    """Draw a tree: crossing parents, and about a fifth of the branches padding, never the first column of a
    query.

    `lengths` are those of the prompts, each above `prefix_length`; `allowed` are the token ids to draw from,
    (n,).
    """

    def draw(*shape: int) -> Tensor:
        return allowed[torch.randint(len(allowed), shape, generator=generator)]

    prefix = draw(prefix_length).tolist()
    prompts = tuple(tuple(prefix + draw(length - prefix_length).tolist()) for length in lengths)
    shape = (depth, len(lengths), branches)
    padding = torch.rand(shape, generator=generator) < _PADDING_SHARE
    padding[:, :, 0] = False
    parents = torch.zeros(shape, dtype=torch.int64)
    for level in range(1, depth):
        for query in range(len(lengths)):
            written = (~padding[level - 1, query]).nonzero()[:, 0]
            parents[level, query] = written[torch.randint(len(written), (branches,), generator=generator)]
    return RandomTree(prompts, prefix_length, parents.masked_fill(padding, -1), draw(*shape))


# Most tokens, evenly spaced, that layers are read for. A wrong output is wrong for any token, and reading
# thirty layers of every branch for a whole vocabulary takes minutes.
_MOST_TOKENS = 2048

# Names of the norm between the last layer and the head, a sibling of the list of layers.
_FINAL_NORMS = ("norm", "final_layernorm", "final_layer_norm", "ln_f", "layer_norm")


class LayerReader:
    """Captures the outputs of all decoder layers while a model runs, and reads them through the head.

    `num_layers` is 0 if the decoder keeps its layers in an unknown way.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._layers, stack = decoder_layers(model)
        self.num_layers = len(self._layers)
        named = dict(stack.named_children())
        self._tail = [named[name] for name in _FINAL_NORMS if isinstance(named.get(name), nn.Module)][:1]
        if isinstance(named.get("project_out"), nn.Module):  # OPT's way to a narrower embedding
            self._tail.append(named["project_out"])
        self._head: nn.Module = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        self._tokens: Tensor | slice = slice(None)
        if isinstance(self._head, nn.Linear) and self._head.out_features > _MOST_TOKENS:
            self._tokens, self._head = _some_of(self._head, _MOST_TOKENS)
        self._factor = 1.0
        self._outputs: list[Tensor | None] = [None] * self.num_layers

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Capture the outputs of every forward pass inside the block."""
        handles = [
            layer.register_forward_hook(partial(self._take, number))
            for number, layer in enumerate(self._layers)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._outputs = [None] * self.num_layers

    def _take(self, number: int, _: nn.Module, __: Any, output: Any) -> None:
        hidden = output if isinstance(output, Tensor) else output[0]
        self._outputs[number] = hidden.detach()

    def outputs(self) -> Tensor:
        """Return the outputs of all layers in the last pass. Shape: (num_layers, rows, tokens, d)."""
        taken = [output for output in self._outputs if output is not None]
        if len(taken) != self.num_layers:
            raise RuntimeError(f"only {len(taken)} of {self.num_layers} decoder layers ran")
        return torch.stack(taken)

    @torch.no_grad()
    def read(self, hidden: Tensor) -> Tensor:
        """Return the head's logits for a layer's output, for all tokens or 2,048. (n, d) to (n, V)."""
        for module in self._tail:
            hidden = module(hidden)
        logits: Tensor = self._head(hidden) * self._factor
        return logits

    def calibrate(self, hidden: Tensor, logits: Tensor) -> None:
        """Learn the factor that some models apply to their logits or before their head.

        `hidden`, (n, d), are outputs of the last layer; `logits`, (n, V), the model's logits there.
        """
        read = self.read(hidden).double()
        square = float(read.square().sum())
        if square:
            self._factor *= float((read * logits[:, self._tokens].double()).sum()) / square


@torch.no_grad()
def _some_of(head: nn.Linear, count: int) -> tuple[Tensor, nn.Linear]:
    """Return `count` tokens, evenly spaced, and a head that writes their logits alone."""
    weight = head.weight
    tokens = torch.linspace(0, head.out_features - 1, count, device=weight.device).long()
    some = nn.Linear(head.in_features, count, head.bias is not None, weight.device, weight.dtype)
    some.weight.copy_(weight[tokens])
    if head.bias is not None:
        some.bias.copy_(head.bias[tokens])
    return tokens, some


@dataclass(frozen=True, slots=True, eq=False)
class PlainAnswers:
    """Results of plain forward passes over a tree, on the CPU. Lists are by depth, 0 being the prompt."""

    # Next-token logits, zeros for padding branches. Shape of each: (Q, B, V); (Q, 1, V) at depth 0.
    logits: list[Tensor]
    # Outputs of the decoder layers, None when they were not asked for. Shape of each: (num_layers, Q, B, d).
    hidden: list[Tensor] | None
    # How far passes of different lengths differ over the branches that they share.
    among_themselves: Difference


@torch.no_grad()
def plain_answers(
    model: PreTrainedModel,
    decoder_prompt: Sequence[int],
    tree: RandomTree,
    reader: LayerReader | None = None,
    tick: Callable[[], None] = lambda: None,
) -> PlainAnswers:
    """Run every path of a tree alone, by the model's own attention.

    `decoder_prompt` is empty for causal models. `reader` captures the outputs of the decoder layers as well;
    `tick` is called after every pass.
    """
    logits: list[Tensor] = []
    hidden: list[Tensor] = []
    known = [torch.zeros(tree.columns(depth).shape, dtype=torch.bool) for depth in range(tree.depth + 1)]
    rounding = Difference()
    for query, depth, column in tree.leaves():
        path, columns = tree.path(query, depth, column), tree.ancestry(query, depth, column)
        answered, outputs = _run(model, tree.prompts[query], decoder_prompt, path, reader)
        if not logits:
            logits = [answered.new_zeros(*level.shape, answered.shape[-1]) for level in known]
            if outputs is not None:
                shapes = [(outputs.shape[0], *level.shape, outputs.shape[-1]) for level in known]
                hidden = [outputs.new_zeros(shape) for shape in shapes]
        for level, place in enumerate(columns):
            if known[level][query, place]:
                before = logits[level][query, place]
                rounding = rounding + Difference.between(answered[level, None], before[None])
                continue
            known[level][query, place] = True
            logits[level][query, place] = answered[level]
            if outputs is not None:
                hidden[level][:, query, place] = outputs[:, level]
        tick()
    if reader is not None and reader.num_layers:
        reader.calibrate(hidden[0][-1, :, 0].to(model.device), logits[0][:, 0].to(model.device))
    return PlainAnswers(logits, hidden or None, rounding)


def _run(
    model: PreTrainedModel,
    prompt: Sequence[int],
    decoder_prompt: Sequence[int],
    path: Sequence[int],
    reader: LayerReader | None,
) -> tuple[Tensor, Tensor | None]:
    """Logits, (depth + 1, V), and layer outputs, (num_layers, depth + 1, d), of the prompt and a path, on the
    CPU.
    """
    written = [*(decoder_prompt or prompt), *path]
    ids = torch.tensor([written], device=model.device)
    taking = reader if reader is not None and reader.num_layers else None
    with nullcontext() if taking is None else taking.watching():
        if decoder_prompt:
            read = torch.tensor([list(prompt)], device=model.device)
            output = model(input_ids=read, decoder_input_ids=ids, use_cache=False)
        else:
            output = model(input_ids=ids, use_cache=False)
        wanted = slice(len(written) - len(path) - 1, len(written))
        # Copies: a view would keep the logits of the whole prompt.
        logits: Tensor = output.logits[0, wanted].cpu().clone()
        hidden = None if taking is None else taking.outputs()[:, 0, wanted].cpu().clone()
    return logits, hidden
