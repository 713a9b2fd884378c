"""The plan of a training run: measured steps, memory, what is refused, and the question on a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from genret.retrieval.training import forecast, trainer
from genret.retrieval.training.dataset import EncodedExample, causal_batch
from genret.retrieval.training.forecast import RunForecast, StepMeter, activation_bytes, training_memory
from genret.retrieval.training.trainer import optimizer_bytes
from tests.retrieval.training.test_training_loop import made_trainer
from tests.retrieval.training.test_training_run import refused, trained
from tests.tiny_transformers import END, PAD, build

KNOWN = RunForecast(
    texts={"titles": 300, "aliases": 0, "queries": 100},
    model="small",
    parameters=5_310_000,
    trained=5_310_000,
    checkpoint_bytes=10_620_000,
    batch_size=40,
    minutes=None,
    steps=200,
    step_tokens=650.0,
    memory={"weights": 20_000_000, "activations": 1_200_000_000},
    free_bytes=8_000_000_000,
    step_s=90.0,
    measured_steps=5,
)


def test_the_table_says_what_a_run_takes() -> None:
    assert KNOWN.table() == (
        "plan\n"
        "  texts      300 titles, 100 queries\n"
        "  model      small: 5.31 M parameters, all trained\n"
        "  run        200 steps of 40 examples: 20 epochs, 130 k tokens\n"
        "  time       5 h 00 min on this machine (90 s a step, median of 5 steps)\n"
        "  memory     1.2 GB needed (weights 20.0 MB, activations 1.2 GB), 8.0 GB there\n"
        "  checkpoint 10.6 MB"
    )
    resumed = replace(KNOWN, done_steps=150, step_s=0.5, measured_steps=1, trained=60_000)
    assert "; 150 steps are done\n" in resumed.table()
    assert "time       25 s on this machine (0.5 s a step, one step)" in resumed.table()
    assert "60 k trained" in resumed.table()


def test_minutes_end_a_run_before_its_steps() -> None:
    limited = replace(KNOWN, steps=10_000_000, minutes=30.0)
    assert limited.seconds == 1800
    assert limited.likely_steps == 20
    assert replace(limited, done_steps=4, spent_s=360.0).seconds == 1440
    assert replace(limited, done_steps=4, spent_s=360.0).likely_steps == 20
    unmeasured = replace(limited, step_s=None)
    assert unmeasured.seconds is None
    assert "run        steps of 40 examples\n  time       not measured\n" in unmeasured.table()


def test_absurd_runs_are_refused_with_what_to_change() -> None:
    assert KNOWN.objection(5.0, "") is None
    told = KNOWN.objection(4.99, "--lora 16 --bf16, ")
    assert told.startswith("training would take 5 h 00 min on this machine, more than --max-hours 4.99; ")
    assert "4.99; take --lora 16 --bf16, fewer steps (--max-steps 199 fits), --minutes, a smaller" in told
    small = replace(KNOWN, free_bytes=KNOWN.needed_bytes - 1)
    told = small.objection(1e9, "--preset small, ")
    assert told == (
        "training needs 1.2 GB of memory, and 1.2 GB are free; take --preset small, a lower "
        "--batch-size (now 40) or --max-prompt-tokens"
    )
    assert replace(KNOWN, step_s=None).objection(0.01, "") is None


def test_the_first_steps_are_left_out_of_the_median() -> None:
    now = 0.0
    found: list[tuple[float, int]] = []
    tokens = [100, 1, 10, 20, 40, 10, 10, 10]
    meter = StepMeter(lambda: now, tokens, lambda *one: found.append(one))
    arguments, control = SimpleNamespace(use_cpu=True), SimpleNamespace(should_training_stop=False)
    state = SimpleNamespace(global_step=0, max_steps=100)
    for seconds in (900.0, 900.0, 1.0, 2.2, 4.0, 5.0, 0.1):
        meter.on_step_begin(arguments, state, control)
        now += seconds
        state.global_step += 1
        meter.on_step_end(arguments, state, control)
        now += 1e6  # what lies between two steps is not theirs
        if state.global_step == 3:  # slow steps: one is enough
            assert found == [(0.1, 1)]
    assert len(found) == 1


def test_memory_is_counted_and_nothing_changes(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = build("llama", 20)
    model.set_attn_implementation("eager")
    made = made_trainer(model, tmp_path, data_collator=partial(causal_batch, PAD))
    examples = [EncodedExample((3,) * n, (7, 8, END)) for n in range(1, 9)]
    before = {name: tensor.clone() for name, tensor in made.model.state_dict().items()}
    drawn = torch.get_rng_state()
    counted = activation_bytes(made, examples, 8)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(tensor, before[name]) for name, tensor in made.model.state_dict().items())
    assert all(parameter.grad is None for parameter in made.model.parameters())
    assert activation_bytes(made, examples, 80) == pytest.approx(10 * counted, rel=1e-6)
    # Twice the tokens take more than twice the room: attention keeps a table of all pairs.
    longer = [EncodedExample(2 * e.prompt_ids, 2 * e.title_ids) for e in examples]
    assert activation_bytes(made, longer, 8) > 2 * counted

    weights = 4 * sum(p.numel() for p in made.model.parameters())
    state_bytes = optimizer_bytes(made.optimizer)
    memory = training_memory(made, state_bytes, counted)
    assert memory == {
        "weights": weights,
        "optimiser": state_bytes,
        "gradients": weights,
        "activations": counted,
    }
    made.compute_loss(made.model, causal_batch(PAD, examples)).backward()
    made.optimizer.step()
    parts = made.optimizer.state_dict()["parts"]  # what the optimiser really keeps
    kept = [t for part in parts for state in part["state"].values() for t in state.values() if t.ndim]
    assert state_bytes == sum(tensor.nbytes for tensor in kept)


def test_a_plan_writes_nothing(data: Path) -> None:
    long = ("--preset", "tiny", "--max-steps", "30", "--plan", "--max-hours", "1e-9")
    result = trained(data, "out", *long, code=1)
    assert not (data / "out").exists()
    assert result.stdout.startswith("plan\n  texts      4 titles, 2 aliases, 4 descriptions, 2 queries\n")
    assert "\n  run        30 steps of 8 examples: 20 epochs, " in result.stdout
    assert "\ntraining would take " in result.stdout
    assert "more than --max-hours 1e-09; take fewer steps" in result.stdout
    assert trained(data, "out", *long, "--yes").stdout.startswith("plan\n")
    result = trained(data, "out", "--encoder", "--max-steps", "9", "--plan", "--json")
    plan = json.loads(result.stdout)
    assert (plan["steps"], plan["examples"], plan["measured_steps"]) == (9, 72, 5)
    assert plan["objection"] is None
    assert plan["needed_bytes"] == sum(plan["memory_bytes"].values()) < plan["free_bytes"]
    assert plan["checkpoint_bytes"] == 2 * plan["parameters"]
    assert not (data / "out").exists()


def test_an_absurd_run_does_not_begin_without_a_word(data: Path) -> None:
    options = ("--preset", "tiny", "--max-steps", "12", "--max-hours", "1e-9")
    result = trained(data, "out", *options, code=1)
    assert result.stderr.splitlines()[-1].startswith("Error: training would take ")
    assert result.stderr.rstrip().endswith("; --yes begins all the same")
    assert not list((data / "out").rglob("*.safetensors"))
    assert json.loads(trained(data, "out", *options, "--yes").stdout)["steps"] == 12


def test_too_little_memory_is_told_before_the_first_step(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "free_bytes", lambda device: 0)
    said = refused(data, "out", "--preset", "tiny", "--max-steps", "3", code=1)
    assert "Error: training needs " in said
    assert "time not measured" in said
    planned = trained(data, "out", "--preset", "tiny", "--max-steps", "3", "--plan", "--json", code=1)
    assert json.loads(planned.stdout)["objection"].startswith("training needs ")
    trained(data, "out", "--preset", "tiny", "--max-steps", "3", "--yes")


def test_memory_is_that_of_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(forecast, "_LIMIT_OF_CONTAINER", tmp_path / "memory.max")
    (tmp_path / "memory.max").write_text("max\n")
    assert forecast.free_bytes(cpu) > 0
    (tmp_path / "memory.max").write_text("1000\n")  # less than this process has
    assert forecast.free_bytes(cpu) == 0


def command(data: Path, out: str, *more: str) -> list[str]:
    files = ["--catalogue", str(data / "catalogue.tsv"), "--out", str(data / out), "--cpu"]
    fixed = ["--preset", "tiny", "--vocab-size", "300", "--batch-size", "8"]
    return [sys.executable, "-m", "genret.service.main", "train", *files, *fixed, *more]


def test_on_a_terminal_it_asks(data: Path) -> None:
    ours, theirs = pty.openpty()
    options = ("--max-steps", "9", "--max-hours", "1e-9")
    with subprocess.Popen(
        command(data, "out", *options), stdin=theirs, stderr=theirs, stdout=subprocess.PIPE
    ) as asking:
        os.close(theirs)
        said = b""
        while b"Begin all the same?" not in said:
            said += os.read(ours, 4096)
        os.write(ours, b"n\n")
        try:
            while more := os.read(ours, 4096):
                said += more
        except OSError:  # the other end is closed
            pass
        assert asking.wait() == 1
    os.close(ours)
    assert b"training would take " in said
    assert b"Aborted!" in said
    assert not list((data / "out").rglob("*.safetensors"))
