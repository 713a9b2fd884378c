"""One setting: ours and the peers in turn, and what follows from their times, memory and lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import click
from harness.beam_contest import Agreement, Run, generate, search
from harness.dictionary_trie import Node
from harness.report import Spread
from harness.twin_models import Twins
from torch import Tensor

from beam_search_figures.settings import PeerCost, Setting
from genret.decoding.constraints import Constraint

OURS, PLAIN, PREFILLED = "ours", "generate", "generate, prompt run once"
TOLERANCE = 1e-3  # float32, sums of up to a hundred log-probabilities in the hundreds


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """What all sides do.

    Attributes:
        twins: The model.
        constraint: What ours may write.
        dictionary: The same for `generate`; None: whatever the length allows.
        new_tokens: Tokens written.
    """

    twins: Twins
    constraint: Constraint
    dictionary: Node | None
    new_tokens: int


class Disagreements:
    """Counts the comparisons of lists, and the ones that failed."""

    def __init__(self) -> None:
        self.compared = 0
        self.largest_difference = 0.0
        self.failed: list[str] = []

    def add(self, place: str, agreement: Agreement) -> None:
        """Take note of one comparison."""
        self.compared += 1
        self.largest_difference = max(self.largest_difference, agreement.largest_difference)
        if not agreement.holds(TOLERANCE):
            self.failed.append(place)

    def report(self) -> dict[str, Any]:
        """Say what was found."""
        click.echo(
            f"lists compared: {self.compared}, of them different: {len(self.failed)} {self.failed or ''}; "
            f"largest difference of scores {self.largest_difference:.1e}"
        )
        return {
            "compared": self.compared,
            "different": self.failed,
            "largest_difference": self.largest_difference,
        }


def compete(
    work: Work,
    setting: Setting,
    prompts: Tensor,
    repeats: int,
    most_seconds: float,
    disagreements: Disagreements,
) -> dict[str, Any]:
    """Run all sides in turn; the first run of ours tells what the peers would cost.

    Args:
        work: What is done.
        setting: Its size.
        prompts: Shape: (batch, prompt), int64.
        repeats: Rounds.
        most_seconds: A peer that would take longer for one run is left out, and the table says so.
        disagreements: Takes note of lists that differ.
    """
    model = work.twins.model()
    first = search(model, work.constraint, prompts, setting.beams)
    runs: dict[str, list[Run]] = {OURS: [first]}
    costs = {
        name: PeerCost.of(setting, first, work.twins, work.new_tokens, prefilled=name == PREFILLED)
        for name in (PLAIN, PREFILLED)
    }
    refusals = {name: cost.refusal(most_seconds) for name, cost in costs.items()}
    sides: dict[str, Callable[[], Run]] = {
        OURS: lambda: search(model, work.constraint, prompts, setting.beams),
        **{name: _peer(work, setting, prompts, name) for name, why in refusals.items() if why is None},
    }
    for n in range(repeats):
        for name, side in sides.items():
            if n or name != OURS:
                runs.setdefault(name, []).append(side())
    figure = {**asdict(setting), OURS: _summary(runs[OURS])}
    for name, why in refusals.items():
        figure[name] = (
            {"not_run": why, "kv_bytes_computed": costs[name].cache_bytes}
            if why is not None
            else _against(runs[name], runs[OURS], f"{setting.text()} {name}", disagreements)
        )
    _describe(setting, figure, work.dictionary is None)
    return figure


def _peer(work: Work, setting: Setting, prompts: Tensor, name: str) -> Callable[[], Run]:
    return lambda: generate(
        work.twins.stock,
        prompts,
        setting.beams,
        work.new_tokens,
        work.dictionary,
        prefilled=name == PREFILLED,
    )


def _summary(runs: list[Run]) -> dict[str, Any]:
    usage = runs[0].usage
    return {
        "total_s": Spread.of([run.total_s for run in runs]),
        "prefill_s": Spread.of([run.prefill_s for run in runs]),
        "decode_s": Spread.of([run.decode_s for run in runs]),
        "kv_bytes": max(run.kv_bytes for run in runs),
        **({} if usage is None else {"usage": asdict(usage), "steps": runs[0].num_steps}),
    }


def _against(runs: list[Run], ours: list[Run], place: str, disagreements: Disagreements) -> dict[str, Any]:
    agreements = [Agreement.of(a.lists, b.lists) for a, b in zip(ours, runs, strict=True)]
    for agreement in agreements:
        disagreements.add(place, agreement)
    summary = _summary(runs)
    return {
        **summary,
        "ratio": Spread.of_ratios([run.total_s for run in runs], [run.total_s for run in ours]),
        "decode_ratio": Spread.of_ratios([run.decode_s for run in runs], [run.decode_s for run in ours]),
        "kv_share": max(run.kv_bytes for run in ours) / summary["kv_bytes"],
        "same_rows": all(agreement.same_rows for agreement in agreements),
        "largest_difference": max(agreement.largest_difference for agreement in agreements),
    }


def _describe(setting: Setting, figure: dict[str, Any], free: bool) -> None:
    ours = figure[OURS]
    click.echo(
        f"prompt {setting.prompt}, {setting.beams} beams, {setting.batch} queries: ours "
        f"{ours['total_s'].text()} s, prefill {ours['prefill_s'].text()}, decode {ours['decode_s'].text()}, "
        f"KV at most {ours['kv_bytes'] / 1e6:.1f} MB"
    )
    for name in (PLAIN, PREFILLED):
        peer = figure[name]
        if "not_run" in peer:
            computed = peer["kv_bytes_computed"]
            click.echo(
                f"  {name}: {peer['not_run']}; its cache would hold {computed / 1e6:,.0f} MB (computed), "
                f"ours is {ours['kv_bytes'] / computed:.3f} of that"
            )
            continue
        share = peer["kv_share"]
        click.echo(
            f"  {name}: {peer['total_s'].text()} s, prefill {peer['prefill_s'].text()}, decode "
            f"{peer['decode_s'].text()}, KV {peer['kv_bytes'] / 1e6:.1f} MB; over ours: time "
            f"{peer['ratio'].text()}, decode {peer['decode_ratio'].text()}; KV of ours "
            + (f"{1 / share:.1f} times less" if free else f"{share:.3f} of it")
            + f"; same rows: {peer['same_rows']}, scores differ by up to {peer['largest_difference']:.1e}"
        )
