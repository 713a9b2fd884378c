"""Keys and values over the steps of beam search, and under policies of collecting dead branches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from genret.decoding.beam_search import beam_search
from genret.decoding.constraints import Constraint
from genret.decoding.free_text import FreeText
from genret.decoding.language_model import DecodeSession
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.model.token_tree import CollectionPolicy
from genret.decoding.params import BeamParams
from harness.beam_contest import EqualTitles, Run, Setting, finished, search
from harness.report import Spread, picture, shown
from harness.sample_data import SMALL_MODEL, sample_prompts
from harness.timing import in_turn
from harness.twin_models import END, Twins

NEVER = "never"
POLICIES = {
    NEVER: CollectionPolicy.never(),
    "default": CollectionPolicy(),
    "every 4 steps": CollectionPolicy(interval=4),
}
_GREY = "#868e96"
_CURVES = (  # in the order of the legend
    ("per_beam", "a cache per beam", "--", "#d9480f", 1.5),
    ("uncollected", "token tree, nothing collected: used", "-.", "#862e9c", 1.2),
    ("held", "token tree: held", "-", "#1f6feb", 2.0),
    ("used", "token tree: of this, used", ":", "#1f6feb", 1.2),
    ("greedy", "one branch (greedy)", "-", _GREY, 1.2),
)


@dataclass(frozen=True, slots=True)
class Moment:
    """The memory of one query after a step."""

    held_bytes: int
    used_bytes: int  # of those held, written and not collected
    branches: int
    live: int  # tokens on the paths of these branches, each counted once
    written: int  # tokens, on any branch, so far


class TracedSession:
    """A session over one query that notes its memory after every step (`language_model.DecodeSession`)."""

    def __init__(self, session: DecodeSession) -> None:
        if len(session.root_logits) != 1:
            raise ValueError(f"one query is traced at a time, got {len(session.root_logits)}")
        self._session = session
        self._parents: list[Tensor] = []
        self.moments: list[Moment] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)  # all but steps is that of the session

    def step(self, parents: Tensor, token_ids: Tensor, depth: int | None = None) -> Tensor:
        """Write one token on every branch; see `DecodeSession.step`.

        Raises:
            ValueError: the step is not the next deeper one.
        """
        if depth not in (None, len(self._parents) + 1):
            raise ValueError(f"steps are traced from depth to depth, got depth {depth}")
        logits = self._session.step(parents, token_ids, *(() if depth is None else (depth,)))
        own = parents[0].clone()
        self._parents.append(own.clamp(min=0) if not self._parents else own)
        usage = self._session.usage
        branches = int((self._parents[-1] >= 0).sum())
        written = branches + (self.moments[-1].written if self.moments else 0)
        self.moments.append(
            Moment(usage.held_bytes, usage.used_bytes, branches, self._live_tokens(), written)
        )
        return logits

    def _live_tokens(self) -> int:
        """Walk from the last branches to the prompt, and count."""
        columns = torch.nonzero(self._parents[-1] >= 0).squeeze(1)
        count = 0
        for parents in reversed(self._parents):
            count += len(columns)
            columns = torch.unique(parents[columns])
        return count


@dataclass(frozen=True, slots=True)
class Work:
    """Searches whose memory is looked at. Shape of the prompts: (batch, prompt), int64."""

    name: str
    twins: Twins
    constraint: Constraint
    setting: Setting
    prompts: Tensor


def works(twins: Twins, titles: EqualTitles, prompt: int, queries: int, new_tokens: int) -> list[Work]:
    """Return titles of a random model, and free outputs of that model and of the small one."""
    free, wide = Setting(prompt, 15, queries), Setting(min(512, prompt), 40, queries)
    sample = Twins.load(SMALL_MODEL)
    texts, own_texts = (FreeText(model.vocab_size, new_tokens, END, new_tokens) for model in (twins, sample))
    return [
        Work("titles", twins, titles.trie, wide, wide.prompts(twins.vocab_size)),
        Work("free", twins, texts, free, free.prompts(twins.vocab_size)),
        Work("free, default model", sample, own_texts, free, sample_prompts(prompt, queries)),
    ]


def ablation(work: Work, repeats: int) -> tuple[dict[str, Any], dict[str, list[Run]]]:
    """Compare policies of collection on one work; return the figures and the runs, by policy."""
    setting = work.setting
    models = {policy: work.twins.model(settings) for policy, settings in POLICIES.items()}
    searches = {
        policy: partial(search, model, work.constraint, work.prompts, setting.beams)
        for policy, model in models.items()
    }
    taken = in_turn(searches, repeats, warm_up=0)
    runs = {policy: [took.value for took in column] for policy, column in taken.items()}
    figures: dict[str, Any] = {**asdict(setting)}
    kept = [run.decode_s for run in runs[NEVER]]
    for policy, model in models.items():
        usage = runs[policy][0].usage
        assert usage is not None  # ours has one
        figures[policy] = {
            "policy": policy,
            "total_s": Spread.of([run.total_s for run in runs[policy]]),
            "time_over_never": Spread.of_ratios([run.decode_s for run in runs[policy]], kept),
            "peak_bytes": usage.peak_bytes,
            "per_branch_bytes": usage.per_branch_bytes,
            "collections": usage.num_collections,
            **_saved(work, model),
        }
    return shown(work.name, figures), runs


def _saved(work: Work, model: HFLanguageModel) -> dict[str, float]:
    """Return entries of keys and values per query, as a step that has most of them needs."""
    used, avoided = [], []
    for prompt in work.prompts.tolist():
        moments = traced(model, work.constraint, prompt, work.setting.beams)
        most = max(moment.used_bytes for moment in moments) // work.twins.token_bytes
        per_beam = max(moment.branches * (len(prompt) + n) for n, moment in enumerate(moments, start=1))
        used.append(most - len(prompt))
        avoided.append(per_beam - most)
    return {"slots": fmean(used), "saved_tokens": fmean(avoided)}


def traced(model: HFLanguageModel, constraint: Constraint, prompt: list[int], beams: int) -> list[Moment]:
    """Search for one prompt and return the memory after every step."""
    session = TracedSession(model.prefill([prompt]))
    finished(beam_search(session, constraint, [BeamParams(beams, beams)]))
    return session.moments


def trace(work: Work) -> dict[str, Any]:
    """Return mean bytes per query after the prompt and after every step that all queries made, as curves.

    `held` and `used` (written and not collected) are ours. `uncollected` is all that is written, `live` what
    is on the paths of live branches, the least that could be kept. `per_beam` is one cache per beam, `greedy`
    is one branch.
    """
    setting, twins, prompts = work.setting, work.twins, work.prompts.tolist()
    ours, kept = (
        [traced(model, work.constraint, prompt, setting.beams) for prompt in prompts]
        for model in (twins.model(), twins.model(CollectionPolicy.never()))
    )
    size = twins.token_bytes
    start = float(setting.prompt * size)
    steps = range(min(len(moments) for moments in (*ours, *kept)))

    def column(runs: list[list[Moment]], field: str, factor: int, offset: float) -> list[float]:
        return [start, *(offset + factor * fmean(getattr(run[n], field) for run in runs) for n in steps)]

    branches = [fmean(run[n].branches for run in ours) for n in steps]
    curves = {
        "held": column(ours, "held_bytes", 1, 0.0),
        "used": column(ours, "used_bytes", 1, 0.0),
        "uncollected": column(kept, "written", size, start),
        "live": column(ours, "live", size, start),
        "per_beam": [setting.beams * start, *(branches[n] * (setting.prompt + n + 1) * size for n in steps)],
        "greedy": [start, *((setting.prompt + n + 1.0) * size for n in steps)],
    }
    shown(f"{work.name}, bytes after the last step", {field: column[-1] for field, column in curves.items()})
    return {"name": work.name, **asdict(setting), "token_bytes": size, "curves": curves}


def draw(file: Path, panels: Sequence[dict[str, Any]]) -> None:
    """Draw keys and values over the steps of decoding, as docs/beam-search.md shows them."""
    with picture(file, len(panels), (3.6 * len(panels), 3.9)) as (figure, axes):
        for place, panel in zip(axes, panels, strict=True):
            _panel(place, panel)
        axes[0].set_ylabel("keys and values per query, MB")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", frameon=False, fontsize=8, ncols=len(_CURVES))
        figure.tight_layout(rect=(0, 0.06, 1, 1))


def _panel(axes: Any, panel: dict[str, Any]) -> None:
    from matplotlib import ticker

    for field, label, style, colour, width in _CURVES:
        column = [value / 1e6 for value in panel["curves"][field]]
        axes.plot(range(len(column)), column, style, color=colour, linewidth=width, label=label)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.set_xlabel("tokens written")
    axes.set_title(f"{panel['name']}\nprompt {panel['prompt']}, {panel['beams']} beams", fontsize=9)
    axes.grid(axis="y", color=_GREY, alpha=0.15)
