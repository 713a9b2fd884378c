"""faiss takes one thread for a search and leaves the others to the model: its OpenMP may be PyTorch's too."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("faiss")

import faiss

from index_builder.build_options import VectorBuildOptions
from retrieval.index.reader import Index
from retrieval.text import TextTokenizer
from retrieval.vectors.embedder import VectorMethod
from retrieval.vectors.faiss_index import faiss_threads
from retrieval.vectors.vector_search import VectorProposer
from tests.checkpoints import END, make_checkpoint, make_index, train_tokenizer

_ASKED_BESIDE_A_MODEL = """
import sys
import torch
from retrieval.index.reader import Index
from retrieval.vectors.vector_search import VectorProposer

torch.set_num_threads(3)
with Index.open(sys.argv[1]) as index:
    shortlister = VectorProposer.open(index)
    shortlister.search(shortlister.embed(["a river"])[0], 2, None)
print(torch.get_num_threads())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = TextTokenizer(train_tokenizer(), END, "tiny")
    encoder = make_checkpoint(tmp_path_factory.mktemp("encoder"))
    wish = VectorBuildOptions(VectorMethod("encoder", str(encoder)))
    return make_index(tmp_path_factory.mktemp("index"), tokenizer, vectors=wish, evidence=None)


def in_a_thread_with_three(ask: object) -> int:
    """Return how many threads faiss has after something was asked, in a thread of its own."""

    def run() -> int:
        faiss.omp_set_num_threads(3)
        assert callable(ask)
        ask()
        return int(faiss.omp_get_max_threads())

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


def test_a_search_leaves_the_threads_as_they_were(folder: Path) -> None:
    with Index.open(folder) as index:
        shortlister = VectorProposer.open(index)
        (vector,) = shortlister.embed(["a river"])
        assert in_a_thread_with_three(lambda: shortlister.search(vector, 2, None)) == 3


def test_a_search_that_fails_does_too() -> None:
    def fail_with_two() -> None:
        with faiss_threads(2):
            assert faiss.omp_get_max_threads() == 2
            raise ValueError("no")

    def fail() -> None:
        with pytest.raises(ValueError, match="no"):
            fail_with_two()

    assert in_a_thread_with_three(fail) == 3


def test_a_model_keeps_its_threads(folder: Path) -> None:
    command = [sys.executable, "-c", _ASKED_BESIDE_A_MODEL, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "3"
