"""The optimisers: AdamW, or Muon for the hidden matrices with AdamW for everything else.

Muon orthogonalises the update of a matrix; with `match_rms_adamw` its step has AdamW's size, so that one
learning-rate schedule drives both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

# Muon's rate over AdamW's. Small random embeddings are what a short run learns slowest: after two to three
# CPU-minutes on 2,700 titles, 0.6 with AdamW at 5e-3 (batches of 48) found 15 % of mistyped titles at once,
# 2.0 with AdamW at 1e-3 (batches of 128) 6 %.
MUON_LR_RATIO = 0.6


class MuonAdamW(torch.optim.Optimizer):
    """`torch.optim.Muon` on some parameters and `torch.optim.AdamW` on the others, as one optimiser.

    Args:
        matrices: Two-dimensional parameters given to Muon.
        others: Every other trainable parameter.
        lr: AdamW's learning rate; Muon's is `MUON_LR_RATIO` times as large.
        weight_decay: Decoupled weight decay of the matrices; the others have none.
    """

    def __init__(
        self, matrices: list[nn.Parameter], others: list[nn.Parameter], lr: float, weight_decay: float
    ) -> None:
        self._parts: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Muon(
                matrices, lr=lr * MUON_LR_RATIO, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"
            ),
            torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.98), weight_decay=0.0),
        )
        super().__init__([*matrices, *others], {})
        self._link()

    def _link(self) -> None:
        # The very dicts of the parts: a scheduler that writes a rate here writes it there.
        self.param_groups = [group for part in self._parts for group in part.param_groups]

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step with both parts and return the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self._parts:
            part.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of both parts."""
        for part in self._parts:
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of both parts."""
        return {"parts": [part.state_dict() for part in self._parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for part, state in zip(self._parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._link()


def build_optimizer(model: nn.Module, name: str, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """Return the optimiser called `name` ("muon" or "adamw") over the model's trainable parameters.

    Embeddings, the output head, norms and biases always get AdamW: Muon is meant for hidden matrices.
    """
    embeddings = {
        id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters(recurse=False)
    }
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if head is not None:
        embeddings.update(id(p) for p in head.parameters())
    trainable = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trainable if p.ndim == 2 and id(p) not in embeddings]
    in_matrices = {id(p) for p in matrices}
    others = [p for p in trainable if id(p) not in in_matrices]
    if name == "muon":
        if not matrices or not others:
            raise ValueError("the model has no hidden matrices for Muon; use the optimiser 'adamw'")
        return MuonAdamW(matrices, others, lr, weight_decay)
    if name == "adamw":
        groups = [
            {"params": matrices, "weight_decay": weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98))
    raise ValueError(f"optimizer must be 'muon' or 'adamw', got {name!r}")
