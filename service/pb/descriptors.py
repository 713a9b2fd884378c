"""Writes the API as a descriptor set with its comments, for buf and the OpenAPI document.

python -m genret.service.pb.descriptors --out FILE [--proto DIR]
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

from genret.service.pb.regenerate import compiler


def descriptor_set(proto_root: Path) -> bytes:
    """Return the serialised FileDescriptorSet of the sources below `proto_root` and of all their imports."""
    command, sources = compiler(proto_root)
    with tempfile.TemporaryDirectory() as staging:
        out = Path(staging) / "set.binpb"
        options = [f"--descriptor_set_out={out}", "--include_imports", "--include_source_info"]
        subprocess.run([*command, *options, *sources], check=True)
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
