"""Files, functions and hand-overs of the code that one call passes through.

    python benchmarks/walks.py

Each walk is traced when it has been taken once before: a query asked of the library, the same query as a
gRPC Retrieve of a server in this process, and a build of an index of three titles. Counted are the files of
the product that are entered. A hand-over is a step of the call stack from one
file of the product to another, between the handler of the call and the first tensor that is made on the
thread of the device; the queue of the device is one. The modules that `from genret import Retriever` loads
are counted in a process of their own.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import grpc
import torch
from harness.report import benchmark, shown
from harness.sample_data import SMALL_MODEL

import genret
from genret.index_builder.build import build_index
from genret.index_builder.build_options import BuildOptions
from genret.retrieval.prompts import CheckpointConfig
from genret.retrieval.retriever import Retriever
from genret.retrieval.text import TextTokenizer
from genret.service.configuration.server_config import IndexSpec, ModelSpec, ServerConfig
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.pb.genret.v1 import retrieval_service_pb2_grpc as pb_grpc
from genret.service.serving.models import IndexOpener
from genret.service.serving.server import Server
from genret.service.status import told

_PACKAGE = Path(genret.__file__).parent  # of the code that runs
_QUERY = "a large cat with stripes"
_TITLES = "Amazon\nNile\nTiger\n"
_IMPORTS = """
import sys
from genret import Retriever
print(sum(name.split(".")[0] == "genret" for name in sys.modules))
"""


@dataclass
class Walk:
    """Code that one call entered, and stacks of files, the outermost first.

    `queued` put the request into the queue of the device, `computing` made the first tensor on its thread.
    """

    files: set[str] = field(default_factory=set)
    queued: list[str] = field(default_factory=list)
    computing: list[str] = field(default_factory=list)

    @property
    def hand_overs(self) -> int:
        """Steps from one file to another between the handler and the first tensor."""
        return sum(a != b for a, b in pairwise(self.queued + self.computing))


@cache
def _file(name: str) -> str:
    """Return the product's file of a code's file name; empty for other code."""
    path = Path(name)
    inside = path.relative_to(_PACKAGE).as_posix() if path.is_relative_to(_PACKAGE) else ""
    return inside if "/pb/" not in inside else ""


def _stack(frame: FrameType | None) -> list[str]:
    files: list[str] = []
    while frame is not None:
        if file := _file(frame.f_code.co_filename):
            files.append(file)
        frame = frame.f_back
    return files[::-1]


_LOOP = threading.main_thread()
_TRACED: list[Walk] = []


def _trace(frame: FrameType, event: str, function: Any) -> None:
    if not _TRACED:
        return
    walk = _TRACED[0]
    if event == "call" and (file := _file(frame.f_code.co_filename)):
        walk.files.add(file)
        if frame.f_code.co_qualname == "DeviceQueue.submit" and not walk.queued:
            walk.queued = _stack(frame)
    elif event == "c_call" and not walk.computing and threading.current_thread() is not _LOOP:
        owner = getattr(function, "__self__", None)
        if isinstance(owner, torch.Tensor) or owner is torch._C._VariableFunctions:
            walk.computing = _stack(frame)


@contextmanager
def traced() -> Iterator[Walk]:
    """Trace what all threads do during the block."""
    walk = Walk()
    _TRACED.append(walk)
    sys.setprofile(_trace)
    try:
        yield walk
    finally:
        sys.setprofile(None)
        _TRACED.clear()


def build(folder: Path) -> Path:
    """Build an index of three titles."""
    source = folder / "titles.txt"
    folder.mkdir(parents=True, exist_ok=True)
    source.write_text(_TITLES, encoding="utf-8")
    rendering = CheckpointConfig.load(SMALL_MODEL).title_rendering()
    build_index(
        source, TextTokenizer.load(SMALL_MODEL), BuildOptions(out=folder / "index", rendering=rendering)
    )
    return folder / "index"


def library_walk(index: Path) -> Walk:
    """Trace a query that the library answers by beam search."""
    with Retriever.open(index, SMALL_MODEL) as retriever:
        retriever.retrieve(_QUERY, method="beam")
        with traced() as walk:
            retriever.retrieve(_QUERY, method="beam")
    return walk


async def service_walk(index: Path) -> Walk:
    """Trace the same query as a gRPC Retrieve: from the handler to its reply."""
    config = ServerConfig(
        indexes=(IndexSpec("walk", index),), models=(ModelSpec(checkpoint=str(SMALL_MODEL)),), port=0
    )
    server = Server.in_one_process(config, IndexOpener(config, told))
    await server.start()
    try:
        await server.load()
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub: Any = pb_grpc.RetrievalServiceStub(channel)
            request = pb.RetrieveRequest(query=_QUERY, method=pb.RETRIEVAL_METHOD_BEAM)
            await stub.Retrieve(request)
            with traced() as walk:
                await stub.Retrieve(request)
    finally:
        await server.drain()
    return walk


def num_modules() -> int:
    """Return how many modules of the product the import of the retriever loads."""
    return int(subprocess.check_output([sys.executable, "-c", _IMPORTS], cwd=_PACKAGE.parent, text=True))


def figures(walk: Walk) -> dict[str, Any]:
    """Return the files that a walk entered, and the way to the first tensor."""
    return {
        "files": sorted(walk.files),
        "num_files": len(walk.files),
        "hand_overs": walk.hand_overs if walk.computing else None,
        "path": " > ".join(dict.fromkeys(walk.queued + walk.computing)) if walk.computing else None,
    }


@benchmark("torch", "grpcio")
def main(options: SimpleNamespace) -> dict[str, Any]:
    """Trace a query, a call and a build, and say how much of the code each passes through."""
    threading.setprofile(_trace)
    with tempfile.TemporaryDirectory() as folder:
        index = build(Path(folder, "first"))
        with traced() as building:
            build(Path(folder, "second"))
        walks = {
            "query by the library": library_walk(index),
            "gRPC Retrieve": asyncio.run(service_walk(index)),
            "build of three titles": building,
        }
    found: dict[str, Any] = {name: shown(name, figures(walk)) for name, walk in walks.items()}
    return {**found, **shown("from genret import Retriever", {"modules": num_modules()})}


if __name__ == "__main__":
    main()
