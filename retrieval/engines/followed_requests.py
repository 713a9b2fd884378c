"""Follows the requests of an engine's batch through their titles, whichever engine it is.

An engine's processor says which rows of logits belong to which requests and what these have written; this
constrains the rows in their modes (`title_masks`). What is raised while a batch runs ends an engine: so a
request that asks for something wrong gets the reject token as its only answer, and a line in the log.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from genret.decoding.constraints import StaticConstraint
from genret.retrieval.engines.title_masks import (
    DISC,
    TAP,
    EngineTitles,
    TitleArguments,
    masked_logits,
    tap_path,
)
from genret.retrieval.errors import GenretError, InputError

logger = logging.getLogger(__name__)


class EngineSetup:
    """The settings of an engine's processor, with its indexes opened.

    Args:
        given: `indexes`, directories by name; `reject_token`, a token that no title has; `tap`, a folder for
            raw logits.
        where: What the settings are called in errors.
        tokenizer: Place of the tokenizer of the engine's model.
        vocab_size: Width of its logits.
        device: Device of its logits.

    Raises:
        GenretError: a setting is missing or wrong, or an index cannot be used with the engine's model.
    """

    def __init__(
        self, given: Mapping[str, Any], where: str, tokenizer: str, vocab_size: int, device: torch.device
    ) -> None:
        given = dict(given)
        indexes = given.pop("indexes", {})
        self.reject = given.pop("reject_token", None)
        folder = given.pop("tap", None)
        if given:
            raise InputError(where, f"unknown: {', '.join(given)}")
        if indexes and not isinstance(self.reject, int):
            raise InputError(f"{where}.reject_token", "must be a token that no title has")
        self.titles = {
            name: EngineTitles(path, tokenizer, vocab_size, device) for name, path in indexes.items()
        }
        for name, titles in self.titles.items():
            if (titles.tokens == self.reject).any():
                raise InputError(f"{where}.reject_token", f"a title of {name!r} has {self.reject}")
        self.tap = None if folder is None else Path(folder)
        if self.tap is not None:
            self.tap.mkdir(mode=0o700, parents=True, exist_ok=True)

    def constraint(self, arguments: TitleArguments) -> tuple[EngineTitles, StaticConstraint] | None:
        """Return the titles of a request and its constraint; None, and a line in the log, if it is wrong."""
        try:
            if arguments.index not in self.titles:
                known = ", ".join(self.titles) or "none"
                raise InputError("genret", f"there is no index {arguments.index!r}; there is: {known}")
            titles = self.titles[arguments.index]
            return titles, titles.constraint(arguments.restriction)
        except GenretError as error:
            self.log_refusal(error)
            return None

    def log_refusal(self, error: GenretError) -> None:
        """Say why a request has the reject token as its only answer."""
        logger.warning("refused a request by its reject token: %s", error)

    def refuse(self, row: Tensor) -> None:
        """Leave the reject token alone in a row of logits, (V,)."""
        only = row[self.reject].clone()
        row.fill_(-math.inf)
        row[self.reject] = only

    def leave(self, key: str, prompt: Sequence[int], logits: Tensor) -> None:
        """Leave logits, (V,), where the reader of `tap_path` looks."""
        if self.tap is None:
            logger.warning("genret_tap was asked for, but additional_config.genret.tap names no folder")
        else:
            logits.float().cpu().numpy().tofile(tap_path(self.tap, key, prompt))


@dataclass(slots=True, eq=False)
class FollowedRequest:
    """A request whose tokens written are seen on the host.

    `constraint` None: refused. `at`: tokens that `state` and `log_x` have seen; `pending`: log of the valid
    mass before the last one.
    """

    arguments: TitleArguments
    prompt: Sequence[int]
    out: Sequence[int]
    titles: EngineTitles | None
    constraint: StaticConstraint | None
    state: int = -1
    at: int = 0
    log_x: float = 0.0
    pending: float = 0.0

    @classmethod
    def of(
        cls, arguments: TitleArguments, prompt: Sequence[int], out: Sequence[int], setup: EngineSetup
    ) -> FollowedRequest:
        """Return a request that has come, at the state that it has written its way to."""
        found = None if arguments.mode == TAP else setup.constraint(arguments)
        request = cls(arguments, prompt, out, *(found or (None, None)))
        request.follow_all()
        return request

    def follow_all(self) -> None:
        """Walk to the state from the beginning; a draw of `disc` is lost with the masses before."""
        if self.titles is not None and self.constraint is not None:
            written = self.arguments.written
            begun = list(self.prompt[len(self.prompt) - written :]) if written else []
            self.state = self.titles.state(self.constraint, [*begun, *self.out])
        if self.at != len(self.out):
            self.at, self.log_x = len(self.out), -math.inf


def constrain(logits: Tensor, rows: Iterable[tuple[int, FollowedRequest]], setup: EngineSetup) -> None:
    """Constrain rows of logits, (n, V), in place: the numbers of rows with their requests."""
    by_constraint: dict[int, list[tuple[int, FollowedRequest]]] = {}
    for place, request in rows:
        if request.arguments.mode == TAP:
            setup.leave(request.arguments.tap_key, request.prompt, logits[place])
        elif request.constraint is None:
            setup.refuse(logits[place])
        else:
            by_constraint.setdefault(id(request.constraint), []).append((place, request))
    for group in by_constraint.values():
        _constrain(logits, [place for place, _ in group], [request for _, request in group], setup.reject)


def _constrain(logits: Tensor, places: list[int], requests: list[FollowedRequest], reject: int) -> None:
    constraint, titles = requests[0].constraint, requests[0].titles
    assert constraint is not None  # grouped by it
    assert titles is not None
    device = logits.device
    _advance(constraint, requests, device)
    rows = torch.tensor(places, device=device)
    masked, log_mass = masked_logits(
        logits[rows],
        constraint,
        torch.tensor([request.state for request in requests], device=device),
        torch.tensor([request.arguments.mode for request in requests], device=device),
        torch.tensor([request.log_x for request in requests], dtype=torch.float64, device=device),
        titles.width(min(request.at + request.arguments.written for request in requests)),
        reject,
    )
    logits[rows] = masked
    if any(request.arguments.mode == DISC for request in requests):
        for request, mass in zip(requests, log_mass.tolist(), strict=True):
            request.pending = mass


def _advance(constraint: StaticConstraint, requests: Iterable[FollowedRequest], device: torch.device) -> None:
    grown = []
    for request in requests:
        if len(request.out) == request.at + 1:
            grown.append(request)
        elif len(request.out) != request.at:
            request.follow_all()
    if not grown:
        return
    states = torch.tensor([request.state for request in grown], device=device)
    tokens = torch.tensor([request.out[-1] for request in grown], device=device)
    following = constraint.advance(states, tokens).tolist()
    for request, state in zip(grown, following, strict=True):
        request.at, request.state = request.at + 1, state
        request.log_x += request.pending
