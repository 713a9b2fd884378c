"""Describes one call: its id, its deadline, and the scope in which its code runs.

The scope is a context variable. The gRPC interceptor and the HTTP gateway set it; log formatters, observers
and the methods' `Call` read it. Tasks that a call starts inherit it.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from genret.decoding.cancellation import CancelToken
from genret.retrieval.errors import InputError

REQUEST_ID_KEY = "x-request-id"
PRIORITY_KEY = "x-request-priority"
# A client that gives up at its deadline says so a little before the server's own clock.
DEADLINE_SLACK_S = 0.05
_CLIENT_ID = re.compile(r"[A-Za-z0-9._:/-]{1,128}")


class Priority(Enum):
    """How urgent a call is beside others, see `fair_shares`."""

    INTERACTIVE = "interactive"
    BULK = "bulk"


def sane_request_id(sent: str) -> str:
    """Return the client's own id of a request, or a new one if it is not well-formed."""
    return sent if _CLIENT_ID.fullmatch(sent) else uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class Call:
    """Identity of a call, who asks, and its arrival and deadline as `time.monotonic()`, seconds.

    `client` and `is_bulk` are those of the running call, see `current_client`; `Methods.call` notes them.
    """

    request_id: str
    arrived: float
    deadline: float
    client: str = ""
    is_bulk: bool = False

    @classmethod
    def begin(cls, request_id: str, remaining: float | None, max_seconds: float) -> Call:
        """Return the call that begins now; a malformed id is replaced.

        The client waits `remaining` seconds, None without limit; the server allows `max_seconds`.
        """
        now = time.monotonic()
        seconds = max_seconds if remaining is None else min(remaining, max_seconds)
        return cls(sane_request_id(request_id), now, now + seconds)

    def cancel_token(self) -> CancelToken:
        """Return a token that decoding polls on behalf of this call."""
        return CancelToken(deadline=self.deadline)

    def elapsed_ms(self) -> float:
        """Return the time since arrival, milliseconds."""
        return (time.monotonic() - self.arrived) * 1000


Attribute = str | int | float


class CallSpan(Protocol):
    """The part of a trace's span that a call's scope needs; see `service.observability.tracing`."""

    def stage(self, name: str, begin_s: float, end_s: float, attributes: Mapping[str, Attribute]) -> None:
        """Add a finished child span; its times are those of `time.monotonic()`, seconds."""


@dataclass(slots=True, eq=False)
class CallScope:
    """State of a call while it runs.

    `method` is its label in metrics, `peer` the client's address without port, `priority` what the client has
    sent, unchecked. `index` and `version` are empty before an answer, or with several indexes. `begun` and
    `answered` (when the last answer came from a device) are `time.monotonic()`, seconds; `num_answers` counts
    answers from devices, `prompt_tokens` the tokens of prompts. `code` is the name of its gRPC status, None
    for OK unless the call raises; `queries` are the first of its texts, as they are logged.
    """

    request_id: str
    method: str
    peer: str = ""
    priority: str = ""
    index: str = ""
    version: str = ""
    begun: float = field(default_factory=time.monotonic)
    answered: float | None = None
    num_answers: int = 0
    prompt_tokens: int = 0
    span: CallSpan | None = None
    code: str | None = None
    num_queries: int = 0
    queries: list[str] = field(default_factory=list)

    def note_index(self, name: str, version: str) -> None:
        """Note the index that answered; an empty name is unknown."""
        if name:
            self.index, self.version = name, version


_CURRENT: ContextVar[CallScope | None] = ContextVar("genret_call", default=None)


# Fingerprint of the caller's token, empty without one; set with the principal by `security`.
TOKEN: ContextVar[str] = ContextVar("genret_token", default="")
# The most urgent priority that the caller's token allows.
MOST_URGENT: ContextVar[Priority] = ContextVar("genret_most_urgent", default=Priority.INTERACTIVE)


def current_client() -> str:
    """Return who makes the running call, for fair shares: its token, or else its address."""
    scope = _CURRENT.get()
    return TOKEN.get() or ("" if scope is None else scope.peer)


def current_priority() -> Priority:
    """Return the priority of the running call: what it asks for, but for tokens that are bulk.

    Raises:
        InputError: the client has sent no priority's name.
    """
    scope = _CURRENT.get()
    sent = ("" if scope is None else scope.priority) or MOST_URGENT.get().value
    try:
        priority = Priority(sent)
    except ValueError:
        text = f"must be interactive or bulk, got {sent[:100]!r}"
        raise InputError(PRIORITY_KEY, text) from None
    return Priority.BULK if MOST_URGENT.get() is Priority.BULK else priority


def enter(scope: CallScope) -> None:
    """Set the scope of the running task, for the rest of the task."""
    _CURRENT.set(scope)


def current_scope() -> CallScope | None:
    """Return the scope of the running call; None outside of calls."""
    return _CURRENT.get()


def note_prompt(tokens: int) -> int:
    """Count the tokens of a prompt of the running call, and return them."""
    if (scope := _CURRENT.get()) is not None:
        scope.prompt_tokens += tokens
    return tokens


def client_address() -> str:
    """Return the address of the running call's client; empty outside of calls."""
    return "" if (scope := _CURRENT.get()) is None else scope.peer
