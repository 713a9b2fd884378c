"""Errors of the service: refusals of a server, failures of a start, failed calls of the client.

All are a `ServiceError`, which is a `GenretError`.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Literal, get_args

from genret.retrieval.errors import GenretError, IndexNotFoundError

OverloadReason = Literal["QUEUE_FULL", "MEMORY_FULL"]
MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"


class ServiceError(GenretError):
    """Base of the errors raised on purpose by `service`."""


class UnknownIndexError(ServiceError, IndexNotFoundError):
    """No index of that name is served; an empty name asked for a default and there is none."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(
            f"no index named {name!r} is served here; served: {', '.join(sorted(known)) or 'none'}"
        )
        self.name = name


class OverloadedError(ServiceError):
    """The server holds as much work as it may; try again after `retry_after_s` seconds."""

    def __init__(self, reason: OverloadReason, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.reason: OverloadReason = reason
        self.retry_after_s = retry_after_s


class NoRoomError(OverloadedError):
    """There is no room for a request.

    With `num_held` unfinished ones its client has none for another such request; None: others might do.
    """

    def __init__(self, message: str, retry_after_s: float, num_held: int | None) -> None:
        super().__init__("QUEUE_FULL", message, retry_after_s)
        self.num_held = num_held


class NotReadyError(ServiceError):
    """The server is warming up or draining; try again after `retry_after_s` seconds."""

    def __init__(self, message: str = "the server is shutting down", retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class MalformedMessageError(ServiceError):
    """The bytes of a request do not parse as the message its method takes."""


class UnservableIndexError(ServiceError):
    """An index that can be opened cannot be served: it is empty, or a named schema does not fit it."""


class BindError(ServiceError):
    """The server cannot listen on an address; the text names it, the reason, and the option of its port."""

    def __init__(self, address: str, error: OSError, option: str = "") -> None:
        reason = error.strerror or str(error)
        if option and error.errno == errno.EADDRINUSE:
            reason += f"; {option} takes another one"
        super().__init__(f"cannot listen on {address}: {reason}")


class CallError(ServiceError):
    """A call of the client failed.

    code: Name of the gRPC status code, e.g. "UNAVAILABLE".
    message: The server's text, or why the client could not reach it.
    retry_after_s: Time after which the server asks to be tried again, seconds, or None.
    reason: Machine-readable reason, e.g. "QUEUE_FULL", "INDEX_CORRUPT"; `MESSAGE_TOO_LARGE` for a
        message above the limit of either side. Empty if unknown.
    field_violations: Refused fields of the request, each with what is wrong with it.
    request_id: Name of the call in the server's log.
    """

    def __init__(
        self,
        code: str,
        message: str,
        retry_after_s: float | None = None,
        *,
        reason: str = "",
        field_violations: tuple[tuple[str, str], ...] = (),
        request_id: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s
        self.reason = reason
        self.field_violations = field_violations
        self.request_id = request_id

    @property
    def is_overload(self) -> bool:
        """Whether the server is overloaded; RESOURCE_EXHAUSTED alone also means too large a message."""
        return self.reason in get_args(OverloadReason)


class UnauthenticatedError(ServiceError):
    """The caller shows no valid token."""


class PermissionDeniedError(ServiceError):
    """The caller is known but may not do this."""
