"""An old version goes away as a whole, also when its removal is cut short."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from index_builder import publish
from retrieval.index.verification import verify
from retrieval.index.versions import list_versions, live_version
from tests.fuzz.rich_index import TOKENIZER
from tests.index_fixtures import build

pytestmark = pytest.mark.fault


def test_half_a_removal_leaves_no_half_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build(tmp_path, ["a"], TOKENIZER)
    real = shutil.rmtree

    def dies_half_way(place: Path, ignore_errors: bool = False) -> None:
        if (place / "manifest.json").exists() and place.name != "staging":
            (place / "trie.arrow").unlink()
            raise KeyboardInterrupt
        real(place, ignore_errors=ignore_errors)

    monkeypatch.setattr(publish.shutil, "rmtree", dies_half_way)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, ["b"], TOKENIZER, keep_versions=0)
    monkeypatch.undo()
    live = live_version(first.index)
    assert list_versions(first.index) == [live]
    assert live != first.version
    assert verify(first.index).ok
    build(tmp_path, ["c"], TOKENIZER)
    assert sorted(path.name for path in first.index.iterdir()) == [".lock", "CURRENT", "versions"]
    assert len(list_versions(first.index)) == 2
