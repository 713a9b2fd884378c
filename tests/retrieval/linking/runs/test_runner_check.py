"""A runner that is not there is refused before anything is read or written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from retrieval.errors import MissingExtraError
from retrieval.linking.documents.corpus import CorpusOptions
from retrieval.linking.link_options import WorkerOptions
from retrieval.linking.run import OutputOptions, RunnerOptions, link_corpus


def test_without_ray_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"generative-retrieval\[ray\]"):
        link_corpus(
            CorpusOptions(inputs=(str(tmp_path / "not-there.jsonl"),)),
            OutputOptions(out=str(tmp_path / "links")),
            WorkerOptions(index=str(tmp_path / "not-there.index")),
            runner=RunnerOptions(name="ray"),
        )
    assert list(tmp_path.iterdir()) == []
