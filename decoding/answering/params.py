"""How one answer is written."""

from __future__ import annotations

from dataclasses import dataclass

MAX_TOKENS = 1 << 20
MAX_DRAFT_TOKENS = 64


@dataclass(frozen=True, slots=True)
class AnswerParams:
    """Parameters of one query.

    Attributes:
        max_tokens: Most tokens of the answer, its end token included. The answer is whole whatever this is:
            no token is chosen from which the rest could not be closed in time.
        temperature: Divides the logits of the allowed tokens before one is drawn; 0: the likeliest is taken.
        seed: Seed of the query's own random numbers.
        forced_spans: Write bytes that are the only ones possible without asking the model which tokens they
            are to be, where the tokenizer leaves no doubt about it. Without a speller this goes unused.
        draft_tokens: Most tokens that a draft model proposes at a time, where there is one; 0: none.
    """

    max_tokens: int = 512
    temperature: float = 0.0
    seed: int = 0
    forced_spans: bool = True
    draft_tokens: int = 4

    def __post_init__(self) -> None:
        _check("max_tokens", self.max_tokens, 1, MAX_TOKENS)
        _check("seed", self.seed, -(2**63), 2**63 - 1)
        _check("draft_tokens", self.draft_tokens, 0, MAX_DRAFT_TOKENS)
        if self.temperature != 0 and not 0.01 <= self.temperature <= 100.0:  # also refuses NaN
            raise ValueError(f"temperature must be 0 or in [0.01, 100], got {self.temperature!r}")


def _check(name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name} must be an integer in [{low}, {high}], got {value!r}")
