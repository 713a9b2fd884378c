"""What workers tell the one who started the run: increments of counts, and errors in words."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from retrieval import errors
from retrieval.errors import GenretError, InputError
from retrieval.linking.counts import LinkCounts
from retrieval.linking.run_error import LinkingRunError


class Failure(NamedTuple):
    """An error of a worker in words: exceptions of several arguments do not survive being sent.

    Attributes:
        kind: Name of the class, for errors that are meant for a user; None: a defect.
        text: What went wrong; of a defect with the traceback.
        field: Of an `InputError`.
    """

    kind: str | None
    text: str
    field: str = ""

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """Put an error into words."""
        if isinstance(error, InputError):
            return cls("InputError", error.message, error.field)
        if isinstance(error, GenretError):
            return cls(type(error).__name__, str(error))
        return cls(None, "".join(traceback.format_exception(error)))

    def error(self) -> Exception:
        """Return the error to raise where the run was started."""
        if self.kind is None:
            return RuntimeError(f"a worker failed:\n{self.text}")
        if self.kind == "InputError":
            return InputError(self.field, self.text)
        named = {LinkingRunError.__name__: LinkingRunError, **vars(errors)}
        kind: type[GenretError] = named.get(self.kind, GenretError)
        # The text is whole already: the class's own constructor would put it together once more.
        return kind.__new__(kind, self.text)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return self._asdict()

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Failure:
        """Read what `to_json` gave.

        Raises:
            ValueError: it is something else.
        """
        try:
            return cls(**value)
        except TypeError as error:
            raise ValueError(f"not the failure of a worker: {error}") from error


class Increments:
    """Sends what counts have grown by since they were last sent.

    Args:
        send: Where to.
    """

    def __init__(self, send: Callable[[LinkCounts], None]) -> None:
        self._send = send
        self._sent: dict[str, int] = {}

    def report(self, counts: LinkCounts) -> None:
        """Take note of the counts of the shard so far."""
        now = counts.to_json()
        grown = {name: n - self._sent.get(name, 0) for name, n in now.items()}
        self._sent = now
        if any(grown.values()):
            self._send(LinkCounts(**grown))
