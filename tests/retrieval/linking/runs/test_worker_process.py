"""A worker process whose coordinator is gone ends without a word, however the pipe says so."""

from __future__ import annotations

from typing import Any, cast

import pytest

from retrieval.linking.documents.corpus import CorpusOptions
from retrieval.linking.link_options import LinkJob, LinkOptions, WorkerOptions
from retrieval.linking.runners.runner import work

JOB = LinkJob(CorpusOptions(("docs",)), LinkOptions(), WorkerOptions("index", num_threads=None), "out")


class IdleWorker:
    """Has nothing open."""

    closed = 0

    def __init__(self, job: LinkJob) -> None:
        assert job is JOB

    def close(self) -> None:
        IdleWorker.closed += 1


class BrokenPipe:
    """Fails as a pipe does whose other end is closed."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.sent: list[Any] = []

    def recv(self) -> Any:
        raise self._error

    def send(self, message: Any) -> None:
        if self.sent:
            raise BrokenPipeError(32, "Broken pipe")
        self.sent.append(message)


@pytest.mark.parametrize("error", [EOFError, BrokenPipeError, ConnectionResetError], ids=lambda e: e.__name__)
def test_a_worker_without_a_coordinator_ends(error: type[Exception]) -> None:
    pipe, closed = BrokenPipe(error()), IdleWorker.closed
    work(cast("Any", pipe), JOB, cast("Any", IdleWorker))
    assert len(pipe.sent) == 1  # that everything is open
    assert IdleWorker.closed == closed + 1
