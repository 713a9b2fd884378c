"""Memory that a server frees is kept for the next batch, and given back when asked."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys

import pytest

from service.serving.batching import keep_freed_memory

GLIBC = hasattr(ctypes.CDLL(None), "mallopt")
PAGES = """
import json, resource, threading
from service.serving.batching import give_back_memory, keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def anonymous_kib():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("RssAnon"))

def batch():
    held = [b"x" * (mib * 2**20) for mib in (1, 5, 20, 20, 20)]
    del held

def measure(told):
    batch(); batch()
    before = faults()
    for _ in range(5):
        batch()
    told.append(faults() - before)

told = []
for is_kept in (False, True):
    if is_kept:
        told.append(keep_freed_memory({}))
    thread = threading.Thread(target=measure, args=(told,))
    thread.start()
    thread.join()
held = anonymous_kib()
give_back_memory()
print(json.dumps([*told, held - anonymous_kib()]))
"""


@pytest.mark.skipif(not GLIBC, reason="needs glibc")
def test_a_thread_gets_the_memory_of_its_last_batch_again() -> None:
    done = subprocess.run([sys.executable, "-c", PAGES], capture_output=True, text=True, check=True)
    before, is_kept, after, given_back_kib = json.loads(done.stdout)
    assert is_kept is True
    assert before > 1000, "pages of each batch are new"
    assert after < before / 20
    assert given_back_kib > 15 * 1024


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_the_environment_wins(name: str) -> None:
    assert not keep_freed_memory({name: "1"})
