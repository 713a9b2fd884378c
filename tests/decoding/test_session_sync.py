"""A step of a session never waits for the device: all that it decides, it decides on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from genret.decoding.model.hf_model import HFLanguageModel
from tests.no_sync import DeviceWaitError, cuda_never_waits, no_sync
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


WAITS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x[0, 0].item(),
    "int": lambda x: int(x[0, 0]),
    "bool": lambda x: bool((x > 2).any()),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "array": np.asarray,
    "cpu": lambda x: x.cpu(),
    "contains": lambda x: 3 in x,
    "range": lambda x: range(x[0, 1]),
    "format": lambda x: f"{x[0, 1]}",
    "slice": lambda x: x[: x[0, 1]],
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 2),
    "mask": lambda x: x[x > 2],
    "write through a mask": lambda x: x.__setitem__(x > 2, x[0]),
    "masked_select": lambda x: x.masked_select(x > 2),
    "unique": lambda x: x.unique(),
    "unique_consecutive": lambda x: x.unique_consecutive(),
    "repeat_interleave": lambda x: x.repeat_interleave(x[:, 1], 0),
    "equal": lambda x: torch.equal(x, x),
    "allclose": lambda x: torch.allclose(x, x),
    "bincount": lambda x: x.flatten().bincount(),
    "list": lambda x: torch.tensor([1, 2]),
    "number": lambda x: torch.tensor(1, device=x.device),
    "new_tensor": lambda x: x.new_tensor([1, 2]),
    "list as index": lambda x: x[[0, 1]],
    "from_numpy": lambda x: torch.from_numpy(np.ones(2)),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_the_watcher_notices(wait: Callable[[Tensor], Any]) -> None:
    x = torch.arange(6).view(2, 3)
    with no_sync(), pytest.raises(DeviceWaitError):
        wait(x)
