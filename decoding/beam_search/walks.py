"""The two ways through the steps of a beam search; both find the same.

`trimmed_walk` asks the device after every step how many prefixes live, and computes no others. On a CPU that
costs nothing. `static_walk` never asks: every query has as many slots as the widest beam of the batch and
every prefix as many children as the widest of its depth, and whether anything lives at all is read late. What
that computes in vain a CUDA device computes side by side; what it saves is several waits per step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from decoding.beam_search.candidates import MAX_CELLS, Candidates, PaddedBuilder, likeliest, listed
from decoding.beam_search.search import Search
from decoding.errors import InvalidLogitsError
from decoding.late_flag import LateFlag
from decoding.types import StaticConstraint, WideConstraint


def is_wide(search: Search) -> bool:
    """Whether the likeliest tokens are looked at instead of all that may follow."""
    return isinstance(search.constraint, WideConstraint) and search.constraint.is_wide


def suits_static(search: Search) -> bool:
    """Whether a search can do without waiting for the device, and gains by it.

    Prefixes that are kept to be gone on from, or that are recorded, are brought to the host, which waits for
    them.
    """
    static = isinstance(search.constraint, StaticConstraint) and not is_wide(search)
    return static and search.device.type == "cuda" and not search.open and search.recorder is None


def trimmed_walk(search: Search) -> None:
    """Take steps over live prefixes only, until none is left.

    Raises:
        InvalidLogitsError: the model returned NaN or infinite logits.
    """
    beams, constraint = search.beams, search.constraint
    builder = _Likeliest(search) if is_wide(search) else None
    logits = search.session.root_logits.unsqueeze(1)  # (Q, 1, V)
    for depth in range(max(1, constraint.max_depth)):
        beams.give_up(search.stop.dropped_queries(depth))
        if builder is not None:
            candidates = builder.candidates(logits)
        else:
            candidates = listed(constraint, beams.states, beams.logprob, logits)
        parents, tokens = search.advance(candidates, bool(candidates.final.any()))
        slots = beams.trim()
        if not slots or depth + 1 >= constraint.max_depth:
            break
        logits = search.write(parents[:, :slots], tokens[:, :slots])
    _give_up_all(search)


def static_walk(
    search: Search, new_flag: Callable[[int, torch.device], LateFlag] = LateFlag, max_cells: int = MAX_CELLS
) -> None:
    """Take steps of fixed shapes until the device has said that nothing is left.

    Args:
        search: What is searched; its constraint lists its children padded.
        new_flag: Makes what tells the host, late, whether to go on, from a number of booleans and a device.
        max_cells: Children looked at in one piece.

    Raises:
        TypeError: the constraint cannot list its children padded.
        InvalidLogitsError: the model returned NaN or infinite logits.
    """
    constraint = search.constraint
    if not isinstance(constraint, StaticConstraint):
        raise TypeError(f"{type(constraint).__name__} does not list its children padded")
    builder = PaddedBuilder(constraint, search.beams.widest + 1, search.finished.most, max_cells)
    flag = new_flag(2, search.device)
    _static_steps(search, builder, flag)
    _goes_on(flag.last())  # raises if what the loop did not live to see was broken


def _static_steps(search: Search, builder: PaddedBuilder, flag: LateFlag) -> None:
    """Nothing here waits for the device, but for a flag whose answer the host is several steps ahead of."""
    beams, max_depth = search.beams, search.constraint.max_depth
    logits = search.session.root_logits.unsqueeze(1)  # (Q, 1, V)
    broken = torch.zeros((), dtype=torch.bool, device=search.device)
    for depth in range(max(1, max_depth)):
        beams.give_up(search.stop.dropped_queries(depth))
        candidates, broken_here = builder.padded(beams.states, beams.logprob, logits, depth)
        broken = broken | broken_here
        parents, tokens = search.advance(candidates)
        flag.put(torch.stack([(beams.states >= 0).any(), broken]))
        if not _goes_on(flag.latest()) or depth + 1 >= max_depth:
            break
        logits = search.write(parents, tokens)
    _give_up_all(search)


def _give_up_all(search: Search) -> None:
    """Whatever still lives at the end has not been finished."""
    search.beams.give_up(torch.ones_like(search.beams.pruned, dtype=torch.bool))


def _goes_on(flags: tuple[bool, ...] | None) -> bool:
    """Return whether prefixes live, as far as is known.

    Raises:
        InvalidLogitsError: the logits of a live prefix were broken.
    """
    if flags is None:
        return True
    alive, broken = flags
    if broken:
        raise InvalidLogitsError("the model returned NaN or infinite logits on a branch of the beam")
    return alive


class _Likeliest:
    """Continuations where most of the vocabulary may follow.

    Twice as many tokens are looked at as can enter the beam or the list, and one more of each: most states of
    such a constraint allow nearly everything. A query that is to be certified has all of them listed, for
    it must be able to go on from any.
    """

    def __init__(self, search: Search) -> None:
        self._search = search
        vocab = search.session.root_logits.shape[1]
        wanted = [vocab if p.exact else min(vocab, 2 * (max(p.k, p.width) + 1)) for p in search.params]
        self._most = max((m for m in wanted if m < vocab), default=1)
        self._looked_at = torch.tensor(wanted, device=search.device)

    def candidates(self, logits: Tensor) -> Candidates:
        """List continuations of the live prefixes; what is left out counts as pruned."""
        beams = self._search.beams
        found, left_out = likeliest(
            self._search.constraint, beams.states, beams.logprob, logits, self._looked_at, self._most
        )
        beams.left_out(left_out)
        return found
