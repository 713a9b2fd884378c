"""The stubs are those of the sources."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf.descriptor import EnumDescriptor

from genret.service.pb.regenerate import GRPCIO_TOOLS_VERSION, generate

ROOT = Path(__file__).resolve().parents[2]
PROTO = ROOT / "proto"
STUBS = ROOT / "service" / "pb"
# What differs between the stubs that two versions of the tool make of one source.
TOOL_NOISE = (
    (re.compile(r"^# Protobuf Python Version: .*$", re.M), ""),
    (re.compile(r"^GRPC_GENERATED_VERSION = .*$", re.M), ""),
    (re.compile(r"^    \d+,$", re.M), ""),
    (re.compile(r"\+ f?' but the generated"), "' but the generated"),
    (re.compile(r"^class (\w+)\(object\):", re.M), r"class \1:"),
    (re.compile(r": (_Optional\[bool\]|bool) = \.\.\."), ": bool = ..."),
)

pytest.importorskip("grpc_tools")


def without_noise(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    for pattern, replacement in TOOL_NOISE:
        text = pattern.sub(replacement, text)
    return text


def test_generated_stubs_are_current(tmp_path: Path) -> None:
    fresh = generate(PROTO, tmp_path)
    kept = {p.relative_to(STUBS) for p in STUBS.rglob("*_pb2*.py*") if p.suffix in (".py", ".pyi")}
    assert set(fresh) == kept, "run: python -m genret.service.pb.regenerate"
    of_this_tool = importlib.metadata.version("grpcio-tools") == GRPCIO_TOOLS_VERSION
    read: Callable[[Path], bytes | str] = Path.read_bytes if of_this_tool else without_noise
    for relative in fresh:
        assert read(STUBS / relative) == read(tmp_path / relative), relative


def test_stubs_are_made_by_the_oldest_supported_tools() -> None:
    for path in STUBS.rglob("*_pb2_grpc.py"):
        assert f"GRPC_GENERATED_VERSION = '{GRPCIO_TOOLS_VERSION}'" in path.read_text(encoding="utf-8")


def test_the_stubs_live_beside_anybody_elses_stubs_of_the_package() -> None:
    from genret.service.pb.genret.v1 import retrieval_service_pb2

    assert retrieval_service_pb2.DESCRIPTOR.name == "genret/v1/retrieval_service.proto"
    assert isinstance(retrieval_service_pb2.RetrievalMethod.DESCRIPTOR, EnumDescriptor)
    assert not (PROTO / "__init__.py").exists(), "the import name proto belongs to proto-plus"
