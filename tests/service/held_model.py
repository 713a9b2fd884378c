"""A real model whose passes a test counts and holds, and the sessions it has open."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from genret.decoding.model.hf_session import TreeSession
from genret.service.serving.served import ServedIndex
from tests.service.running_server import retriever_of


class HeldModel:
    """Counts the passes of a model since the last `watch`, and stops before one of them.

    `reached` is set when the model stands before that pass.
    """

    def __init__(self, served: ServedIndex) -> None:
        self._module: Any = retriever_of(served).model._model  # type: ignore[attr-defined]
        self.passes = 0
        self.reached = threading.Event()
        self._stop_at: int | None = None
        self._go = threading.Event()

    def watch(self, stop_at: int | None = None) -> None:
        """Count from 0, and hold the model at one pass: the first is that of the prompts."""
        self.passes = 0
        self._stop_at = stop_at
        self.reached.clear()
        self._go.clear()

    def release(self) -> None:
        """Let the model go on, to the end."""
        self._stop_at = None
        self._go.set()

    @contextmanager
    def attached(self) -> Iterator[HeldModel]:
        """Watch for as long as the body runs."""
        handle = self._module.register_forward_pre_hook(self._begin)
        try:
            yield self
        finally:
            self.release()
            handle.remove()

    def _begin(self, module: Any, arguments: Any) -> None:
        number, self.passes = self.passes, self.passes + 1
        if number == self._stop_at:
            self.reached.set()
            if not self._go.wait(60):
                raise TimeoutError("nobody let the model go on")


def watch_sessions(monkeypatch: pytest.MonkeyPatch) -> weakref.WeakSet[TreeSession]:
    """Return the sessions that are alive of those opened from now on: each holds keys and values."""
    alive: weakref.WeakSet[TreeSession] = weakref.WeakSet()
    begin = TreeSession.__init__

    def note(session: TreeSession, *arguments: Any, **options: Any) -> None:
        begin(session, *arguments, **options)
        alive.add(session)

    monkeypatch.setattr(TreeSession, "__init__", note)
    return alive
