"""What every decoder layer knows about the next token: its output read through the model's own head.

Reading all layers shows where a difference begins, while the logits only show that there is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from decoding.conformance.layer_kinds import decoder_layers

# Layers are read for so many tokens at most, evenly spaced. What spoils a layer's output spoils what it says
# of any token, and reading thirty layers of every branch for a whole vocabulary takes minutes.
_MOST_TOKENS = 2048

# What the norm between the last layer and the head is called, beside the list of layers.
_FINAL_NORMS = ("norm", "final_layernorm", "final_layer_norm", "ln_f", "layer_norm")


class LayerReader:
    """Takes the outputs of all decoder layers while a model runs, and reads them through the head.

    Args:
        model: A model with a language modelling head.

    Attributes:
        num_layers: Decoder layers found; 0 where the decoder keeps them in an unknown way.
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
        """Take the outputs of every forward pass inside the block."""
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
        """Outputs of all layers in the last forward pass. Shape: (num_layers, rows, tokens, d)."""
        taken = [output for output in self._outputs if output is not None]
        if len(taken) != self.num_layers:
            raise RuntimeError(f"only {len(taken)} of {self.num_layers} decoder layers ran")
        return torch.stack(taken)

    @torch.no_grad()
    def read(self, hidden: Tensor) -> Tensor:
        """Logits that the head gives for a layer's output, of all tokens or of 2,048. (n, d) to (n, V)."""
        for module in self._tail:
            hidden = module(hidden)
        logits: Tensor = self._head(hidden) * self._factor
        return logits

    def calibrate(self, hidden: Tensor, logits: Tensor) -> None:
        """Learn the factor that some models put on their logits or before their head.

        Args:
            hidden: Outputs of the last layer. Shape: (n, d).
            logits: The model's logits there. Shape: (n, V).
        """
        read = self.read(hidden).double()
        square = float(read.square().sum())
        if square:
            self._factor *= float((read * logits[:, self._tokens].double()).sum()) / square


@torch.no_grad()
def _some_of(head: nn.Linear, count: int) -> tuple[Tensor, nn.Linear]:
    """So many tokens, evenly spaced, and a head that writes the logits of these alone."""
    weight = head.weight
    tokens = torch.linspace(0, head.out_features - 1, count, device=weight.device).long()
    some = nn.Linear(head.in_features, count, head.bias is not None, weight.device, weight.dtype)
    some.weight.copy_(weight[tokens])
    if head.bias is not None:
        some.bias.copy_(head.bias[tokens])
    return tokens, some
