"""A tiny model and its index, made once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from genret.service.configuration.server_config import IndexSpec, ModelSpec, ServerConfig
from genret.service.serving.models import IndexOpener
from genret.service.serving.served import ServedIndex
from genret.service.serving.server import Server
from genret.service.status import told
from tests.service.changing_index import ChangingIndex
from tests.service.running_server import Running, open_all, opener_of, retriever_of, started
from tests.service.tiny_assets import make_checkpoint, make_index


def model_of(checkpoint: Path, name: str = "default") -> ModelSpec:
    return ModelSpec(name, str(checkpoint), device="cpu", dtype="float32", num_threads=1)


@contextmanager
def opened(checkpoint: Path, *specs: IndexSpec, **options: Any) -> Iterator[dict[str, ServedIndex]]:
    """Open indexes with a model as a server does, and close them in the end."""
    served = open_all(opener_of(model_of(checkpoint), **options), *specs)
    try:
        yield served
    finally:
        for index in served.values():
            retriever_of(index).close()


def real_server(*indexes: ChangingIndex, **options: Any) -> AbstractAsyncContextManager[Running]:
    """Serve real indexes, which are named as their folders."""
    specs = tuple(IndexSpec(index.folder.name, index.path) for index in indexes)
    models = (model_of(indexes[0].checkpoint),)
    config = ServerConfig(**{"indexes": specs, "models": models, "port": 0, "drain_seconds": 10, **options})
    opener = IndexOpener(config, told)
    return started(Server.in_one_process(config, opener), opener)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama, to be read only."""
    return make_checkpoint(tmp_path_factory.mktemp("tiny") / "checkpoint")


@pytest.fixture(scope="session")
def tiny_index(checkpoint: Path) -> Path:
    """An index over a dozen titles, to be read only."""
    return make_index(checkpoint.parent / "index", checkpoint)


@pytest.fixture(scope="module")
def tiny(checkpoint: Path, tiny_index: Path) -> Iterator[ServedIndex]:
    with opened(checkpoint, IndexSpec("tiny", tiny_index)) as served:
        yield served["tiny"]
