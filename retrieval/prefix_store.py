"""Beginnings that all prompts of a template have in common, run once and kept for further requests."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from threading import Lock

from decoding.language_model import LanguageModel, PromptPrefix
from retrieval.errors import InputError

DEFAULT_PREFIX_BYTES = 512 * 2**20
# Prompts with different beginnings do not share a forward, and a shared one is a segment of its own in every
# layer's attention, in every step: a few tokens are cheaper to run again. Roughly, on one CPU thread, with
# models of 5 and 25 M parameters and 12 tokens of query: 8 shared tokens take a lone prompt's prefill to 0.9
# of its time, 16 to 0.8, 64 to 0.3 or 0.5; that of eight prompts to 0.7, 0.5 or 0.6, and 0.3.
MIN_PREFIX_TOKENS = 16

_Key = tuple[int, ...]


class PrefixStore:
    """The prefixes of one model last used, up to a number of bytes.

    The one used last is kept whatever its size: it is what the next request will ask for. Prefixes in use
    stay alive with the sessions that use them, whatever the store gives up meanwhile. Safe to use from
    several threads; of those that miss the same prefix at once, one runs it and the others wait.

    Args:
        model: Runs them.
        max_bytes: Bound on the key/value memory of all prefixes held.

    Raises:
        InputError: the bound is negative or no integer.
    """

    def __init__(self, model: LanguageModel, max_bytes: int = DEFAULT_PREFIX_BYTES) -> None:
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 0:
            raise InputError("prefix_bytes", f"must be an integer of at least 0, got {max_bytes!r}")
        self._model = model
        self._max_bytes = max_bytes
        self._lock = Lock()
        self._held: OrderedDict[_Key, PromptPrefix | None] = OrderedDict()  # None: cannot be shared
        self._making: dict[_Key, Future[PromptPrefix | None]] = {}
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Key/value memory of the prefixes held."""
        return self._num_bytes

    def __len__(self) -> int:
        """Prefixes held, those that cannot be shared among them."""
        return len(self._held)

    def get(self, token_ids: Sequence[int]) -> PromptPrefix | None:
        """Return the prefix of these tokens, run now if it is not there.

        Returns:
            None where it is too short to be worth it, or the model cannot share it.
        """
        key = tuple(token_ids)
        if len(key) < MIN_PREFIX_TOKENS:
            return None
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
            running = self._making.get(key)
            if running is None:
                mine = self._making[key] = Future()
        return self._make(key, mine) if running is None else running.result()

    def before(self, prompt: Sequence[int], num_shared: int) -> PromptPrefix | None:
        """Return what of a prompt is run once for all that begin alike; at least one token follows it.

        Args:
            prompt: Token ids.
            num_shared: How many of them, at the beginning, every prompt of its template has.
        """
        return None if num_shared >= len(prompt) else self.get(prompt[:num_shared])

    def clear(self) -> None:
        """Give up everything held."""
        with self._lock:
            self._held.clear()
            self._num_bytes = 0

    def _make(self, key: _Key, future: Future[PromptPrefix | None]) -> PromptPrefix | None:
        try:
            prefix = self._model.share_prefix(key)
        except BaseException as error:
            with self._lock:
                del self._making[key]
            future.set_exception(error)
            raise
        with self._lock:
            del self._making[key]
            self._keep(key, prefix)
        future.set_result(prefix)
        return prefix

    def _keep(self, key: _Key, prefix: PromptPrefix | None) -> None:
        self._held[key] = prefix
        self._num_bytes += _size(prefix)
        while self._num_bytes > self._max_bytes and len(self._held) > 1:
            self._num_bytes -= _size(self._held.popitem(last=False)[1])


def _size(prefix: PromptPrefix | None) -> int:
    return 0 if prefix is None else prefix.kv_bytes
