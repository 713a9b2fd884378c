"""How many threads faiss uses, for as long as it is asked something."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from retrieval.vectors.kinds import load_faiss


@contextmanager
def faiss_threads(threads: int) -> Iterator[None]:
    """Let faiss use so many threads in the block, in the thread that enters it.

    Where faiss and PyTorch have one OpenMP library between them, as they often do, the number is PyTorch's
    too: a model that ran in the block would have as many, and one that runs behind it has its own again.
    """
    faiss = load_faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(max(threads, 1))
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
