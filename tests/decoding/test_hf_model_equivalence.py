"""Token-tree decoding equals a plain forward pass over every path alone, architecture by architecture."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import transformers
from torch import Tensor

from decoding.conformance.difference import exactly
from decoding.model.architectures import VERIFIED
from decoding.model.hf_model import HFLanguageModel
from tests.no_sync import no_sync
from tests.verified_architectures import ARCHITECTURES, VOCAB, build, plain_logprobs, random_prompts

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")),
]


def largest_difference(
    name: str,
    dtype: torch.dtype,
    device: str,
    lengths: list[int],
    widths: list[int],
    change: Callable[[Tensor], Tensor] = lambda parents: parents,
) -> float:
    """Grow random trees with padding branches; compare every real branch with a plain forward pass."""
    generator = torch.Generator().manual_seed(sum(lengths) + len(widths))
    prompts = random_prompts(lengths, generator)
    reference = build(name, dtype).to(device)
    wrapped = build(name, dtype).to(device)
    session = HFLanguageModel(wrapped).prefill(prompts)
    worst = 0.0
    for query, prompt in enumerate(prompts):
        expected = plain_logprobs(reference, prompt, [])
        worst = max(worst, float((session.root_logits[query].log_softmax(-1) - expected).abs().max()))
    paths: list[list[list[int] | None]] = [[[]] for _ in prompts]
    for width in widths:
        tokens = torch.randint(3, VOCAB, (len(prompts), width), generator=generator)
        parents = torch.empty_like(tokens)
        grown: list[list[list[int] | None]] = []
        for query, previous in enumerate(paths):
            alive = [index for index, path in enumerate(previous) if path is not None]
            picks = torch.randint(len(alive), (width,), generator=generator).tolist()
            dead = torch.rand(width, generator=generator) < 0.25
            dead[0] = False
            row: list[list[int] | None] = []
            for branch in range(width):
                parent = -1 if dead[branch] else alive[picks[branch]]
                parents[query, branch] = parent
                ancestors = previous[parent] if parent >= 0 else None
                row.append(None if ancestors is None else [*ancestors, int(tokens[query, branch])])
            grown.append(row)
        paths = grown
        logits = session.step(change(parents).to(device), tokens.to(device))
        assert logits.shape == (len(prompts), width, VOCAB)
        assert logits.isfinite().all()
        for query, row in enumerate(paths):
            for branch, path in enumerate(row):
                if path is not None:
                    expected = plain_logprobs(reference, prompts[query], path)
                    got = logits[query, branch].log_softmax(-1)
                    worst = max(worst, float((got - expected).abs().max()))
    return worst


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-9)], ids=str)
def test_tree_equals_plain_forward(name: str, dtype: torch.dtype, tolerance: float, device: str) -> None:
    lengths, widths = [13, 7, 1, 18], [3, 5, 2, 6, 4]
    with exactly(dtype):
        assert largest_difference(name, dtype, device, lengths, widths) < tolerance


@pytest.mark.parametrize("name", ["llama-gqa", "gemma2", "gpt2", "bart", "t5"])
def test_equal_prompt_lengths(name: str) -> None:
    with exactly(torch.float64):
        assert largest_difference(name, torch.float64, "cpu", [9, 9, 9], [4, 4, 4]) < 1e-9


@pytest.mark.parametrize("name", ["bart", "gpt2"])
def test_more_slots_than_positions(name: str) -> None:
    """Slots outnumber the learned positions long before any branch is that deep."""
    assert largest_difference(name, torch.float64, "cpu", [5, 3], [20] * 8) < 1e-9


@pytest.mark.parametrize("name", ["llama-gqa", "gemma3", "gpt2", "bart", "t5"])
def test_the_comparison_notices_wrong_parents(name: str) -> None:
    def swap(parents: Tensor) -> Tensor:
        return parents.roll(1, dims=1)

    assert largest_difference(name, torch.float64, "cpu", [9, 6], [3, 3, 3], swap) > 1e-2


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_step_never_waits_for_the_device(name: str) -> None:
    prompts = random_prompts([9, 4], torch.Generator().manual_seed(0))
    session = HFLanguageModel(build(name), pack_frontiers=False).prefill(prompts)
    first, second = torch.tensor([[0, -1], [0, 0]]), torch.tensor([[0, 1, -1], [1, 1, 0]])
    with no_sync():
        session.step(first, torch.full_like(first, 4))
        session.step(second, torch.full_like(second, 5))


def test_every_verified_architecture_is_tested() -> None:
    tested = {getattr(transformers, config_name)().model_type for config_name, _ in ARCHITECTURES.values()}
    assert tested == VERIFIED
