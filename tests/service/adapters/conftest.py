"""An index over a dozen titles, opened here and served by a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from genret.retrieval.retriever import Retriever
from tests.service.server_process import ServerProcess
from tests.service.tiny_assets import make_checkpoint, make_index

PLACES = ("local", "server")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("adapters") / "checkpoint")


@pytest.fixture(scope="session")
def index(checkpoint: Path) -> Path:
    return make_index(checkpoint.parent / "tiny", checkpoint)


@pytest.fixture(scope="session")
def retriever(index: Path, checkpoint: Path) -> Iterator[Retriever]:
    with Retriever.open(index, checkpoint, device="cpu") as opened:
        yield opened


@pytest.fixture(scope="session")
def address(index: Path, checkpoint: Path) -> Iterator[str]:
    with ServerProcess(str(index), "--model", str(checkpoint)) as server:
        yield server.address()


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, index: Path, checkpoint: Path) -> dict[str, Any]:
    """Arguments of an adapter that say what it asks, as plain values."""
    if request.param == "local":
        return {"index": str(index), "model": str(checkpoint)}
    return {"address": request.getfixturevalue("address")}
