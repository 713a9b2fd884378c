"""Regenerates the stubs under `service/pb` from the sources under `proto/`.

    python -m genret.service.pb.regenerate [--proto DIR] [--out DIR]
    python -m genret.service.pb.regenerate [--proto DIR] --descriptors FILE  (for buf)

The compiler is the *oldest* supported grpcio-tools (`GRPCIO_TOOLS_VERSION`), because generated code refuses
to run on an older grpcio or protobuf. It runs with plain `-Iproto`, so that the stubs register the same file
names as anybody's stubs of `genret.v1` and both can live in one process; the package path of the imports is
rewritten afterwards.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

GRPCIO_TOOLS_VERSION = "1.74.0"
PACKAGE = "genret.service.pb"
_REPOSITORY = Path(__file__).resolve().parents[2]
_OWN_IMPORT = re.compile(r"^(from|import) genret\.v1", flags=re.MULTILINE)


def generate(proto_root: Path, out: Path) -> list[Path]:
    """Compile every `.proto` under `proto_root` into `out`; return the written files, relative and sorted.

    Raises:
        subprocess.CalledProcessError: the compiler refused a source; its own words are on stderr.
    """
    command, sources = compiler(proto_root)
    with tempfile.TemporaryDirectory() as staging:
        outputs = [f"--{kind}_out={staging}" for kind in ("python", "pyi", "grpc_python")]
        subprocess.run([*command, *outputs, *sources], check=True)
        written = sorted(path.relative_to(staging) for path in Path(staging).rglob("*.py*"))
        for relative in written:
            text = (Path(staging) / relative).read_text(encoding="utf-8")
            target = out / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(_OWN_IMPORT.sub(rf"\1 {PACKAGE}.genret.v1", text), encoding="utf-8")
    return written


def descriptor_set(proto_root: Path) -> bytes:
    """Return the serialised FileDescriptorSet, with comments, of the sources and all their imports."""
    command, sources = compiler(proto_root)
    with tempfile.TemporaryDirectory() as staging:
        out = Path(staging) / "set.binpb"
        options = [f"--descriptor_set_out={out}", "--include_imports", "--include_source_info"]
        subprocess.run([*command, *options, *sources], check=True)
        return out.read_bytes()


def compiler(proto_root: Path) -> tuple[list[str], list[str]]:
    """Return the command that compiles, with its include directories, and the sources."""
    # google.rpc is a namespace package without its own directory: look for one of its modules.
    google_rpc = _package_file("google.rpc.status_pb2").parents[2]
    folders = (proto_root, google_rpc, _package_file("grpc_tools").parent / "_proto")
    sources = sorted(path.relative_to(proto_root).as_posix() for path in proto_root.rglob("*.proto"))
    return [sys.executable, "-m", "grpc_tools.protoc", *(f"-I{path}" for path in folders)], sources


def _package_file(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{module} is not installed; it is part of the development dependencies")
    return Path(spec.origin)


def main() -> None:
    """Regenerate the checked-in stubs, and the OpenAPI document from the same sources."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--proto", type=Path, default=_REPOSITORY / "proto")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent)
    parser.add_argument("--descriptors", type=Path, help="Write the API as a descriptor set here instead.")
    arguments = parser.parse_args()
    if arguments.descriptors is not None:
        arguments.descriptors.write_bytes(descriptor_set(arguments.proto))
        return
    installed = importlib.metadata.version("grpcio-tools")
    if installed != GRPCIO_TOOLS_VERSION:
        parser.error(f"grpcio-tools {GRPCIO_TOOLS_VERSION} is needed, {installed} is installed")
    stubs = arguments.out / "genret"
    for stale in [*stubs.rglob("*_pb2*.py"), *stubs.rglob("*_pb2*.pyi")]:
        stale.unlink()
    shutil.rmtree(stubs / "__pycache__", ignore_errors=True)
    for relative in generate(arguments.proto, arguments.out):
        sys.stderr.write(f"{arguments.out / relative}\n")
    if arguments.out == Path(__file__).resolve().parent:
        # In another process: it imports the new stubs.
        subprocess.run([sys.executable, "-m", "genret.service.pb.openapi"], check=True)


if __name__ == "__main__":
    main()
