"""Holds what a caller gives: checks of prompts, and the decoders' parameters, validated on construction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from genret.decoding.errors import PromptTooLongError

MAX_K = 1000
MAX_BEAM_SIZE = 1000
MAX_DRAWS = 256
MAX_SAMPLES = 256
MAX_DISC_BEAM_SIZE = 64
MAX_EXACT_BUDGET = 1_000_000
MAX_LENGTH_PENALTY = 4
DEFAULT_EXACT_BUDGET = 1024
MAX_TOTAL_DRAWS = 8192  # branches of one query: every prefix of every draw may need its own


def default_beam_size(k: int) -> int:
    """Return the live prefixes kept per step for k titles by default."""
    return max(k, 10)


def _check(name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name} must be an integer in [{low}, {high}], got {value!r}")


@dataclass(frozen=True, slots=True)
class BeamParams:
    """Trie beam search for one query.

    Attributes:
        k: Titles returned, at most.
        beam_size: Live prefixes kept per step; None: max(k, 10).
        length_penalty: Rows are ranked by logprob / length ** length_penalty, the length in tokens with the
            end token. 0: by log-probability. Above 0 favours long rows, as in `generate` of transformers.
        exact: Whether to go on after the beam search through the prefixes it dropped, best first, until the
            list is certified or the budget is spent.
        exact_budget: Most tokens computed for that.
    """

    k: int = 10
    beam_size: int | None = None
    length_penalty: float = 0.0
    exact: bool = False
    exact_budget: int = DEFAULT_EXACT_BUDGET

    def __post_init__(self) -> None:
        _check("k", self.k, 1, MAX_K)
        if self.beam_size is not None:
            _check("beam_size", self.beam_size, 1, MAX_BEAM_SIZE)
        if not -MAX_LENGTH_PENALTY <= self.length_penalty <= MAX_LENGTH_PENALTY:  # also refuses NaN
            raise ValueError(
                f"length_penalty must be in [-{MAX_LENGTH_PENALTY:g}, {MAX_LENGTH_PENALTY:g}], "
                f"got {self.length_penalty!r}"
            )
        _check("exact_budget", self.exact_budget, 0, MAX_EXACT_BUDGET)

    @property
    def width(self) -> int:
        """The beam size in force."""
        return self.beam_size if self.beam_size is not None else default_beam_size(self.k)


@dataclass(frozen=True, slots=True)
class DiscParams:
    """DISC for one query.

    Attributes:
        num_samples: Independent results drawn.
        num_draws: K, the most draws tried for acceptance per result, and the number of fresh draws the result
            is chosen from by weight if none was accepted.
        temperature: Divides the logits before anything else; P_L is the distribution at this temperature.
        top_m: Verify only the M likeliest tokens of a step, as the paper does. This truncates the valid mass
            and so biases the weights; None lists every valid token, exactly.
        seed: Seed of the query's own random numbers.
        reject_early: Stop a draw of the first phase as soon as its weight falls below its acceptance
            threshold. The law of the results is unchanged; the mass is then estimated from the accept/reject
            outcomes instead of from the weights, with a larger standard error. No effect on adaptive draws,
            which learn from the rows of refused draws, nor on draws with several prefixes.
        adaptive: Judge draws against the known bound of P_L(S), and leave out of the second phase's proposal
            what the first found to be invalid. Accepted draws are still exact samples of P_S, and more are
            accepted.
        beam_size: Prefixes a draw keeps at a time; it proposes the likeliest row that it finds. 1: DISC
            itself. With more, draws favour likely rows and are no samples of P_S (docs/disc.md).
    """

    num_samples: int = 1
    num_draws: int = 4
    temperature: float = 1.0
    top_m: int | None = None
    seed: int = 0
    reject_early: bool = True
    adaptive: bool = False
    beam_size: int = 1

    def __post_init__(self) -> None:
        _check("num_samples", self.num_samples, 1, MAX_SAMPLES)
        _check("num_draws", self.num_draws, 1, MAX_DRAWS)
        _check("beam_size", self.beam_size, 1, MAX_DISC_BEAM_SIZE)
        if self.width > MAX_TOTAL_DRAWS:
            raise ValueError(
                f"num_samples times num_draws times beam_size must be at most {MAX_TOTAL_DRAWS}, "
                f"got {self.num_samples} * {self.num_draws} * {self.beam_size} = {self.width}"
            )
        _check("seed", self.seed, -(2**63), 2**63 - 1)
        if self.top_m is not None:
            _check("top_m", self.top_m, 1, 2**31 - 1)
        if not 0.01 <= self.temperature <= 100.0:  # also refuses NaN
            raise ValueError(f"temperature must be in [0.01, 100], got {self.temperature!r}")
        if self.adaptive and self.top_m is not None:
            raise ValueError("adaptive needs the exact valid mass of every step, so it excludes top_m")
        if self.adaptive and self.beam_size > 1:
            raise ValueError(f"adaptive draws have one prefix each, got beam_size {self.beam_size}")

    @property
    def width(self) -> int:
        """Most branches the query can have at once."""
        return self.num_samples * self.num_draws * self.beam_size

    @property
    def stops_early(self) -> bool:
        """Whether draws of the first phase that cannot be accepted any more are stopped."""
        return self.reject_early and self.num_draws > 1 and not self.adaptive and self.beam_size == 1


MAX_TOKENS = 1 << 20
MAX_DRAFT_TOKENS = 64


@dataclass(frozen=True, slots=True)
class AnswerParams:
    """Parameters of one JSON answer.

    Attributes:
        max_tokens: Most tokens of the answer, its end token included. The answer is always complete: no token
            is chosen after which it could not be closed in time.
        temperature: Divides the logits of the allowed tokens before one is drawn; 0: the likeliest is taken.
        seed: Seed of the query's own random numbers.
        forced_spans: Write forced bytes without asking the model for their tokens, if the tokenizer leaves no
            doubt about them. Needs a speller.
        draft_tokens: Most tokens that a draft model, if there is one, proposes at a time; 0: none.
        echo_tokens: Tokens in a row, at least a whole period of them, that a greedy answer may write again
            before the text, number or list that repeats itself is ended; 0: no limit.
    """

    max_tokens: int = 512
    temperature: float = 0.0
    seed: int = 0
    forced_spans: bool = True
    draft_tokens: int = 4
    echo_tokens: int = 0

    def __post_init__(self) -> None:
        _check("max_tokens", self.max_tokens, 1, MAX_TOKENS)
        _check("echo_tokens", self.echo_tokens, 0, MAX_TOKENS)
        _check("seed", self.seed, -(2**63), 2**63 - 1)
        _check("draft_tokens", self.draft_tokens, 0, MAX_DRAFT_TOKENS)
        if self.temperature != 0 and not 0.01 <= self.temperature <= 100.0:  # also refuses NaN
            raise ValueError(f"temperature must be 0 or in [0.01, 100], got {self.temperature!r}")


def check_prompts(prompts: Sequence[Sequence[int]], num_tokens: int, longest: int | None) -> None:
    """Check the prompts of `prefill`.

    Raises:
        PromptTooLongError: a prompt has more tokens than the `longest`, if any.
        ValueError: no prompts, an empty one, or a token id outside [0, `num_tokens`).
    """
    if not prompts:
        raise ValueError("prefill needs at least one prompt, got none")
    for index, prompt in enumerate(prompts):
        _check_tokens(f"prompt {index}", prompt, num_tokens)
        if longest is not None and len(prompt) > longest:
            raise PromptTooLongError(
                f"prompt {index} has {len(prompt)} tokens, the model takes at most {longest}"
            )


def check_prefix(token_ids: Sequence[int], num_tokens: int, longest: int | None) -> None:
    """Check the tokens of `share_prefix`: as `check_prompts`, and with room for another token."""
    if longest is not None and len(token_ids) >= longest:
        raise PromptTooLongError(
            f"a prefix of {len(token_ids)} tokens leaves no room for another token, the model takes at "
            f"most {longest}"
        )
    _check_tokens("the prefix", token_ids, num_tokens)


def _check_tokens(name: str, token_ids: Sequence[int], num_tokens: int) -> None:
    if not token_ids:
        raise ValueError(f"{name} is empty")
    if min(token_ids) < 0 or max(token_ids) >= num_tokens:
        raise ValueError(
            f"token ids must be in [0, {num_tokens}), {name} has {min(token_ids)} to {max(token_ids)}"
        )


def check_continuations(shared: Sequence[int], prompts: Sequence[Sequence[int]]) -> None:
    """Raise ValueError for prompts that do not begin with the `shared` tokens of a prefix, or end there."""
    for index, prompt in enumerate(prompts):
        both = range(min(len(shared), len(prompt)))
        differing = next((place for place in both if prompt[place] != shared[place]), None)
        if differing is not None:
            raise ValueError(
                f"prompt {index} does not begin with the prefix: token {differing} is {prompt[differing]}, "
                f"the prefix has {shared[differing]}"
            )
        if len(prompt) <= len(shared):
            raise ValueError(
                f"prompt {index} has {len(prompt)} tokens, it must go on after the prefix of "
                f"{len(shared)} with at least one more"
            )
