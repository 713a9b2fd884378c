"""What a run does before its first step, and how soon it says how long it will take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from decoding.trie.title_trie import TitleTrie
from retrieval.text import Rendering, TextTokenizer
from retrieval.training import quality
from retrieval.training.trainer import Budget, BudgetCallback, TrainerOptions, _Reporter
from retrieval.training.training_run import MAX_STEPS, TrainingPlan, planned, run_budget, run_training

NUM_ENTITIES = 50_000


def test_a_large_catalogue_is_tokenised_twice_and_its_trie_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once to find titles that cannot be written, once to measure; neither for every set of queries."""
    titles = "".join(f"Entity {number:x} of {number % 977}\n" for number in range(NUM_ENTITIES))
    (tmp_path / "catalogue.txt").write_text(titles, encoding="utf-8")
    encoded: list[int] = []
    tries: list[int] = []
    encode, make = TextTokenizer.encode_titles, TitleTrie.from_rows

    def counted(self: TextTokenizer, titles: Sequence[str], rendering: Rendering) -> list[list[int] | None]:
        encoded.append(len(titles))
        return encode(self, titles, rendering)

    def counted_trie(rows: Sequence[Sequence[int]], *more: object) -> TitleTrie:
        tries.append(len(rows))
        return make(rows, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(TextTokenizer, "encode_titles", counted)
    monkeypatch.setattr(TitleTrie, "from_rows", counted_trie)
    monkeypatch.setattr(quality, "_PROBES", 4)
    lines: list[str] = []
    plan = TrainingPlan(
        catalogue=tmp_path / "catalogue.txt",
        queries=None,
        out=tmp_path / "out",
        preset="tiny",
        max_steps=2,
        vocab_size=300,
        trainer=TrainerOptions(batch_size=4, use_cpu=True, log_steps=50),
    )
    metrics = run_training(plan, lines.append)
    assert len(metrics["hits"]) >= 3
    assert [size for size in encoded if size > 1] == [NUM_ENTITIES, NUM_ENTITIES]
    assert len([size for size in encoded if size == 1]) >= 2 * 4  # one by one as examples are drawn
    assert tries == [NUM_ENTITIES]
    assert lines[0] == f"reading {plan.catalogue}"
    assert lines[1] == "50,000 entities; learning a tokenizer"
    assert lines[3] == "tokenising titles and aliases"
    assert lines[4] == (
        "plan: 50,000 texts with labels, 2 steps of 4 examples (0.00016 passes); "
        "--minutes, --epochs or --max-steps make it shorter"
    )
    assert lines[5] == "collecting words of the catalogue for the examples"
    assert [line.split()[:2] for line in lines[6:8]] == [["step", "1"], ["step", "2"]]
    assert lines[8].startswith("measuring the finished model: ")
    assert lines[8].endswith(f"{sum(hits['num_queries'] for hits in metrics['hits'].values())} queries")


def test_the_plan_says_which_end_comes_first() -> None:
    plan = TrainingPlan(catalogue=Path("c"), queries=None, out=Path("o"), model="m", minutes=30.0)
    budget = run_budget(plan, 1_234_567)
    assert budget.max_steps == MAX_STEPS
    assert planned(plan, budget, 1_234_567) == "plan: 1,234,567 texts with labels, 30 minutes"
    plan = TrainingPlan(catalogue=Path("c"), queries=None, out=Path("o"), model="m")
    assert planned(plan, run_budget(plan, 1_234_567), 1_234_567).startswith(
        "plan: 1,234,567 texts with labels, 77,160 steps of 48 examples (3 passes); --minutes"
    )


def reported(step_s: float, steps: int, log_steps: int) -> list[str]:
    """Lines of a run of 30,000 steps, as far as some of them have come."""
    now = 0.0
    lines: list[str] = []
    budget = Budget(30_000, None, clock=lambda: now)
    reporter = _Reporter(budget, TrainerOptions(log_steps=log_steps), lines.append, lambda: None)
    state = SimpleNamespace(global_step=0)
    for callback in (BudgetCallback(budget), reporter):
        callback.on_train_begin(None, state, SimpleNamespace())
    for step in range(1, steps + 1):
        now += step_s
        state.global_step = step
        reporter.on_step_end(None, state, SimpleNamespace())
        if step % log_steps == 0:
            reporter.on_log(None, state, SimpleNamespace(), {"loss": 1.5, "learning_rate": 1e-3})
    return lines


def test_slow_steps_say_at_once_how_long_the_run_is() -> None:
    lines = reported(step_s=35.0, steps=5, log_steps=50)
    assert lines[0] == "step 1    0.0 %  elapsed 35 s  left 12.2 days"
    assert [line.split()[1] for line in lines] == ["1", "2", "3", "4", "5"]


def test_fast_steps_are_not_all_told() -> None:
    lines = reported(step_s=0.1, steps=100, log_steps=50)
    assert [line.split()[1] for line in lines] == ["1", "2", "4", "8", "16", "32", "50", "100"]
    assert lines[-1] == "step 100    0.3 %  loss 1.5000  rate 1.00e-03  elapsed 10 s  left 49 min 50 s"
    lines = reported(step_s=1.0, steps=100, log_steps=50)
    assert [line.split()[1] for line in lines] == ["1", "2", "4", "8", "16", "32", "50", "81", "100"]
