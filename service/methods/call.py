"""One call: its id, when it came and when it must be over."""

from __future__ import annotations

import re
import time
import uuid
from dataclasses import dataclass

from decoding.cancellation import CancelToken

REQUEST_ID_KEY = "x-request-id"
_CLIENT_ID = re.compile(r"[A-Za-z0-9._:/-]{1,128}")


def sane_request_id(sent: str) -> str:
    """Return the client's own id of a request, or a new one for what is no sane id."""
    return sent if _CLIENT_ID.fullmatch(sent) else uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class Call:
    """What every method needs to know of the call it serves.

    Attributes:
        request_id: The client's own, when it sent a sane one, or a new one.
        arrived: `time.monotonic()` at arrival, seconds.
        deadline: `time.monotonic()` after which the answer is worth nothing, seconds.
    """

    request_id: str
    arrived: float
    deadline: float

    @classmethod
    def begin(cls, request_id: str, remaining: float | None, max_seconds: float) -> Call:
        """Return the call that begins now.

        Args:
            request_id: As the client sent it; what is none is replaced.
            remaining: Seconds the client waits, None for any time.
            max_seconds: Seconds the server allows.
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
