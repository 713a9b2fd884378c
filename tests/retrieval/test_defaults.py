from __future__ import annotations

from pathlib import Path

import pytest

from retrieval import defaults
from retrieval.errors import ModelError


def test_both_places_are_looked_at_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "__file__", str(tmp_path / "retrieval" / "defaults.py"))
    with pytest.raises(ModelError, match=r"default_model and .*default-model; name a checkpoint"):
        defaults.default_model_dir()
    places = [tmp_path / "data" / "default-model", tmp_path / "retrieval" / "default_model"]
    for place in places:  # a checkout's, and before it an installed wheel's
        place.mkdir(parents=True)
        (place / "tokenizer.json").touch()
        assert defaults.default_model_dir() == place
