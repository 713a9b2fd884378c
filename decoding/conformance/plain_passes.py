"""The reference: every path of a tree run alone, by the model's own attention, without a cache.

To be made before the model's attention is replaced. One pass over a leaf's path answers for all branches on
it, since a causal model's answer does not depend on later tokens; where several leaves share a branch, what
their passes say of it shows how far the model's own rounding goes (and whether the model is causal at all).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from decoding.conformance.difference import Difference
from decoding.conformance.layer_readings import LayerReader
from decoding.conformance.random_trees import RandomTree


@dataclass(frozen=True, slots=True, eq=False)
class PlainAnswers:
    """What plain forward passes answered about a tree, on the CPU. Lists are by depth, 0 being the prompt.

    Attributes:
        logits: Next-token logits, zeros for padding branches. Shape of each: (Q, B, V); (Q, 1, V) at depth 0.
        hidden: Outputs of the decoder layers, None when they were not asked for. Shape of each:
            (num_layers, Q, B, d).
        among_themselves: How far passes of different lengths differ over the branches that they share.
    """

    logits: list[Tensor]
    hidden: list[Tensor] | None
    among_themselves: Difference


@torch.no_grad()
def plain_answers(
    model: PreTrainedModel,
    decoder_prompt: Sequence[int],
    tree: RandomTree,
    reader: LayerReader | None = None,
    tick: Callable[[], None] = lambda: None,
) -> PlainAnswers:
    """Run every path of a tree alone.

    Args:
        model: With its own attention.
        decoder_prompt: Tokens before every title of an encoder-decoder; empty for causal models.
        tree: The paths.
        reader: Takes the outputs of the decoder layers as well.
        tick: Called after every pass.
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
    """Logits and layer outputs after the prompt and after every token of a path, on the CPU.

    Returns:
        Shapes: (depth + 1, V), and (num_layers, depth + 1, d) or None.
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
