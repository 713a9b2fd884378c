"""Reading sets, measuring and resampling load no torch, and ir-measures only when it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from retrieval.errors import MissingExtraError
from retrieval.evaluation.labelled_sets import LabelledQuery
from retrieval.evaluation.metrics import measure
from tests.evaluation_sets import labelled_set, run_of

_MODULES = (
    "retrieval.evaluation.datasets.readers",
    "retrieval.evaluation.datasets.index_entities",
    "retrieval.evaluation.intervals",
    "retrieval.evaluation.run_files",
)
_HEAVY = {
    "torch",
    "transformers",
    "ray",
    "matplotlib",
    "ir_measures",
    "pytrec_eval",
    "bm25s",
    "retrieval.retriever",
}


def test_evaluation_imports_nothing_heavy() -> None:
    code = f"import sys, {', '.join(_MODULES)}; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert _HEAVY & set(done.stdout.split()) == set()


def test_without_the_extra_it_is_named_and_the_rest_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ir_measures", None)
    labelled = labelled_set([LabelledQuery("q", "text", gold={"a": 1})])
    run = run_of(labelled, [["a"]])
    names = ["F1(InKB)", "Rprec(KILT)", "accuracy", "NO_MATCH"]
    assert [m.value for m in measure(labelled, run, names)] == [1.0, 1.0, 1.0, 0.0]
    with pytest.raises(MissingExtraError, match=r"generative-retrieval\[eval\]"):
        measure(labelled, run)
