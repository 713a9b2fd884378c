"""Ctrl-C and SIGTERM during `genret train`: nothing is lost, --resume gives what an undisturbed run gives."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file

from genret.retrieval.interruption import sigterm_as_interrupt
from genret.retrieval.training.dataset import CausalCollator, EncodedExample
from genret.retrieval.training.train_command import train_command
from genret.retrieval.training.trainer import InterruptCallback, last_checkpoint

_STEPS = 8
_TITLES = ["Nile", "Rhine", "Mount Everest", "K2", "Lake Victoria", "Danube"]


def train(folder: Path, out: str, *more: str) -> Result:
    (folder / "titles.txt").write_text("\n".join(_TITLES) + "\n", encoding="utf-8")
    arguments = ["--catalogue", str(folder / "titles.txt"), "--out", str(folder / out), "--cpu"]
    arguments += ["--preset", "tiny", "--vocab-size", "300", "--max-steps", str(_STEPS), "--batch-size", "4"]
    return CliRunner().invoke(train_command, [*arguments, *more])


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[list[EncodedExample]]:
    """Every batch that is collated, in order."""
    seen: list[list[EncodedExample]] = []
    collate = CausalCollator.__call__

    def spy(self: CausalCollator, examples: list[EncodedExample]) -> dict[str, torch.Tensor]:
        seen.append(list(examples))
        return collate(self, examples)

    monkeypatch.setattr(CausalCollator, "__call__", spy)
    return seen


def interrupt_loss(monkeypatch: pytest.MonkeyPatch, at_call: int, act: Callable[[], None]) -> None:
    """Do something in the middle of a step."""
    from genret.retrieval.training.trainer import TitleTrainer

    compute = TitleTrainer.compute_loss
    calls = 0

    def spy(self: TitleTrainer, *args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        if calls == at_call:
            act()
        return compute(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(TitleTrainer, "compute_loss", spy)


def send(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "at"), [(signal.SIGINT, 1), (signal.SIGTERM, 3), (signal.SIGINT, _STEPS)])
def test_an_interrupted_run_resumes_to_what_an_undisturbed_one_gives(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    batches: list[list[EncodedExample]],
    number: signal.Signals,
    at: int,
) -> None:
    whole = train(tmp_path, "whole")
    assert whole.exit_code == 0, whole.output
    undisturbed = batches[:_STEPS]
    with monkeypatch.context() as patch, sigterm_as_interrupt():
        interrupt_loss(patch, at, send(number))
        stopped = train(tmp_path, "stopped")
    assert stopped.exit_code == 130, stopped.output
    assert f"interrupted at step {at}; go on with --resume" in stopped.stderr
    assert stopped.stdout == ""
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    batches.clear()
    resumed = train(tmp_path, "stopped", "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert json.loads(resumed.stdout)["steps"] == json.loads(whole.stdout)["steps"] == _STEPS
    assert batches == undisturbed[at:]
    ours = load_file(tmp_path / "stopped" / "model.safetensors")
    for name, tensor in load_file(tmp_path / "whole" / "model.safetensors").items():
        assert torch.equal(tensor, ours[name]), name


def test_whoever_insists_is_obeyed_at_once_and_can_go_on_from_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def insist() -> None:
        send(signal.SIGINT)()
        send(signal.SIGINT)()

    with monkeypatch.context() as patch:
        interrupt_loss(patch, 4, insist)
        stopped = train(tmp_path, "out", "--save-steps", "2")
    assert stopped.exit_code == 130, stopped.output
    assert "the last checkpoint is of step 2: go on with --resume" in stopped.stderr
    assert train(tmp_path, "out", "--save-steps", "2", "--resume").exit_code == 0


def test_an_interrupt_before_the_first_step_leaves_nothing_to_trip_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("genret.retrieval.training.training_run.build_model", interrupted)
        stopped = train(tmp_path, "out")
    assert stopped.exit_code == 130, stopped.output
    assert "no checkpoint was written yet: start again" in stopped.stderr
    assert train(tmp_path, "out").exit_code == 0


def test_a_checkpoint_that_was_half_made_is_passed_over_and_removed(tmp_path: Path) -> None:
    half = tmp_path / "out" / "checkpoints" / "checkpoint-500"
    half.mkdir(parents=True)
    (half / "optimizer.pt").write_bytes(b"half")
    resumed = train(tmp_path, "out", "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert not half.exists()
    last = last_checkpoint(half.parent)
    assert last is not None
    assert last.name == f"checkpoint-{_STEPS}"


def test_signals_that_raise_nothing_are_left_alone() -> None:
    callback = InterruptCallback()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with callback.listening():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
