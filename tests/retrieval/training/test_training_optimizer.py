"""Muon + AdamW as one optimiser: who gets what, schedules, saving."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from retrieval.training.trainer import MuonAdamW, build_optimizer


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.hidden = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 12, bias=False)

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.norm(torch.tanh(self.hidden(self.embed(ids)))))
        return out


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def train(model: Net, optimizer: torch.optim.Optimizer, steps: int) -> float:
    ids = torch.arange(12)
    loss = torch.zeros(())
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(ids), ids.flip(0))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def test_muon_gets_hidden_matrices_only() -> None:
    model = net()
    optimizer = build_optimizer(model, "muon", lr=1e-2, weight_decay=0.1)
    muon, adamw = optimizer.param_groups
    assert [id(p) for p in muon["params"]] == [id(model.hidden.weight)]
    assert {id(p) for p in adamw["params"]} == {id(p) for p in model.parameters()} - {id(model.hidden.weight)}
    assert adamw["weight_decay"] == 0.0


@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_it_learns(name: str) -> None:
    model = net()
    assert train(model, build_optimizer(model, name, lr=3e-2, weight_decay=0.0), 120) < 0.2


def test_a_scheduler_drives_both_parts_also_after_loading() -> None:
    model = net()
    optimizer = build_optimizer(model, "muon", lr=1e-2, weight_decay=0.0)
    train(model, optimizer, 2)
    optimizer.load_state_dict(optimizer.state_dict())
    LambdaLR(optimizer, lambda step: 0.0)
    before = [p.clone() for p in model.parameters()]
    train(model, optimizer, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_saved_state_continues_exactly() -> None:
    whole, halves = net(), net()
    optimizer = build_optimizer(whole, "muon", lr=1e-2, weight_decay=0.1)
    train(whole, optimizer, 10)
    first = build_optimizer(halves, "muon", lr=1e-2, weight_decay=0.1)
    train(halves, first, 5)
    second = build_optimizer(halves, "muon", lr=1e-2, weight_decay=0.1)
    second.load_state_dict(first.state_dict())
    train(halves, second, 5)
    assert isinstance(second, MuonAdamW)
    for a, b in zip(whole.parameters(), halves.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="'muon' or 'adamw', got 'sgd'"):
        build_optimizer(net(), "sgd", lr=1.0, weight_decay=0.0)
