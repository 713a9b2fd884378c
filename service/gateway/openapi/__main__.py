"""Write the checked-in document again.

python -m service.gateway.openapi [--proto DIR] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from service.gateway.openapi.document import openapi_document
from service.pb.descriptors import descriptor_set

DOCUMENT = Path(__file__).parents[1] / "openapi.json"
API_VERSION = "v1"


def rendered(proto_root: Path) -> str:
    """Return the text of the document."""
    document = openapi_document(descriptor_set(proto_root), API_VERSION)
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the document."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--proto", type=Path, default=Path(__file__).resolve().parents[3] / "proto")
    parser.add_argument("--out", type=Path, default=DOCUMENT)
    arguments = parser.parse_args()
    arguments.out.write_text(rendered(arguments.proto), encoding="utf-8")


if __name__ == "__main__":
    main()
