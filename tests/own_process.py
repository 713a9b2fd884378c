"""Measuring in a process of its own: what threads of other tests do there cannot be measured with it."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import ParamSpec, TypeVar

# A server imports once what is slow to import; a process forked from it has no thread but its own.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        *("pytest", "hypothesis", "torch", "pyarrow.parquet"),
        "genret.decoding.trie.trie_kernels",
        "genret.retrieval.filters.entity_filter",
        "genret.retrieval.index.reader",
        "genret.retrieval.linking.documents.corpus_reading",
        "genret.retrieval.linking.finding.finder",
    ]
)

_P = ParamSpec("_P")
_T = TypeVar("_T")


def alone(function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """What a function of a test's module returns or raises in a new process, which imports that module."""
    with ProcessPoolExecutor(1, mp_context=PROCESSES) as processes:
        return processes.submit(function, *args, **kwargs).result()


class TracedMemory:
    """Python's memory that is allocated within the `with`, by all threads of this process; see `alone`.

    Attributes:
        held: Bytes that were still in use when it ended.
        peak: The most that were in use.
    """

    held: int
    peak: int

    def __enter__(self) -> TracedMemory:
        tracemalloc.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.held, self.peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()


def outputs_by_hash_seed(script: str) -> set[str]:
    """Return the outputs of a script under several seeds of Python's hashes, which order sets."""
    environments = [{**os.environ, "PYTHONHASHSEED": seed} for seed in ("1", "77", "12345")]
    command = [sys.executable, "-c", script]
    return {
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        for environment in environments
    }
