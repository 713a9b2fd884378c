"""A step of a session never waits for the device: all that it decides, it decides on the host."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from genret.decoding.model.hf_model import HFLanguageModel
from tests.no_sync import cuda_never_waits
from tests.tiny_transformers import ARCHITECTURES, build, random_prompts

VOCAB = 30
PROMPTS = random_prompts([9, 4], VOCAB)

Grow = tuple[Tensor, Tensor, int]


def frontiers(device: str) -> list[Grow]:
    """Parents, tokens and depth of a few frontiers with padding; the last ones come back to old depths."""
    parents = [[[0, -1], [0, 0]], [[0, 1, -1], [1, 1, 0]], [[2], [-1]], [[0, 0], [0, -1]], [[3, 1], [2, 0]]]
    tensors = [torch.tensor(frontier, device=device) for frontier in parents]
    depths = [1, 2, 3, 1, 2]
    return [(t, torch.full_like(t, 4), depth) for t, depth in zip(tensors, depths, strict=True)]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_step_needs_no_values(name: str) -> None:
    """With fake tensors, which have shapes and no values, nothing can be read at all."""
    with FakeTensorMode():
        session = HFLanguageModel(build(name, VOCAB), pack_frontiers=False).prefill(PROMPTS)
        session.keep_levels()
        for step in frontiers("cpu"):
            logits = session.step(*step)
        assert logits.shape == (2, 2, VOCAB)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("levels", [False, True])
def test_cuda_never_waits_in_a_step(name: str, levels: bool) -> None:
    model = HFLanguageModel(build(name, VOCAB).to("cuda"))
    steps = frontiers("cuda")[: 5 if levels else 3]
    for watch in (torch.no_grad, cuda_never_waits):  # libraries initialise themselves in the first round
        session = model.prefill(PROMPTS)
        if levels:
            session.keep_levels()
        with watch():
            for step in steps:
                session.step(*step)
