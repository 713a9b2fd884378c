"""The stubs are those of the sources, and the sources keep to buf's STANDARD rules."""

from __future__ import annotations

import importlib
import importlib.metadata
import itertools
import re
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import EnumDescriptor

from genret.service.pb.regenerate import GRPCIO_TOOLS_VERSION, generate

ROOT = Path(__file__).resolve().parents[2]
PROTO = ROOT / "proto"
STUBS = ROOT / "service" / "pb"
SOURCES = sorted(PROTO.rglob("*.proto"))
# What differs between the stubs two versions of the tool make of one source.
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
    for relative in fresh:
        assert without_noise(STUBS / relative) == without_noise(tmp_path / relative), relative


@pytest.mark.skipif(
    importlib.metadata.version("grpcio-tools") != GRPCIO_TOOLS_VERSION,
    reason=f"byte for byte only with grpcio-tools {GRPCIO_TOOLS_VERSION}",
)
def test_generated_stubs_are_current_byte_for_byte(tmp_path: Path) -> None:
    for relative in generate(PROTO, tmp_path):
        assert (STUBS / relative).read_bytes() == (tmp_path / relative).read_bytes(), relative


def test_stubs_are_made_by_the_oldest_supported_tools() -> None:
    for path in STUBS.rglob("*_pb2_grpc.py"):
        assert f"GRPC_GENERATED_VERSION = '{GRPCIO_TOOLS_VERSION}'" in path.read_text(encoding="utf-8")


def descriptor(source: Path) -> descriptor_pb2.FileDescriptorProto:
    module = importlib.import_module(f"genret.service.pb.genret.v1.{source.stem}_pb2")
    message = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(message)
    return message


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_sources_keep_to_the_standard_rules(source: Path) -> None:
    file = descriptor(source)
    assert file.syntax == "proto3"
    assert file.package == "genret.v1"
    assert source.parent == PROTO / "genret" / "v1", "the directory is the package"
    assert re.fullmatch(r"[a-z0-9_]+", source.stem)
    for enum in file.enum_type:
        prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper()
        assert (enum.value[0].name, enum.value[0].number) == (f"{prefix}_UNSPECIFIED", 0)
        assert all(value.name.startswith(f"{prefix}_") for value in enum.value)
    for message in file.message_type:
        assert re.fullmatch(r"(?:[A-Z][a-z0-9]*)+", message.name)
        assert all(re.fullmatch(r"[a-z][a-z0-9_]*", field.name) for field in message.field)
    for service in file.service:
        assert service.name.endswith("Service")
        for rpc in service.method:
            assert rpc.input_type == f".genret.v1.{rpc.name}Request"
            assert rpc.output_type == f".genret.v1.{rpc.name}Response"


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_everything_in_the_sources_is_commented(source: Path) -> None:
    lines = [line.strip() for line in source.read_text(encoding="utf-8").splitlines()]
    declaration = re.compile(
        r"(service|message|enum|oneof|rpc)\s+\w+|[A-Z][A-Z0-9_]+ = \d+;|(\w+ )?[\w.<>, ]+ \w+ = \d+;"
    )
    for before, line in itertools.pairwise(lines):
        if declaration.match(line):
            assert before.startswith("//"), f"{source.name}: no comment above: {line}"


def test_the_stubs_live_beside_anybody_elses_stubs_of_the_package() -> None:
    from genret.service.pb.genret.v1 import retrieval_service_pb2

    assert retrieval_service_pb2.DESCRIPTOR.name == "genret/v1/retrieval_service.proto"
    assert isinstance(retrieval_service_pb2.RetrievalMethod.DESCRIPTOR, EnumDescriptor)
    assert not (PROTO / "__init__.py").exists(), "the import name proto belongs to proto-plus"
