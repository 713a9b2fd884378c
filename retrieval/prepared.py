"""Requests that are answered together, but for those that cannot be asked at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from decoding.cancellation import CancelToken
from retrieval.errors import GenretError

Request = TypeVar("Request")
Job = TypeVar("Job")
Answer = TypeVar("Answer")


def answer_prepared(
    requests: Sequence[Request],
    cancel: Sequence[CancelToken | None] | None,
    prepare: Callable[[Request, CancelToken | None], Job],
    run: Callable[[Sequence[Job]], list[Answer]],
) -> list[Answer | GenretError]:
    """Answer requests together.

    Args:
        requests: Any number of them.
        cancel: One per request.
        prepare: Makes a job of a request, or says why there is none.
        run: Answers jobs.

    Returns:
        Per request its answer, or the error that preparing it raised.
    """
    tokens = list(cancel) if cancel is not None else [None] * len(requests)
    replies: dict[int, Answer | GenretError] = {}
    jobs: dict[int, Job] = {}
    for i, (request, token) in enumerate(zip(requests, tokens, strict=True)):
        try:
            jobs[i] = prepare(request, token)
        except GenretError as error:
            replies[i] = error
    replies.update(zip(jobs, run(list(jobs.values())), strict=True))
    return [replies[i] for i in range(len(requests))]
