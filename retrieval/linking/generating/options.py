"""How a model writes texts again with links in them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from retrieval.errors import InputError

METHODS = ("greedy", "sample", "beam", "disc")
_MOST = {
    "beam_size": 64,
    "num_draws": 64,
    "max_mention_chars": 10_000,
    "window_tokens": 1 << 16,
    "batch_size": 1024,
}


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """Options of a `MentionGenerator`.

    Attributes:
        prompt: Name of the template that asks for links; None: the checkpoint's own, or the built-in one.
        method: "greedy": the likeliest allowed token at every step; "sample": drawn from the allowed ones;
            "beam": the most probable annotation that a beam search finds; "disc": an unbiased draw from the
            model's own distribution over annotations.
        beam_size: Annotations that `beam` follows at once.
        num_draws: Draws of `disc`.
        temperature: Of `sample` and `disc`.
        seed: Of `sample` and `disc`: the same seed gives the same links to the same text.
        max_mention_chars: Most characters of a mention.
        max_mentions: Most mentions of a window; None: any number.
        word_boundaries: Whether mentions begin and end where words do.
        window_tokens: Most tokens of a window of text; fewer where the model has no positions for more.
        min_logprob: A link whose title has a lower log-probability is NIL; None: none is.
        filter: Predicate that every linked entity passes; None: all do.
        batch_size: Windows that are written together.
    """

    prompt: str | None = None
    method: str = "greedy"
    beam_size: int = 4
    num_draws: int = 1
    temperature: float = 1.0
    seed: int = 0
    max_mention_chars: int = 80
    max_mentions: int | None = None
    word_boundaries: bool = True
    window_tokens: int = 256
    min_logprob: float | None = None
    filter: str | None = None
    batch_size: int = 16

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InputError("method", f"must be one of {list(METHODS)}, got {self.method!r}")
        for name, most in _MOST.items():
            _check_integer(name, getattr(self, name), 1, most)
        _check_integer("seed", self.seed, -(2**63), 2**63 - 1)
        if self.max_mentions is not None:
            _check_integer("max_mentions", self.max_mentions, 0, 1 << 16)
        if not 0.01 <= self.temperature <= 100.0:  # also refuses NaN
            raise InputError("temperature", f"must be in [0.01, 100], got {self.temperature!r}")
        if self.min_logprob is not None and math.isnan(self.min_logprob):
            raise InputError("min_logprob", "must be a number, got nan")


def _check_integer(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InputError(name, f"must be an integer in [{least}, {most}], got {value!r}")
