"""Which backend walks a trie, and that compiled loops work where compiled code cannot be kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import decoding
from decoding.errors import KernelsError
from decoding.kernels import choice
from decoding.title_trie import TitleTrie
from tests.trie_oracles import needs_numba

ROWS = [(1, 2, 0), (1, 0)]

ASK = """
import torch
from decoding.title_trie import TitleTrie
trie = TitleTrie.from_rows([(1, 2, 0), (1, 0)], 5)
children = trie.children(trie.start(torch.arange(2)))
assert children.token.tolist() == [1, 1], children
print(trie.kernels_name)
"""


def test_the_loops_are_chosen_on_the_cpu_where_numba_is_installed(monkeypatch):
    monkeypatch.setattr(choice, "_numba_is_installed", lambda: False)
    assert TitleTrie.from_rows(ROWS, 5).kernels_name == "torch"
    with pytest.raises(KernelsError, match=r"numba is not installed; install generative-retrieval\[numba\]"):
        TitleTrie.from_rows(ROWS, 5, kernels="numba")


@needs_numba
def test_the_loops_are_the_default_and_can_be_declined():
    assert TitleTrie.from_rows(ROWS, 5).kernels_name == "numba"
    assert TitleTrie.from_rows(ROWS, 5, kernels="torch").kernels_name == "torch"


@needs_numba
def test_the_loops_are_for_the_cpu_alone():
    cuda = torch.device("cuda")
    assert choice.choose_kernels(cuda) is choice.choose_kernels(cuda, "torch")
    with pytest.raises(KernelsError, match="numba runs on the CPU only, and the trie is on cuda"):
        choice.choose_kernels(cuda, "numba")


def test_other_kernels_are_refused_by_name():
    with pytest.raises(ValueError, match="expected one of auto, numba, torch, got 'jax'"):
        TitleTrie.from_rows(ROWS, 5, kernels="jax")


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@needs_numba
def test_nothing_imports_numba_before_there_is_a_trie():
    code = "import sys, decoding.title_trie, decoding.row_filter; print('numba' in sys.modules)"
    assert run(code).stdout.strip() == "False"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A copy of the package where compiled code cannot be kept: a file stands in the folder's place.

    Permissions would not do, because who runs the tests may be allowed to write everywhere.
    """
    source = Path(decoding.__file__).parent
    shutil.copytree(source, tmp_path / "decoding", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "decoding/kernels/__pycache__").write_text("")
    return tmp_path


@needs_numba
@pytest.mark.parametrize("cache_dir", [None, "/dev/null/cache"])
def test_loops_are_compiled_where_nothing_can_be_written(installed, cache_dir):
    nowhere = {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null", "PYTHONDONTWRITEBYTECODE": "1"}
    if cache_dir is not None:
        nowhere["NUMBA_CACHE_DIR"] = cache_dir
    answer = run(ASK, PYTHONPATH=str(installed), **nowhere)
    assert (answer.returncode, answer.stdout.strip(), answer.stderr) == (0, "numba", "")


@needs_numba
def test_compiled_loops_are_kept_and_found_again(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    assert run(ASK, NUMBA_CACHE_DIR=str(kept)).stdout.strip() == "numba"
    files = {path: path.stat().st_mtime_ns for path in kept.rglob("*.nbc")}
    assert files
    assert run(ASK, NUMBA_CACHE_DIR=str(kept)).stdout.strip() == "numba"
    assert {path: path.stat().st_mtime_ns for path in kept.rglob("*.nbc")} == files


@needs_numba
def test_compiled_loops_that_cannot_be_kept_any_more_still_run(tmp_path):
    """The folder can be written when the loops are declared and not when they are compiled: a full disk."""
    fault = """
import errno, logging
logging.basicConfig(format="%(name)s %(message)s")
from numba.core.caching import IndexDataCacheFile
def full(self, *arguments):
    raise OSError(errno.ENOSPC, "No space left on device")
IndexDataCacheFile.save = full
"""
    answer = run(fault + ASK, NUMBA_CACHE_DIR=str(tmp_path))
    assert (answer.returncode, answer.stdout.strip()) == (0, "numba"), answer.stderr
    assert "No space left on device" in answer.stderr


@needs_numba
def test_loops_are_only_given_what_they_can_read():
    """They read addresses, so what is not there must not be asked for."""
    trie = TitleTrie.from_rows(ROWS, 5, kernels="numba")
    states = trie.start(torch.arange(2))
    with pytest.raises(ValueError, match="token_ids: expected a row for each of 2 states, got 1"):
        trie.verify(states, torch.zeros((1, 3), dtype=torch.int64))
    with pytest.raises(ValueError, match="expected a tensor on the CPU, where the trie is, got one on meta"):
        trie.children(states.to("meta"))
    small = torch.tensor([[1, 2], [2, 1]], dtype=torch.int32)
    assert (trie.verify(states, small) >= 0).tolist() == [[True, False], [False, True]]
