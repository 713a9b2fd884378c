"""What is searched: settings, prompts, and what a peer would cost before it is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click
import torch
from harness.beam_contest import Run
from harness.processes import available_bytes
from harness.twin_models import FIRST, Twins
from torch import Tensor

_COPY_S_PER_BYTE = 1e-9  # of a cache that is concatenated, reordered and attended to, per step; one thread
_MARGIN = 1.25


@dataclass(frozen=True, slots=True)
class Setting:
    """A cell of a table.

    Attributes:
        prompt: Tokens of a prompt.
        beams: Beams, and results.
        batch: Prompts at a time.
    """

    prompt: int
    beams: int
    batch: int = 1

    @classmethod
    def parse(cls, text: str) -> Setting:
        """Read PROMPT/BEAMS/BATCH.

        Raises:
            ValueError: that it is not.
        """
        parts = text.split("/")
        if len(parts) != 3 or not all(part.isdecimal() and int(part) for part in parts):
            raise ValueError(f"a setting is PROMPT/BEAMS/BATCH, such as 512/15/8, got {text!r}")
        prompt, beams, batch = map(int, parts)
        return cls(prompt, beams, batch)

    def text(self) -> str:
        """Return PROMPT/BEAMS/BATCH."""
        return f"{self.prompt}/{self.beams}/{self.batch}"

    def prompts(self, vocab_size: int, seed: int = 0) -> Tensor:
        """Return random prompts. Shape: (batch, prompt), int64."""
        generator = torch.Generator().manual_seed(1000 * seed + self.prompt)
        return torch.randint(FIRST, vocab_size, (self.batch, self.prompt), generator=generator)


class SettingType(click.ParamType):
    """A setting on the command line."""

    name = "prompt/beams/batch"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Setting:
        """Read a setting."""
        try:
            return value if isinstance(value, Setting) else Setting.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@dataclass(frozen=True, slots=True)
class PeerCost:
    """What `generate` would take, by what ours took; a guess good to a third or so.

    Attributes:
        seconds: Of one run.
        cache_bytes: Of its cache at the end.
        peak_bytes: Of memory beside the weights.
    """

    seconds: float
    cache_bytes: int
    peak_bytes: int

    @classmethod
    def of(cls, setting: Setting, ours: Run, twins: Twins, new_tokens: int, prefilled: bool) -> PeerCost:
        """Estimate from one run of ours at the same setting."""
        rows, config = setting.batch * setting.beams, twins.stock.config
        cache = rows * (setting.prompt + new_tokens) * twins.token_bytes
        prefills = 1 if prefilled else setting.beams
        decode = ours.decode_s + new_tokens * cache * _COPY_S_PER_BYTE
        # A prompt's widest activations are three arrays in the feed-forward layers.
        rows_at_once = setting.batch if prefilled else rows
        activations = (
            3 * rows_at_once * setting.prompt * config.intermediate_size * twins.stock.dtype.itemsize
        )
        layer = 2 * cache // config.num_hidden_layers  # copied at a time: concatenated, then reordered
        peak = cache + max(layer, activations if not prefilled else 0)
        return cls(prefills * ours.prefill_s + decode, cache, peak)

    def refusal(self, most_seconds: float) -> str | None:
        """Return why it is not run; None: it is."""
        free = available_bytes()
        if self.peak_bytes * _MARGIN > free:
            return f"not run: needs about {self.peak_bytes / 1e9:.0f} GB of memory, {free / 1e9:.0f} are free"
        if self.seconds > most_seconds:
            return f"not run: would take about {self.seconds:.0f} s, --max-cell-seconds is {most_seconds:g}"
        return None
