"""An answer as a client of the service sees it."""

from __future__ import annotations

from dataclasses import dataclass

from retrieval.answers.types import AnswerResult
from retrieval.types import RetrievalResult


@dataclass(frozen=True, slots=True)
class IndexRef:
    """Which index version answered."""

    name: str
    version: str
    digest: str


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as a client sees it.

    Attributes:
        result: The answer.
        queue_ms: Time the request waited for its batch, milliseconds.
        total_ms: Time from arrival at the server to the reply, milliseconds.
        index: Which index version answered.
    """

    result: RetrievalResult
    queue_ms: float
    total_ms: float
    index: IndexRef


@dataclass(frozen=True, slots=True)
class AnswerReply:
    """A JSON answer as a client sees it.

    Attributes:
        result: The answer.
        queue_ms: Time the request waited for its batch, milliseconds.
        total_ms: Time from arrival at the server to the reply, milliseconds.
        index: Which index version "titles" meant.
    """

    result: AnswerResult
    queue_ms: float
    total_ms: float
    index: IndexRef
