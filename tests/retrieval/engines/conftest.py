"""A tiny checkpoint, and an index for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoints import make_checkpoint, make_index


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Path:
    return make_index(tmp_path_factory.mktemp("index"), checkpoint)
