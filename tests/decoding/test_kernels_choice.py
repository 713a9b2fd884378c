"""Which backend walks a trie, and that compiled loops work where compiled code cannot be kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import decoding
from decoding.errors import KernelsError
from decoding.trie import title_trie as choice
from decoding.trie.row_filter import FilteredTrie, RowFilter
from decoding.trie.title_trie import TitleTrie
from tests.trie_oracles import needs_numba

ROWS = [(1, 2, 0), (1, 0)]

ASK = """
import torch
from decoding.trie.title_trie import TitleTrie
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
    code = "import sys, decoding.trie.title_trie, decoding.trie.row_filter; print('numba' in sys.modules)"
    assert run(code).stdout.strip() == "False"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A copy of the package where compiled code cannot be kept: a file stands in the folder's place.

    Permissions would not do, because who runs the tests may be allowed to write everywhere.
    """
    source = Path(decoding.__file__).parent
    shutil.copytree(source, tmp_path / "decoding", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "decoding/trie/__pycache__").write_text("")
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


LOGGED = """
import logging
logging.basicConfig(format="%(name)s %(message)s")
"""


@needs_numba
def test_compiled_loops_that_cannot_be_kept_any_more_still_run(tmp_path):
    """The folder can be written when the loops are declared and not when they are compiled: a full disk."""
    fault = """
import errno
from numba.core.caching import IndexDataCacheFile
def full(self, *arguments):
    raise OSError(errno.ENOSPC, "No space left on device")
IndexDataCacheFile.save = full
"""
    answer = run(LOGGED + fault + ASK, NUMBA_CACHE_DIR=str(tmp_path))
    assert (answer.returncode, answer.stdout.strip()) == (0, "numba"), answer.stderr
    assert "No space left on device" in answer.stderr


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of compiled loops for tokens of 8 bits. Copied, never written to."""
    folder = tmp_path_factory.mktemp("kept")
    assert run(ASK, NUMBA_CACHE_DIR=str(folder)).stdout.strip() == "numba"
    return folder


def not_a_file(path: Path) -> None:
    path.unlink()
    path.mkdir()


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def overwritten(path: Path) -> None:
    path.write_bytes(b"no compiled code")


@needs_numba
@pytest.mark.parametrize(
    ("kind", "spoil"), [("nbi", not_a_file), ("nbi", cut_short), ("nbc", overwritten), ("nbc", cut_short)]
)
def test_kept_loops_that_cannot_be_read_are_compiled_again(kept, tmp_path, kind, spoil):
    folder = Path(shutil.copytree(kept, tmp_path / "kept"))
    files = list(folder.rglob(f"*.{kind}"))
    assert files
    for path in files:
        spoil(path)
    answer = run(LOGGED + ASK, NUMBA_CACHE_DIR=str(folder))
    assert (answer.returncode, answer.stdout.strip()) == (0, "numba"), answer.stderr
    assert "compiled loops are neither found nor kept" in answer.stderr


@needs_numba
@pytest.mark.slow
def test_kept_loops_for_other_tokens_are_not_run(kept, tmp_path):
    """Two processes that compile at once, for tokens of different width, can swap each other's files."""
    wide = ASK.replace("5)", "70_000)")
    folder = tmp_path / "wide"
    assert run(wide, NUMBA_CACHE_DIR=str(folder)).stdout.strip() == "numba"
    for path in folder.rglob("*.nbc"):
        shutil.copy(kept / path.relative_to(folder), path)
    answer = run(LOGGED + wide, NUMBA_CACHE_DIR=str(folder))
    assert (answer.returncode, answer.stdout.strip()) == (0, "numba"), answer.stderr
    assert "compiled loops are neither found nor kept" in answer.stderr


@needs_numba
@pytest.mark.slow
def test_processes_may_compile_into_one_folder_at_once(tmp_path):
    command = [sys.executable, "-W", "error", "-c", LOGGED + ASK]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    both = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [(*process.communicate(timeout=240), process.returncode) for process in both]
    assert answers == [("numba\n", "", 0)] * 2


BROKEN = [
    pytest.param('raise ImportError("Numba needs NumPy 2.2 or less")', "Numba needs NumPy", id="import"),
    pytest.param('raise SystemError("initialization failed")', "initialization failed", id="other"),
    pytest.param("", "No module named 'numba.core'", id="half"),
]


@pytest.mark.parametrize(("content", "message"), BROKEN)
def test_an_installation_of_numba_that_does_not_work_is_done_without(tmp_path, content, message):
    (tmp_path / "numba").mkdir()
    (tmp_path / "numba/__init__.py").write_text(content)
    path = os.pathsep.join([str(tmp_path), str(Path(decoding.__file__).parent.parent)])
    answer = run(LOGGED + ASK, PYTHONPATH=path)
    assert (answer.returncode, answer.stdout.strip()) == (0, "torch"), answer.stderr
    assert "numba is installed but does not work" in answer.stderr
    assert message in answer.stderr
    demanded = run(ASK.replace("5)", '5, kernels="numba")'), PYTHONPATH=path)
    assert demanded.returncode == 1
    assert "decoding.errors.KernelsError: kernels: numba is installed but does not work" in demanded.stderr


@needs_numba
def test_loops_are_only_given_what_they_can_read():
    """They read addresses, so what is not there must not be asked for."""
    trie = TitleTrie.from_rows(ROWS, 5, kernels="numba")
    states = trie.start(torch.arange(2))
    with pytest.raises(
        ValueError, match=r"token_ids: expected a row for each of 2 states, got shape \(1, 3\)"
    ):
        trie.verify(states, torch.zeros((1, 3), dtype=torch.int64))
    with pytest.raises(ValueError, match="expected a tensor on the CPU, where the trie is, got one on meta"):
        trie.children(states.to("meta"))
    small = torch.tensor([[1, 2], [2, 1]], dtype=torch.int32)
    assert (trie.verify(states, small) >= 0).tolist() == [[True, False], [False, True]]


@needs_numba
def test_states_under_filters_that_are_not_there_are_refused():
    trie = TitleTrie.from_rows(ROWS, 5, kernels="numba")
    some = RowFilter.from_mask(np.array([True, False]))
    states = FilteredTrie(trie, [None, some]).start(torch.arange(2))
    tokens = torch.ones((2, 1), dtype=torch.int64)
    for other in (trie, FilteredTrie(trie, [some])):
        for ask in (
            lambda at, other=other: other.children(at),
            lambda at, other=other: other.padded_children(at, 2),
            lambda at, other=other: other.verify(at, tokens[: len(at)]),
        ):
            ask(states[:1])
            with pytest.raises(ValueError, match="under a filter that this constraint does not have"):
                ask(states)
