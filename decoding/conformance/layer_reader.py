"""Reads the output of every decoder layer through the model's own head, to show where a difference begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from genret.decoding.model.architectures import decoder_layers
from genret.decoding.model.self_check import PlainAnswers, RandomTree, plain_answers

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
class Expected:
    """Answers of plain forward passes over a tree, with the outputs of the layers on their way."""

    answers: PlainAnswers
    # Outputs of the decoder layers by depth, 0 being the prompt; empty if not read. Shape of each:
    # (num_layers, Q, B, d).
    hidden: list[Tensor]


def expect(
    model: PreTrainedModel,
    decoder_prompt: Sequence[int],
    tree: RandomTree,
    reader: LayerReader | None,
    tick: Callable[[], None],
) -> Expected:
    """Run every path of a tree alone, and calibrate the reader. `tick` is called after every pass."""
    reader = reader if reader is not None and reader.num_layers else None
    hidden: list[Tensor] = []

    def take(query: int, columns: Mapping[int, int]) -> None:
        if reader is not None:
            # The path is the end of the sequence; its length shows in the deepest branch.
            outputs = reader.outputs()[:, 0].cpu()
            if not hidden:
                shapes = (tree.columns(depth).shape for depth in range(tree.depth + 1))
                hidden.extend(outputs.new_zeros(len(outputs), *shape, outputs.shape[-1]) for shape in shapes)
            for level, column in columns.items():
                hidden[level][:, query, column] = outputs[:, level - max(columns) - 1]
        tick()

    with nullcontext() if reader is None else reader.watching():
        answers = plain_answers(model, decoder_prompt, tree, take)
    if reader is not None:
        reader.calibrate(hidden[0][-1, :, 0].to(model.device), answers.logits[0][:, 0].to(model.device))
    return Expected(answers, hidden)
