"""A numeric check of architectures that no test of this repository covers.

Two short prompts grow three steps of three branches with crossing parents, once as a token tree and once as
plain forward passes over every path alone. A model whose answers differ is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from decoding.architectures import input_vocab_size
from decoding.errors import UnsupportedModelError
from decoding.language_model import LanguageModel

_PROMPT_LENGTHS = (11, 6)
_PARENTS = ((0, 0, 0), (2, 0, 2), (1, 1, 0))

# Allowed |difference| / |log-probabilities about their mean|, Euclidean norms. Half precision kernels round
# differently for different batch shapes; a misplaced position or mask changes trained models by far more.
_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.bfloat16: 0.15, torch.float16: 0.03}


@dataclass(frozen=True, slots=True, eq=False)
class Expectation:
    """What plain forward passes answered.

    Attributes:
        prompts: The prompts. Length Q.
        tokens: Token of every branch at every step. Shape: (steps, Q, B), int64.
        logits: Their next-token logits. Shape: (steps, Q, B, V).
    """

    prompts: tuple[tuple[int, ...], ...]
    tokens: Tensor
    logits: Tensor


@torch.no_grad()
def probe(model: PreTrainedModel, decoder_prompt: Sequence[int], vocab_size: int) -> Expectation:
    """Run every path alone, without a cache, with the model's own attention.

    Raises:
        UnsupportedModelError: the model fails even so.
    """
    generator = torch.Generator().manual_seed(0)
    highest = min(vocab_size, input_vocab_size(model))
    prompts = tuple(
        tuple(torch.randint(highest, (length,), generator=generator).tolist()) for length in _PROMPT_LENGTHS
    )
    shape = (len(_PARENTS), len(prompts), len(_PARENTS[0]))
    tokens = torch.randint(highest, shape, generator=generator)
    rows = []
    try:
        for depth in range(shape[0]):
            for query, prompt in enumerate(prompts):
                for branch in range(shape[2]):
                    path = _path(tokens[:, query], depth, branch)
                    rows.append(_plain_logits(model, prompt, decoder_prompt, path))
    except Exception as error:
        raise UnsupportedModelError(
            f"model type {model.config.model_type!r} cannot be checked: a plain forward pass failed: {error}"
        ) from error
    return Expectation(prompts, tokens, torch.stack(rows).view(*shape, -1))


def refuse_if_different(model: LanguageModel, expected: Expectation, model_type: str) -> None:
    """Decode the same paths as a token tree and compare.

    Raises:
        UnsupportedModelError: the tree fails, or its log-probabilities differ.
    """
    try:
        session = model.prefill(expected.prompts)
        answers = []
        for parents, tokens in zip(_PARENTS, expected.tokens, strict=True):
            rows = torch.tensor([parents] * len(expected.prompts), device=model.device)
            answers.append(session.step(rows, tokens.to(model.device)))
    except Exception as error:
        raise UnsupportedModelError(
            f"model type {model_type!r} is not supported: token-tree decoding failed: {error}"
        ) from error
    wanted = expected.logits.double().log_softmax(-1)
    got = torch.stack(answers).double().log_softmax(-1)
    spread = (wanted - wanted.mean(-1, keepdim=True)).norm()
    difference = float((got - wanted).norm() / spread)
    allowed = _TOLERANCE[expected.logits.dtype]
    if not difference <= allowed:
        raise UnsupportedModelError(
            f"model type {model_type!r} is not supported: token-tree decoding differs from plain forward "
            f"passes by {difference:.2g} (relative), at most {allowed:g} is allowed"
        )


def _path(tokens: Tensor, depth: int, branch: int) -> list[int]:
    """Tokens from the prompt to one branch. `tokens` shape: (steps, B)."""
    path: list[int] = []
    for level in range(depth, -1, -1):
        path.append(int(tokens[level, branch]))
        branch = _PARENTS[level][branch]
    return path[::-1]


def _plain_logits(
    model: PreTrainedModel, prompt: Sequence[int], decoder_prompt: Sequence[int], path: Sequence[int]
) -> Tensor:
    """Next-token logits after one path. Shape: (V,)."""
    if decoder_prompt:
        written = torch.tensor([[*decoder_prompt, *path]], device=model.device)
        read = torch.tensor([prompt], device=model.device)
        output = model(input_ids=read, decoder_input_ids=written, use_cache=False)
    else:
        output = model(input_ids=torch.tensor([[*prompt, *path]], device=model.device), use_cache=False)
    logits: Tensor = output.logits[0, -1]
    return logits
