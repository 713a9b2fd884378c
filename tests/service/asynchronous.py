"""Tests that are coroutines, and servers on the event loop of another thread."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TypeVar

import pytest

T = TypeVar("T")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine on an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@contextmanager
def in_a_thread(context: AbstractAsyncContextManager[T]) -> Iterator[tuple[T, asyncio.AbstractEventLoop]]:
    """Enter a context in another thread; yield its value and the event loop there."""
    ready: Future[T] = Future()
    done = asyncio.Event()
    loop = asyncio.new_event_loop()

    async def hold() -> None:
        async with context as value:
            ready.set_result(value)
            await done.wait()

    def run() -> None:
        try:
            loop.run_until_complete(hold())
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)
        finally:
            loop.close()

    thread = threading.Thread(target=run, name="test-server")
    thread.start()
    try:
        yield ready.result(timeout=60), loop
    finally:
        if not loop.is_closed():
            loop.call_soon_threadsafe(done.set)
        thread.join(timeout=60)
