"""Constrains an engine's own sampler to titles: what the logits of a batch become in each mode.

The engine samples one token from each row of logits, and keeps that token's log-probability. That is enough
for three modes, of which the last two are exact:

mask: Only tokens that continue a title keep their logits. Greedy search, or sampling token by token, with the
    bias that this has (*Efficient and Asymptotically Unbiased Constrained Decoding*, section 2).
disc: As `mask`, but at the end of a title its end token has probability x and a *reject* token 1 - x, where
    x is the product of the valid masses of the draw (the same paper, Algorithm 1). The engine's sampler so
    makes DISC's decision: a draw that ends in the end token is a sample of the model's own distribution over
    the catalogue, the sum of its processed log-probabilities is log P_L(title), and the share of such draws
    estimates P_L(S) without bias.
sink: Tokens that continue a title keep their probabilities, and the reject token has the rest. So the
    processed log-probabilities are the model's own: what a beam search needs that asks for one token a time.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from genret.decoding.constraints import StaticConstraint, log_normalisers
from genret.retrieval.arguments import Restriction, check_count, checked_ids
from genret.retrieval.errors import InputError
from genret.retrieval.filters.entity_filter import FilterStore, constraint_of
from genret.retrieval.filters.predicate import parse
from genret.retrieval.index.reader import Index
from genret.retrieval.trie_opening import title_trie

MASK, DISC, SINK, TAP = 1, 2, 3, 4
MODES = {"mask": MASK, "disc": DISC, "sink": SINK}
# Bounds that keep logarithms finite where all mass is valid: of the reject token's, and of acceptance.
_LEAST_LOG = -80.0
_ALMOST_SURE = -1e-12

# Arguments of a request, as `extra_args` of SamplingParams or `vllm_xargs` of the HTTP API.
INDEX, MODE, WRITTEN, FILTER = "genret", "genret_mode", "genret_written", "genret_filter"
ALLOW, DENY, TAP_KEY = "genret_allow", "genret_deny", "genret_tap"
_KNOWN = (INDEX, MODE, WRITTEN, FILTER, ALLOW, DENY, TAP_KEY)


@dataclass(frozen=True, slots=True)
class TitleArguments:
    """The arguments of a request to an engine that concern titles.

    Attributes:
        index: Name of the index; empty for `tap`.
        mode: Number of the mode, a value of `MODES`, or `TAP`.
        written: Tokens of the title that the prompt ends with.
        restriction: Entities that may be written.
        tap_key: Name under which `tap` leaves the logits; 32 hexadecimal digits.
    """

    index: str
    mode: int
    written: int = 0
    restriction: Restriction = field(default_factory=Restriction)
    tap_key: str = ""

    @classmethod
    def of(cls, extra: dict[str, Any] | None) -> TitleArguments | None:
        """Read the arguments of a request, None without any; InputError for unknown or wrong ones."""
        mine = {name: value for name, value in (extra or {}).items() if name.startswith("genret")}
        if not mine:
            return None
        for name in mine:
            if name not in _KNOWN:
                raise InputError(name, f"unknown argument; known are {', '.join(_KNOWN)}")
        if TAP_KEY in mine:
            key = str(mine[TAP_KEY])
            if len(mine) > 1 or len(key) != 32 or not set(key) <= set("0123456789abcdef"):
                raise InputError(TAP_KEY, f"must stand alone and have 32 hexadecimal digits, got {key!r}")
            return cls("", TAP, tap_key=key)
        if INDEX not in mine:
            raise InputError(INDEX, f"must name the index, beside {', '.join(mine)}")
        mode = mine.get(MODE, "mask")
        if mode not in MODES:
            raise InputError(MODE, f"must be mask, disc or sink, got {mode!r}")
        written = mine.get(WRITTEN, 0)
        check_count(WRITTEN, written)
        if written and mode == "disc":
            raise InputError(WRITTEN, "is for mask and sink: a draw of disc begins with its title")
        restriction = Restriction(
            None if FILTER not in mine else parse(str(mine[FILTER])),
            None if ALLOW not in mine else checked_ids(ALLOW, mine[ALLOW]),
            checked_ids(DENY, mine.get(DENY, ())),
        )
        return cls(str(mine[INDEX]), MODES[mode], written, restriction)

    def check_sampling(self, temperature: float, top_p: float, top_k: int, min_p: float) -> None:
        """Refuse settings of the sampler that would change the probabilities of an exact mode."""
        if self.mode in (DISC, SINK) and (temperature != 1 or top_p != 1 or top_k > 0 or min_p):
            name = next(name for name, mode in MODES.items() if mode == self.mode)
            raise InputError(MODE, f"{name} needs temperature 1 and neither top_p, top_k nor min_p")


class EngineTitles:
    """The titles of an index as constraints of an engine's requests.

    Args:
        path: Index directory.
        tokenizer: Place of the tokenizer of the engine's model.
        vocab_size: Width of its logits.
        device: Device of its logits.

    Raises:
        GenretError: the index cannot be used, or is one for another tokenizer.
    """

    def __init__(self, path: str | Path, tokenizer: str, vocab_size: int, device: torch.device) -> None:
        index = Index.open(path)  # open as long as the engine runs: filters read its columns
        self._trie = title_trie(index, tokenizer, vocab_size=vocab_size, device=device)
        self._filters = FilterStore(index, device)
        self._device = device
        self.tokens = index.trie_arrays().token[1:]  # the first place is the root's
        widths = [max(1, self._trie.width_at(depth)) for depth in range(self._trie.max_depth + 1)]
        self._widest_from = list(accumulate(reversed(widths), max))[::-1]

    def constraint(self, restriction: Restriction) -> StaticConstraint:
        """Return the constraint of a request; InputError where its filter does not fit the index."""
        if restriction.is_open:
            return self._trie
        made = self._filters.cache.get_or_make(restriction.key(), lambda: self._filters.make(restriction))
        return constraint_of(self._trie, [made])

    def state(self, constraint: StaticConstraint, written: list[int]) -> int:
        """Return the state after some tokens of a title, -1 if none begins so."""
        state = constraint.start(torch.zeros(1, dtype=torch.int64, device=self._device))
        for token in written:
            state = constraint.advance(state, torch.tensor([token], device=self._device))
        return int(state)

    def width(self, depth: int) -> int:
        """Return the most children of any state after at least `depth` tokens."""
        return self._widest_from[min(depth, len(self._widest_from) - 1)]


def tap_path(folder: Path, key: str, sequence: Sequence[int]) -> Path:
    """Return where `tap` leaves the logits behind a sequence, for the key of its request."""
    digest = hashlib.blake2b(np.asarray(sequence, dtype=np.int64).tobytes(), digest_size=16).hexdigest()
    return folder / f"{key}-{digest}.f32"


def masked_logits(
    logits: Tensor,
    constraint: StaticConstraint,
    states: Tensor,
    modes: Tensor,
    log_x: Tensor,
    width: int,
    reject: int,
) -> tuple[Tensor, Tensor]:
    """Return the logits that an engine shall sample from, and the log of every row's valid mass.

    Static shapes, and no wait for the device.

    Args:
        logits: Raw next-token logits. Shape: (n, V), float32.
        constraint: Titles of all of these rows.
        states: State of every row, -1 where its title is complete or lost. Shape: (n,), int64.
        modes: Mode of every row, `MASK`, `DISC` or `SINK`. Shape: (n,), int64.
        log_x: Sum of the logs of the valid masses before; -inf refuses a draw of `disc` at its end. Shape:
            (n,), float64.
        width: At least the number of children of every state.
        reject: The reject token, which no title has.

    Returns:
        Logits, (n, V), those of rows without a state as they were, and logs of masses, (n,), float64.
    """
    token, following = constraint.padded_children(states, width)  # (n, W)
    there = following >= 0
    at = token.clamp(min=0)
    value = logits.gather(1, at).double()
    log_z = log_normalisers(logits).double().unsqueeze(1)
    log_mass = torch.logsumexp(torch.where(there, value - log_z, -math.inf), dim=1).clamp(max=0.0)
    is_disc = (modes == DISC).unsqueeze(1)
    final = there & is_disc & constraint.is_final(following.flatten()).view(following.shape)
    accept = (log_x + log_mass).clamp(max=_ALMOST_SURE).unsqueeze(1)
    kept = torch.where(there, torch.where(final, value + accept, value), -math.inf)
    end = torch.where(final, value, -math.inf).amax(dim=1, keepdim=True)  # a state has at most one
    of_disc = end + torch.log(-torch.expm1(accept))
    of_sink = log_z + torch.log(-torch.expm1(log_mass.unsqueeze(1))).clamp(min=_LEAST_LOG)
    refused = torch.where(is_disc, of_disc, torch.where((modes == SINK).unsqueeze(1), of_sink, -math.inf))
    masked = torch.full_like(logits, -math.inf)
    masked.scatter_reduce_(1, at, kept.to(logits.dtype), "amax")
    masked[:, reject] = torch.maximum(masked[:, reject], refused[:, 0].to(logits.dtype))
    has_title = there.any(dim=1, keepdim=True)
    return torch.where(has_title, masked, logits), log_mass
