"""Calls into models and tokenizers, whose worst failures must not end what calls them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def contained(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what `call` returns; whatever it raises is an error of that call, and of nothing else.

    A panic in an extension written in Rust, as tokenizers are, is no `Exception`; a stray cancellation would
    be taken for one of the task that waits; and a future cannot hold a StopIteration, so its waiter would
    never hear of it.

    Raises:
        RuntimeError: one of these; it is the cause.
        Exception: all else that `call` raises.
    """
    try:
        return call(*args, **kwargs)
    except (StopIteration, CancelledError) as error:
        raise _died_of(error) from error
    except Exception:
        raise
    except BaseException as error:
        raise _died_of(error) from error


def _died_of(error: BaseException) -> RuntimeError:
    return RuntimeError(f"the call ended with {type(error).__name__}: {error}")
