"""Writes the API as a descriptor set with its comments, for buf and the OpenAPI document.

python -m service.pb.descriptors --out FILE [--proto DIR]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from service.pb.regenerate import include_directories


def descriptor_set(proto_root: Path) -> bytes:
    """Return the serialised FileDescriptorSet of the sources below `proto_root` and of all their imports."""
    sources = sorted(path.relative_to(proto_root).as_posix() for path in proto_root.rglob("*.proto"))
    includes = [f"-I{path}" for path in include_directories(proto_root)]
    with tempfile.TemporaryDirectory() as staging:
        out = Path(staging) / "set.binpb"
        command = [sys.executable, "-m", "grpc_tools.protoc", *includes, f"--descriptor_set_out={out}"]
        subprocess.run([*command, "--include_imports", "--include_source_info", *sources], check=True)
        return out.read_bytes()


def main() -> None:
    """Write the set."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--proto", type=Path, default=Path(__file__).resolve().parents[2] / "proto")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.write_bytes(descriptor_set(arguments.proto))


if __name__ == "__main__":
    main()
