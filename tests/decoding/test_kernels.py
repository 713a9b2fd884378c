"""The trie's kernels: the choice of a backend, loops without a cache, traces, and agreement."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import genret
from genret.decoding.constraints import StaticConstraint
from genret.decoding.errors import KernelsError
from genret.decoding.trie import title_trie as choice
from genret.decoding.trie.row_filter import FilteredTrie, RowFilter
from genret.decoding.trie.title_trie import TitleTrie
from tests.fakes import roots
from tests.no_sync import cuda_never_waits
from tests.trie_oracles import BACKENDS, needs_cuda, needs_numba

PACKAGE = Path(genret.__file__).parent
CHOICE_ROWS = [(1, 2, 0), (1, 0)]

ASK = """
import torch
from genret.decoding.trie.title_trie import TitleTrie
trie = TitleTrie.from_rows([(1, 2, 0), (1, 0)], 5)
children = trie.children(trie.start(torch.arange(2)))
assert children.token.tolist() == [1, 1], children
print(trie.kernels.name)
"""


def test_the_loops_are_chosen_on_the_cpu_where_numba_is_installed(monkeypatch):
    monkeypatch.setattr(choice, "_numba_is_installed", lambda: False)
    assert TitleTrie.from_rows(CHOICE_ROWS, 5).kernels.name == "torch"
    with pytest.raises(KernelsError, match=r"numba is not installed; install generative-retrieval\[numba\]"):
        TitleTrie.from_rows(CHOICE_ROWS, 5, kernels="numba")


@needs_numba
def test_the_loops_are_the_default_and_can_be_declined():
    assert TitleTrie.from_rows(CHOICE_ROWS, 5).kernels.name == "numba"
    assert TitleTrie.from_rows(CHOICE_ROWS, 5, kernels="torch").kernels.name == "torch"


@needs_numba
def test_the_loops_are_for_the_cpu_alone():
    assert TitleTrie.from_rows(CHOICE_ROWS, 5, "meta").kernels.name == "torch"
    with pytest.raises(KernelsError, match="numba runs on the CPU only, and the trie is on meta"):
        TitleTrie.from_rows(CHOICE_ROWS, 5, "meta", "numba")


def test_other_kernels_are_refused_by_name():
    with pytest.raises(ValueError, match="expected one of auto, numba, torch, got 'jax'"):
        TitleTrie.from_rows(CHOICE_ROWS, 5, kernels="jax")


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def asked(code: str, name: str = "numba", **environment: str) -> str:
    """Have a process name its kernels; returns what it logged."""
    answer = run(code, **environment)
    assert (answer.returncode, answer.stdout.strip()) == (0, name), answer.stderr
    return answer.stderr


@needs_numba
def test_nothing_imports_numba_before_there_is_a_trie():
    modules = "genret.decoding.trie.title_trie, genret.decoding.trie.row_filter"
    code = f"import sys, {modules}; print('numba' in sys.modules)"
    assert run(code).stdout.strip() == "False"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A copy of the package where compiled code cannot be kept: a file stands in the folder's place.

    Permissions would not do, because who runs the tests may be allowed to write everywhere.
    """
    root = tmp_path / "genret"
    shutil.copytree(PACKAGE / "decoding", root / "decoding", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PACKAGE / "__init__.py", root)
    (root / "decoding/trie/__pycache__").write_text("")
    return tmp_path


@needs_numba
@pytest.mark.parametrize("cache_dir", [None, "/dev/null/cache"])
def test_loops_are_compiled_where_nothing_can_be_written(installed, cache_dir):
    nowhere = {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null", "PYTHONDONTWRITEBYTECODE": "1"}
    if cache_dir is not None:
        nowhere["NUMBA_CACHE_DIR"] = cache_dir
    assert asked(ASK, PYTHONPATH=str(installed), **nowhere) == ""


@needs_numba
def test_compiled_loops_are_kept_and_found_again(kept):
    files = {path: path.stat().st_mtime_ns for path in kept.rglob("*.nbc")}
    assert files
    asked(ASK, NUMBA_CACHE_DIR=str(kept))
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
    assert "No space left on device" in asked(LOGGED + fault + ASK, NUMBA_CACHE_DIR=str(tmp_path))


READ_ONLY = """
import errno, tempfile
from numba.core.caching import IndexDataCacheFile
def refused(*arguments, **options):
    raise OSError(errno.EROFS, "Read-only file system")
tempfile.TemporaryFile = IndexDataCacheFile.save = refused  # by the first numba tries a folder
"""


@needs_numba
def test_loops_compiled_ahead_are_found_by_the_content_of_their_file_where_nothing_can_be_written(
    installed, tmp_path
):
    places = {"PYTHONPATH": str(installed), "NUMBA_CACHE_DIR": str(tmp_path / "ahead")}
    asked(ASK, **places)
    loops = installed / "genret/decoding/trie/numba_kernels.py"
    os.utime(loops, (0, 0))  # an image may leave no times
    assert asked(LOGGED + READ_ONLY + ASK, **places) == ""
    loops.write_text(loops.read_text() + "# another content\n")
    assert "Read-only file system" in asked(LOGGED + READ_ONLY + ASK, **places)  # compiled anew


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of compiled loops for tokens of 8 bits. Copied, never written to."""
    folder = tmp_path_factory.mktemp("kept")
    asked(ASK, NUMBA_CACHE_DIR=str(folder))
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
    assert "compiled loops are neither found nor kept" in asked(LOGGED + ASK, NUMBA_CACHE_DIR=str(folder))


@needs_numba
@pytest.mark.slow
def test_kept_loops_for_other_tokens_are_not_run(kept, tmp_path):
    """Two processes that compile at once, for tokens of different width, can swap each other's files."""
    wide = ASK.replace("5)", "70_000)")
    folder = tmp_path / "wide"
    asked(wide, NUMBA_CACHE_DIR=str(folder))
    for path in folder.rglob("*.nbc"):
        shutil.copy(kept / path.relative_to(folder), path)
    assert "compiled loops are neither found nor kept" in asked(LOGGED + wide, NUMBA_CACHE_DIR=str(folder))


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
    path = os.pathsep.join([str(tmp_path), str(PACKAGE.parent)])
    logged = asked(LOGGED + ASK, "torch", PYTHONPATH=path)
    assert "numba is installed but does not work" in logged
    assert message in logged
    demanded = run(ASK.replace("5)", '5, kernels="numba")'), PYTHONPATH=path)
    assert demanded.returncode == 1
    assert (
        "genret.decoding.errors.KernelsError: kernels: numba is installed but does not work"
        in demanded.stderr
    )


@needs_numba
def test_loops_are_only_given_what_they_can_read():
    """They read addresses, so what is not there must not be asked for."""
    trie = TitleTrie.from_rows(CHOICE_ROWS, 5, kernels="numba")
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
    trie = TitleTrie.from_rows(CHOICE_ROWS, 5, kernels="numba")
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


VOCAB = 300
ROWS = [(1, 2, 0), (1, 0), (1, 2, 3, 4, 5, 0), (2, 7, 0), (299, 0), (4, 0)]
MASKS = [None, [True, False, True, False, True, False], [False] * 6, [True] * 6]

NUM_LANES = {"trie": 0, "one filter": 1, "four lanes": 4}


def narrowed(trie: TitleTrie, kind: str) -> StaticConstraint:
    """The trie itself, or under one filter, or under four, one of them None."""
    masks = MASKS[1:2] if kind == "one filter" else MASKS[: NUM_LANES[kind]]
    filters = [None if mask is None else RowFilter.from_mask(np.array(mask), trie.device) for mask in masks]
    return FilteredTrie(trie, filters) if filters else trie


def all_states(constraint: StaticConstraint, num_queries: int) -> Tensor:
    """State -1 and every state of every query."""
    level = roots(constraint, num_queries)
    seen = [level, torch.full_like(level[:1], -1)]
    while len(level):
        level = constraint.children(level).next_state
        seen.append(level)
    return torch.cat(seen)


def questions(constraint: StaticConstraint) -> dict[str, Callable[[Tensor, Tensor], tuple[Tensor, ...]]]:
    width = max(constraint.width_at(depth) for depth in range(constraint.max_depth + 1))
    return {
        "verify": lambda states, tokens: (constraint.verify(states, tokens),),
        "advance": lambda states, tokens: (constraint.advance(states, tokens[:, 0]),),
        "is_final": lambda states, tokens: (constraint.is_final(states),),
        "row": lambda states, tokens: (constraint.row(states),),
        "padded_children": lambda states, tokens: tuple(constraint.padded_children(states, width)),
    }


every_kind = pytest.mark.parametrize("kind", list(NUM_LANES))


def candidates(states: Tensor) -> Tensor:
    return torch.tensor([0, 1, 2, 3, 7, 299], device=states.device).repeat(len(states), 1)


@pytest.mark.parametrize(("device", "kernels"), BACKENDS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@every_kind
def test_one_full_graph_answers_like_the_loops(device, kernels, kind, backend):
    trie = TitleTrie.from_rows(ROWS, VOCAB, device, kernels)
    constraint = narrowed(trie, kind)
    states = all_states(constraint, max(NUM_LANES[kind], 1))
    tokens = candidates(states)
    asked = questions(constraint)
    expected = [answer for ask in asked.values() for answer in ask(states, tokens)]
    torch.compiler.reset()
    traced = torch.compile(
        lambda states, tokens: [answer for ask in asked.values() for answer in ask(states, tokens)],
        fullgraph=True,
        backend=backend,
    )
    for got, wanted in zip(traced(states, tokens), expected, strict=True):
        assert torch.equal(got, wanted)
    dead = torch.full_like(states, -1)
    assert [int(answer.max()) for answer in traced(dead, tokens)] == [-1, -1, 0, -1, -1, -1]


@needs_cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@pytest.mark.parametrize("question", ["verify", "advance", "is_final", "row", "padded_children"])
@every_kind
def test_cuda_is_never_waited_for(kind, question):
    constraint = narrowed(TitleTrie.from_rows(ROWS, VOCAB, "cuda"), kind)
    states = all_states(constraint, max(NUM_LANES[kind], 1))
    tokens = candidates(states)
    with cuda_never_waits():
        questions(constraint)[question](states, tokens)


@needs_cuda
@every_kind
def test_a_cuda_graph_replays_a_step(kind):
    constraint = narrowed(TitleTrie.from_rows(ROWS, VOCAB, "cuda"), kind)
    states = all_states(constraint, max(NUM_LANES[kind], 1))
    tokens = candidates(states)
    expected = [answer for ask in questions(constraint).values() for answer in ask(states, tokens)]
    held = torch.full_like(states, -1)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for ask in questions(constraint).values():
            ask(held, tokens)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answers = [answer for ask in questions(constraint).values() for answer in ask(held, tokens)]
    held.copy_(states)
    graph.replay()
    for got, wanted in zip(answers, expected, strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize(("device", "kernels"), BACKENDS[:2])
def test_threads_may_ask_at_once(device, kernels):
    """Compiled loops do not hold Python's lock, so they do run at the same time."""
    rng = np.random.default_rng(0)
    trie = TitleTrie.from_rows([(*row, 500) for row in rng.integers(0, 500, (2000, 4))], 501, device, kernels)
    some = [RowFilter.from_mask(rng.random(trie.num_rows) < share) for share in (0.5, 0.1)]
    constraints = [trie, FilteredTrie(trie, [None, some[0]]), FilteredTrie(trie, some)]
    candidates = torch.arange(501)

    def ask(number: int) -> list[Tensor]:
        constraint = constraints[number % 3]
        states = constraint.children(roots(constraint, 1 if number % 3 == 0 else 2)).next_state
        found = [ask(states, candidates.expand(len(states), -1)) for ask in questions(constraint).values()]
        return [*constraint.children(states), *itertools.chain.from_iterable(found)]

    expected = [ask(number) for number in range(3)]
    with ThreadPoolExecutor(8) as threads:
        for number, got in enumerate(threads.map(ask, range(48))):
            for mine, other in zip(got, expected[number % 3], strict=True):
                assert torch.equal(mine, other)
